"""dropout and drop_path: noise in training that the mean survives. Evaluation does not call them."""

from __future__ import annotations

import numpy as np

from ..autograd import Op
from ..backend import xp
from ..registry import case, public
from ..tensor import Tensor, as_tensor


class Scale(Op):
    """y = x s, s a constant array;   dx = g s"""

    def forward(self, x, scale):
        scale = scale.astype(x.dtype, copy=False)
        self.save(scale)
        return x * scale

    def backward(self, g):
        (scale,) = self.saved
        return g * scale


def _generator(rng):
    return np.random.default_rng(1)


def _drop(name: str, x, p: float, rng: np.random.Generator, shape: tuple[int, ...]) -> Tensor:
    if not 0 <= p < 1:
        raise ValueError(f"{name}: the probability of dropping must be in [0, 1), got {p}")
    if p == 0:
        return x
    kept = rng.random(shape, np.float32) >= p
    return Scale.apply(x, scale=xp.asarray(kept.astype(np.float32) / np.float32(1 - p)))


@public(case((4, 5), p=0.5, rng=_generator), case((), p=0.0, rng=_generator), case((0, 3), p=0.5, rng=_generator))
def dropout(x, p: float, rng: np.random.Generator) -> Tensor:
    """Each element 0 with probability p, else divided by 1 - p (Srivastava et al. 2014, in its inverted form)."""
    x = as_tensor(x)
    return _drop("dropout", x, p, rng, x.shape)


@public(case((4, 5), p=0.5, rng=_generator), case((3, 2, 2), p=0.2, rng=_generator), case((0, 3), p=0.5, rng=_generator))
def drop_path(x, p: float, rng: np.random.Generator) -> Tensor:
    """Each example (entry of the first axis) 0 as a whole with probability p, else divided by 1 - p.

    On a residual branch this is stochastic depth (Huang et al. 2016, arXiv:1603.09382).
    """
    x = as_tensor(x)
    if x.ndim == 0:
        raise ValueError("drop_path drops whole examples along the first axis, and a 0-d tensor has none")
    return _drop("drop_path", x, p, rng, (x.shape[0],) + (1,) * (x.ndim - 1))
