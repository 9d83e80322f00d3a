"""How attention runs on the CPU: one small matrix after the other, from the scores to the result without leaving the cache.

All products go through `gather_tile` (microkernel.py), whose left matrix is read where it lies and whose right matrix is
packed. The scores are computed transposed, in *panels* of NR queries: scores[panel, key, lane] belongs to query
panel·NR + lane. That way a softmax runs down the keys with NR queries side by side in vector registers, and the panels
serve as left matrix of every product that follows, with queries or keys as its rows:

    forward     Sᵀ = K Qᵀ      Y = P V
    backward    Sᵀ = K Qᵀ      dPᵀ = V Gᵀ      dQ = dS K      dK = dSᵀ Q      dV = Pᵀ G

P is not kept for the backward pass but computed again, from each row's maximum and sum (as in FlashAttention, Dao et al.
2022, arXiv:2205.14135). Long sequences go through in groups of queries, whose panels fit the cache.

Arrays are flat (1-D) here. A matrix in one of them is given by `start`, where its first element is, and `stride`, how far
apart its rows are; the elements of a row are neighbours.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backend import device
from .fastmath import exp32
from .microkernel import GR, NR, VL, gather_tile, narrow_gather_tile
from .products import pack_columns, pack_rows, product, round_up, steps

SCORES = 2**16  # scores held at a time (256 KB), unless one panel of queries has more

_FUSED: dict[str, Any] = {"fastmath": {"contract"}}


# ---------------------------------------------------------------------------------------------- scores


@device
def group_of(queries, keys):
    """How many queries are done at a time: whole panels."""
    return min(round_up(queries, NR), max(NR, SCORES // round_up(keys, GR) // NR * NR))


@device
def places(n, keys):
    """Where query i < n has its scores in the panels; zeros up to whole tiles."""
    offsets = np.zeros(round_up(n, GR), np.int64)
    for i in range(n):
        offsets[i] = i // NR * round_up(keys, GR) * NR + i % NR
    return offsets


@device
def against_queries(x, start, along, down, keys, depth, panels, n, scores):
    """scores[j // NR, i, j % NR] = Σ_p x[i, p] panels[j // NR, p, j % NR]: a row of x per key, times n queries."""
    for j in range(0, n, NR):
        for i in range(0, keys, GR):
            to = (j // NR * scores.shape[1] + i) * NR
            if n - j > VL:
                gather_tile(x[start:], along, down, i, panels, j * depth, depth, scores, to, NR, False)
            else:
                narrow_gather_tile(x[start:], along, down, i, panels, j * depth, depth, scores, to, NR, False)


# ---------------------------------------------------------------------------------------------- softmax, down the keys

# Lanes are counted to NR, or to panel.shape[1] where a loop's body is long: LLVM would unroll a loop to a constant before
# it makes vector code of it. Four keys at a time keep the maximum and the sum from waiting for memory at every key.


@device
def add_mask(panel, keys, mask, first, lanes):
    for lane in range(lanes):
        for key in range(keys):
            panel[key, lane] += mask[first + lane, key]


@device(**_FUSED)
def highest(panel, keys, peak):
    """Each lane's largest score, 0 if there is none but -inf. Where a score is NaN it does not matter which it is."""
    for lane in range(NR):
        peak[lane] = -np.inf
    fours = keys // 4 * 4
    for key in range(0, fours, 4):
        for lane in range(NR):
            a, b = max(panel[key, lane], panel[key + 1, lane]), max(panel[key + 2, lane], panel[key + 3, lane])
            peak[lane] = max(max(a, b), peak[lane])
    for key in range(fours, keys):
        for lane in range(NR):
            peak[lane] = max(panel[key, lane], peak[lane])
    for lane in range(NR):
        peak[lane] = peak[lane] if peak[lane] != -np.inf else np.float32(0)


@device(**_FUSED)
def exp_down(panel, keys, peak):
    for key in range(keys):
        for lane in range(panel.shape[1]):
            panel[key, lane] = exp32(panel[key, lane] - peak[lane])


@device(**_FUSED)
def softmax_down(panel, keys, peak, weight):
    """Scores to probabilities; notes each lane's maximum, and 1 / Σ e^(s - maximum), which is 0 if it is fully masked."""
    highest(panel, keys, peak)
    exp_down(panel, keys, peak)
    for lane in range(NR):
        weight[lane] = 0
    fours = keys // 4 * 4
    for key in range(0, fours, 4):
        for lane in range(NR):
            a, b = panel[key, lane] + panel[key + 1, lane], panel[key + 2, lane] + panel[key + 3, lane]
            weight[lane] += a + b
    for key in range(fours, keys):
        for lane in range(NR):
            weight[lane] += panel[key, lane]
    for lane in range(NR):
        weight[lane] = np.float32(1) / weight[lane] if weight[lane] != 0 else np.float32(0)
    for key in range(keys):
        for lane in range(NR):
            panel[key, lane] *= weight[lane]


@device(**_FUSED)
def softmax_backward_down(panel, gradient, keys, peak, weight, total):
    """Scores to probabilities p, given what `softmax_down` noted, and their gradient to p (gradient - Σ_keys p gradient)."""
    exp_down(panel, keys, peak)
    for lane in range(NR):
        total[lane] = 0
    for key in range(keys):
        for lane in range(NR):
            total[lane] += panel[key, lane] * gradient[key, lane]
    for lane in range(NR):
        total[lane] *= weight[lane]
    for key in range(keys):
        for lane in range(panel.shape[1]):
            p = panel[key, lane] * weight[lane]
            panel[key, lane] = p
            gradient[key, lane] = p * (gradient[key, lane] - total[lane])


@device
def keep_mask_gradient(ds, keys, dmask, first, lanes):
    for lane in range(lanes):
        for key in range(keys):
            dmask[first + lane, key] = ds[key, lane]


# ---------------------------------------------------------------------------------------------- the two passes


@device
def starts(sizes, matrix):
    """Where q, k and v of one of the B·h matrices start."""
    _, queries, keys, S, h, d, dv = sizes
    b, head = matrix // h, matrix % h
    q0, k0, v0 = b * queries * S * h * d + head * d, b * keys * S * h * d + head * d, b * keys * S * h * dv + head * dv
    return (q0, k0 + h * d, v0 + 2 * h * d) if S == 3 else (q0, k0, v0)


@device
def attend(q, k, v, sizes, mask, which, y, peak, weight, chunk, chunks):
    """The forward pass of one share of the B·h matrices; see `attention_forward` in attention.py.

    sizes: (B, queries, keys, S, h, d, width of v) with S = 3 if q, k and v are one array, else 1.
    """
    B, queries, keys, S, h, d, dv = sizes
    group, scale, one = group_of(queries, keys), np.float32(1 / np.sqrt(max(d, 1))), np.float32(1)
    row_q, row_v = S * h * d, S * h * dv
    along, down = steps(d, 1), steps(keys, row_q)
    by_key, by_query = steps(keys, NR), places(group, keys)
    scores = np.zeros((group // NR, round_up(keys, GR), NR), np.float32)
    right, values = np.empty(group * d, np.float32), np.empty(round_up(dv, NR) * keys, np.float32)
    edge, top, inverse = np.empty(GR * NR, np.float32), np.empty(NR, np.float32), np.empty(NR, np.float32)
    masked = mask.shape[1] == queries and mask.shape[2] == keys  # else it is the one zero that stands for none
    for matrix in range(B * h * chunk // chunks, B * h * (chunk + 1) // chunks):
        b, head = matrix // h, matrix % h
        q0, k0, v0 = starts(sizes, matrix)
        pack_columns(v, v0, row_v, keys, dv, one, values)
        for first in range(0, queries, group):
            n = min(group, queries - first)
            pack_rows(q, q0 + first * row_q, row_q, n, d, scale, right)
            against_queries(k, k0, along, down, keys, d, right, n, scores)
            for j in range(0, n, NR):
                lanes, row = min(NR, n - j), matrix * queries + first + j
                if masked:
                    add_mask(scores[j // NR], keys, mask[which[b, head]], first + j, lanes)
                softmax_down(scores[j // NR], keys, top, inverse)
                for lane in range(lanes):
                    peak[row + lane], weight[row + lane] = top[lane], inverse[lane]
            product(scores, by_key, by_query, n, keys, values, dv, y,
                    ((b * queries + first) * h + head) * dv, h * dv, False, edge)


@device
def attend_backward(g, q, k, v, sizes, mask, which, peak, weight, dq, dk, dv, dmask, want_mask, chunk, chunks):
    """The backward pass of one share of the B·h matrices; see `attention_backward` in attention.py."""
    B, queries, keys, S, h, d, width = sizes
    group, scale, one = group_of(queries, keys), np.float32(1 / np.sqrt(max(d, 1))), np.float32(1)
    row_q, row_v, row_g = S * h * d, S * h * width, h * width
    along, down_k, down_v = steps(max(d, width), 1), steps(keys, row_q), steps(keys, row_v)
    by_key, by_query = steps(keys, NR), places(group, keys)
    p = np.zeros((group // NR, round_up(keys, GR), NR), np.float32)
    ds = np.zeros_like(p)
    right, whole = np.empty(round_up(max(d, width), NR) * group, np.float32), np.empty(round_up(d, NR) * keys, np.float32)
    edge, total = np.empty(GR * NR, np.float32), np.empty(NR, np.float32)
    top, inverse = np.zeros(NR, np.float32), np.zeros(NR, np.float32)
    masked = mask.shape[1] == queries and mask.shape[2] == keys  # else it is the one zero that stands for none
    for matrix in range(B * h * chunk // chunks, B * h * (chunk + 1) // chunks):
        b, head = matrix // h, matrix % h
        q0, k0, v0 = starts(sizes, matrix)
        pack_columns(k, k0, row_q, keys, d, scale, whole)
        for first in range(0, queries, group):
            n, g0 = min(group, queries - first), ((b * queries + first) * h + head) * width
            pack_rows(q, q0 + first * row_q, row_q, n, d, scale, right)
            against_queries(k, k0, along, down_k, keys, d, right, n, p)
            pack_rows(g, g0, row_g, n, width, one, right)
            against_queries(v, v0, along, down_v, keys, width, right, n, ds)
            for j in range(0, n, NR):
                lanes, row = min(NR, n - j), matrix * queries + first + j
                for lane in range(lanes):
                    top[lane], inverse[lane] = peak[row + lane], weight[row + lane]
                if masked:
                    add_mask(p[j // NR], keys, mask[which[b, head]], first + j, lanes)
                softmax_backward_down(p[j // NR], ds[j // NR], keys, top, inverse, total)
                if want_mask:
                    keep_mask_gradient(ds[j // NR], keys, dmask[matrix], first + j, lanes)
            product(ds, by_key, by_query, n, keys, whole, d, dq, q0 + first * row_q, row_q, False, edge)
            pack_columns(q, q0 + first * row_q, row_q, n, d, scale, right)
            product(ds, by_query, by_key, keys, n, right, d, dk, k0, row_q, first > 0, edge)
            pack_columns(g, g0, row_g, n, width, one, right)
            product(p, by_query, by_key, keys, n, right, width, dv, v0, row_v, first > 0, edge)
