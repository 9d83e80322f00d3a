"""Ops that move elements and compute nothing: their gradients move them back."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence

import numpy as np

from ..autograd import Op
from ..backend import xp
from ..registry import case, public
from ..tensor import Tensor, as_tensor


def _flat(given: tuple) -> tuple[int, ...]:
    """Accept both f(x, 2, 3) and f(x, (2, 3))."""
    return tuple(given[0]) if len(given) == 1 and isinstance(given[0], (tuple, list)) else given


def _axis(axis: int, ndim: int, name: str, shape: tuple[int, ...]) -> int:
    if not -ndim <= axis < ndim:
        raise ValueError(f"{name} has no axis {axis} in shape {shape}: axes go from {-ndim} to {ndim - 1}")
    return axis % ndim


class Reshape(Op):
    """y = x in another shape, same order;   dx = g in x's shape"""

    keeps_integers = True

    def forward(self, x, shape):
        self.shape = x.shape
        try:
            return x.reshape(shape)
        except ValueError:
            raise ValueError(f"cannot reshape {x.shape}, {x.size} values, to {shape}: the product of the sizes must "
                             f"stay the same, and at most one may be -1") from None

    def backward(self, g):
        return g.reshape(self.shape)


@public(case((3, 4), shape=(2, 6)), case((2, 3, 4), shape=(-1, 4)), case((), shape=(1,)), case((0, 3), shape=(3, 0)))
def reshape(x, *shape: int | Sequence[int], **named) -> Tensor:
    """x with another shape and the same values in row-major order; one size may be -1."""
    return Reshape.apply(x, shape=_flat(shape) if shape else tuple(named["shape"]))


@public(case((2, 3, 4)), case((2, 3, 4), start_axis=1), case((), start_axis=0), case((0, 2, 3), start_axis=1))
def flatten(x, start_axis: int = 0) -> Tensor:
    """x with its axes from `start_axis` on merged into one."""
    x = as_tensor(x)
    if x.ndim == 0:
        return reshape(x, 1)
    start = _axis(start_axis, x.ndim, "flatten", x.shape)
    return reshape(x, *x.shape[:start], math.prod(x.shape[start:]))


class Transpose(Op):
    """y = x with its axes permuted;   dx = g with the permutation undone"""

    keeps_integers = True

    def forward(self, x, axes):
        axes = axes or tuple(range(x.ndim))[::-1]
        if sorted(a % x.ndim if -x.ndim <= a < x.ndim else a for a in axes) != list(range(x.ndim)):
            raise ValueError(f"transpose of shape {x.shape} needs each of its axes 0 to {x.ndim - 1} once, got {axes}")
        self.inverse = tuple(int(i) for i in np.argsort([a % x.ndim for a in axes])) if x.ndim else ()
        return x.transpose(axes)

    def backward(self, g):
        return g.transpose(self.inverse)


@public(case((3, 4)), case((2, 3, 4), axes=(1, 2, 0)), case((2, 3, 4), axes=(0, -1, 1)), case(()), case((0, 3)))
def transpose(x, *axes: int | Sequence[int], **named) -> Tensor:
    """x with its axes in the order given, reversed by default."""
    return Transpose.apply(x, axes=_flat(axes) if axes else tuple(named.get("axes") or ()))


@public(case((2, 3, 4), axes=(1, 2, 0)), case((0, 3), axes=(1, 0)))
def permute(x, *axes: int | Sequence[int], **named) -> Tensor:
    """`transpose` under PyTorch's name: every axis must be named."""
    return Transpose.apply(x, axes=_flat(axes) if axes else tuple(named["axes"]))


@public(case((2, 3, 4), axis1=0, axis2=-1), case((3, 4), axis1=1, axis2=1), case((0, 3), axis1=0, axis2=1))
def swapaxes(x, axis1: int, axis2: int) -> Tensor:
    """x with two axes exchanged."""
    shape = as_tensor(x).shape
    order = list(range(len(shape)))
    i, j = (_axis(a, len(shape), "swapaxes", shape) for a in (axis1, axis2))
    order[i], order[j] = order[j], order[i]
    return Transpose.apply(x, axes=tuple(order))


@public(case((1, 3, 1)), case((1, 3, 1), axis=-1), case((1, 3, 1), axis=(0, 2)), case((1, 0), axis=0))
def squeeze(x, axis: int | tuple[int, ...] | None = None) -> Tensor:
    """x without its axes of size 1, or without those named. Raises ValueError if a named axis has another size."""
    shape = as_tensor(x).shape
    if axis is None:
        return Reshape.apply(x, shape=tuple(n for n in shape if n != 1))
    axes = {_axis(a, len(shape), "squeeze", shape) for a in (axis if isinstance(axis, tuple) else (axis,))}
    if any(shape[a] != 1 for a in axes):
        raise ValueError(f"squeeze(axis={axis}) of shape {shape}: only axes of size 1 can go")
    return Reshape.apply(x, shape=tuple(n for i, n in enumerate(shape) if i not in axes))


