"""Convolution, as im2col and a matrix product."""

from __future__ import annotations

import numpy as np

from ..autograd import Op
from ..backend import kernel, prange, xp
from ..registry import case, public
from ..tensor import Tensor, as_tensor
from .conv_kernels import (
    CHUNKS,
    DEPTH,
    GR,
    NR,
    ceil_div,
    correlate,
    correlate_weights,
    forward_taps,
    gradient_taps,
    pack_weights,
    plan,
)


def out_size(size: int, kernel: int, stride: int, padding: int, dilation: int = 1) -> int:
    """How many windows fit along an axis: ⌊(size + 2 padding - dilation (kernel - 1) - 1) / stride⌋ + 1."""
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


# ---------------------------------------------------------------------------------------------- im2col


def _windows(padded, kernel, stride, dilation, height, width):
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
    height, width = (out_size(*args) for args in zip((H, W), kernel, stride, padding, dilation))
    padded = xp.pad(x, ((0, 0), (0, 0), (padding[0], padding[0]), (padding[1], padding[1])))
    columns = xp.empty((B, C, *kernel, height, width), x.dtype)
    for ky, kx, view in _windows(padded, kernel, stride, dilation, height, width):
        columns[:, :, ky, kx] = view
    return columns.reshape(B, C * kernel[0] * kernel[1], height * width)


@kernel
def col2im(columns, shape, kernel, stride, padding, dilation):
    """The adjoint of `im2col`: each value of the columns is added to the place of x (of `shape`) it was copied from."""
    B, C, H, W = shape
    height, width = (out_size(*args) for args in zip((H, W), kernel, stride, padding, dilation))
    columns = columns.reshape(B, C, *kernel, height, width)
    padded = xp.zeros((B, C, H + 2 * padding[0], W + 2 * padding[1]), columns.dtype)
    for ky, kx, view in _windows(padded, kernel, stride, dilation, height, width):
        view += columns[:, :, ky, kx]
    return padded[:, :, padding[0]:padding[0] + H, padding[1]:padding[1] + W]


# ---------------------------------------------------------------------------------------------- the three products


def _one_group(*args) -> bool:
    return args[-1] == 1


@kernel
def conv2d_forward(x, weight, stride, padding, dilation, groups):
    O, _, kh, kw = weight.shape
    B, _, H, W = x.shape
    columns = im2col(x, (kh, kw), stride, padding, dilation)
    y = weight.reshape(groups, O // groups, -1) @ columns.reshape(B, groups, -1, columns.shape[2])
    return y.reshape(B, O, out_size(H, kh, stride[0], padding[0], dilation[0]), -1)


@conv2d_forward.numba(when=_one_group)
def conv2d_forward(x, weight, stride, padding, dilation, groups):
    O, C, kh, kw = weight.shape
    B, _, H, W = x.shape
    height = (H + 2 * padding[0] - dilation[0] * (kh - 1) - 1) // stride[0] + 1
    width = (W + 2 * padding[1] - dilation[1] * (kw - 1) - 1) // stride[1] + 1
    phases, taps = forward_taps((kh, kw), padding, dilation)
    panels = np.empty(ceil_div(O, NR) * C * len(taps) * NR, np.float32)
    for block in prange(ceil_div(O, NR)):
        pack_weights(weight.transpose(1, 0, 2, 3), phases, taps, block, panels)
    y = np.empty((B, O, height, width), np.float32)
    for chunk in prange(CHUNKS):
        correlate(x, panels, phases, taps, stride, y, (1, 1), chunk)
    return y


@kernel
def conv2d_input_gradient(g, weight, shape, stride, padding, dilation, groups):
    O, _, kh, kw = weight.shape
    B = shape[0]
    upstream = g.reshape(B, groups, O // groups, g.shape[2] * g.shape[3])
    columns = weight.reshape(groups, O // groups, -1).swapaxes(1, 2) @ upstream
    return col2im(columns.reshape(B, -1, upstream.shape[3]), shape, (kh, kw), stride, padding, dilation)


@conv2d_input_gradient.numba(when=_one_group)
def conv2d_input_gradient(g, weight, shape, stride, padding, dilation, groups):
    O, C, kh, kw = weight.shape
    phases, taps = gradient_taps((kh, kw), stride, padding, dilation)
    panels = np.empty(ceil_div(C, NR) * O * len(taps) * NR, np.float32)
    for block in prange(ceil_div(C, NR)):
        pack_weights(weight, phases, taps, block, panels)
    dx = np.empty(shape, np.float32)
    for chunk in prange(CHUNKS):
        correlate(g, panels, phases, taps, (1, 1), dx, stride, chunk)
    return dx


@kernel
def conv2d_weight_gradient(g, x, kernel, stride, padding, dilation, groups):
    B, O = g.shape[:2]
    columns = im2col(x, kernel, stride, padding, dilation)
    columns = columns.reshape(B, groups, -1, columns.shape[2])
    upstream = g.reshape(B, groups, O // groups, columns.shape[3])
    return (upstream @ columns.swapaxes(2, 3)).sum(axis=0).reshape(O, x.shape[1] // groups, *kernel)


@conv2d_weight_gradient.numba(when=_one_group)
def conv2d_weight_gradient(g, x, kernel, stride, padding, dilation, groups):
    B, C = x.shape[:2]
    O, T = g.shape[1], kernel[0] * kernel[1]
    phases, taps = forward_taps(kernel, padding, dilation)
    group, rows, block, _, _, _, _ = plan(B, C, g.shape[2:], stride, taps)
    tasks = ceil_div(B, group) * ceil_div(g.shape[2], rows)
    blocks, columns = ceil_div(C, block), ceil_div(O, NR) * NR
    parts = min(16, tasks, max(1, 2**21 // (C * T * columns)))
    sums = np.zeros((parts, blocks, ceil_div(block * T, GR) * GR, columns), np.float32)
    for i in prange(parts * blocks):
        b, part = i // parts, i % parts
        share = tasks * part // parts, tasks * (part + 1) // parts
        correlate_weights(x, g, phases, taps, stride, b * block, share, sums[part, b])
    dw = np.empty((O, C, kernel[0], kernel[1]), np.float32)
    for o in prange(O):
        for c in range(C):
            for t in range(T):
                total = np.float32(0)
                for part in range(parts):
                    total += sums[part, c // block, c % block * T + t, o]
                dw[o, c, t // kernel[1], t % kernel[1]] = total
    return dw


class Conv2d(Op):
    """y[o, m] = Σ_{c,k} w[o, c, k] x[c, s m + δ k - p] + b[o]      m, k: positions (row, column) of output and kernel

    With columns = im2col(x), a matrix (C kh kw, H' W') for each image: y = w columns, so
    dw = Σ_B g columnsᵀ,  dx = col2im(wᵀ g),  db = Σ g over images and positions.
    """

    def forward(self, x, weight, bias, stride, padding, dilation, groups):
        self.settings = stride, padding, dilation, groups
        y = conv2d_forward(x, weight, *self.settings)
        if bias is not None:
            y += bias[:, None, None]
        self.save(x if self.needs[1] else None, weight)
        self.shape = x.shape
        return y

    def backward(self, g):
        x, weight = self.saved
        dx = conv2d_input_gradient(g, weight, self.shape, *self.settings) if self.needs[0] else None
        dw = conv2d_weight_gradient(g, x, weight.shape[2:], *self.settings) if self.needs[1] else None
        return dx, dw, g.sum(axis=(0, 2, 3)) if self.needs[2] else None
