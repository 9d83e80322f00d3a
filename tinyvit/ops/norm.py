"""layer_norm and batch_norm."""

from __future__ import annotations

import numpy as np

from ..autograd import Op
from ..backend import SUM, kernel, prange, xp
from ..registry import case, public
from ..tensor import Tensor, as_tensor

_CHUNKS = 16  # partial sums over this many stretches of rows, whatever the number of threads: the same bits everywhere


@kernel
def layer_norm_forward(x, weight, bias, eps):
    mean = x.mean(axis=1)
    centred = x - mean[:, None]
    rstd = 1 / xp.sqrt((centred * centred).mean(axis=1) + eps)
    return centred * rstd[:, None] * weight + bias, mean, rstd


@layer_norm_forward.numba(fastmath=SUM)
def layer_norm_forward(x, weight, bias, eps):
    M, D = x.shape
    y, mean, rstd = np.empty_like(x), np.empty(M, x.dtype), np.empty(M, x.dtype)
    for i in prange(M):
        total = np.float32(0)
        for j in range(D):
            total += x[i, j]
        mu = total / np.float32(D)
        squares = np.float32(0)
        for j in range(D):
            squares += (x[i, j] - mu) * (x[i, j] - mu)
        r = np.float32(1) / np.sqrt(squares / np.float32(D) + np.float32(eps))
        mean[i], rstd[i] = mu, r
        for j in range(D):
            y[i, j] = (x[i, j] - mu) * r * weight[j] + bias[j]
    return y, mean, rstd


@kernel
def layer_norm_backward(g, x, mean, rstd, weight):
    normal = (x - mean[:, None]) * rstd[:, None]
    gw = g * weight
    dx = rstd[:, None] * (gw - gw.mean(axis=1, keepdims=True) - normal * (gw * normal).mean(axis=1, keepdims=True))
    return dx, (g * normal).sum(axis=0), g.sum(axis=0)


@layer_norm_backward.numba(fastmath=SUM)
def layer_norm_backward(g, x, mean, rstd, weight):
    M, D = x.shape
    dx = np.empty_like(x)
    dw, db = np.zeros((_CHUNKS, D), x.dtype), np.zeros((_CHUNKS, D), x.dtype)
    for c in prange(_CHUNKS):
        for i in range(M * c // _CHUNKS, M * (c + 1) // _CHUNKS):
            mu, r = mean[i], rstd[i]
            s, t = np.float32(0), np.float32(0)
            for j in range(D):
                n = (x[i, j] - mu) * r
                gw = g[i, j] * weight[j]
                s += gw
                t += gw * n
                dw[c, j] += g[i, j] * n
                db[c, j] += g[i, j]
            s, t = s / np.float32(D), t / np.float32(D)
            for j in range(D):
                dx[i, j] = r * (g[i, j] * weight[j] - s - (x[i, j] - mu) * r * t)
    return dx, dw.sum(axis=0), db.sum(axis=0)


class LayerNorm(Op):
    """y = n w + b,  n = (x - μ) r,  μ = mean x,  r = 1/√(mean (x - μ)² + eps)      x: (..., D), w, b: (D,)

    dx = r (gw - mean(gw) - n mean(gw n)),  dw = Σ g n,  db = Σ g      means over D, sums over all else
    """

    def forward(self, x, weight, bias, eps):
        rows = x.reshape(-1, x.shape[-1])
        y, mean, rstd = layer_norm_forward(rows, weight, bias, eps)
        self.save(x, mean, rstd, weight)
        return y.reshape(x.shape)

    def backward(self, g):
        x, mean, rstd, weight = self.saved
        D = x.shape[-1]
        dx, dw, db = layer_norm_backward(g.reshape(-1, D), x.reshape(-1, D), mean, rstd, weight)
        return dx.reshape(x.shape), dw, db


def _affine(name: str, size: int, dtype, weight, bias) -> tuple:
    """weight and bias, ones and zeros where they are None. Raises ValueError if they are not (size,)."""
    result = []
    for what, value, fill in (("weight", weight, xp.ones), ("bias", bias, xp.zeros)):
        value = Tensor(fill(size, dtype)) if value is None else as_tensor(value)
        if value.shape != (size,):
            raise ValueError(f"{name}: {what} has shape {value.shape}, but x has {size} to normalise: expected ({size},)")
        result.append(value)
    return tuple(result)


def _floating(x: Tensor):
    return x.dtype if x.dtype.kind == "f" else np.dtype(np.float32)


@public(case((3, 8), (8,), (8,)), case((2, 3, 5), (5,), (5,), eps=1e-6), case((4,), (4,), (4,)), case((0, 3), (3,), (3,)),
        case(lambda rng: np.full((2, 4), 3.0), (4,), (4,)), case((20, 6), (6,), (6,)))
def layer_norm(x, weight=None, bias=None, eps: float = 1e-5) -> Tensor:
    """(x - mean) / √(var + eps) · weight + bias over the last axis (Ba et al. 2016, arXiv:1607.06450, equation 4).

    x: (..., D); weight, bias: (D,) or None. The variance divides by D. Raises ValueError where the shapes do not fit.
    """
    x = as_tensor(x)
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f"layer_norm needs x (..., D) with D >= 1, got shape {x.shape}")
    return LayerNorm.apply(x, *_affine("layer_norm", x.shape[-1], _floating(x), weight, bias), eps=eps)


