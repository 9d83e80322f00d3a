"""The norm of all gradients together, and its limit."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from ..backend import xp
from ..tensor import Tensor


def clip_grad_norm(params: Iterable[Tensor], max_norm: float) -> float:
    """Scale all gradients by max_norm / norm, in place, where their norm together is larger. Returns the norm before.

    norm = √(Σ g²) over every entry of every gradient (Pascanu et al. 2013, arXiv:1211.5063). `max_norm=math.inf` only measures.
    Raises FloatingPointError, and scales nothing, if a gradient holds NaN or inf; ValueError unless max_norm > 0.
    """
    if not max_norm > 0:
        raise ValueError(f"clip_grad_norm needs max_norm > 0, got {max_norm}")
    tensors = [params] if isinstance(params, Tensor) else list(params)
    grads = [p._grad for p in tensors if p._grad is not None]
    if not grads:
        return 0.0
    squares = sum(xp.vdot(g, g).astype(np.float64) for g in grads)
    norm = math.sqrt(squares) if math.isfinite(squares := float(squares)) else _careful_norm(tensors)
    if norm > max_norm:
        for g in grads:
            g *= max_norm / (norm + 1e-6)
    return norm


def _careful_norm(tensors: list[Tensor]) -> float:
    """The norm where squares overflow float32. Raises FloatingPointError for NaN and inf."""
    squares = 0.0
    for i, p in enumerate(tensors):
        if p._grad is None:
            continue
        if not bool(xp.isfinite(p._grad).all()):
            raise FloatingPointError(f"the gradient of parameter {i} (counted from 0, shape {p.shape}) holds NaN or inf: try a "
                                     f"smaller learning rate, or find the op with detect_anomaly")
        squares += float(xp.square(p._grad.astype(np.float64)).sum())
    return math.sqrt(squares)
