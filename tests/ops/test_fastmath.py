"""exp32, tanh32 and erf32 inside compiled loops, against double precision."""

import math

import numpy as np
import pytest

from tinyvit.backend import kernel, prange
from tinyvit.ops.fastmath import erf32, exp32, tanh32

pytest.importorskip("numba")


@kernel
def exp_of_all(x):
    return np.exp(x)


@exp_of_all.numba(flat=True)
def exp_of_all(x):
    y = np.empty_like(x)
    for i in prange(x.size):
        y[i] = exp32(x[i])
    return y


@kernel
def tanh_of_all(x):
    return np.tanh(x)


@tanh_of_all.numba(flat=True)
def tanh_of_all(x):
    y = np.empty_like(x)
    for i in prange(x.size):
        y[i] = tanh32(x[i])
    return y


@kernel
def erf_of_all(x):
    return np.array([math.erf(v) for v in x])


@erf_of_all.numba(flat=True)
def erf_of_all(x):
    y = np.empty_like(x)
    for i in prange(x.size):
        y[i] = erf32(x[i])
    return y


@pytest.mark.parametrize(("function", "low", "high", "ulps"),
                         [(exp_of_all, -86.5, 88.72, 1.1), (tanh_of_all, -10, 10, 1.5), (erf_of_all, -5, 5, 1.4)])
def test_error_in_units_of_the_last_place(function, low, high, ulps, rng):
    spread = np.concatenate([np.linspace(low, high, 20_000), np.linspace(-1.5, 1.5, 20_000), 10.0 ** np.arange(-37, 0)])
    x = np.concatenate([spread, rng.uniform(low, high, 20_000)]).astype(np.float32)
    right = function.reference(x.astype(np.float64))
    error = np.abs(function.compiled(x) - right) / np.spacing(np.abs(right).astype(np.float32))
    assert error.max() <= ulps, f"{error.max():.2f} units at {x[error.argmax()]}"


def test_corners():
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-40, 89, -87.5, 3e38, -3e38], np.float32)
    expected = {exp_of_all: [np.inf, 0, np.nan, 1, 1, 1, np.inf, 0, np.inf, 0],
                tanh_of_all: [1, -1, np.nan, 0, -0.0, 1e-40, 1, -1, 1, -1],
                erf_of_all: [1, -1, np.nan, 0, -0.0, 1.1283674e-40, 1, -1, 1, -1]}
    for function, right in expected.items():
        y = function.compiled(x)
        assert np.allclose(y, np.array(right, np.float32), rtol=0, atol=1e-44, equal_nan=True), (function.name, y)
