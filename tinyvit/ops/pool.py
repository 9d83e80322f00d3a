"""Pooling: the largest or the mean value of each window."""

from __future__ import annotations

import math

import numpy as np

from ..autograd import Op
from ..backend import kernel, prange, xp
from ..registry import case, public
from ..tensor import Tensor, as_tensor
from .conv import check_fits, check_images, pair, windows
from .conv_kernels import out_size


def _positions(shape, kernel, stride, padding):
    """Row of each window's top and column of its left edge in the image, as (H', 1) and (1, W'); negative in the padding."""
    height, width = (out_size(*axis, 1) for axis in zip(shape[2:], kernel, stride, padding))
    return xp.arange(height)[:, None] * stride[0] - padding[0], xp.arange(width)[None, :] * stride[1] - padding[1]


def _pad(x, padding, value: float):
    return xp.pad(x, ((0, 0), (0, 0), (padding[0], padding[0]), (padding[1], padding[1])), constant_values=value)


# ---------------------------------------------------------------------------------------------- max


@kernel
def max_pool_forward(x, kernel, stride, padding):
    """The largest value of each window, and where it is: row · W + column in its image."""
    top, left = _positions(x.shape, kernel, stride, padding)
    W, (height, width) = x.shape[3], (len(top), left.shape[1])
    y = xp.full((*x.shape[:2], height, width), -math.inf, x.dtype)
    index = xp.zeros(y.shape, np.int32) + (xp.maximum(top, 0) * W + xp.maximum(left, 0)).astype(np.int32)
    for ky, kx, value in windows(_pad(x, padding, -math.inf), kernel, stride, (1, 1), height, width):
        better = (value > y) | xp.isnan(value)
        y = xp.where(better, value, y)
        index = xp.where(better, ((top + ky) * W + left + kx).astype(np.int32), index)
    return y, index


@max_pool_forward.numba
def max_pool_forward(x, kernel, stride, padding):
    B, C, H, W = x.shape
    height = out_size(H, kernel[0], stride[0], padding[0], 1)
    width = out_size(W, kernel[1], stride[1], padding[1], 1)
    y, index = np.empty((B, C, height, width), x.dtype), np.empty((B, C, height, width), np.int32)
    for plane in prange(B * C):
        b, c = plane // C, plane % C
        for i in range(height):
            for j in range(width):
                top, left = i * stride[0] - padding[0], j * stride[1] - padding[1]
                best, at = np.float32(-np.inf), max(top, 0) * W + max(left, 0)
                for row in range(max(top, 0), min(top + kernel[0], H)):
                    for column in range(max(left, 0), min(left + kernel[1], W)):
                        value = x[b, c, row, column]
                        if value > best or value != value:
                            best, at = value, row * W + column
                y[b, c, i, j], index[b, c, i, j] = best, at
    return y, index


@kernel
def max_pool_backward(g, index, shape, kernel, stride, padding):
    top, left = _positions(shape, kernel, stride, padding)
    B, C, H, W = shape
    padded = xp.zeros((B, C, H + 2 * padding[0], W + 2 * padding[1]), g.dtype)
    for ky, kx, view in windows(padded, kernel, stride, (1, 1), len(top), left.shape[1]):
        view += g * (index == (top + ky) * W + left + kx)
    return padded[:, :, padding[0]:padding[0] + H, padding[1]:padding[1] + W]


