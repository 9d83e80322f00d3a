"""Scaled dot-product attention (Vaswani et al. 2017, arXiv:1706.03762), one head or many."""

from __future__ import annotations

import math

import numpy as np

from ..autograd import Op
from ..backend import kernel, prange, xp
from ..registry import FUNCTIONS, case, public
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
    weight = (total != 0) / xp.where(total == 0, xp.ones_like(total), total)
    y = (e * weight) @ v
    return xp.ascontiguousarray(y.swapaxes(1, 2)), peak[..., 0], weight[..., 0]


@attention_forward.numba
def attention_forward(q, k, v, mask, which):
    B, N, S, h, d = q.shape
    sizes = B, N, k.shape[1], S, h, d, v.shape[4]
    y = np.empty((B, N, h, v.shape[4]), np.float32)
    peak, weight = np.empty((B, h, N), np.float32), np.empty((B, h, N), np.float32)
    qs, ks, vs, ys, peaks, weights = q.ravel(), k.ravel(), v.ravel(), y.ravel(), peak.ravel(), weight.ravel()
    for chunk in prange(CHUNKS):
        attend(qs, ks, vs, sizes, mask, which, ys, peaks, weights, chunk, CHUNKS)
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
    sizes = B, N, k.shape[1], S, h, d, v.shape[4]
    dq = np.empty(q.shape, np.float32)
    dk = dq if S == 3 else np.empty(k.shape, np.float32)
    dv = dq if S == 3 else np.empty(v.shape, np.float32)
    dmask = np.empty((B * h, N, k.shape[1]) if want_mask else (1, 1, 1), np.float32)
    if not want_mask:
        dmask[0, 0, 0] = 0
    gs, qs, ks, vs, peaks, weights = g.ravel(), q.ravel(), k.ravel(), v.ravel(), peak.ravel(), weight.ravel()
    dqs, dks, dvs = dq.ravel(), dk.ravel(), dv.ravel()
    for chunk in prange(CHUNKS):
        attend_backward(gs, qs, ks, vs, sizes, mask, which, peaks, weights, dqs, dks, dvs, dmask, want_mask, chunk, CHUNKS)
    return dq, dk, dv, dmask


def _flat_mask(mask, shape):
    """A mask that broadcasts to `shape` = (..., N, M) as (some, N, M), and which of them each of the leading axes uses."""
    if mask is None:
        return xp.zeros((1, 1, 1), np.float32), xp.zeros(shape[:-2], np.int64)
    mask = mask.reshape((1,) * (len(shape) - mask.ndim) + mask.shape)
    lead = mask.shape[:-2]
    which = xp.array(xp.broadcast_to(xp.arange(math.prod(lead)).reshape(lead), shape[:-2]))
    # Copies, as broadcast arrays are read-only: for numba that is another type, and another long compilation.
    return xp.array(xp.broadcast_to(mask, (*lead, *shape[-2:]))).reshape(-1, *shape[-2:]), which


class Attention(Op):
    """y = P v,  P = softmax(s),  s = q kᵀ / √d + mask      q (..., N, d), k (..., M, d), v (..., M, d'), mask (..., N, M)

    dv = Pᵀ g,  dP = g vᵀ,  ds = P (dP - Σ_j P dP),  dq = ds k / √d,  dk = dsᵀ q / √d,  dmask = ds
    """

    def forward(self, q, k, v, mask):
        *lead, N, _ = q.shape
        M, heads = k.shape[-2], math.prod(lead)
        self.scores = (*lead, N, M)
        if 0 in (heads, N, M):
            self.save(q, k, v)
            return xp.zeros((*lead, N, v.shape[-1]), q.dtype)
        q, k, v = (x.reshape(heads, x.shape[-2], 1, 1, x.shape[-1]) for x in (q, k, v))
        mask, which = _flat_mask(mask, self.scores)
        which = which.reshape(heads, 1)
        y, peak, weight = attention_forward(q, k, v, mask.astype(q.dtype, copy=False), which)
        self.save(q, k, v, mask, which, peak, weight)
        return y.reshape(*lead, N, v.shape[-1])

    def backward(self, g):
        saved = self.saved
        if len(saved) == 3:  # nothing to attend to
            return (*map(xp.zeros_like, saved), xp.zeros(self.scores, g.dtype))
        g = g.reshape(len(saved[0]), g.shape[-2], 1, g.shape[-1])
        dq, dk, dv, ds = attention_backward(g, *saved, self.needs[3])
        dq, dk, dv = (x.reshape(*self.scores[:-2], x.shape[1], x.shape[-1]) for x in (dq, dk, dv))
        return dq, dk, dv, ds.reshape(self.scores) if self.needs[3] else None


