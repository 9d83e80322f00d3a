"""Which arrays and which kernels: numpy | numba | cupy.

An op computes with *kernels*. A kernel is a reference, plain array code in terms of `xp` (NumPy, or CuPy on a GPU),
and sometimes a numba version with the same signature beside it:

    @kernel
    def double(x):                      # the definition
        return x + x

    @double.numba(flat=True)
    def double(x):                      # the optimisation: float32, C-contiguous arrays
        y = np.empty_like(x)
        for i in prange(x.size):
            y[i] = x[i] + x[i]
        return y

The reference defines what is right. The numba version runs when the backend is `numba`, every floating array is float32
and nothing has size zero; a `when=` rule may narrow that further, from shapes alone, so that runs repeat bit for bit.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

BACKENDS = ("numpy", "numba", "cupy")
SUM = {"reassoc", "nsz", "arcp", "contract"}  # fastmath flags that let a sum be vectorised and keep NaN and inf right
KERNELS: dict[str, Kernel] = {}


class BackendError(RuntimeError):
    """The backend asked for cannot run here; the message says what is missing and how to mend it."""


class _ArrayModule:
    """`xp`: the functions of NumPy or CuPy, whichever the current backend computes with."""

    module: types.ModuleType = np

    def __getattr__(self, name: str):
        return getattr(self.module, name)


xp = _ArrayModule()
_current = "numpy"


def use(name: str) -> None:
    """Compute with `name` from here on: "numpy" (references), "numba" (kernels on the CPU) or "cupy" (a GPU).

    Raises ValueError for an unknown name and BackendError where the library or the GPU is missing.
    """
    global _current
    if name not in BACKENDS:
        raise ValueError(f"unknown backend {name!r}: expected one of {', '.join(BACKENDS)}")
    if name == "cupy":
        xp.module = _working_cupy()
    else:
        if name == "numba":
            _require_numba()
        xp.module = np
    _current = name


def current() -> str:
    """The name of the backend in use."""
    return _current


@contextlib.contextmanager
def using(name: str) -> Iterator[None]:
    """`use(name)` for the length of a `with` block."""
    before = _current
    use(name)
    try:
        yield
    finally:
        use(before)


def _working_cupy() -> types.ModuleType:
    try:
        import cupy
    except ImportError:
        raise BackendError("backend 'cupy' needs CuPy: pip install 'tinyvit[cupy13]' (CUDA 13) or "
                           "'tinyvit[cupy12]' (CUDA 12), or use backend 'numba'") from None
    try:
        cupy.cuda.Device().use()
        cupy.zeros(1)
    except Exception as error:  # CuPy raises its own types, which differ between versions
        reason = str(error).splitlines()[0]
        raise BackendError(f"CuPy {cupy.__version__} finds no working GPU ({reason}): check the driver with "
                           f"nvidia-smi, or use backend 'numba'") from None
    return cupy


def _require_numba() -> None:
    import importlib.util

    if importlib.util.find_spec("numba") is None:
        raise BackendError("backend 'numba' needs numba: pip install numba, or use backend 'numpy'")


def to_numpy(array) -> np.ndarray:
    """The array on the CPU: itself for NumPy, a copy from the GPU for CuPy."""
    return array if isinstance(array, np.ndarray) else array.get()


# ---------------------------------------------------------------------------------------------- kernels


class Kernel:
    """A reference function with an optional numba version of the same signature. Call it like a function."""

    def __init__(self, reference: Callable):
        self.reference = reference
        self.name = reference.__name__
        self.__doc__ = reference.__doc__
        self.source: Callable | None = None  # the numba version, not compiled
        self.when: Callable[..., bool] | None = None
        self.mutates = False
        self.serial = False
        self.flat = False
        self.fastmath: bool | set[str] = False
        self._compiled: Callable | None = None
        other = KERNELS.get(self.name)
        if other is not None and other.reference.__module__ != reference.__module__:  # a notebook cell may be run again
            raise ValueError(f"two kernels are called {self.name}: one in {other.reference.__module__}, one in "
                             f"{reference.__module__}")
        KERNELS[self.name] = self

    def numba(self, source: Callable | None = None, *, when: Callable[..., bool] | None = None,
              mutates: bool = False, serial: bool = False, flat: bool = False, fastmath: bool | set[str] = False):
        """Declare the numba version. It is compiled at its first call, never at import.

        when: a rule on the arguments (shapes only) that says where this version is the faster one.
        mutates: it writes into its arguments, which therefore are never replaced by contiguous copies.
        serial: it has no prange.
        flat: it works element by element; it gets arrays of one shape as 1-D views, and its result is shaped like them.
        fastmath: numba's flags; SUM for reductions, never True, which computes as if there were no NaN and inf.
        """
        if source is None:
            return lambda f: self.numba(f, when=when, mutates=mutates, serial=serial, flat=flat, fastmath=fastmath)
        self.source, self.when, self.mutates, self.serial = source, when, mutates, serial
        self.flat, self.fastmath = flat, fastmath
        return self

    def compiled(self, *args):
        """The numba version, whatever `when` says; compiles at the first call."""
        if self._compiled is None:
            if self.source is None:
                raise BackendError(f"{self.name} has no numba version: it runs as its reference")
            self._compiled = _compile(self.source, parallel=not self.serial, fastmath=self.fastmath)
        if self.flat:
            shape = args[0].shape
            args = tuple(a.reshape(-1) if isinstance(a, np.ndarray) else a for a in args)
        with _one_at_a_time:
            try:
                result = self._compiled(*args)
            except SystemError as error:  # what becomes of Ctrl-C that comes while numba wraps up a result
                first: BaseException = error
                while first.__cause__ is not None:
                    first = first.__cause__
                if isinstance(first, KeyboardInterrupt):
                    raise first from None
                raise
        return result.reshape(shape) if self.flat and result is not None else result

    def fits(self, *args) -> bool:
        """Whether the numba version takes these arguments: float32 and not empty; contiguous if it writes to them."""
        arrays = [a for a in args if isinstance(a, np.ndarray)]
        for a in arrays:
            if a.size == 0 or a.ndim == 0 or (a.dtype.kind == "f" and a.dtype != np.float32):
                return False
            if (self.mutates and not a.flags.c_contiguous) or (self.flat and a.shape != arrays[0].shape):
                return False
        return bool(arrays)

    def __call__(self, *args):
        if _current == "numba" and self.source is not None and self.fits(*args):
            if _forked:
                _warn_of_fork()
                return self.reference(*args)
            if not self.mutates:
                args = tuple(_ready(a) if isinstance(a, np.ndarray) else a for a in args)
            fast = self.when is None or self.when(*args)
            if _recorders:
                for record in _recorders:
                    record(self, args, fast)
            if fast:
                return self.compiled(*args)
        return self.reference(*args)

    def __repr__(self) -> str:
        return f"<kernel {self.name}: {'reference and numba' if self.source else 'reference'}>"


def _ready(a: np.ndarray) -> np.ndarray:
    """Contiguous and writable: numba takes a read-only array for another type, and would compile the kernel once more."""
    return np.ascontiguousarray(a) if a.flags.writeable else np.array(a, order="C")


def kernel(reference: Callable) -> Kernel:
    """Declare a kernel by its reference; see the top of this file."""
    return Kernel(reference)


class Device:
    """A small function that numba kernels call; compiled with the first kernel that uses it."""

    def __init__(self, source: Callable, build: Callable | None = None, **options):
        self.source, self.build, self.options = source, build, options
        self._compiled: Callable | None = None
        self.__doc__, self.__name__ = source.__doc__, source.__name__

    def compiled(self):
        if self._compiled is None:
            self._compiled = self.source() if self.build else _compile(self.source, parallel=False, **self.options)
        return self._compiled

    def __call__(self, *args):  # in plain Python, for reading and debugging
        return self.source(*args)


def device(source: Callable | None = None, **options: Any):
    """Declare a function for use inside numba kernels; `options` are numba.njit's (inline="always", fastmath=...)."""
    return Device(source, **options) if source is not None else (lambda f: Device(f, **options))


