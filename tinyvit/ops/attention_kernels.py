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

import numpy as np

from ..backend import device
from .fastmath import exp32
from .microkernel import GR, NR, VL, copy_tile, gather_tile, narrow_gather_tile

SCORES = 2**16  # scores held at a time (256 KB), unless one panel of queries has more

_FUSED = {"fastmath": {"contract"}, "error_model": "numpy"}


# ---------------------------------------------------------------------------------------------- tables and packing


@device
def round_up(n, multiple):
    return (n + multiple - 1) // multiple * multiple


@device
def steps(n, step):
    """Offsets i·step for i < n, followed by zeros up to whole tiles."""
    offsets = np.zeros(round_up(n, GR), np.int64)
    for i in range(n):
        offsets[i] = i * step
    return offsets


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
def pack_rows(x, start, stride, n, depth, panels):
    """panels[j // NR, p, j % NR] = x[j, p] for j < n: n rows as the right matrix xᵀ."""
    for j in range(0, n, NR):
        lanes = min(NR, n - j)
        for p in range(depth):
            to = j * depth + p * NR
            for lane in range(lanes):
                panels[to + lane] = x[start + (j + lane) * stride + p]
            for lane in range(lanes, NR):
                panels[to + lane] = np.float32(0)


@device
def pack_columns(x, start, stride, n, columns, panels):
    """panels[j // NR, p, j % NR] = x[p, j] for p < n: n rows as the right matrix x."""
    for p in range(n):
        for j in range(0, columns, NR):
            lanes = min(NR, columns - j)
            to = j * n + p * NR
            for lane in range(lanes):
                panels[to + lane] = x[start + p * stride + j + lane]
            for lane in range(lanes, NR):
                panels[to + lane] = np.float32(0)


# ---------------------------------------------------------------------------------------------- products


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


@device
def product(scores, along, down, rows, depth, panels, columns, y, start, stride, add, edge):
    """y[i, j] (+)= Σ_p scores[along[p] + down[i]] panels[j // NR, p, j % NR], i < rows, j < columns."""
    for j in range(0, columns, NR):
        for i in range(0, rows, GR):
            to = start + i * stride + j
            if i + GR <= rows and j + NR <= columns:
                gather_tile(scores, along, down, i, panels, j * depth, depth, y, to, stride, add)
            else:
                gather_tile(scores, along, down, i, panels, j * depth, depth, edge, 0, NR, False)
                for row in range(min(GR, rows - i)):
                    for column in range(min(NR, columns - j)):
                        at = to + row * stride + column
                        y[at] = y[at] + edge[row * NR + column] if add else edge[row * NR + column]


# ---------------------------------------------------------------------------------------------- softmax, down the keys

# Loops over the lanes of a panel run to panel.shape[1] where their body is long: as a constant, NR would have LLVM unroll
# them before it makes them vector code.


@device(**_FUSED)
def scale_and_mask(panel, keys, scale, mask, first, lanes):
    """panel = scale · panel + maskᵀ, rows `first`... of the mask; a mask of shape (1, 1) is none unless that fits."""
    for key in range(keys):
        for lane in range(NR):
            panel[key, lane] *= scale
    if mask.shape[1] == keys:
        for lane in range(min(lanes, mask.shape[0])):
            for key in range(keys):
                panel[key, lane] += mask[first + lane, key]


@device(**_FUSED)
def softmax_down(panel, keys, peak, weight):
    """Scores to probabilities; notes each lane's maximum, and 1 / Σ e^(s - maximum), which is 0 if it is fully masked."""
    for lane in range(NR):
        peak[lane], weight[lane] = -np.inf, 0
    for key in range(keys):
        for lane in range(NR):
            peak[lane] = panel[key, lane] if panel[key, lane] > peak[lane] else peak[lane]  # a NaN shows in the sum
    for lane in range(NR):
        peak[lane] = peak[lane] if peak[lane] != -np.inf else np.float32(0)
    for key in range(keys):
        for lane in range(panel.shape[1]):
            panel[key, lane] = exp32(panel[key, lane] - peak[lane])
    for key in range(keys):
        for lane in range(NR):
            weight[lane] += panel[key, lane]
    for lane in range(NR):
        weight[lane] = np.float32(1) / weight[lane] if weight[lane] != 0 else np.float32(0)
    for key in range(keys):
        for lane in range(NR):
            panel[key, lane] *= weight[lane]


@device(**_FUSED)
def softmax_again(panel, keys, peak, weight):
    """Scores to probabilities, given what `softmax_down` noted."""
    for key in range(keys):
        for lane in range(panel.shape[1]):
            panel[key, lane] = exp32(panel[key, lane] - peak[lane])
    for key in range(keys):
        for lane in range(NR):
            panel[key, lane] *= weight[lane]


@device(**_FUSED)
def softmax_gradient(p, dp, keys, total):
    """dp = p (dp - Σ_keys p dp)."""
    for lane in range(NR):
        total[lane] = 0
    for key in range(keys):
        for lane in range(NR):
            total[lane] += p[key, lane] * dp[key, lane]
    for key in range(keys):
        for lane in range(NR):
            dp[key, lane] = p[key, lane] * (dp[key, lane] - total[lane])


