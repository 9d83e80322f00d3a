"""Layers with weights, and the small ones without."""

from __future__ import annotations

import numpy as np

from ..backend import xp
from ..registry import FUNCTIONS as F
from ..tensor import Tensor
from . import init
from .module import Module, Parameter
from .random import generator


def positive(name: str, **sizes: int) -> None:
    """Raise ValueError unless every size is an integer of at least 1."""
    for key, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise ValueError(f"{name}: {key} must be an integer of at least 1, got {value!r}")


def probability(name: str, p: float) -> float:
    """`p`, if it is in [0, 1). Raises ValueError otherwise."""
    if not 0 <= p < 1:
        raise ValueError(f"{name}: p is the part that is dropped and must be in [0, 1), got {p}")
    return float(p)


def pair(name: str, what: str, value) -> tuple[int, int]:
    """`value` as (rows, columns): an int means both. Raises ValueError for what is not one or two integers."""
    two = (value, value) if isinstance(value, int | np.integer) else tuple(value) if isinstance(value, tuple | list) else ()
    if len(two) != 2 or not all(isinstance(v, int | np.integer) for v in two):
        raise ValueError(f"{name}: {what} must be an integer or a pair of them, got {value!r}")
    return int(two[0]), int(two[1])


class Linear(Module):
    """y = x Wᵀ + b      x: (..., in), W: (out, in), b: (out,)

    W and b start uniform with bound 1/√in, as in PyTorch.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, rng: np.random.Generator | None = None):
        super().__init__()
        positive("Linear", in_features=in_features, out_features=out_features)
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(init.kaiming_uniform((out_features, in_features), rng), copy=False)
        self.bias = Parameter(init.bias_uniform(self.weight.shape, rng), copy=False) if bias else None

    def forward(self, x) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def flops(self, inputs, output) -> int:
        return 2 * output.size * self.in_features

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}{'' if self.bias is not None else ', bias=False'}"


class Conv2d(Module):
    """2-D convolution (cross-correlation): x (B, C, H, W), weight (out, C/groups, kh, kw) -> (B, out, H', W')

    H' = ⌊(H + 2 padding - dilation (kh - 1) - 1) / stride⌋ + 1. Starts uniform with bound 1/√(C/groups kh kw), as in PyTorch.
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size, stride=1, padding=0, dilation=1, groups: int = 1,
                 bias: bool = True, rng: np.random.Generator | None = None):
        super().__init__()
        positive("Conv2d", in_channels=in_channels, out_channels=out_channels, groups=groups)
        if in_channels % groups or out_channels % groups:
            raise ValueError(f"Conv2d: groups={groups} must divide in_channels={in_channels} and out_channels={out_channels}")
        self.kernel_size, self.stride = pair("Conv2d", "kernel_size", kernel_size), pair("Conv2d", "stride", stride)
        self.padding, self.dilation = pair("Conv2d", "padding", padding), pair("Conv2d", "dilation", dilation)
        self.groups = groups
        shape = (out_channels, in_channels // groups, *self.kernel_size)
        self.weight = Parameter(init.kaiming_uniform(shape, rng), copy=False)
        self.bias = Parameter(init.bias_uniform(shape, rng), copy=False) if bias else None

    def forward(self, x) -> Tensor:
        return F.conv2d(x, self.weight, self.bias, stride=self.stride, padding=self.padding, dilation=self.dilation,
                        groups=self.groups)

    def flops(self, inputs, output) -> int:
        return 2 * output.size * (self.weight.size // self.weight.shape[0])

    def extra_repr(self) -> str:
        out, each = self.weight.shape[:2]
        parts = [f"{each * self.groups}, {out}, kernel_size={self.kernel_size}"]
        for key, usual in (("stride", (1, 1)), ("padding", (0, 0)), ("dilation", (1, 1)), ("groups", 1)):
            if getattr(self, key) != usual:
                parts.append(f"{key}={getattr(self, key)}")
        return ", ".join(parts) + ("" if self.bias is not None else ", bias=False")


class LayerNorm(Module):
    """y = (x - mean) / √(var + eps) · weight + bias over the last axis (Ba et al. 2016)      x: (..., width)"""

    def __init__(self, width: int, eps: float = 1e-5):
        super().__init__()
        positive("LayerNorm", width=width)
        self.eps = eps
        self.weight = Parameter(xp.ones(width, np.float32), copy=False)
        self.bias = Parameter(xp.zeros(width, np.float32), copy=False)

    def forward(self, x) -> Tensor:
        return F.layer_norm(x, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.weight.size}, eps={self.eps}"


class BatchNorm2d(Module):
    """y = (x - mean) / √(var + eps) · weight + bias for each channel (Ioffe and Szegedy 2015)      x: (B, C, H, W)

    Training normalises with the batch's mean and variance and moves the running ones towards them by `momentum`;
    evaluation normalises with the running ones. Raises ValueError for a single value a channel in training.
    """

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1):
        super().__init__()
        positive("BatchNorm2d", channels=channels)
        if not 0 <= momentum <= 1:
            raise ValueError(f"BatchNorm2d: momentum is the weight of the newest batch and must be in [0, 1], got {momentum}")
        self.eps, self.momentum = eps, momentum
        self.weight = Parameter(xp.ones(channels, np.float32), copy=False)
        self.bias = Parameter(xp.zeros(channels, np.float32), copy=False)
        self.running_mean, self.running_var = xp.zeros(channels, np.float32), xp.ones(channels, np.float32)

    def forward(self, x) -> Tensor:
        if len(x.shape) != 4:
            raise ValueError(f"BatchNorm2d needs x (B, C, H, W), got shape {x.shape}")
        return F.batch_norm(x, self.weight, self.bias, self.running_mean, self.running_var, self.training, self.momentum,
                            self.eps)

    def extra_repr(self) -> str:
        return f"{self.weight.size}, eps={self.eps}, momentum={self.momentum}"


class Dropout(Module):
    """In training, each element is 0 with probability p and divided by 1 - p otherwise; in evaluation nothing changes.

    Draws from the generator `rng` it was made with.
    """

    def __init__(self, p: float = 0.5, rng: np.random.Generator | None = None):
        super().__init__()
        self.p = probability(type(self).__name__, p)
        self.rng = generator(rng)

    def forward(self, x) -> Tensor:
        return F.dropout(x, self.p, self.rng) if self.training and self.p else x

    def extra_repr(self) -> str:
        return f"p={self.p}"


class DropPath(Dropout):
    """In training, each example as a whole is 0 with probability p and divided by 1 - p otherwise.

    At the end of a residual branch that leaves the branch out: stochastic depth (Huang et al. 2016, arXiv:1603.09382).
    """

    def __init__(self, p: float = 0.0, rng: np.random.Generator | None = None):
        super().__init__(p, rng)

    def forward(self, x) -> Tensor:
        return F.drop_path(x, self.p, self.rng) if self.training and self.p else x


class ReLU(Module):
    """max(x, 0)"""

    def forward(self, x) -> Tensor:
        return F.relu(x)


class GELU(Module):
    """x Φ(x), Φ the distribution function of the normal (Hendrycks and Gimpel 2016); approximate="tanh" as in flax."""

    def __init__(self, approximate: str = "none"):
        super().__init__()
        if approximate not in ("none", "tanh"):
            raise ValueError(f"GELU: approximate must be 'none' or 'tanh', got {approximate!r}")
        self.approximate = approximate

    def forward(self, x) -> Tensor:
        return F.gelu(x, self.approximate)

    def extra_repr(self) -> str:
        return "" if self.approximate == "none" else "approximate='tanh'"


class Identity(Module):
    """x"""

    def forward(self, x) -> Tensor:
        return x


class Flatten(Module):
    """(B, ...) -> (B, everything else in one axis)"""

    def forward(self, x) -> Tensor:
        return F.flatten(x, 1)


class MaxPool2d(Module):
    """The largest value of each window: (B, C, H, W) -> (B, C, H', W'). The stride is the window's size if not given."""

    _pool = "max_pool2d"

    def __init__(self, kernel_size, stride=None, padding=0):
        super().__init__()
        name = type(self).__name__
        self.kernel_size = pair(name, "kernel_size", kernel_size)
        self.stride = self.kernel_size if stride is None else pair(name, "stride", stride)
        self.padding = pair(name, "padding", padding)

    def forward(self, x) -> Tensor:
        return getattr(F, self._pool)(x, self.kernel_size, self.stride, self.padding)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool2d(MaxPool2d):
    """The mean of each window, zeros of the padding counted as in PyTorch: (B, C, H, W) -> (B, C, H', W')."""

    _pool = "avg_pool2d"


class GlobalAvgPool2d(Module):
    """The mean of each channel: (B, C, H, W) -> (B, C)."""

    def forward(self, x) -> Tensor:
        return F.global_avg_pool2d(x)