def lazy_device(factory: Callable) -> Device:
    """Declare a device function that `factory()` makes once, such as an LLVM intrinsic that needs llvmlite imported."""
    return Device(factory, build=factory)


prange = range  # in a kernel's source this name becomes numba.prange when the kernel is compiled


def _compile(source: Callable, parallel: bool, **options) -> Callable:
    numba = _load_numba()
    swapped = {"prange": numba.prange}
    for name in source.__code__.co_names:
        value = source.__globals__.get(name)
        if isinstance(value, Device):
            swapped[name] = value.compiled()
    plain = types.FunctionType(source.__code__, {**source.__globals__, **swapped}, source.__name__,
                               source.__defaults__, source.__closure__)
    plain.__module__, plain.__qualname__ = source.__module__, source.__qualname__
    in_a_file = os.path.isfile(source.__code__.co_filename)  # numba cannot cache what a notebook or exec() defines
    folder = _cache_folder() if in_a_file else None
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(folder or "")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", numba.NumbaPerformanceWarning)
            # NumPy's error model: x / 0 is inf, where Python's would put a check into every division and stop vectorisation.
            compiled = numba.njit(**{"error_model": "numpy", **options}, parallel=parallel, cache=folder is not None,
                                  nogil=True)(plain)
    finally:
        numba.config.CACHE_DIR = before
    return compiled


