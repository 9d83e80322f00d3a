"""Matrix products: matmul, linear, embedding."""

from __future__ import annotations

import math

import numpy as np

from ..autograd import Op
from ..backend import device, kernel, prange, xp
from ..registry import case, public
from ..tensor import Tensor, as_tensor
from .microkernel import GR, NR
from .products import pack_columns, pack_rows, product, round_up, steps

CHUNKS = 64  # shares of the work, which threads take


def _many_small(a, b, trans_a, trans_b) -> bool:
    """Where NumPy would call BLAS matrix by matrix, each too small to be worth two threads.

    Measured with AVX2, one thread each: ours reaches 0.5 to 1.1 of BLAS from 16 rows and columns on, and takes all threads
    for the batch; for vectors and 8x8 it is slower than that. Two-dimensional products stay with BLAS.
    """
    rows, columns = a.shape[2 if trans_a else 1], b.shape[1 if trans_b else 2]
    return len(a) >= 16 and min(rows, columns) >= 16 and max(a[0].size, b[0].size) <= 2**16


@device
def multiply_share(a, b, sizes, trans_a, trans_b, y, chunk, chunks):
    """One share of the products of `matmul_batch`; arrays flat, sizes: (batch, rows, depth, columns)."""
    batch, rows, depth, columns = sizes
    along, down = steps(depth, rows if trans_a else 1), steps(rows, 1 if trans_a else depth)
    panels, edge = np.empty(round_up(columns, NR) * depth, np.float32), np.empty(GR * NR, np.float32)
    for i in range(batch * chunk // chunks, batch * (chunk + 1) // chunks):
        if trans_b:
            pack_rows(b, i * columns * depth, depth, columns, depth, np.float32(1), panels)
        else:
            pack_columns(b, i * columns * depth, columns, depth, columns, np.float32(1), panels)
        product(a[i * rows * depth:], along, down, rows, depth, panels, columns, y, i * rows * columns, columns, False, edge)


@kernel
def matmul_batch(a, b, trans_a, trans_b):
    """y[i] = a[i] b[i]; a (batch, rows, depth), or (batch, depth, rows) if trans_a; b likewise."""
    return (a.swapaxes(1, 2) if trans_a else a) @ (b.swapaxes(1, 2) if trans_b else b)


@matmul_batch.numba(when=_many_small)
def matmul_batch(a, b, trans_a, trans_b):
    rows, depth = (a.shape[2], a.shape[1]) if trans_a else (a.shape[1], a.shape[2])
    sizes = len(a), rows, depth, b.shape[1] if trans_b else b.shape[2]
    y = np.empty((len(a), rows, sizes[3]), np.float32)
    left, right, out = a.ravel(), b.ravel(), y.ravel()
    for chunk in prange(CHUNKS):
        multiply_share(left, right, sizes, trans_a, trans_b, out, chunk, CHUNKS)
    return y


def _as_stored(x):
    """x (..., n, m) as one batch of matrices and whether it holds them transposed: a transposed view is not copied."""
    transposed = not x.flags.c_contiguous and x.swapaxes(-1, -2).flags.c_contiguous
    x = x.swapaxes(-1, -2) if transposed else x
    return x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:]), transposed


def _multiply(a, b):
    """a @ b for arrays of two axes and more."""
    if b.ndim == 2:  # one product, however many axes a has
        rows = a.shape[:-1]
        return (a.reshape(math.prod(rows), a.shape[-1]) @ b).reshape(*rows, b.shape[-1])
    if a.shape[:-2] != b.shape[:-2]:
        return a @ b
    (left, trans_a), (right, trans_b) = _as_stored(a), _as_stored(b)
    return matmul_batch(left, right, trans_a, trans_b).reshape(*a.shape[:-1], b.shape[-1])