class MultiHeadAttention(Op):
    """`Attention` of h heads: qkv (B, N, 3D) holds q, k and v one after the other, and each of them its heads; y (B, N, D).

    Reads and writes every head where it lies, so that nothing is transposed or copied.
    """

    def forward(self, qkv, mask, heads):
        B, N, width = qkv.shape
        self.scores, self.shape = (B, heads, N, N), qkv.shape
        if 0 in (B, N):
            return xp.zeros((B, N, width // 3), qkv.dtype)
        x = qkv.reshape(B, N, 3, heads, width // 3 // heads)
        mask, which = _flat_mask(mask, self.scores)
        y, peak, weight = attention_forward(x, x, x, mask.astype(x.dtype, copy=False), which)
        self.save(x, mask, which, peak, weight)
        return y.reshape(B, N, width // 3)

    def backward(self, g):
        if g.size == 0:
            return xp.zeros(self.shape, g.dtype), xp.zeros(self.scores, g.dtype)
        x, *rest = self.saved
        g = g.reshape(*x.shape[:2], *x.shape[3:])
        dx, _, _, ds = attention_backward(g, x, x, x, *rest, self.needs[1])
        return dx.reshape(self.shape), ds.reshape(self.scores) if self.needs[1] else None


def _checked_mask(mask, scores: tuple[int, ...], dtype, name: str):
    """The mask as what is added to the scores: bool becomes 0 (may attend) and -inf; floats are brought to `dtype`."""
    if mask is None:
        return None
    mask = mask if isinstance(mask, Tensor) else Tensor(xp.asarray(mask))
    padded = (1,) * (len(scores) - mask.ndim) + mask.shape
    wrong = [a - len(scores) for a, (m, s) in enumerate(zip(padded, scores)) if m not in (1, s)]
    extra = mask.ndim > len(scores)
    if extra or wrong:
        where = "too many axes" if extra else f"axis {wrong[-1]} has {padded[wrong[-1]]} for {scores[wrong[-1]]}"
        raise ValueError(f"{name} cannot apply a mask of shape {mask.shape} to scores of shape {scores}, (..., queries, "
                         f"keys): {where}; every axis must be equal or 1")
    if mask.dtype == bool:
        return Tensor(xp.where(mask._data, 0, -np.inf).astype(dtype))
    if mask.dtype.kind != "f":
        raise TypeError(f"{name} takes a mask of bool (True: may attend) or of floats (added to the scores), got "
                        f"{mask.dtype}: use mask.astype(bool)")
    return mask if mask.dtype == dtype else mask.astype(dtype)


def _floating(x) -> Tensor:
    x = as_tensor(x)
    return x if x.dtype.kind == "f" else x.astype(np.float32)


def _checked(q: Tensor, k: Tensor, v: Tensor | None, name: str) -> None:
    """Raise where shapes do not fit: q (..., N, d), k (..., M, d), v (..., M, any)."""
    for label, x in (("q", q), ("k", k), ("v", v)):
        if x is not None and x.ndim < 2:
            raise ValueError(f"{name} needs {label} of shape (..., tokens, width), got {x.shape}: unsqueeze it")
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"{name} compares q and k along their last axis, which must be equal: q has {q.shape[-1]} in shape "
                         f"{q.shape}, k has {k.shape[-1]} in {k.shape}; project both to the same width")
    if v is not None and v.shape[-2] != k.shape[-2]:
        raise ValueError(f"{name} needs one value per key: on axis -2 k has {k.shape[-2]} in shape {k.shape}, v has "
                         f"{v.shape[-2]} in {v.shape}")
    for label, x in (("k", k), ("v", v)):
        if x is not None and x.shape[:-2] != q.shape[:-2]:
            raise ValueError(f"{name} needs the same leading axes everywhere: q has {q.shape[:-2]} in shape {q.shape}, "
                             f"{label} has {x.shape[:-2]} in {x.shape}; use tv.broadcast_to")


@public(case((2, 3, 5, 4), (2, 3, 5, 4), (2, 3, 5, 4)), case((3, 4), (7, 4), (7, 2)), case((1, 3), (1, 3), (1, 3)),
        case((2, 3, 17, 9), (2, 3, 18, 9), (2, 3, 18, 19)),
        case((2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 4), (3, 5, 6)), case((2, 5, 4), (2, 5, 4), (2, 5, 4), (2, 1, 5)),
        case((2, 5, 4), (2, 5, 4), (2, 5, 4), mask=lambda rng: np.arange(25).reshape(5, 5) % 3 > 0),
        case((4, 3), (4, 3), (4, 3), mask=lambda rng: np.array([[True] * 4, [False] * 4, [False, True] * 2, [True] * 4])),
        case((0, 5, 4), (0, 5, 4), (0, 5, 4)), case((2, 5, 4), (2, 0, 4), (2, 0, 3)),
        case((2, 0, 4), (2, 3, 4), (2, 3, 4), (1, 3)), case((2, 3, 0), (2, 4, 0), (2, 4, 2)))
def scaled_dot_product_attention(q, k, v, mask=None) -> Tensor:
    """softmax(q kᵀ / √d + mask) v: each of N queries gets a mean of the M values, weighted by how well their keys match.

    q (..., N, d), k (..., M, d), v (..., M, d'); the result is (..., N, d').
    mask: broadcasts to (..., N, M); bool (True: may attend) or floats that are added to the scores, -inf included, which
    may require a gradient (a learned position bias). A query that may attend to nothing gets zeros.
    Raises ValueError for shapes that do not fit. Vaswani et al. 2017, arXiv:1706.03762, equation 1.
    """
    q, k, v = map(_floating, (q, k, v))
    _checked(q, k, v, "scaled_dot_product_attention")
    mask = _checked_mask(mask, (*q.shape[:-1], k.shape[-2]), q.dtype, "scaled_dot_product_attention")
    return Attention.apply(q, k, v, mask)


@public(case((2, 5, 12), heads=2), case((1, 1, 3), heads=1), case((2, 18, 60), heads=2),
        case((2, 5, 12), heads=2, mask=lambda rng: rng.standard_normal((2, 5, 5))),
        case((2, 5, 12), heads=4, mask=lambda rng: np.tri(5, dtype=bool)), case((0, 5, 12), heads=2), case((2, 0, 12), heads=2))
def multi_head_attention(qkv, heads: int, mask=None) -> Tensor:
    """Self-attention of several heads at once: qkv (B, N, 3D), the queries, keys and values of N tokens; result (B, N, D).

    Each third of the last axis holds its heads one after the other, D/heads wide. The same as splitting qkv, transposing
    to (B, heads, N, D/heads) and `scaled_dot_product_attention`, without the copies. mask: as there, for (B, heads, N, N).
    Raises ValueError for shapes that do not fit. Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2.
    """
    qkv = _floating(qkv)
    if qkv.ndim != 3 or heads < 1 or qkv.shape[-1] % (3 * heads):
        raise ValueError(f"multi_head_attention needs qkv of shape (B, N, 3·heads·d), got {qkv.shape} with heads={heads}: "
                         f"the last axis must be a multiple of {3 * heads}")
    B, N, _ = qkv.shape
    return MultiHeadAttention.apply(qkv, _checked_mask(mask, (B, heads, N, N), qkv.dtype, "multi_head_attention"), heads=heads)


@public(case((2, 3, 5, 4), (2, 3, 6, 4)), case((3, 4), (7, 4), mask=lambda rng: np.arange(21).reshape(3, 7) % 3 > 0),
        case((2, 3, 4), (2, 0, 4)), case((0, 3, 4), (0, 3, 4)))
def attention_weights(q, k, mask=None) -> Tensor:
    """softmax(q kᵀ / √d + mask), (..., N, M): what `scaled_dot_product_attention` weights the values with, to look at.

    A query that may attend to nothing has weights of zero.
    """
    q, k = map(_floating, (q, k))
    _checked(q, k, None, "attention_weights")
    mask = _checked_mask(mask, (*q.shape[:-1], k.shape[-2]), q.dtype, "attention_weights")
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(max(q.shape[-1], 1))
    if mask is None:
        return scores.softmax()
    open_rows = (mask._data != -np.inf).any(axis=-1, keepdims=True)  # a row of -inf only would be NaN
    return FUNCTIONS.where(open_rows, FUNCTIONS.where(open_rows, scores + mask, 0.0).softmax(), 0.0)
