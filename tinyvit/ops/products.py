"""Products of small matrices inside numba kernels: the left one read where it lies, the right one packed into panels.

Arrays are flat (1-D). A matrix in one of them is given by `start`, where its first element is, and `stride`, how far apart
its rows are. Panels hold a right matrix b of n rows as `gather_tile` (microkernel.py) reads it, NR columns at a time:
panels[j // NR, p, j % NR] = b[p, j], with zeros beyond its last column.
"""

from __future__ import annotations

import numpy as np

from ..backend import device
from .microkernel import GR, NR, gather_tile


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
def pack_rows(x, start, stride, n, depth, factor, panels):
    """panels[j // NR, p, j % NR] = factor · x[j, p] for j < n: n rows as the right matrix xᵀ."""
    for j in range(0, n, NR):
        lanes = min(NR, n - j)
        for p in range(depth):
            to = j * depth + p * NR
            for lane in range(lanes):
                panels[to + lane] = factor * x[start + (j + lane) * stride + p]
            for lane in range(lanes, NR):
                panels[to + lane] = np.float32(0)


@device
def pack_columns(x, start, stride, n, columns, factor, panels):
    """panels[j // NR, p, j % NR] = factor · x[p, j] for p < n: n rows as the right matrix x."""
    for p in range(n):
        for j in range(0, columns, NR):
            lanes = min(NR, columns - j)
            to = j * n + p * NR
            for lane in range(lanes):
                panels[to + lane] = factor * x[start + p * stride + j + lane]
            for lane in range(lanes, NR):
                panels[to + lane] = np.float32(0)


@device
def product(x, along, down, rows, depth, panels, columns, y, start, stride, add, edge):
    """y[i, j] (+)= Σ_p x[along[p] + down[i]] panels[j // NR, p, j % NR], i < rows, j < columns."""
    for j in range(0, columns, NR):
        for i in range(0, rows, GR):
            to, height, width = start + i * stride + j, min(GR, rows - i), min(NR, columns - j)
            partial = height < GR or width < NR
            c, c0, ldc = (edge, 0, NR) if partial else (y, to, stride)
            gather_tile(x, along, down, i, panels, j * depth, depth, c, c0, ldc, add and not partial)
            if partial:
                for row in range(height):
                    for column in range(width):
                        at = to + row * stride + column
                        y[at] = y[at] + edge[row * NR + column] if add else edge[row * NR + column]
