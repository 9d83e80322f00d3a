"""Convolution, as im2col and a matrix product."""

from __future__ import annotations

import operator

import numpy as np

from ..autograd import Op
from ..backend import kernel, prange, xp
from ..registry import case, public
from ..tensor import Tensor, as_tensor
from .conv_kernels import (
    CHUNKS,
    add_parts,
    correlate,
    correlate_weights,
    empty_output,
    empty_parts,
    forward_taps,
    gradient_taps,
    out_size,
    pack_weights,
    unit,
)

# ---------------------------------------------------------------------------------------------- im2col


def windows(padded, kernel, stride, dilation, height, width):
    """For each place (ky, kx) of the kernel: the strided view of `padded` that all windows have there."""
    for ky in range(kernel[0]):
        for kx in range(kernel[1]):
            rows = slice(ky * dilation[0], ky * dilation[0] + (height - 1) * stride[0] + 1, stride[0])
            columns = slice(kx * dilation[1], kx * dilation[1] + (width - 1) * stride[1] + 1, stride[1])
            yield ky, kx, padded[:, :, rows, columns]


@kernel
def im2col(x, kernel, stride, padding, dilation):
    """Every window of x (B, C, H, W) as a column: (B, C kh kw, H' W')."""
    B, C, H, W = x.shape
    height, width = (out_size(*axis) for axis in zip((H, W), kernel, stride, padding, dilation))
    padded = xp.pad(x, ((0, 0), (0, 0), (padding[0], padding[0]), (padding[1], padding[1])))
    columns = xp.empty((B, C, *kernel, height, width), x.dtype)
    for ky, kx, view in windows(padded, kernel, stride, dilation, height, width):
        columns[:, :, ky, kx] = view
    return columns.reshape(B, C * kernel[0] * kernel[1], height * width)


@kernel
def col2im(columns, shape, kernel, stride, padding, dilation):
    """The adjoint of `im2col`: each value of the columns is added to the place of x (of `shape`) it was copied from."""
    B, C, H, W = shape
    height, width = (out_size(*axis) for axis in zip((H, W), kernel, stride, padding, dilation))
    columns = columns.reshape(B, C, *kernel, height, width)
    padded = xp.zeros((B, C, H + 2 * padding[0], W + 2 * padding[1]), columns.dtype)
    for ky, kx, view in windows(padded, kernel, stride, dilation, height, width):
        view += columns[:, :, ky, kx]
    return padded[:, :, padding[0]:padding[0] + H, padding[1]:padding[1] + W]


# ---------------------------------------------------------------------------------------------- the three products
# The references are im2col and a matrix product for each group; how the kernels go is told in conv_kernels.py.


