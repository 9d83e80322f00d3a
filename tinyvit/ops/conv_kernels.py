"""How a convolution runs on the CPU: three matrix products whose im2col matrix is never made.

With a tap t = (c, ky, kx) and a pixel m of the output, the im2col matrix is columns[t, m] = x[u_t + v_m]: where a tap
lies in the image plus where a pixel does. `gather_tile` (microkernel.py) multiplies straight through these two tables:

    forward          y[m, o]  = Σ_t columns[t, m] w[t, o]            rows m, depth t
    input gradient   the same with g for x and the taps that meet a pixel; for stride s the pixels fall into s·s phases
    weight gradient  dw[t, o] = Σ_m columns[t, m] g[m, o]            rows t, depth m

The work is cut into *tasks* of some 256 pixels: several small images, or a band of rows of a large one. A task copies
its part of the image, zeros around it, to a buffer that fits the cache (`stage`), a block of channels at a time.
What is computed does not depend on the number of threads, so results are the same bits everywhere.
"""

from __future__ import annotations

import numpy as np

from ..backend import device
from .microkernel import GR, NR, VL, gather_tile, narrow_gather_tile, transpose

PIXELS = 256  # pixels of a task: NR of them a step deep, the gradient's panel is half a 32 KB cache
DEPTH = 288  # taps a step: the weight's panel likewise
CHUNKS = 64  # stretches of tasks, which threads take


@device
def ceil_div(a, b):
    return (a + b - 1) // b


@device
def forward_taps(kernel, padding, dilation):
    """The one phase of a forward pass, and its taps: rows (ky, kx, dy, dx), where weight (ky, kx) of pixel m of the output
    meets x[stride·m + (dy, dx)]."""
    taps = np.empty((kernel[0] * kernel[1], 4), np.int64)
    for ky in range(kernel[0]):
        for kx in range(kernel[1]):
            t = ky * kernel[1] + kx
            taps[t, 0], taps[t, 1] = ky, kx
            taps[t, 2], taps[t, 3] = ky * dilation[0] - padding[0], kx * dilation[1] - padding[1]
    phases = np.zeros((1, 4), np.int64)
    phases[0, 3] = len(taps)
    return phases, taps


@device
def gradient_taps(kernel, stride, padding, dilation):
    """The phases of an input gradient, rows (fy, fx, first tap, last tap), and the taps of all: dx[f + stride·m] collects
    w[ky, kx] g[m + (dy, dx)] where stride divides f + padding - dilation·k."""
    phases = np.empty((stride[0] * stride[1], 4), np.int64)
    taps = np.empty((kernel[0] * kernel[1], 4), np.int64)
    t = 0
    for f in range(len(phases)):
        phases[f, 0], phases[f, 1], phases[f, 2] = f // stride[1], f % stride[1], t
        for ky in range(kernel[0]):
            for kx in range(kernel[1]):
                y = f // stride[1] + padding[0] - ky * dilation[0]
                x = f % stride[1] + padding[1] - kx * dilation[1]
                if y % stride[0] == 0 and x % stride[1] == 0:
                    taps[t, 0], taps[t, 1], taps[t, 2], taps[t, 3] = ky, kx, y // stride[0], x // stride[1]
                    t += 1
        phases[f, 3] = t
    return phases, taps