class Matmul(Op):
    """Y = A B;   dA = G Bᵀ, dB = Aᵀ G      A (..., n, k), B (..., k, m), Y (..., n, m)

    A vector is a matrix of one row (A) or one column (B).
    """

    def forward(self, a, b):
        self.save(a if self.needs[1] else None, b if self.needs[0] else None)
        self.vectors = a.ndim == 1, b.ndim == 1
        y = _multiply(a[None] if a.ndim == 1 else a, b[:, None] if b.ndim == 1 else b)
        return y.reshape(y.shape[:-2] + (() if a.ndim == 1 else y.shape[-2:-1]) + (() if b.ndim == 1 else y.shape[-1:]))

    def backward(self, g):
        (a, b), (row, column) = self.saved, self.vectors
        g = g[..., None] if column else g
        g = g[..., None, :] if row else g
        da = db = None
        if b is not None:
            b = b[:, None] if column else b
            da = _multiply(g, b.swapaxes(-1, -2))
        if a is not None:
            a = a[None] if row else a
            if self.shapes[1] is not None and len(self.shapes[1]) <= 2:  # B is the same for all leading axes of A
                a, g = (x.reshape(math.prod(x.shape[:-1]), x.shape[-1]) for x in (a, g))
            db = _multiply(a.swapaxes(-1, -2), g)
            db = db[:, 0] if column else db
        return da, db


def _why_not_matmul(a: tuple[int, ...], b: tuple[int, ...]) -> str | None:
    """What is wrong with a product of these shapes, if anything."""
    if not a or not b:
        return f"matmul needs vectors or matrices, got shapes {a} and {b}: use * for a number"
    inner = -1 if len(b) == 1 else -2
    if a[-1] != b[inner]:
        mend = "transpose the second" if len(b) > 1 and a[-1] == b[-1] else "they must be equal"
        return (f"matmul cannot multiply shapes {a} and {b}: axis -1 of the first has {a[-1]}, axis {inner} of the second "
                f"has {b[inner]}; {mend}")
    for axis in range(-3, -1 - min(len(a), len(b)), -1):
        if a[axis] != b[axis] and 1 not in (a[axis], b[axis]):
            return (f"matmul cannot multiply shapes {a} and {b}: on axis {axis} they have {a[axis]} and {b[axis]} matrices; "
                    f"leading axes must be equal or 1")
    return None


@public(case((3, 4), (4, 5)), case((4,), (4,)), case((4,), (4, 3)), case((3, 4), (4,)), case((2, 3, 4), (4,)),
        case((4,), (2, 4, 3)), case((2, 3, 4), (4, 5)), case((2, 3, 4), (2, 4, 5)), case((5, 1, 2, 3), (4, 3, 2)),
        case((3, 4), (2, 4, 5)), case((9, 7, 19), (9, 19, 18)), case((3, 3, 6, 17), (3, 3, 17, 33)),
        case((0, 4), (4, 3)), case((3, 0), (0, 2)), case((2, 0, 4), (2, 4, 3)), case((0,), (0,)), case((2, 3, 0), (0, 2)))
def matmul(a, b) -> Tensor:
    """a @ b as in NumPy: (..., n, k) @ (..., k, m) -> (..., n, m), where leading axes broadcast.

    A vector is a row on the left and a column on the right. Raises ValueError where shapes do not fit, naming the axis.
    """
    a, b = as_tensor(a), as_tensor(b)
    problem = _why_not_matmul(a.shape, b.shape)
    if problem:
        raise ValueError(problem)
    return Matmul.apply(a, b)


# ---------------------------------------------------------------------------------------------- linear


@kernel
def add_to_rows(y, bias):
    """Add the bias to every row of y (rows, columns), in place."""
    y += bias


@add_to_rows.numba(mutates=True)
def add_to_rows(y, bias):
    for i in prange(y.shape[0]):
        for j in range(y.shape[1]):
            y[i, j] += bias[j]


@kernel
def column_sums(x):
    return x.sum(axis=0)