_numba: types.ModuleType | None = None
_folder: list[Path | None] = []


def _load_numba() -> types.ModuleType:
    """numba, set up: OpenMP's threads where there is OpenMP, since they wake up sooner than numba's own."""
    global _numba
    if _numba is None:
        import numba

        if "NUMBA_THREADING_LAYER_PRIORITY" not in os.environ:
            numba.config.THREADING_LAYER_PRIORITY = ["omp", "workqueue", "tbb"]  # type: ignore[attr-defined]
        _keep_freed_memory()
        _numba = numba
    return _numba


def _keep_freed_memory() -> None:
    """Have glibc reuse freed arrays: it hands large ones back to the system, and touching fresh pages costs as much as the op.

    Measured on 32 MB arrays, an addition takes 6.0 ms with reused and 11.8 ms with fresh memory. Elsewhere than glibc nothing
    is changed.
    """
    import ctypes

    M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return
    mallopt(M_MMAP_MAX, 0)
    mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def _cache_folder() -> Path | None:
    """Where compiled kernels are kept: one folder per state of the sources, since numba does not see changed helpers.

    None, with one warning, where nothing can be written.
    """
    if not _folder:
        import platformdirs

        root = Path(os.environ.get("TINYVIT_CACHE") or platformdirs.user_cache_dir("tinyvit"))
        digest = hashlib.sha256()
        package = Path(__file__).parent
        for file in (package / "backend.py", *sorted(package.glob("ops/*.py")), *sorted(package.glob("optim/*.py"))):
            digest.update(file.read_bytes())
        folder = root / "kernels" / digest.hexdigest()[:16]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe = folder / f".writable-{os.getpid()}-{threading.get_ident()}"
            probe.touch()
            probe.unlink()
            _folder.append(folder)
        except OSError as error:
            warnings.warn(f"kernels will be compiled each time: cannot write to {folder} ({error.strerror}); set "
                          f"TINYVIT_CACHE to a folder you can write to", RuntimeWarning, stacklevel=2)
            _folder.append(None)
    return _folder[0]


# numba's workqueue aborts the process when two Python threads are inside parallel kernels, so one enters at a time.
_one_at_a_time = threading.RLock()


_forked = False  # whether this process is a child made by fork after its parent had run a kernel


def _after_fork() -> None:
    global _forked, _one_at_a_time
    _one_at_a_time = threading.RLock()
    _forked = _numba is not None


def _warn_of_fork() -> None:
    """OpenMP's threads do not survive a fork, and entering a parallel kernel in the child would hang."""
    warnings.warn("tinyvit computes with its NumPy references in this process, which was forked after a kernel had run: "
                  "start processes with multiprocessing's 'spawn' for full speed", RuntimeWarning, stacklevel=3)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

_recorders: list[Callable] = []


@contextlib.contextmanager
def record_calls() -> Iterator[list[tuple[Kernel, tuple, bool]]]:
    """Collect (kernel, arguments, whether the numba version ran) of every call that a numba version could take.

    What the equality tests and `bench kernels` walk: real arguments, from ops and from training steps.
    """
    calls: list[tuple[Kernel, tuple, bool]] = []

    def record(kernel: Kernel, args: tuple, fast: bool) -> None:
        calls.append((kernel, tuple(a.copy() if isinstance(a, np.ndarray) else a for a in args), fast))

    _recorders.append(record)
    try:
        yield calls
    finally:
        _recorders.remove(record)


def _initial() -> str:
    asked = os.environ.get("TINYVIT_BACKEND")
    if asked:
        return asked
    import importlib.util

    if importlib.util.find_spec("numba") is not None:
        return "numba"
    print("tinyvit: numba is not installed, so everything runs on NumPy references (slower)", file=sys.stderr)
    return "numpy"


use(_initial())
