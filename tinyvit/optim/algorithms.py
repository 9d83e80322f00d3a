"""SGD, Adam and AdamW. One kernel does a whole update: it passes over the memory once and makes no array.

The kernels run on one thread: reading and writing four arrays keeps the memory busy, and starting threads for each of a
model's many small parameters would take longer than the work.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from ..backend import kernel, xp
from .optimizer import Optimizer


@kernel
def sgd_update(p, g, lr, weight_decay):
    p -= lr * (g + weight_decay * p)


@sgd_update.numba(mutates=True, serial=True, flat=True)
def sgd_update(p, g, lr, weight_decay):
    lr, weight_decay = np.float32(lr), np.float32(weight_decay)
    for i in range(p.size):
        p[i] -= lr * (g[i] + weight_decay * p[i])


@kernel
def momentum_update(p, g, v, lr, momentum, weight_decay, nesterov):
    g = g + weight_decay * p
    v *= momentum
    v += g
    p -= lr * (g + momentum * v if nesterov else v)


@momentum_update.numba(mutates=True, serial=True, flat=True)
def momentum_update(p, g, v, lr, momentum, weight_decay, nesterov):
    lr, momentum, weight_decay = np.float32(lr), np.float32(momentum), np.float32(weight_decay)
    for i in range(p.size):
        slope = g[i] + weight_decay * p[i]
        v[i] = momentum * v[i] + slope
        p[i] -= lr * (slope + momentum * v[i] if nesterov else v[i])


class SGD(Optimizer):
    """g ← g + λ p;   v ← μ v + g;   p ← p - lr v, or with Nesterov's momentum p ← p - lr (g + μ v)

    lr, μ `momentum`, λ `weight_decay`; v starts at 0. As torch.optim.SGD (Sutskever et al. 2013, but lr outside v).
    """

    def __init__(self, params: Iterable, lr: float = 1e-3, momentum: float = 0.0, weight_decay: float = 0.0,
                 nesterov: bool = False):
        super().__init__(params, lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov)

    def check(self, settings) -> None:
        super().check(settings)
        if not 0 <= settings["momentum"] < 1:
            raise ValueError(f"SGD: momentum must be in [0, 1), got {settings['momentum']}")
        if settings["nesterov"] and not settings["momentum"]:
            raise ValueError("SGD: nesterov=True needs a momentum, 0.9 for example")

    def new_state(self, p, settings):
        return {"v": xp.zeros_like(p)} if settings["momentum"] else {}

    def update(self, p, g, state, settings) -> None:
        if not settings["momentum"]:
            sgd_update(p, g, settings["lr"], settings["weight_decay"])
        else:
            momentum_update(p, g, state["v"], settings["lr"], settings["momentum"], settings["weight_decay"],
                            settings["nesterov"])


@kernel
def adam_update(p, g, m, v, step_size, beta1, beta2, root_scale, eps, l2, keep):
    """keep: what p is multiplied with first (decoupled decay); l2: what is added to g for each p (coupled)."""
    g = g + l2 * p
    m *= beta1
    m += (1 - beta1) * g
    v *= beta2
    v += (1 - beta2) * g * g
    p *= keep
    p -= step_size * m / (xp.sqrt(v) * root_scale + eps)


@adam_update.numba(mutates=True, serial=True, flat=True)
def adam_update(p, g, m, v, step_size, beta1, beta2, root_scale, eps, l2, keep):
    step_size, root_scale, eps = np.float32(step_size), np.float32(root_scale), np.float32(eps)
    l2, keep, a1, a2 = np.float32(l2), np.float32(keep), np.float32(1 - beta1), np.float32(1 - beta2)
    beta1, beta2 = np.float32(beta1), np.float32(beta2)
    for i in range(p.size):
        slope = g[i] + l2 * p[i]
        m[i] = beta1 * m[i] + a1 * slope
        v[i] = beta2 * v[i] + a2 * slope * slope
        # np.divide, since `/` stops to look for a zero below it, and such a loop is not vectorised.
        p[i] = keep * p[i] - np.divide(step_size * m[i], np.sqrt(v[i]) * root_scale + eps)


class Adam(Optimizer):
    """m ← β₁ m + (1 - β₁) g;   v ← β₂ v + (1 - β₂) g²;   p ← p - lr m̂ / (√v̂ + ε),  m̂ = m / (1 - β₁ᵗ), v̂ = v / (1 - β₂ᵗ)

    t counts the parameter's steps from 1 (Kingma and Ba 2015, arXiv:1412.6980, algorithm 1). `weight_decay` λ is added to
    the gradient: g ← g + λ p, as in torch.optim.Adam; see AdamW.
    """

    decoupled = False

    def __init__(self, params: Iterable, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 0.0):
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

    def check(self, settings) -> None:
        super().check(settings)
        if len(settings["betas"]) != 2 or not all(0 <= beta < 1 for beta in settings["betas"]):
            raise ValueError(f"{type(self).__name__}: betas must be two numbers in [0, 1), got {settings['betas']}")
        if settings["eps"] < 0:
            raise ValueError(f"{type(self).__name__}: eps must be 0 or more, got {settings['eps']}")

    def new_state(self, p, settings):
        return {"step": 0, "m": xp.zeros_like(p), "v": xp.zeros_like(p)}

    def update(self, p, g, state, settings) -> None:
        state["step"] += 1
        lr, (beta1, beta2), decay = settings["lr"], settings["betas"], settings["weight_decay"]
        step_size = lr / (1 - beta1 ** state["step"])
        root_scale = 1 / math.sqrt(1 - beta2 ** state["step"])
        l2, keep = (0.0, 1 - lr * decay) if self.decoupled else (decay, 1.0)
        adam_update(p, g, state["m"], state["v"], step_size, beta1, beta2, root_scale, settings["eps"], l2, keep)


class AdamW(Adam):
    """Adam, with weights that decay by themselves: p ← (1 - lr λ) p before the step (Loshchilov and Hutter 2019,
    arXiv:1711.05101, algorithm 2, with λ scaled by lr as in torch.optim.AdamW)."""

    decoupled = True

    def __init__(self, params: Iterable, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 1e-2):
        super().__init__(params, lr, betas, eps, weight_decay)
