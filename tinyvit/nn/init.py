"""How weights start: arrays of float32 drawn from a NumPy generator."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator

import numpy as np

from ..backend import xp
from .random import generator

_skipping = False


@contextlib.contextmanager
def skip_init() -> Iterator[None]:
    """Inside, weights are not drawn: each is zeros of the right shape that take no memory and cannot be trained.

    For counting the parameters of a model too large to hold, and for a model whose weights will be loaded at once:

    >>> from tinyvit import models
    >>> with skip_init():
    ...     model = models.vit("h14")
    >>> model.num_parameters()
    632045800
    """
    global _skipping
    before, _skipping = _skipping, True
    try:
        yield
    finally:
        _skipping = before


def _draw(shape: tuple[int, ...], rng: np.random.Generator | None, sample: Callable):
    if _skipping:
        return xp.broadcast_to(xp.zeros((), np.float32), shape)
    return xp.asarray(sample(generator(rng)))


def uniform(shape: tuple[int, ...], bound: float, rng: np.random.Generator | None = None):
    """Evenly spread over [-bound, bound)."""
    return _draw(shape, rng, lambda r: (r.random(shape, np.float32) * 2 - 1) * np.float32(bound))


def normal(shape: tuple[int, ...], std: float, rng: np.random.Generator | None = None):
    """Normal with mean 0 and standard deviation `std`."""
    return _draw(shape, rng, lambda r: r.standard_normal(shape, np.float32) * np.float32(std))


def trunc_normal(shape: tuple[int, ...], std: float = 0.02, rng: np.random.Generator | None = None):
    """Normal with mean 0 and standard deviation `std`, where values beyond two `std` are drawn again.

    As in JAX; timm's function of this name cuts at ±2 whatever `std` is, which for 0.02 is no cut at all.
    """

    def sample(r: np.random.Generator) -> np.ndarray:
        values = r.standard_normal(math.prod(shape), np.float32)
        far = np.flatnonzero(np.abs(values) > 2)
        while far.size:
            values[far] = r.standard_normal(far.size, np.float32)
            far = far[np.abs(values[far]) > 2]
        values *= np.float32(std)
        return values.reshape(shape)

    return _draw(shape, rng, sample)


def fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """(fan_in, fan_out) of a weight (out, in, ...): how many inputs an output has, and outputs an input."""
    window = math.prod(shape[2:])
    return shape[1] * window, shape[0] * window


def kaiming_uniform(shape: tuple[int, ...], rng: np.random.Generator | None = None, a: float = math.sqrt(5)):
    """Uniform with bound √(6 / ((1 + a²) fan_in)) (He et al. 2015, arXiv:1502.01852).

    The default a = √5 makes that 1/√fan_in, which is how PyTorch starts the weights of linear layers and convolutions.
    """
    return uniform(shape, math.sqrt(6 / ((1 + a * a) * max(fans(shape)[0], 1))), rng)


def kaiming_normal(shape: tuple[int, ...], rng: np.random.Generator | None = None):
    """Normal with std √(2 / fan_out), for weights before a ReLU (He et al. 2015, arXiv:1502.01852, equation 14)."""
    return normal(shape, math.sqrt(2 / max(fans(shape)[1], 1)), rng)


def xavier_uniform(shape: tuple[int, ...], rng: np.random.Generator | None = None):
    """Uniform with bound √(6 / (fan_in + fan_out)) (Glorot and Bengio 2010, equation 16)."""
    return uniform(shape, math.sqrt(6 / max(sum(fans(shape)), 1)), rng)


def bias_uniform(weight_shape: tuple[int, ...], rng: np.random.Generator | None = None):
    """PyTorch's start of a bias: (out,) uniform with bound 1/√fan_in of its weight."""
    return uniform(weight_shape[:1], 1 / math.sqrt(max(fans(weight_shape)[0], 1)), rng)