@public(case((3, 4), axis=0), case((3, 4), axis=-1), case((), axis=0), case((0, 3), axis=1))
def unsqueeze(x, axis: int) -> Tensor:
    """x with an axis of size 1 put in at `axis`."""
    shape = as_tensor(x).shape
    at = _axis(axis, len(shape) + 1, "unsqueeze", shape)
    return Reshape.apply(x, shape=(*shape[:at], 1, *shape[at:]))


class BroadcastTo(Op):
    """y = x repeated along axes of size 1 and new leading axes;   dx = g summed over them (by the engine)"""

    keeps_integers = True

    def forward(self, x, shape):
        try:
            return xp.broadcast_to(x, shape)
        except ValueError:
            raise ValueError(f"cannot broadcast {x.shape} to {shape}: counted from the last axis, each size must be equal, "
                             f"or 1 in x") from None

    def backward(self, g):
        return g


@public(case((3, 1), shape=(3, 4)), case((4,), shape=(2, 3, 4)), case((), shape=(2,)), case((1, 3), shape=(0, 3)),
        case((0, 3), shape=(2, 0, 3)))
def broadcast_to(x, shape: Sequence[int]) -> Tensor:
    """x repeated to `shape` by NumPy's broadcasting rule."""
    return BroadcastTo.apply(x, shape=tuple(shape))


class Concat(Op):
    """y = the pieces one after another along an axis;   each piece gets its stretch of g"""

    keeps_integers = True

    def forward(self, *pieces, axis):
        shape = pieces[0].shape
        self.axis = _axis(axis, pieces[0].ndim, "concat", shape)
        for i, p in enumerate(pieces):
            if p.ndim != len(shape) or any(a != b for k, (a, b) in enumerate(zip(p.shape, shape)) if k != self.axis):
                raise ValueError(f"concat along axis {axis}: piece {i} has shape {p.shape} and piece 0 {shape}; all "
                                 f"other axes must be equal")
        self.ends = np.cumsum([p.shape[self.axis] for p in pieces])[:-1]
        return xp.concatenate(pieces, axis=self.axis)

    def backward(self, g):
        return tuple(xp.split(g, self.ends.tolist(), axis=self.axis))


@public(case((2, 3), (2, 1), axis=-1, sequence=True), case((2, 3), (4, 3), (1, 3), sequence=True),
        case((2, 0), (2, 3), (2, 1), axis=-1, sequence=True))
def concat(pieces: Sequence, axis: int = 0) -> Tensor:
    """The tensors in `pieces` joined along an axis they have. Raises ValueError if another axis differs."""
    pieces = tuple(pieces)
    if not pieces or any(as_tensor(p).ndim == 0 for p in pieces):
        raise ValueError("concat needs at least one tensor, of at least one axis each: use tv.stack for 0-d tensors")
    return Concat.apply(*pieces, axis=axis)


@public(case((2, 3), (2, 3), sequence=True), case((2, 3), (2, 3), axis=-1, sequence=True), case((), (), sequence=True),
        case((0, 2), (0, 2), axis=1, sequence=True))
def stack(pieces: Sequence, axis: int = 0) -> Tensor:
    """Tensors of one shape joined along a new axis."""
    pieces = tuple(pieces)
    shapes = [as_tensor(p).shape for p in pieces]
    if not pieces or any(s != shapes[0] for s in shapes):
        raise ValueError(f"stack needs at least one tensor, all of one shape, got {shapes}")
    return concat([unsqueeze(p, axis) for p in pieces], axis=axis if axis >= 0 else axis % (len(shapes[0]) + 1))


class Split(Op):
    """Several outputs, the stretches of x along an axis;   dx = their gradients one after another, zeros where none came"""

    keeps_integers = True

    def forward(self, x, sizes, axis):
        self.axis, self.sizes, self.shape = axis, sizes, x.shape
        return tuple(xp.split(x, np.cumsum(sizes)[:-1].tolist(), axis=axis))

    def backward(self, *gs):
        dtype = next(g.dtype for g in gs if g is not None)
        shape = list(self.shape)
        pieces = []
        for g, n in zip(gs, self.sizes):
            shape[self.axis] = n
            pieces.append(xp.zeros(shape, dtype) if g is None else g)
        return xp.concatenate(pieces, axis=self.axis)