@column_sums.numba
def column_sums(x):
    rows, columns = x.shape
    parts = 16  # whatever the number of threads, so that the order of the additions is always the same
    sums = np.zeros((parts, columns), np.float32)
    for part in prange(parts):
        for i in range(rows * part // parts, rows * (part + 1) // parts):
            for j in range(columns):
                sums[part, j] += x[i, j]
    total = sums[0].copy()
    for part in range(1, parts):
        for j in range(columns):
            total[j] += sums[part, j]
    return total


class Linear(Op):
    """Y = X Wᵀ + b;   dX = G W, dW = Gᵀ X, db = Σ_rows G      X (..., in), W (out, in), b (out), Y (..., out)"""

    def forward(self, x, weight, bias):
        rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        self.save(rows if self.needs[1] else None, weight if self.needs[0] else None)
        y = rows @ weight.T
        if bias is not None:
            add_to_rows(y, bias)
        return y.reshape(*x.shape[:-1], len(weight))

    def backward(self, g):
        rows, weight = self.saved
        flat = g.reshape(math.prod(g.shape[:-1]), g.shape[-1])
        dx = (flat @ weight).reshape(*g.shape[:-1], weight.shape[1]) if self.needs[0] else None
        dw = flat.T @ rows if self.needs[1] else None
        return dx, dw, column_sums(flat) if self.needs[2] else None


@public(case((3, 4), (5, 4), (5,)), case((2, 3, 4), (5, 4), (5,)), case((4,), (5, 4), (5,)), case((3, 4), (5, 4)),
        case((40, 3), (17, 3), (17,)), case((0, 4), (5, 4), (5,)), case((3, 0), (5, 0), (5,)), case((3, 4), (0, 4), (0,)))
def linear(x, weight, bias=None) -> Tensor:
    """x Wᵀ + b: x (..., in), weight (out, in), bias (out) or None; the result is (..., out).

    Raises ValueError where shapes do not fit.
    """
    x, weight = as_tensor(x), as_tensor(weight)
    if weight.ndim != 2 or x.ndim < 1 or x.shape[-1] != weight.shape[1]:
        raise ValueError(f"linear needs x (..., in) and weight (out, in), got {x.shape} and {weight.shape}: "
                         + (f"axis -1 of x has {x.shape[-1]}, axis 1 of the weight {weight.shape[1]}; they must be equal"
                            if weight.ndim == 2 and x.ndim else "a weight has two axes, and x at least one"))
    if bias is not None:
        bias = as_tensor(bias)
        if bias.shape != weight.shape[:1]:
            raise ValueError(f"linear needs a bias of shape {weight.shape[:1]} for weight {weight.shape}, got {bias.shape}: "
                             f"one number per row of the weight")
    return Linear.apply(x, weight, bias)


# ---------------------------------------------------------------------------------------------- embedding


class Embedding(Op):
    """y[i] = w[index_i];   dw[n] = Σ of g[i] over all i with index_i = n      w (rows, width), y (..., width)"""

    def forward(self, weight, indices):
        self.save(indices)
        return weight[indices]

    def backward(self, g):
        (indices,) = self.saved
        dw = xp.zeros(self.shapes[0], g.dtype)
        xp.add.at(dw, indices, g)
        return dw


@public(case((5, 3), indices=lambda rng: np.array([[0, 2, 2], [4, 2, 0]])), case((4, 2), indices=3),
        case((4, 0), indices=lambda rng: np.array([1, 1])), case((4, 3), indices=lambda rng: np.zeros((0, 2), int)),
        case((0, 3), indices=lambda rng: np.zeros(0, int)))
def embedding(indices, weight) -> Tensor:
    """Rows of `weight` (rows, width) by number: indices of any shape (...), integers; the result is (..., width).

    A row looked up several times adds up its gradients. Raises TypeError for indices that are not integers and IndexError
    for one that is not in [0, rows).
    """
    weight = as_tensor(weight)
    indices = indices._data if isinstance(indices, Tensor) else xp.asarray(indices)
    if weight.ndim != 2:
        raise ValueError(f"embedding needs a weight of shape (rows, width), got {weight.shape}")
    if indices.dtype.kind not in "iu":
        raise TypeError(f"embedding needs integer indices, got {indices.dtype}: use .astype(np.int64)")
    wrong = (indices < 0) | (indices >= len(weight))
    if wrong.any():
        raise IndexError(f"embedding got index {int(indices[wrong][0])} for a weight of {len(weight)} rows: indices go from "
                         f"0 to {len(weight) - 1}")
    return Embedding.apply(weight, indices=indices)