# ---------------------------------------------------------------------------------------------- batch_norm
# x is seen as (B, C, S): every statistic is over B and S. A thread takes a channel at a time, which then fits its cache.


@kernel
def batch_norm_forward(x, weight, bias, eps):
    mean = x.mean(axis=(0, 2))
    var = xp.square(x - mean[:, None]).mean(axis=(0, 2))
    return batch_norm_apply(x, mean, 1 / xp.sqrt(var + eps), weight, bias), mean, var


@batch_norm_forward.numba(fastmath=SUM)
def batch_norm_forward(x, weight, bias, eps):
    B, C, S = x.shape
    y, mean, var = np.empty_like(x), np.empty(C, x.dtype), np.empty(C, x.dtype)
    for c in prange(C):
        total = 0.0  # float64 across planes, float32 within one: exact enough, and the inner loops vectorise
        for b in range(B):
            part = np.float32(0)
            for s in range(S):
                part += x[b, c, s]
            total += part
        mu = np.float32(total / (B * S))
        total = 0.0
        for b in range(B):
            part = np.float32(0)
            for s in range(S):
                part += (x[b, c, s] - mu) * (x[b, c, s] - mu)
            total += part
        v = np.float32(total / (B * S))
        mean[c], var[c] = mu, v
        scale = weight[c] / np.sqrt(v + np.float32(eps))
        for b in range(B):
            for s in range(S):
                y[b, c, s] = (x[b, c, s] - mu) * scale + bias[c]
    return y, mean, var


@kernel
def batch_norm_apply(x, mean, rstd, weight, bias):
    return (x - mean[:, None]) * (rstd * weight)[:, None] + bias[:, None]


@batch_norm_apply.numba
def batch_norm_apply(x, mean, rstd, weight, bias):
    B, C, S = x.shape
    y = np.empty_like(x)
    for k in prange(B * C):
        b, c = k // C, k % C
        for s in range(S):
            y[b, c, s] = (x[b, c, s] - mean[c]) * (rstd[c] * weight[c]) + bias[c]
    return y


@kernel
def batch_norm_backward(g, x, mean, rstd, weight):
    normal = (x - mean[:, None]) * rstd[:, None]
    dw, db, m = (g * normal).sum(axis=(0, 2)), g.sum(axis=(0, 2)), x.shape[0] * x.shape[2]
    return (rstd * weight)[:, None] * (g - (db / m)[:, None] - normal * (dw / m)[:, None]), dw, db


@batch_norm_backward.numba(fastmath=SUM)
def batch_norm_backward(g, x, mean, rstd, weight):
    B, C, S = x.shape
    dx, dw, db = np.empty_like(x), np.empty(C, x.dtype), np.empty(C, x.dtype)
    for c in prange(C):
        mu, r = mean[c], rstd[c]
        sum_g, sum_gn = 0.0, 0.0
        for b in range(B):
            part_g, part_gn = np.float32(0), np.float32(0)
            for s in range(S):
                part_g += g[b, c, s]
                part_gn += g[b, c, s] * (x[b, c, s] - mu)
            sum_g += part_g
            sum_gn += part_gn * r
        dw[c], db[c] = sum_gn, sum_g
        scale, shift, slope = r * weight[c], np.float32(sum_g / (B * S)), np.float32(sum_gn / (B * S)) * r
        for b in range(B):
            for s in range(S):
                dx[b, c, s] = scale * (g[b, c, s] - shift - (x[b, c, s] - mu) * slope)
    return dx, dw, db


