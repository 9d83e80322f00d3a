"""The table of public ops, and what each declares about itself.

`@public(case(...), ...)` puts a function into `FUNCTIONS`: the package exports it, `Tensor`'s methods call it, and the
test suite checks every declared case of every entry, so an op cannot be added untested.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

FUNCTIONS = SimpleNamespace()  # name -> function: tv.NAME and, for the common ones, Tensor.NAME
CASES: dict[str, tuple[Case, ...]] = {}

# How random inputs are drawn. Kinks (relu at 0, ties of max) are kept farther away than a finite difference reaches.
DOMAINS: dict[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]] = {
    "real": lambda rng, shape: rng.standard_normal(shape),
    "positive": lambda rng, shape: rng.uniform(0.5, 2.0, shape),
    "nonzero": lambda rng, shape: rng.uniform(0.3, 2.0, shape) * rng.choice([-1.0, 1.0], shape),
    "distinct": lambda rng, shape: rng.permutation(np.arange(np.prod(shape, dtype=int)) * 0.11 - 1.03).reshape(shape),
    "probability": lambda rng, shape: (lambda e: e / e.sum(-1, keepdims=True))(rng.uniform(0.1, 1.0, shape)),
}


@dataclass(frozen=True)
class Case:
    """One input on which an op is checked: shapes of its tensors, its other arguments, and where values come from."""

    inputs: tuple
    params: dict[str, Any] = field(default_factory=dict)
    domain: str = "real"
    differentiable: bool = True
    sequence: bool = False  # the op takes its tensors as one list, as concat does

    def arrays(self, rng: np.random.Generator, dtype=np.float64) -> tuple[list[np.ndarray], dict[str, Any]]:
        """Random inputs of the declared shapes, and the parameters (those that are functions of `rng` are drawn)."""
        draw = DOMAINS[self.domain]
        arrays = [np.asarray(shape(rng) if callable(shape) else draw(rng, shape), dtype=dtype) for shape in self.inputs]
        return arrays, {k: v(rng) if callable(v) else v for k, v in self.params.items()}

    def __str__(self) -> str:
        shapes = ",".join("made" if callable(s) else "x".join(map(str, s)) or "0-d" for s in self.inputs)
        params = ",".join(f"{k}={'made' if callable(v) else v}" for k, v in self.params.items())
        return "-".join(filter(None, (shapes, params.replace(" ", ""), self.domain if self.domain != "real" else "")))


def case(*inputs, domain: str = "real", differentiable: bool = True, sequence: bool = False, **params) -> Case:
    """`case((3, 4), (4,), axis=1)`: a Case with two inputs of those shapes and one parameter."""
    return Case(inputs, params, domain, differentiable, sequence)


def public(*cases: Case):
    """Declare a function of tensors as part of the API, with the cases that check it."""

    def declare(function: Callable) -> Callable:
        name = function.__name__
        if not cases:
            raise ValueError(f"{name} declares no case: give @public at least one case(...)")
        if name in CASES:
            raise ValueError(f"two public functions are called {name}")
        setattr(FUNCTIONS, name, function)
        CASES[name] = cases
        return function

    return declare