@public(case((6, 2), sections=3), case((2, 5), sections=(2, 0, 3), axis=1), case((4, 0), sections=2))
def split(x, sections: int | Sequence[int], axis: int = 0) -> tuple[Tensor, ...]:
    """x cut along `axis` into `sections` equal pieces, or into pieces of the sizes given, as a tuple.

    Raises ValueError if the pieces do not make up the axis exactly.
    """
    shape = as_tensor(x).shape
    axis = _axis(axis, len(shape), "split", shape)
    if isinstance(sections, int):
        if sections < 1 or shape[axis] % sections:
            raise ValueError(f"split: {sections} equal pieces do not make up axis {axis} of shape {shape}; pass their sizes")
        sizes: tuple[int, ...] = (shape[axis] // sections,) * sections
    else:
        sizes = tuple(sections)
        if not sizes or min(sizes) < 0 or builtins.sum(sizes) != shape[axis]:
            raise ValueError(f"split: pieces of sizes {sizes} do not make up axis {axis} of shape {shape}")
    return Split.apply(x, sizes=sizes, axis=axis)


@public(case((3, 4)), case((3, 4), axis=-1), case((2, 0)))
def unbind(x, axis: int = 0) -> tuple[Tensor, ...]:
    """The slices of x along `axis`, without that axis, as a tuple. Iterating over a tensor gives `unbind(x)`."""
    return tuple(squeeze(p, axis) for p in split(x, as_tensor(x).shape[axis], axis))


class GetItem(Op):
    """y = x[index];   dx = zeros with g added at the places read, repeated places adding up"""

    keeps_integers = True

    def forward(self, x, index):
        self.shape, self.index = x.shape, index
        parts = index if isinstance(index, tuple) else (index,)
        # Slices and integers read each place at most once, so that assignment will do, which is far faster.
        self.once = all(p is None or p is Ellipsis or isinstance(p, (int, slice, np.integer)) for p in parts) \
            or (len(parts) == 1 and getattr(index, "dtype", None) == np.bool_)
        try:
            return xp.asarray(x[index])
        except IndexError as error:
            raise IndexError(f"{error} (the tensor has shape {x.shape})") from None

    def backward(self, g):
        dx = xp.zeros(self.shape, g.dtype)
        if self.once:
            dx[self.index] = g
        else:
            xp.add.at(dx, self.index, g)
        return dx


def _plain_index(index):
    """The index with arrays in it copied, because backward needs it as it is now."""
    if isinstance(index, Tensor):
        return index._data.copy()
    if isinstance(index, np.ndarray):
        return index.copy()
    if isinstance(index, tuple):
        return tuple(_plain_index(i) for i in index)
    return np.asarray(index, dtype=int if len(index) == 0 else None) if isinstance(index, list) else index


@public(case((3, 4), index=1), case((3, 4), index=(slice(None), slice(0, 4, 2))), case((3, 4), index=(..., None, -1)),
        case((3,), index=[0, 0]), case((3, 4), index=([0, 2, 0], [1, 1, 1])), case((0, 4), index=(slice(None), 2)),
        case((3, 4), index=lambda rng: rng.random((3, 4)) < 0.5), case((3, 4), index=slice(None, None, -1)),
        case((3,), index=[]))
def getitem(x, index) -> Tensor:
    """x[index] with NumPy's rules: slices, integers, None, ..., lists, integer or bool arrays and Tensors."""
    return GetItem.apply(x, index=_plain_index(index))


class Pad(Op):
    """y = x with a border of a constant;   dx = the inside of g"""

    keeps_integers = True

    def forward(self, x, widths, value):
        self.inside = tuple(slice(before, before + n) for (before, _), n in zip(widths, x.shape))
        return xp.pad(x, widths, constant_values=value)

    def backward(self, g):
        return g[self.inside]


@public(case((3, 4), widths=((1, 0), (0, 2))), case((3, 4), widths=1, value=2.0), case((0, 2), widths=((1, 1), (0, 0))))
def pad(x, widths, value: float = 0.0) -> Tensor:
    """x with a border of `value`; `widths` as in np.pad: ((before, after), ...) for each axis, or one number for all."""
    ndim = as_tensor(x).ndim
    pairs = np.broadcast_to(np.asarray(widths), (ndim, 2))
    if (pairs < 0).any():
        raise ValueError(f"pad widths must not be negative, got {widths}: use a slice to cut")
    return Pad.apply(x, widths=tuple((int(a), int(b)) for a, b in pairs), value=value)


class Flip(Op):
    """y = x reversed along axes;   dx = g reversed along them"""

    keeps_integers = True

    def forward(self, x, axes):
        self.axes = axes
        return xp.flip(x, axes)

    def backward(self, g):
        return xp.flip(g, self.axes)


@public(case((3, 4)), case((3, 4), axis=1), case((2, 3, 4), axis=(0, -1)), case((0, 3), axis=1))
def flip(x, axis: int | tuple[int, ...] | None = None) -> Tensor:
    """x reversed along `axis` (one, several, or None for all)."""
    shape = as_tensor(x).shape
    axes = tuple(range(len(shape))) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    return Flip.apply(x, axes=tuple(_axis(a, len(shape), "flip", shape) for a in axes))


class Roll(Op):
    """y = x shifted round along an axis;   dx = g shifted back"""

    keeps_integers = True

    def forward(self, x, shift, axis):
        self.shift, self.axis = shift, axis
        return xp.roll(x, shift, axis)

    def backward(self, g):
        back = tuple(-s for s in self.shift) if isinstance(self.shift, tuple) else -self.shift
        return xp.roll(g, back, self.axis)


@public(case((3, 4), shift=1, axis=1), case((3, 4), shift=(1, -2), axis=(0, 1)), case((3, 4), shift=5),
        case((0, 3), shift=1, axis=1))
def roll(x, shift: int | tuple[int, ...], axis: int | tuple[int, ...] | None = None) -> Tensor:
    """x shifted by `shift` along `axis`, what leaves at one end coming in at the other; axis=None shifts the flat values."""
    return Roll.apply(x, shift=shift, axis=axis)