@max_pool_backward.numba
def max_pool_backward(g, index, shape, kernel, stride, padding):
    B, C, H, W = shape
    dx = np.empty((B, C, H, W), g.dtype)
    for plane in prange(B * C):
        b, c = plane // C, plane % C
        dx[b, c] = np.float32(0)
        for i in range(g.shape[2]):
            for j in range(g.shape[3]):
                at = index[b, c, i, j]
                dx[b, c, at // W, at % W] += g[b, c, i, j]
    return dx


class MaxPool2d(Op):
    """y[m] = max_k x[s m + k - p];   dx[n] = Σ of g[m] over the windows m that n wins

    The first of equal values wins, row by row. A NaN wins over all numbers.
    """

    def forward(self, x, kernel, stride, padding):
        self.settings = x.shape, kernel, stride, padding
        y, index = max_pool_forward(x, kernel, stride, padding)
        self.save(index)
        return y

    def backward(self, g):
        (index,) = self.saved
        return max_pool_backward(g, index, *self.settings)


def _settings(op: str, x: Tensor, kernel, stride, padding) -> dict[str, tuple[int, int]]:
    check_images(op, x)
    kernel = pair(op, "kernel", kernel, 1)
    stride = kernel if stride is None else pair(op, "stride", stride, 1)
    padding = pair(op, "padding", padding, 0)
    if any(2 * p > k for p, k in zip(padding, kernel)):
        raise ValueError(f"{op}: padding {padding} is more than half the kernel {kernel}, so that some windows would hold "
                         f"nothing but padding: pad less")
    check_fits(op, x.shape, kernel, padding)
    return {"kernel": kernel, "stride": stride, "padding": padding}


@public(case((2, 3, 4, 6), kernel=2, domain="distinct"), case((1, 2, 5, 5), kernel=3, stride=1, domain="distinct"),
        case((2, 2, 7, 6), kernel=(3, 2), stride=(2, 3), padding=1, domain="distinct"),
        case((1, 1, 3, 3), kernel=3, domain="distinct"), case((0, 2, 4, 4), kernel=2),
        case(lambda rng: np.full((1, 1, 4, 4), 2.0), kernel=2, stride=1, differentiable=False))
def max_pool2d(x, kernel, stride=None, padding=0) -> Tensor:
    """The largest value of each window: x (B, C, H, W) gives (B, C, H', W'), H' = ⌊(H + 2 padding - kernel) / stride⌋ + 1.

    kernel, stride (kernel unless given) and padding: an int or a pair (rows, columns). The padding never wins: it is -inf.
    A tie gives its gradient to the first of the window, row by row, as in PyTorch. NaN stays NaN.
    Raises ValueError where x is not four-dimensional, a window is larger than the padded image, or padding > kernel / 2.
    """
    x = as_tensor(x)
    return MaxPool2d.apply(x, **_settings("max_pool2d", x, kernel, stride, padding))


# ---------------------------------------------------------------------------------------------- mean


@kernel
def avg_pool_forward(x, kernel, stride, padding):
    height, width = (out_size(*axis, 1) for axis in zip(x.shape[2:], kernel, stride, padding))
    y = xp.zeros((*x.shape[:2], height, width), x.dtype)
    for _, _, value in windows(_pad(x, padding, 0), kernel, stride, (1, 1), height, width):
        y += value
    return y / (kernel[0] * kernel[1])


@avg_pool_forward.numba
def avg_pool_forward(x, kernel, stride, padding):
    B, C, H, W = x.shape
    height = out_size(H, kernel[0], stride[0], padding[0], 1)
    width = out_size(W, kernel[1], stride[1], padding[1], 1)
    y, size = np.empty((B, C, height, width), x.dtype), np.float32(kernel[0] * kernel[1])
    for plane in prange(B * C):
        b, c = plane // C, plane % C
        for i in range(height):
            for j in range(width):
                top, left, total = i * stride[0] - padding[0], j * stride[1] - padding[1], np.float32(0)
                for row in range(max(top, 0), min(top + kernel[0], H)):
                    for column in range(max(left, 0), min(left + kernel[1], W)):
                        total += x[b, c, row, column]
                y[b, c, i, j] = total / size
    return y


@kernel
def avg_pool_backward(g, shape, kernel, stride, padding):
    B, C, H, W = shape
    padded = xp.zeros((B, C, H + 2 * padding[0], W + 2 * padding[1]), g.dtype)
    for _, _, view in windows(padded, kernel, stride, (1, 1), *g.shape[2:]):
        view += g
    return padded[:, :, padding[0]:padding[0] + H, padding[1]:padding[1] + W] / (kernel[0] * kernel[1])


@avg_pool_backward.numba
def avg_pool_backward(g, shape, kernel, stride, padding):
    B, C, H, W = shape
    dx, size = np.empty((B, C, H, W), g.dtype), np.float32(kernel[0] * kernel[1])
    for plane in prange(B * C):
        b, c = plane // C, plane % C
        dx[b, c] = np.float32(0)
        for i in range(g.shape[2]):
            for j in range(g.shape[3]):
                top, left, share = i * stride[0] - padding[0], j * stride[1] - padding[1], g[b, c, i, j] / size
                for row in range(max(top, 0), min(top + kernel[0], H)):
                    for column in range(max(left, 0), min(left + kernel[1], W)):
                        dx[b, c, row, column] += share
    return dx


class AvgPool2d(Op):
    """y[m] = Σ_k x[s m + k - p] / (kh kw);   dx[n] = Σ of g[m] / (kh kw) over the windows m that hold n"""

    def forward(self, x, kernel, stride, padding):
        self.settings = x.shape, kernel, stride, padding
        return avg_pool_forward(x, kernel, stride, padding)

    def backward(self, g):
        return avg_pool_backward(g, *self.settings)


@public(case((2, 3, 4, 6), kernel=2), case((1, 2, 5, 5), kernel=3, stride=1),
        case((2, 2, 7, 6), kernel=(3, 2), stride=(2, 3), padding=1), case((1, 1, 3, 3), kernel=3), case((0, 2, 4, 4), kernel=2))
def avg_pool2d(x, kernel, stride=None, padding=0) -> Tensor:
    """The mean of each window: x (B, C, H, W) gives (B, C, H', W'), H' = ⌊(H + 2 padding - kernel) / stride⌋ + 1.

    kernel, stride (kernel unless given) and padding: an int or a pair (rows, columns). Padding counts as zeros, also in the
    number that is divided by, which always is kh kw (PyTorch's count_include_pad=True). Raises ValueError as max_pool2d does.
    """
    x = as_tensor(x)
    return AvgPool2d.apply(x, **_settings("avg_pool2d", x, kernel, stride, padding))


class GlobalAvgPool2d(Op):
    """y[b, c] = Σ x[b, c, :, :] / (H W);   dx[b, c, i, j] = g[b, c] / (H W)"""

    def forward(self, x):
        self.shape = x.shape
        return x.mean(axis=(2, 3))

    def backward(self, g):
        dx = xp.empty(self.shape, g.dtype)
        dx[:] = (g / (self.shape[2] * self.shape[3]))[:, :, None, None]
        return dx


@public(case((2, 3, 4, 5)), case((1, 2, 1, 1)), case((0, 2, 3, 3)))
def global_avg_pool2d(x) -> Tensor:
    """The mean of each channel of each image: x (B, C, H, W) gives (B, C) (Lin et al. 2013, arXiv:1312.4400, section 3.2).

    Raises ValueError where x is not four-dimensional or its images are empty.
    """
    x = as_tensor(x)
    check_images("global_avg_pool2d", x)
    if 0 in x.shape[2:]:
        raise ValueError(f"global_avg_pool2d needs at least one pixel to average, got shape {x.shape}")
    return GlobalAvgPool2d.apply(x)
