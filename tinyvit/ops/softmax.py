"""softmax and log_softmax along any axis."""

from __future__ import annotations

import numpy as np

from ..autograd import Op
from ..backend import SUM, kernel, prange, xp
from ..registry import case, public
from ..tensor import Tensor, as_tensor
from .fastmath import exp32


@kernel
def softmax_rows(x):
    e = xp.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


@softmax_rows.numba
def softmax_rows(x):
    y = np.empty_like(x)
    for i in prange(x.shape[0]):
        m = x[i, 0]
        for j in range(x.shape[1]):
            m = x[i, j] if x[i, j] > m or x[i, j] != x[i, j] else m
        total = np.float32(0)
        for j in range(x.shape[1]):
            y[i, j] = exp32(x[i, j] - m)
            total += y[i, j]
        for j in range(x.shape[1]):
            y[i, j] /= total
    return y


@kernel
def softmax_rows_backward(g, y):
    return y * (g - (g * y).sum(axis=1, keepdims=True))


@softmax_rows_backward.numba(fastmath=SUM)
def softmax_rows_backward(g, y):
    dx = np.empty_like(y)
    for i in prange(y.shape[0]):
        dot = np.float32(0)
        for j in range(y.shape[1]):
            dot += g[i, j] * y[i, j]
        for j in range(y.shape[1]):
            dx[i, j] = y[i, j] * (g[i, j] - dot)
    return dx


def _rows(x):
    return x.reshape(-1, x.shape[-1]) if x.size else x.reshape(0, 1)


class Softmax(Op):
    """y_i = e^(x_i - m) / Σ_j e^(x_j - m),  m = max_j x_j      x, y: (..., n), along the last axis

    dx_i = y_i (g_i - Σ_j g_j y_j)
    """

    def forward(self, x):
        y = softmax_rows(_rows(x)).reshape(x.shape)
        self.save(y)
        return y

    def backward(self, g):
        (y,) = self.saved
        return softmax_rows_backward(_rows(g), _rows(y)).reshape(y.shape)


class LogSoftmax(Op):
    """y_i = x_i - m - ln Σ_j e^(x_j - m),  m = max_j x_j      x, y: (..., n), along the last axis

    dx_i = g_i - e^(y_i) Σ_j g_j
    """

    def forward(self, x):
        if x.size == 0:
            y = x.copy()
        else:
            shifted = x - x.max(axis=-1, keepdims=True)
            y = shifted - xp.log(xp.exp(shifted).sum(axis=-1, keepdims=True))
        self.save(y)
        return y

    def backward(self, g):
        (y,) = self.saved
        return g - xp.exp(y) * g.sum(axis=-1, keepdims=True)


def _along(op: type[Op], x, axis: int, name: str) -> Tensor:
    x = as_tensor(x)
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"{name} has no axis {axis} in shape {x.shape}: a tensor of at least one axis is needed, "
                         f"and axes go from {-x.ndim} to {x.ndim - 1}")
    if axis % x.ndim == x.ndim - 1:
        return op.apply(x)
    return op.apply(x.swapaxes(axis, -1)).swapaxes(axis, -1)


@public(case((3, 4)), case((2, 3, 4), axis=1), case((5,)), case((0, 3)), case((3, 0)),
        case(lambda rng: [[800.0, 1.0, 1.0], [-1e4, -1e4, -1e4], [1000.0, 1000.0, 0.0]]))
def softmax(x, axis: int = -1) -> Tensor:
    """e^x / Σ e^x along `axis`, stable for any x. A row of -inf only is NaN, as in PyTorch."""
    return _along(Softmax, x, axis, "softmax")


@public(case((3, 4)), case((2, 3, 4), axis=0), case((5,)), case((0, 3)), case((3, 0)),
        case(lambda rng: [[800.0, 1.0, 1.0], [-1e4, -1e4, -1e4]]))
def log_softmax(x, axis: int = -1) -> Tensor:
    """ln softmax(x) along `axis`, without forming the softmax."""
    return _along(LogSoftmax, x, axis, "log_softmax")
