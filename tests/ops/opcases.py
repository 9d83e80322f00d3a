"""Runs a declared case of a public op: fresh inputs, parameters and a fixed random upstream gradient."""

import inspect
import zlib

import numpy as np

import tinyvit as tv
from tinyvit.registry import CASES, Case

ALL = [(name, case) for name, cases in CASES.items() for case in cases]
IDS = [f"{name}[{case}]" for name, case in ALL]


def seed_of(name: str, case: Case) -> int:
    return zlib.crc32(f"{name}{case}".encode())


def strided(a: np.ndarray) -> np.ndarray:
    """The same values as a view with gaps: every second element of a larger array, along every axis."""
    big = np.full([2 * n for n in a.shape], np.nan, a.dtype)
    view = big[tuple(slice(None, None, 2) for _ in a.shape)]
    view[...] = a
    return view


def transposed(a: np.ndarray) -> np.ndarray:
    """The same values stored the other way round (Fortran order)."""
    return np.array(a.T, order="C").T


LAYOUTS = {"contiguous": np.ascontiguousarray, "strided": strided, "transposed": transposed}


class Run:
    """One op applied to one case: its inputs as Tensors and a function that applies it to any tensors."""

    def __init__(self, name: str, case: Case, dtype=np.float64, layout: str = "contiguous", requires_grad: bool = True):
        self.name, self.case = name, case
        self.arrays, _ = case.arrays(np.random.default_rng(seed_of(name, case)), dtype)
        self.inputs = [tv.Tensor(LAYOUTS[layout](a) if a.ndim else a, requires_grad) for a in self.arrays]

    def params(self) -> dict:
        """Drawn afresh from the same seed at each call: an op may write into them (running statistics, generators)."""
        rng = np.random.default_rng(seed_of(self.name, self.case))
        return self.case.arrays(rng)[1]

    def apply(self, *tensors):
        function, params = getattr(tv, self.name), self.params()
        names = [n for n in inspect.signature(function).parameters if n not in params]
        given = {names[0]: list(tensors)} if self.case.sequence else dict(zip(names, tensors))
        out = function(**given, **params)
        return out if isinstance(out, tuple) else (out,)

    def upstream(self, shape, slot: int = 0) -> np.ndarray:
        return np.asarray(np.random.default_rng(seed_of(self.name, self.case) + 1 + slot).standard_normal(shape))

    def backward(self, outputs) -> None:
        """Weight every output with its fixed random upstream gradient and send that back."""
        for slot, y in enumerate(outputs):
            y.backward(self.upstream(y.shape, slot).astype(y.dtype), retain_graph=slot < len(outputs) - 1)