@device
def move_mask_gradient(ds, keys, dmask, first, lanes):
    for lane in range(lanes):
        for key in range(keys):
            dmask[first + lane, key] = ds[key, lane]


# ---------------------------------------------------------------------------------------------- the two passes


@device
def attend(q, k, v, sizes, mask, which, y, peak, weight, chunk, chunks):
    """The forward pass of one share of the B·h matrices; see `attention_forward` in attention.py. sizes: (B, N, M, S, h, d, dv)."""
    B, queries, keys, S, h, d, dv = sizes
    group, scale = group_of(queries, keys), np.float32(1 / np.sqrt(max(d, 1)))
    row_q, row_v = S * h * d, S * h * dv
    along, down = steps(d, 1), steps(keys, row_q)
    by_key, by_query = steps(keys, NR), places(group, keys)
    scores = np.zeros((group // NR, round_up(keys, GR), NR), np.float32)
    right, values = np.empty(group * d, np.float32), np.empty(round_up(dv, NR) * keys, np.float32)
    edge, top, inverse = np.empty(GR * NR, np.float32), np.empty(NR, np.float32), np.empty(NR, np.float32)
    for matrix in range(B * h * chunk // chunks, B * h * (chunk + 1) // chunks):
        b, head = matrix // h, matrix % h
        q0, k0, v0 = b * queries * row_q + head * d, b * keys * row_q + head * d, b * keys * row_v + head * dv
        if S == 3:
            k0, v0 = k0 + h * d, v0 + 2 * h * d
        pack_columns(v, v0, row_v, keys, dv, values)
        for first in range(0, queries, group):
            n = min(group, queries - first)
            pack_rows(q, q0 + first * row_q, row_q, n, d, right)
            against_queries(k, k0, along, down, keys, d, right, n, scores)
            for j in range(0, n, NR):
                lanes, row = min(NR, n - j), matrix * queries + first + j
                scale_and_mask(scores[j // NR], keys, scale, mask[which[b, head]], first + j, lanes)
                softmax_down(scores[j // NR], keys, top, inverse)
                for lane in range(lanes):
                    peak[row + lane], weight[row + lane] = top[lane], inverse[lane]
            product(scores, by_key, by_query, n, keys, values, dv, y,
                    ((b * queries + first) * h + head) * dv, h * dv, False, edge)


@device
def attend_backward(g, q, k, v, sizes, mask, which, peak, weight, dq, dk, dv, dmask, chunk, chunks):
    """The backward pass of one share of the B·h matrices; see `attention_backward` in attention.py."""
    B, queries, keys, S, h, d, width = sizes
    group, scale = group_of(queries, keys), np.float32(1 / np.sqrt(max(d, 1)))
    row_q, row_v, row_g = S * h * d, S * h * width, h * width
    along, down_k, down_v = steps(max(d, width), 1), steps(keys, row_q), steps(keys, row_v)
    by_key, by_query = steps(keys, NR), places(group, keys)
    p = np.zeros((group // NR, round_up(keys, GR), NR), np.float32)
    ds = np.zeros_like(p)
    right, whole = np.empty(round_up(max(d, width), NR) * group, np.float32), np.empty(round_up(d, NR) * keys, np.float32)
    edge, top, inverse = np.empty(GR * NR, np.float32), np.zeros(NR, np.float32), np.zeros(NR, np.float32)
    for matrix in range(B * h * chunk // chunks, B * h * (chunk + 1) // chunks):
        b, head = matrix // h, matrix % h
        q0, k0, v0 = b * queries * row_q + head * d, b * keys * row_q + head * d, b * keys * row_v + head * width
        if S == 3:
            k0, v0 = k0 + h * d, v0 + 2 * h * d
        pack_columns(k, k0, row_q, keys, d, whole)
        for first in range(0, queries, group):
            n, g0 = min(group, queries - first), ((b * queries + first) * h + head) * width
            pack_rows(q, q0 + first * row_q, row_q, n, d, right)
            against_queries(k, k0, along, down_k, keys, d, right, n, p)
            pack_rows(g, g0, row_g, n, width, right)
            against_queries(v, v0, along, down_v, keys, width, right, n, ds)
            for j in range(0, n, NR):
                lanes, row, panel = min(NR, n - j), matrix * queries + first + j, ds[j // NR]
                for lane in range(lanes):
                    top[lane], inverse[lane] = peak[row + lane], weight[row + lane]
                scale_and_mask(p[j // NR], keys, scale, mask[which[b, head]], first + j, lanes)
                softmax_again(p[j // NR], keys, top, inverse)
                softmax_gradient(p[j // NR], panel, keys, top)
                if dmask.shape[0] == B * h and dmask.shape[2] == keys:
                    move_mask_gradient(panel, keys, dmask[matrix], first + j, min(lanes, dmask.shape[1]))
                for key in range(keys):
                    for lane in range(NR):
                        panel[key, lane] *= scale
            product(ds, by_key, by_query, n, keys, whole, d, dq, q0 + first * row_q, row_q, False, edge)
            pack_columns(q, q0 + first * row_q, row_q, n, d, right)
            product(ds, by_query, by_key, keys, n, right, d, dk, k0, row_q, first > 0, edge)
            pack_columns(g, g0, row_g, n, width, right)
            product(p, by_query, by_key, keys, n, right, width, dv, v0, row_v, first > 0, edge)
