"""Reductions over one axis, several, or all: sum, mean, var, max, min, logsumexp, norm."""

from __future__ import annotations

import math

from ..autograd import Op
from ..backend import xp
from ..registry import case, public
from ..tensor import Tensor, as_tensor

Axis = int | tuple[int, ...] | None


def axes_of(x, axis: Axis, name: str) -> tuple[int, ...]:
    """`axis` as a tuple of axes from 0 on. Raises ValueError naming the shape where an axis is out of range or doubled."""
    if axis is None:
        return tuple(range(x.ndim))
    given = axis if isinstance(axis, tuple) else (axis,)
    axes = tuple(a + x.ndim if a < 0 else a for a in given)
    if any(not 0 <= a < x.ndim for a in axes) or len(set(axes)) != len(axes):
        raise ValueError(f"{name} cannot reduce axis {axis} of shape {x.shape}: axes go from {-x.ndim} to {x.ndim - 1}, "
                         f"each once")
    return axes


def _spread(g, shape: tuple[int, ...], axes: tuple[int, ...]):
    """An upstream gradient of a reduction, with the reduced axes put back (size 1), ready to broadcast to `shape`."""
    return g.reshape(tuple(1 if i in axes else n for i, n in enumerate(shape)))


class Sum(Op):
    """y = Σ x over the axes;   dx = g, spread over them"""

    keeps_integers = True

    def forward(self, x, axis, keepdims):
        self.axes, self.shape = axes_of(x, axis, "sum"), x.shape
        return xp.asarray(x.sum(axis=self.axes, keepdims=keepdims))

    def backward(self, g):
        return xp.broadcast_to(_spread(g, self.shape, self.axes), self.shape)


@public(case((3, 4), axis=0), case((3, 4)), case((2, 3, 4), axis=(0, -1), keepdims=True), case(()), case((0, 3), axis=0),
        case((2, 0)))
