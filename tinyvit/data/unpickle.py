"""Reading a pickle without running what is in it.

A pickle is a program: it may name any function and call it with any arguments. `Unpickler.find_class` is where names are
looked up, so a reader that answers to seven names only, with functions of its own, runs nobody else's code. Even NumPy's own
reconstruction is replaced, since a forged dtype could make it take bytes for pointers.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from .errors import DataError

NUMBERS = {"b1", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f4", "f8"}


class Refused(Exception):
    """The pickle names something that is not data."""


def load_plain(path: Path) -> dict[str, Any]:
    """The dict in a pickle of arrays, bytes, strings, lists, dicts and numbers; keys may be bytes or str, and become str.

    Raises DataError for a pickle that names anything else, which is not run, and for a file that is no such pickle.
    """
    try:
        with open(path, "rb") as file:
            found = PlainUnpickler(file, encoding="bytes").load()
        if isinstance(found, dict):
            return {_text(key): value.array if isinstance(value, Array) else value for key, value in found.items()}
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    except Refused as error:
        raise DataError(f"{path} was refused, and nothing in it was run: the pickle asks for {error}, but only arrays, bytes, "
                        "strings, lists, dicts and numbers are read; get the file from its official source") from None
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise DataError(f"{path} is not a readable pickle ({type(error).__name__}): it is damaged or another file; "
                        "copy or download it again") from None
    raise DataError(f"{path} holds a {type(found).__name__}; expected a dict with data and labels: it is another file")


class PlainUnpickler(pickle.Unpickler):
    """Knows the names that pickles of NumPy 1 and 2, from Python 2 and 3, use for plain arrays and bytes."""

    def find_class(self, module: str, name: str) -> Any:
        known = PLAIN.get((module.replace("numpy.core", "numpy._core"), name))
        if known is None:
            raise Refused(f"{module}.{name}")
        return known


class Array:
    """An array in the making: NumPy's pickles make an empty one first and fill it with `__setstate__`."""

    __slots__ = ("array",)
    array: np.ndarray

    def __setstate__(self, state: tuple) -> None:
        _version, shape, dtype, fortran, raw = state
        self.array = _frombuffer(raw, dtype, shape, "F" if fortran else "C").array


class DType:
    """The type of an array: a number of a given size and byte order."""

    __slots__ = ("code", "order")
    code: str
    order: Any

    def __setstate__(self, state: tuple) -> None:
        self.order = _text(state[1])


def _text(value: bytes | str) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else value


def _dtype(code: bytes | str, *_flags: bool) -> DType:
    made = DType()
    made.code, made.order = _text(code), "="
    if made.code not in NUMBERS:
        raise Refused(f"an array of {made.code!r}")
    return made


def _frombuffer(raw: bytes, dtype: DType, shape: tuple, order: bytes | str) -> Array:
    made = Array()
    flat = np.frombuffer(raw, np.dtype(dtype.code).newbyteorder(dtype.order))
    made.array = flat.reshape(shape, order=_text(order))  # type: ignore[call-overload]
    return made


def _reconstruct(_kind: Any, _shape: tuple, _code: bytes) -> Array:
    return Array()


def _scalar(dtype: DType, raw: bytes) -> Any:
    return _frombuffer(raw, dtype, (), "C").array.item()


def _encode(text: str, encoding: str) -> bytes:
    if _text(encoding) not in ("latin1", "latin-1"):  # how Python 3 writes bytes for Python 2
        raise Refused(f"the codec {encoding!r}")
    return text.encode("latin1")


PLAIN: dict[tuple[str, str], Any] = {
    ("numpy", "dtype"): _dtype,
    ("numpy", "ndarray"): "ndarray",  # an argument of _reconstruct, which does without it
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("numpy._core.numeric", "_frombuffer"): _frombuffer,
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): lambda: b"",  # the empty one, which needs no encoding
}