@kernel
def conv2d_forward(x, weight, stride, padding, dilation, groups):
    F, C, kh, kw = weight.shape
    B, H = x.shape[0], x.shape[2]
    columns = im2col(x, (kh, kw), stride, padding, dilation)
    positions = columns.shape[2]
    y = weight.reshape(groups, F // groups, C * kh * kw) @ columns.reshape(B, groups, C * kh * kw, positions)
    height = out_size(H, kh, stride[0], padding[0], dilation[0])
    return y.reshape(B, F, height, positions // height)


@conv2d_forward.numba
def conv2d_forward(x, weight, stride, padding, dilation, groups):
    phases, taps = forward_taps(weight.shape[2:], padding, dilation)
    panels = pack_weights(weight, phases, taps, groups, False)
    y = empty_output(x, weight, stride, padding, dilation)
    for chunk in prange(CHUNKS):
        correlate(x, panels, phases, taps, stride, y, unit(), groups, np.int64(chunk))
    return y


@kernel
def conv2d_input_gradient(g, weight, shape, stride, padding, dilation, groups):
    F, C, kh, kw = weight.shape
    B, positions = g.shape[0], g.shape[2] * g.shape[3]
    upstream = g.reshape(B, groups, F // groups, positions)
    columns = weight.reshape(groups, F // groups, C * kh * kw).swapaxes(1, 2) @ upstream
    return col2im(columns.reshape(B, groups * C * kh * kw, positions), shape, (kh, kw), stride, padding, dilation)


@conv2d_input_gradient.numba
def conv2d_input_gradient(g, weight, shape, stride, padding, dilation, groups):
    phases, taps = gradient_taps(weight.shape[2:], stride, padding, dilation)
    panels = pack_weights(weight, phases, taps, groups, True)
    dx = np.empty(shape, np.float32)
    for chunk in prange(CHUNKS):
        correlate(g, panels, phases, taps, unit(), dx, stride, groups, np.int64(chunk))
    return dx


@kernel
def conv2d_weight_gradient(g, x, kernel, stride, padding, dilation, groups):
    B, F = g.shape[:2]
    C, (kh, kw) = x.shape[1] // groups, kernel
    columns = im2col(x, kernel, stride, padding, dilation)
    positions = columns.shape[2]
    upstream = g.reshape(B, groups, F // groups, positions)
    products = upstream @ columns.reshape(B, groups, C * kh * kw, positions).swapaxes(2, 3)
    return products.sum(axis=0).reshape(F, C, kh, kw)


@conv2d_weight_gradient.numba
def conv2d_weight_gradient(g, x, kernel, stride, padding, dilation, groups):
    phases, taps = forward_taps(kernel, padding, dilation)
    parts = empty_parts(x, g, stride, taps, groups)
    for i in prange(parts.shape[0] * parts.shape[1]):
        correlate_weights(x, g, phases, taps, stride, groups, parts, np.int64(i))
    dw = np.empty((g.shape[1], x.shape[1] // groups, kernel[0], kernel[1]), np.float32)
    for o in prange(dw.shape[0]):
        add_parts(parts, dw, groups, np.int64(o))
    return dw


class Conv2d(Op):
    """y[o, m] = Σ_{c,k} w[o, c, k] x[c, s m + δ k - p] + b[o]      m, k: positions (row, column) of output and kernel

    With columns = im2col(x), a matrix (C kh kw, H' W') for each image, y = w columns; so
    dw = Σ_B g columnsᵀ,  dx = col2im(wᵀ g),  db = Σ g over images and positions.
    """

    def forward(self, x, weight, bias, stride, padding, dilation, groups):
        self.settings, self.shape = (stride, padding, dilation, groups), x.shape
        y = conv2d_forward(x, weight, *self.settings)
        if bias is not None:
            y += bias[:, None, None]
        self.save(x if self.needs[1] else None, weight)
        return y

    def backward(self, g):
        x, weight = self.saved
        dx = conv2d_input_gradient(g, weight, self.shape, *self.settings) if self.needs[0] else None
        dw = conv2d_weight_gradient(g, x, weight.shape[2:], *self.settings) if self.needs[1] else None
        return dx, dw, g.sum(axis=(2, 3)).sum(axis=0) if self.needs[2] else None


# ---------------------------------------------------------------------------------------------- the function


def pair(op: str, name: str, value, least: int) -> tuple[int, int]:
    """`value`, an int or a pair (rows, columns) of ints, as a pair. Raises TypeError or ValueError naming op and argument."""
    try:
        both = tuple(operator.index(v) for v in (value if isinstance(value, (tuple, list)) else (value, value)))
    except TypeError:
        both = ()
    if len(both) != 2:
        raise TypeError(f"{op}: {name} is an int or a pair (rows, columns) of ints, got {value!r}")
    if min(both) < least:
        raise ValueError(f"{op}: {name} must be at least {least}, got {value!r}")
    return both


def check_images(op: str, x: Tensor) -> None:
    """Raises ValueError unless x is (B, C, H, W)."""
    if x.ndim != 4:
        mend = ": add the batch axis with x.unsqueeze(0)" if x.ndim == 3 else ""
        raise ValueError(f"{op} needs images x (B, C, H, W), got shape {x.shape}{mend}")


def check_fits(op: str, shape, kernel, padding, dilation=(1, 1)) -> None:
    """Raises ValueError where a kernel is larger than the padded image."""
    for axis, size, k, p, d in zip(("height", "width"), shape[2:], kernel, padding, dilation):
        extent = d * (k - 1) + 1
        if extent > size + 2 * p:
            dilated = f" (dilated to {extent})" if d > 1 else ""
            raise ValueError(f"{op}: kernel {k}{dilated} is larger than the padded {axis} {size} + 2·{p} of x {tuple(shape)}: "
                             f"pad more, or use a smaller kernel")


def _check_channels(x: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> None:
    if weight.ndim != 4 or 0 in weight.shape:
        raise ValueError(f"conv2d needs a weight (F, C/groups, kh, kw) that is not empty, got shape {weight.shape}")
    C, F = x.shape[1], weight.shape[0]
    if groups < 1 or C % groups or F % groups:
        raise ValueError(f"conv2d: groups={groups} must divide the {C} channels of x {x.shape} and the {F} of weight "
                         f"{weight.shape}")
    if weight.shape[1] * groups != C:
        raise ValueError(f"conv2d: x {x.shape} has {C} channels (axis 1), but weight {weight.shape} takes "
                         f"{weight.shape[1] * groups} (axis 1 times groups={groups}): expected a weight "
                         f"({F}, {C // groups}, {weight.shape[2]}, {weight.shape[3]})")
    if bias is not None and bias.shape != (F,):
        raise ValueError(f"conv2d: bias has shape {bias.shape}, but weight {weight.shape} makes {F} channels: expected ({F},)")


@public(case((2, 3, 5, 6), (4, 3, 3, 3), (4,), padding=1), case((2, 3, 5, 5), (4, 3, 1, 1)),
        case((1, 2, 7, 7), (3, 2, 2, 2), stride=2), case((2, 2, 6, 5), (17, 2, 3, 2), stride=(2, 1), padding=(1, 0)),
        case((2, 4, 5, 5), (6, 2, 3, 3), (6,), padding=1, groups=2), case((3, 2, 4, 4), (2, 1, 2, 2), groups=2, stride=3),
        case((1, 2, 7, 8), (3, 2, 3, 2), dilation=(2, 3), padding=2, stride=2), case((0, 2, 4, 4), (3, 2, 3, 3), (3,)))
def conv2d(x, weight, bias=None, stride=1, padding=0, dilation=1, groups: int = 1) -> Tensor:
    """y[b, o, i, j] = bias[o] + Σ_{c,ky,kx} weight[o, c, ky, kx] x[b, c, i s + ky δ - p, j s + kx δ - p], zero outside x.

    x: (B, C, H, W); weight: (F, C/groups, kh, kw), F filters; bias: (F,) or None; y: (B, F, H', W') with
    H' = ⌊(H + 2 padding - dilation (kh - 1) - 1) / stride⌋ + 1. stride, padding, dilation: an int, or a pair (rows, columns).
    The kernel is not flipped: a cross-correlation, as in PyTorch (Dumoulin and Visin 2016, arXiv:1603.07285).
    Raises ValueError where shapes, channels or groups do not fit, TypeError for settings that are not ints.
    """
    x, weight = as_tensor(x), as_tensor(weight)
    bias = None if bias is None else as_tensor(bias)
    check_images("conv2d", x)
    _check_channels(x, weight, bias, groups)
    stride, padding = pair("conv2d", "stride", stride, 1), pair("conv2d", "padding", padding, 0)
    dilation = pair("conv2d", "dilation", dilation, 1)
    check_fits("conv2d", x.shape, weight.shape[2:], padding, dilation)
    return Conv2d.apply(x, weight, bias, stride=stride, padding=padding, dilation=dilation, groups=groups)
