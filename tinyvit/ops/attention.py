"""Scaled dot-product attention (Vaswani et al. 2017, arXiv:1706.03762), one head or many."""

from __future__ import annotations

import math

import numpy as np

from ..autograd import Op
from ..backend import kernel, prange, xp
from ..registry import case, public
from ..tensor import Tensor, as_tensor
from .attention_kernels import attend, attend_backward

CHUNKS = 64  # shares of the work, which threads take


def _heads(q, k, v):
    """The three as (B, h, N, d), out of the kernels' layout (see `attention_forward`)."""
    S = q.shape[2]
    return q[:, :, 0].swapaxes(1, 2), k[:, :, S // 3].swapaxes(1, 2), v[:, :, 2 * (S // 3)].swapaxes(1, 2)


def _scores(q, k, mask, which):
    return q @ k.swapaxes(2, 3) / math.sqrt(max(q.shape[3], 1)) + mask[which]


@kernel
def attention_forward(q, k, v, mask, which):
    """q, k, v: (B, N, 1, h, d), or three times the same array (B, N, 3, h, d) that holds them one after the other.

    mask: (some, N, M), added to the scores; head [b, i] uses mask[which[b, i]]. Shape (1, 1, 1), zero, stands for none.
    Returns y (B, N, h, d) and, for each row of scores, its maximum and 1 / Σ e^(s - maximum), (B, h, N).
    """
    q, k, v = _heads(q, k, v)
    s = _scores(q, k, mask, which)
    peak = s.max(axis=3, keepdims=True)
    peak = xp.where(peak == -np.inf, 0, peak).astype(s.dtype)  # fully masked: e^(-inf - 0) = 0
    e = xp.exp(s - peak)
    total = e.sum(axis=3, keepdims=True)
    weight = xp.where(total == 0, 0, 1 / total).astype(s.dtype)
    y = (e * weight) @ v
    return xp.ascontiguousarray(y.swapaxes(1, 2)), peak[..., 0], weight[..., 0]


@attention_forward.numba
def attention_forward(q, k, v, mask, which):
    B, N, S, h, d = q.shape
    y = np.empty((B, N, h, v.shape[4]), np.float32)
    peak, weight = np.empty((B, h, N), np.float32), np.empty((B, h, N), np.float32)
    sizes = B, N, k.shape[1], S, h, d, v.shape[4]
    for chunk in prange(CHUNKS):
        attend(q.reshape(-1), k.reshape(-1), v.reshape(-1), sizes, mask, which, y.reshape(-1), peak.reshape(-1),
               weight.reshape(-1), chunk, CHUNKS)
    return y, peak, weight


@kernel
def attention_backward(g, q, k, v, mask, which, peak, weight, want_mask):
    """Gradients of q, k and v, in their layout, and of the mask: (B h, N, M), or (1, 1, 1) if it is not wanted."""
    packed = q.shape[2] == 3
    dq = xp.empty_like(q)
    dk, dv = (dq, dq) if packed else (xp.empty_like(k), xp.empty_like(v))
    (to_q, to_k, to_v), (q, k, v), g = _heads(dq, dk, dv), _heads(q, k, v), g.swapaxes(1, 2)
    p = xp.exp(_scores(q, k, mask, which) - peak[..., None]) * weight[..., None]
    dp = g @ v.swapaxes(2, 3)
    ds = p * (dp - (p * dp).sum(axis=3, keepdims=True))
    scaled = ds / math.sqrt(max(q.shape[3], 1))
    to_q[...], to_k[...], to_v[...] = scaled @ k, scaled.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ g
    return dq, dk, dv, ds.reshape(-1, *ds.shape[2:]) if want_mask else xp.zeros((1, 1, 1), ds.dtype)


@attention_backward.numba
def attention_backward(g, q, k, v, mask, which, peak, weight, want_mask):
    B, N, S, h, d = q.shape
    dq = np.empty_like(q)
    dk, dv = (dq, dq) if S == 3 else (np.empty_like(k), np.empty_like(v))
    dmask = np.empty((B * h, N, k.shape[1]), np.float32) if want_mask else np.zeros((1, 1, 1), np.float32)
    sizes = B, N, k.shape[1], S, h, d, v.shape[4]
    for chunk in prange(CHUNKS):
        attend_backward(g.reshape(-1), q.reshape(-1), k.reshape(-1), v.reshape(-1), sizes, mask, which, peak.reshape(-1),
                        weight.reshape(-1), dq.reshape(-1), dk.reshape(-1), dv.reshape(-1), dmask, chunk, CHUNKS)
    return dq, dk, dv, dmask
