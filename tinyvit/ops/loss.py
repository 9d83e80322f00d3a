"""Losses: cross_entropy, kl_div, mse."""

from __future__ import annotations

import numpy as np

from ..autograd import Op
from ..backend import xp
from ..registry import case, public
from ..tensor import Tensor, as_tensor

REDUCTIONS = ("mean", "sum", "none")


def _check_reduction(name: str, reduction: str, known: tuple[str, ...] = REDUCTIONS) -> None:
    if reduction not in known:
        raise ValueError(f"{name} knows reduction={', '.join(known)}, got {reduction!r}")


class CrossEntropy(Op):
    """l = -Σ_k q_k (x_k - ln Σ_j e^(x_j))      x, q: (..., K)

    dx = g (softmax(x) Σ_k q_k - q)
    """

    def forward(self, x, target):
        m = x.max(axis=-1, keepdims=True) if x.size else xp.zeros((*x.shape[:-1], 1), x.dtype)
        log_p = x - m - xp.log(xp.exp(x - m).sum(axis=-1, keepdims=True))
        self.save(log_p, target)
        # 0 · (-inf) counts as 0: a class that cannot be the answer may have probability 0.
        return -xp.where(target == 0, 0, target * log_p).sum(axis=-1, dtype=x.dtype)

    def backward(self, g):
        log_p, target = self.saved
        return g[..., None] * (xp.exp(log_p) * target.sum(axis=-1, keepdims=True) - target)


def _soft_targets(target, shape: tuple[int, ...], dtype, smoothing: float):
    """Targets as probabilities (..., K), from class numbers (...) or from probabilities."""
    target = target._data if isinstance(target, Tensor) else xp.asarray(target)
    classes = shape[-1]
    if target.dtype.kind == "f":
        if target.shape != shape:
            raise ValueError(f"cross_entropy: soft targets of shape {target.shape} for logits of shape {shape}: "
                             f"they must be equal")
        q = target.astype(dtype, copy=False)
    else:
        if target.shape != shape[:-1]:
            raise ValueError(f"cross_entropy: class numbers of shape {target.shape} for logits of shape {shape}: "
                             f"expected {shape[:-1]}")
        if target.dtype.kind not in "iu":
            raise TypeError(f"cross_entropy: class numbers must be integers, got {target.dtype}")
        wrong = (target < 0) | (target >= classes)
        if wrong.any():
            first = int(wrong.reshape(-1).argmax())
            raise ValueError(f"cross_entropy: label {int(target.reshape(-1)[first])} at position {first} is not one of the "
                             f"{classes} classes, 0 to {classes - 1}")
        q = (target[..., None] == xp.arange(classes)).astype(dtype)
    return q * (1 - smoothing) + smoothing / classes if smoothing else q


@public(case((4, 5), target=lambda rng: rng.integers(0, 5, 4)),
        case((4, 5), target=lambda rng: rng.integers(0, 5, 4), label_smoothing=0.1, reduction="sum"),
        case((4, 5), target=lambda rng: rng.dirichlet(np.ones(5), 4), label_smoothing=0.2),
        case((2, 3, 5), target=lambda rng: rng.integers(0, 5, (2, 3)), reduction="none"),
        case((0, 5), target=lambda rng: np.zeros(0, int), reduction="sum"),
        case(lambda rng: [[0.0, 1000.0]], target=lambda rng: np.array([0])))
def cross_entropy(logits, target, label_smoothing: float = 0.0, reduction: str = "mean") -> Tensor:
    """-Σ_k q_k ln softmax(logits)_k, averaged, summed or one value an example.

    logits: (..., K), the classes on the last axis (PyTorch has them on axis 1; for (B, K) that is the same).
    target: class numbers (...), or probabilities (..., K). label_smoothing ε: q ← (1 - ε) q + ε/K (Szegedy et al. 2016,
    section 7). Raises ValueError for shapes that do not fit, for labels outside 0..K-1 and for unknown reductions.
    """
    _check_reduction("cross_entropy", reduction)
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"label_smoothing must be in [0, 1), got {label_smoothing}")
    logits = as_tensor(logits)
    if logits.ndim == 0:
        raise ValueError("cross_entropy needs logits (..., K), got a 0-d tensor")
    dtype = logits.dtype if logits.dtype.kind == "f" else np.float32
    losses = CrossEntropy.apply(logits, target=_soft_targets(target, logits.shape, dtype, label_smoothing))
    return _reduce(losses, reduction)


def _reduce(losses: Tensor, reduction: str) -> Tensor:
    return losses if reduction == "none" else losses.mean() if reduction == "mean" else losses.sum()


class KLDiv(Op):
    """l = p (ln p - log_q), 0 where p = 0;   dlog_q = -g p, dp = g (ln p + 1 - log_q)"""

    def forward(self, log_q, p):
        log_p = xp.log(xp.where(p > 0, p, xp.ones_like(p)))
        self.save(log_q, p, log_p)
        return xp.where(p > 0, p * (log_p - log_q), xp.zeros_like(p))

    def backward(self, g):
        log_q, p, log_p = self.saved
        return -g * p, g * (log_p + 1 - log_q)


@public(case((3, 4), (3, 4), domain="probability"), case((3, 4), (3, 4), domain="probability", reduction="sum"),
        case((2, 3, 4), (2, 3, 4), domain="probability", reduction="none"), case((0, 4), (0, 4), reduction="sum"))
def kl_div(log_q, p, reduction: str = "batchmean") -> Tensor:
    """KL(p ‖ q) = Σ p (ln p - log_q), from log-probabilities `log_q` and probabilities `p` of one shape.

    reduction: "batchmean" (the sum divided by the length of the first axis; our default, PyTorch's is "mean" over all
    elements), "sum", "mean" or "none".
    """
    _check_reduction("kl_div", reduction, ("batchmean", *REDUCTIONS))
    log_q, p = as_tensor(log_q), as_tensor(p)
    if log_q.shape != p.shape:
        raise ValueError(f"kl_div: log_q has shape {log_q.shape} and p {p.shape}: they must be equal")
    losses = KLDiv.apply(log_q, p)
    return losses.sum() / log_q.shape[0] if reduction == "batchmean" else _reduce(losses, reduction)


@public(case((3, 4), (3, 4)), case((3, 4), (3, 4), reduction="sum"), case((3,), (3,), reduction="none"),
        case((0,), (0,), reduction="sum"))
def mse(x, target, reduction: str = "mean") -> Tensor:
    """(x - target)², averaged, summed or element by element. Raises ValueError unless the shapes are equal."""
    _check_reduction("mse", reduction)
    x, target = as_tensor(x), as_tensor(target)
    if x.shape != target.shape:
        raise ValueError(f"mse: x has shape {x.shape} and target {target.shape}: they must be equal, nothing is broadcast here")
    difference = x - target
    return _reduce(difference * difference, reduction)
