"""Learning-rate schedules: functions of the step, counted from 0, that give a factor for every group's learning rate.

The warm-up gives 1/warmup in step 0 and 1 in step warmup - 1. What falls is at 1 in step `warmup` and at `final` in step
`total`, the first one that is not done any more: the last step, total - 1, still has a small learning rate, so that none is
wasted. From `total` on the factor stays `final`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

Schedule = Callable[[int], float]


def constant() -> Schedule:
    """Always 1."""
    return lambda step: 1.0


def warmup_linear(total: int, warmup: int = 0, final: float = 0.0) -> Schedule:
    """Up in a straight line over `warmup` steps, then down in one to `final` at step `total`."""
    return _warmed("warmup_linear", total, warmup, final, lambda t: 1 - t)


def warmup_cosine(total: int, warmup: int = 0, final: float = 0.0) -> Schedule:
    """Up in a straight line over `warmup` steps, then down along half a cosine (Loshchilov and Hutter 2017,
    arXiv:1608.03983, equation 5 without restarts) to `final` at step `total`."""
    return _warmed("warmup_cosine", total, warmup, final, lambda t: 0.5 * (1 + math.cos(math.pi * t)))


def _warmed(name: str, total: int, warmup: int, final: float, shape: Callable[[float], float]) -> Schedule:
    """shape: from 1 at t = 0 to 0 at t = 1."""
    if total < 1 or not 0 <= warmup <= total:
        raise ValueError(f"{name} needs total >= 1 and a warmup in 0 ... total, got total={total}, warmup={warmup}")
    if final < 0:
        raise ValueError(f"{name}: final is a factor and must be 0 or more, got {final}")

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        if step >= total:
            return final
        return final + (1 - final) * shape((step - warmup) / (total - warmup))

    return factor