@device
def pack_weights(w, phases, taps, block, panels):
    """One block of NR outputs of the weights w (inputs, outputs, kh, kw) as the tile reads them: phase by phase
    panels[blocks, inputs · taps, NR], one after the other."""
    C = w.shape[0]
    width = min(NR, w.shape[1] - block * NR)
    for f in range(len(phases)):
        first, last = phases[f, 2], phases[f, 3]
        to = ((w.shape[1] + NR - 1) // NR * first + block * (last - first)) * C * NR
        for c in range(C):
            for t in range(first, last):
                for j in range(NR):
                    panels[to + j] = w[c, block * NR + j, taps[t, 0], taps[t, 1]] if j < width else np.float32(0)
                to += NR


@device
def plan(images, channels, grid, step, taps):
    """How the work is cut: (images, rows, channels) of a task, and (top, left, height, width) of what it stages."""
    group, rows = 1, grid[0]
    if grid[0] * grid[1] <= PIXELS:
        group = min(images, PIXELS // (grid[0] * grid[1]))
    else:
        rows = ceil_div(grid[0], ceil_div(grid[0] * grid[1], PIXELS))
    block = min(channels, max(1, DEPTH // len(taps)))
    top, left = taps[:, 2].min(), taps[:, 3].min()
    height = (rows - 1) * step[0] + taps[:, 2].max() - top + 1
    width = (grid[1] - 1) * step[1] + taps[:, 3].max() - left + 1
    return group, rows, ceil_div(channels, ceil_div(channels, block)), top, left, height, width


@device
def tap_offsets(block, phases, taps, top, left, plane, width):
    """u: where each tap of each channel lies in the staged images, phase by phase; padded to whole tiles."""
    u = np.zeros(ceil_div(block * len(taps), GR) * GR, np.int64)
    i = 0
    for f in range(len(phases)):
        for c in range(block):
            for t in range(phases[f, 2], phases[f, 3]):
                u[i] = c * plane + (taps[t, 2] - top) * width + taps[t, 3] - left
                i += 1
    return u


@device
def pixel_offsets(group, rows, columns, height, width, step):
    """v: where each pixel of a task lies in the staged images; padded to whole tiles."""
    v = np.zeros(ceil_div(group * rows * columns, GR) * GR, np.int64)
    p = 0
    for n in range(group):
        for y in range(rows):
            for x in range(columns):
                v[p] = (n * height + y * step[0]) * width + x * step[1]
                p += 1
    return v


@device
def stage(x, n0, images, c0, channels, top, left, group, height, width, staged):
    """staged[c, n, i, j] = x[n0 + n, c0 + c, top + i, left + j], rows outside the image 0.

    The columns outside are left as they are: 0 from the start.
    """
    H, W = x.shape[2:]
    first, last = max(0, -left), min(width, W - left)
    for c in range(channels):
        for n in range(images):
            to = (c * group + n) * height * width
            for i in range(top, top + height):
                if 0 <= i < H:
                    source = x[n0 + n, c0 + c, i]
                    for j in range(first, last):
                        staged[to + j] = source[left + j]
                else:
                    for j in range(first, last):
                        staged[to + j] = np.float32(0)
                to += width


@device
def unpack(sums, images, rows, columns, y, n0, row0, column0, stride):
    """y[n0 + n, o, row0 + stride·i, column0 + stride·j] = sums[o's block, pixel (n, i, j), o], sums as the tiles left it."""
    O, H, W = y.shape[1:]
    lines, flat = sums.reshape(-1), y.reshape(-1)
    for n in range(images):
        for o in range(0, O, NR):
            source = (o // NR * sums.shape[1] + n * rows * columns) * NR
            target = (((n0 + n) * O + o) * H + row0) * W + column0
            outputs = min(NR, O - o)
            if stride[0] == 1 and stride[1] == 1 and columns == W:
                transpose(lines, source, NR, rows * columns, outputs, flat, target, H * W)
            else:
                for j in range(outputs):
                    for i in range(rows):
                        for k in range(columns):
                            flat[target + (j * H + i * stride[0]) * W + k * stride[1]] = \
                                lines[source + (i * columns + k) * NR + j]


@device
def correlate(x, panels, phases, taps, step, y, stride, chunk):
    """y[n, o, f + stride·m] = Σ_{c,t} x[n, c, step·m + tap_t] w[c, o, t] over the taps t of phase f, for one chunk of tasks."""
    B, C = x.shape[:2]
    O, H, W = y.shape[1:]
    grid = ceil_div(H, stride[0]), ceil_div(W, stride[1])
    group, rows, block, top, left, height, width = plan(B, C, grid, step, taps)
    bands = ceil_div(grid[0], rows)
    tasks = ceil_div(B, group) * bands
    first, last = tasks * chunk // CHUNKS, tasks * (chunk + 1) // CHUNKS
    if first == last:
        return
    blocks = ceil_div(O, NR)
    u = tap_offsets(block, phases, taps, top, left, group * height * width, width)
    staged = np.zeros(block * group * height * width, np.float32)
    sums = np.empty((len(phases), blocks, ceil_div(group * rows * grid[1], GR) * GR, NR), np.float32)
    for task in range(first, last):
        n0, row0 = task // bands * group, task % bands * rows
        images = min(group, B - n0)
        for c in range(0, C, block):
            channels = min(block, C - c)
            if channels < block:
                u = tap_offsets(channels, phases, taps, top, left, group * height * width, width)
            stage(x, n0, images, c, channels, row0 * step[0] + top, left, group, height, width, staged)
            for f in range(len(phases)):
                here = min(rows, ceil_div(H - phases[f, 0], stride[0]) - row0)
                columns = ceil_div(W - phases[f, 1], stride[1])
                T = phases[f, 3] - phases[f, 2]
                v = pixel_offsets(images, here, columns, height, width, step)
                uf = u[channels * phases[f, 2]:]
                for o in range(blocks):
                    b0 = (blocks * phases[f, 2] * C + (o * C + c) * T) * NR
                    for p in range(0, images * here * columns, GR):
                        c0 = ((f * blocks + o) * sums.shape[2] + p) * NR
                        if O - o * NR > VL:
                            gather_tile(staged, uf, v, p, panels, b0, channels * T, sums, c0, NR, c > 0)
                        else:
                            narrow_gather_tile(staged, uf, v, p, panels, b0, channels * T, sums, c0, NR, c > 0)
                if c + channels == C:
                    unpack(sums[f], images, here, columns, y, n0, phases[f, 0] + row0 * stride[0], phases[f, 1], stride)


@device
def correlate_weights(x, g, phases, taps, step, c, tasks, sums):
    """sums[t, o] += Σ_m x[n, c + t, step·m + tap_t] g[n, o, m] for the block of channels at c and a range of tasks."""
    B, C = x.shape[:2]
    O, H, W = g.shape[1:]
    group, rows, block, top, left, height, width = plan(B, C, (H, W), step, taps)
    bands, blocks = ceil_div(H, rows), ceil_div(O, NR)
    u = tap_offsets(block, phases, taps, top, left, group * height * width, width)
    v = pixel_offsets(group, rows, W, height, width, step)
    staged = np.zeros(block * group * height * width, np.float32)
    upstream = np.zeros(blocks * len(v) * NR, np.float32)
    flat = g.reshape(-1)
    channels = min(block, C - c)
    for task in range(tasks[0], tasks[1]):
        n0, row0 = task // bands * group, task % bands * rows
        images, here = min(group, B - n0), min(rows, H - row0)
        stage(x, n0, images, c, channels, row0 * step[0] + top, left, group, height, width, staged)
        for n in range(images):
            for o in range(0, O, NR):
                transpose(flat, (((n0 + n) * O + o) * H + row0) * W, H * W, min(NR, O - o), here * W,
                          upstream, (o // NR * len(v) + n * here * W) * NR, NR)
        depth = images * here * W
        for o in range(blocks):
            for t in range(0, channels * len(taps), GR):
                b0, c0 = o * len(v) * NR, t * sums.shape[1] + o * NR
                if O - o * NR > VL:
                    gather_tile(staged, v, u, t, upstream, b0, depth, sums, c0, sums.shape[1], True)
                else:
                    narrow_gather_tile(staged, v, u, t, upstream, b0, depth, sums, c0, sums.shape[1], True)