class BatchNorm(Op):
    """y = n w + b,  n = (x - μ) r,  r = 1/√(σ² + eps)      x: (B, C, ...), all else (C,)

    Training, μ and σ² those of the batch: dx = r w (g - mean g - n mean(g n)), means over all but C.
    Evaluation, μ and σ² constants:        dx = r w g.      Both: dw = Σ g n, db = Σ g.
    """

    def forward(self, x, weight, bias, running_mean, running_var, training, momentum, eps):
        self.training = training
        planes = _planes(x)
        if training:
            y, mean, var = batch_norm_forward(planes, weight, bias, eps)
            rstd = 1 / xp.sqrt(var + eps)
            n = planes.shape[0] * planes.shape[2]
            if running_mean is not None:
                running_mean += momentum * (mean - running_mean)
            if running_var is not None:
                running_var += momentum * (var * (n / (n - 1)) - running_var)
        else:
            # A copy, since training writes to the running statistics in place while this graph may be alive.
            mean, rstd = running_mean.astype(x.dtype), (1 / xp.sqrt(running_var + eps)).astype(x.dtype)
            y = batch_norm_apply(planes, mean, rstd, weight, bias)
        self.save(x, mean, rstd, weight)
        return y.reshape(x.shape)

    def backward(self, g):
        x, mean, rstd, weight = self.saved
        planes, g3 = _planes(x), _planes(g)
        if self.training:
            dx, dw, db = batch_norm_backward(g3, planes, mean, rstd, weight)
        else:
            dx = g3 * (rstd * weight)[:, None]
            dw = (g3 * (planes - mean[:, None])).sum(axis=(0, 2)) * rstd
            db = g3.sum(axis=(0, 2))
        return dx.reshape(x.shape), dw, db


def _planes(x):
    return x.reshape(x.shape[0], x.shape[1], int(np.prod(x.shape[2:])))


@public(case((4, 3, 2, 2), (3,), (3,)), case((5, 3), (3,), (3,)), case((2, 3, 4), (3,), (3,), eps=1e-3),
        case((4, 3, 2), (3,), (3,), training=False, running_mean=lambda rng: rng.standard_normal(3),
             running_var=lambda rng: rng.uniform(0.5, 2, 3)),
        case((0, 3, 2), (3,), (3,), training=False, running_mean=lambda rng: np.zeros(3), running_var=lambda rng: np.ones(3)))
def batch_norm(x, weight=None, bias=None, running_mean=None, running_var=None, training: bool = True,
               momentum: float = 0.1, eps: float = 1e-5) -> Tensor:
    """(x - mean) / √(var + eps) · weight + bias for each channel (Ioffe and Szegedy 2015, arXiv:1502.03167, algorithm 1).

    x: (B, C, ...); weight, bias: (C,) or None; running_mean, running_var: arrays (C,) or None.
    Training normalises with the batch's mean and variance (dividing by n), and moves the running ones in place:
    running ← (1 - momentum) running + momentum batch, where the batch's variance divides by n - 1, as in PyTorch.
    Evaluation normalises with the running ones. Raises ValueError where the shapes do not fit, for one value a channel
    in training, and in evaluation without running statistics.
    """
    x = as_tensor(x)
    if x.ndim < 2:
        raise ValueError(f"batch_norm needs x (B, C, ...), got shape {x.shape}")
    C = x.shape[1]
    weight, bias = _affine("batch_norm", C, _floating(x), weight, bias)
    for what, value in (("running_mean", running_mean), ("running_var", running_var)):
        if value is not None and value.shape != (C,):
            raise ValueError(f"batch_norm: {what} has shape {value.shape}, but x has {C} channels: expected ({C},)")
    n = x.size // C if C else 0
    if training and n <= 1:
        raise ValueError(f"batch_norm in training needs more than one value a channel, got shape {x.shape}: use a larger "
                         f"batch, or model.eval()")
    if not training and (running_mean is None or running_var is None):
        raise ValueError("batch_norm in evaluation needs running_mean and running_var: train first, or pass training=True")
    return BatchNorm.apply(x, weight, bias, running_mean=running_mean, running_var=running_var, training=training,
                           momentum=momentum, eps=eps)