def sum(x, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """Σ x over `axis` (one, several, or None for all)."""
    return Sum.apply(x, axis=axis, keepdims=keepdims)


class Mean(Op):
    """y = 1/n Σ x over the axes, n the number of values summed;   dx = g / n, spread over them"""

    def forward(self, x, axis, keepdims):
        self.axes, self.shape = axes_of(x, axis, "mean"), x.shape
        self.count = math.prod(x.shape[a] for a in self.axes)
        if self.count == 0:
            raise ValueError(f"mean over axis {axis} of shape {x.shape} has no values to average")
        return xp.asarray(x.mean(axis=self.axes, keepdims=keepdims))

    def backward(self, g):
        return xp.broadcast_to(_spread(g / self.count, self.shape, self.axes), self.shape)


@public(case((3, 4), axis=-1), case((3, 4)), case((2, 3, 4), axis=(0, 2), keepdims=True), case(()), case((0, 3), axis=1))
def mean(x, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The average over `axis` (one, several, or None for all). Raises ValueError where there is nothing to average."""
    return Mean.apply(x, axis=axis, keepdims=keepdims)


class Var(Op):
    """y = 1/(n - ddof) Σ (x - μ)², μ the mean;   dx = g 2 (x - μ) / (n - ddof)

    Two passes: the one-pass form E[x²] - μ² loses every digit when μ is large.
    """

    def forward(self, x, axis, keepdims, ddof):
        self.axes, self.shape = axes_of(x, axis, "var"), x.shape
        self.count = math.prod(x.shape[a] for a in self.axes) - ddof
        if self.count <= 0:
            raise ValueError(f"var over axis {axis} of shape {x.shape} with ddof={ddof} divides by {self.count}: "
                             f"it needs more than {ddof} values")
        centred = x - x.mean(axis=self.axes, keepdims=True)
        self.save(centred)
        return xp.asarray((centred * centred).sum(axis=self.axes, keepdims=keepdims) / self.count)

    def backward(self, g):
        (centred,) = self.saved
        return _spread(g * (2 / self.count), self.shape, self.axes) * centred


@public(case((3, 4)), case((3, 4), axis=0), case((2, 3, 4), axis=(0, 2), keepdims=True, ddof=1), case((3, 0), axis=0))
def var(x, axis: Axis = None, keepdims: bool = False, ddof: int = 0) -> Tensor:
    """The variance over `axis`; divides by n - ddof, with ddof = 0 by default as in NumPy (PyTorch's default is 1)."""
    return Var.apply(x, axis=axis, keepdims=keepdims, ddof=ddof)


class Max(Op):
    """y = max x over the axes;   dx = g at the winner: over one axis the first one, over all a tie shares g equally"""

    keeps_integers = True

    def forward(self, x, axis, keepdims):
        self.axes, self.shape, self.one = axes_of(x, axis, "max"), x.shape, axis is not None
        if math.prod(x.shape[a] for a in self.axes) == 0:
            raise ValueError(f"max over axis {axis} of shape {x.shape} has no values to choose from")
        if self.one:
            if len(self.axes) != 1:
                raise ValueError(f"max takes one axis or None, got {axis}: reduce one axis after another, or reshape first")
            self.winner = xp.expand_dims(x.argmax(axis=self.axes[0]), self.axes[0])
            y = xp.take_along_axis(x, self.winner, self.axes[0])
            return y if keepdims else y.squeeze(self.axes[0])
        y = xp.asarray(x.max(keepdims=keepdims))
        self.save(x == y)
        return y

    def backward(self, g):
        g = _spread(g, self.shape, self.axes)
        if self.one:
            dx = xp.zeros(self.shape, g.dtype)
            xp.put_along_axis(dx, self.winner, g, self.axes[0])
            return dx
        (ties,) = self.saved
        return ties * (g / ties.sum())


@public(case((3, 4), domain="distinct"), case((3, 4), axis=1, domain="distinct"),
        case((2, 3, 4), axis=0, keepdims=True, domain="distinct"), case((0, 3), axis=1, domain="distinct"),
        case(lambda rng: [[1.0, 3.0, 3.0], [3.0, 0.0, 3.0]], axis=1, differentiable=False),
        case(lambda rng: [[1.0, 3.0, 3.0], [3.0, 0.0, 3.0]], differentiable=False))
def max(x, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The largest value along `axis`, or of all. Ties: over one axis the first wins, over all they share the gradient."""
    return Max.apply(x, axis=axis, keepdims=keepdims)


@public(case((3, 4), domain="distinct"), case((3, 4), axis=1, domain="distinct"),
        case((2, 3, 4), axis=0, keepdims=True, domain="distinct"), case((0, 3), axis=1, domain="distinct"),
        case(lambda rng: [[1.0, 0.0, 0.0], [3.0, 0.0, 3.0]], axis=1, differentiable=False),
        case(lambda rng: [[1.0, 0.0, 0.0], [3.0, 0.0, 3.0]], differentiable=False))
def min(x, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The smallest value along `axis`, or of all: -max(-x), with the same rule for ties."""
    return -Max.apply(-as_tensor(x), axis=axis, keepdims=keepdims)


class LogSumExp(Op):
    """y = m + ln Σ e^(x - m), m = max x;   dx = g e^(x - y)"""

    def forward(self, x, axis, keepdims):
        self.axes, self.shape = axes_of(x, axis, "logsumexp"), x.shape
        m = x.max(axis=self.axes, keepdims=True)
        m = xp.where(xp.isfinite(m), m, xp.zeros_like(m))  # a row of -inf only: -inf - 0, not -inf - -inf
        y = m + xp.log(xp.exp(x - m).sum(axis=self.axes, keepdims=True))
        self.save(x, y)
        return y if keepdims else xp.asarray(y.squeeze(self.axes))

    def backward(self, g):
        x, y = self.saved
        p = xp.where(y == -xp.inf, xp.zeros_like(x), xp.exp(x - y))
        return _spread(g, self.shape, self.axes) * p


@public(case((3, 4)), case((3, 4), axis=0), case((2, 3, 4), axis=(0, 2), keepdims=True), case((0, 3), axis=1),
        case(lambda rng: [[1e4, 1e4], [-1e4, 0.0]], axis=1, differentiable=False))
def logsumexp(x, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """ln Σ e^x over `axis`, stable for any x."""
    return LogSumExp.apply(x, axis=axis, keepdims=keepdims)


class Norm(Op):
    """y = √Σx²;   dx = g x / y      (0 where y = 0)"""

    def forward(self, x, axis, keepdims):
        self.axes, self.shape = axes_of(x, axis, "norm"), x.shape
        scale = xp.abs(x).max(axis=self.axes, keepdims=True, initial=0)  # so that squares neither overflow nor vanish
        scale = xp.where((scale == 0) | ~xp.isfinite(scale), xp.ones_like(scale), scale)
        y = scale * xp.sqrt(xp.square(x / scale).sum(axis=self.axes, keepdims=True))
        self.save(x, y)
        return y if keepdims else xp.asarray(y.squeeze(self.axes))

    def backward(self, g):
        x, y = self.saved
        return _spread(g, self.shape, self.axes) * xp.where(y == 0, xp.zeros_like(x), x / xp.where(y == 0, xp.ones_like(y), y))


@public(case((3, 4)), case((3, 4), axis=1), case((2, 3, 4), axis=(1, 2), keepdims=True), case((0, 3), axis=1),
        case(lambda rng: [0.0, 0.0], differentiable=False))
def norm(x, axis: Axis = None, keepdims: bool = False) -> Tensor:
    """The Euclidean norm √Σx² over `axis`, with gradient 0 where it is 0."""
    return Norm.apply(x, axis=axis, keepdims=keepdims)
