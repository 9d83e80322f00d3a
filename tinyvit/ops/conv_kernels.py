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
from .microkernel import GR, NR, VL, copy_run, gather_tile, narrow_gather_tile, transpose

PIXELS = 256  # pixels of a task: NR of them a step deep, the gradient's panel is half a 32 KB cache
DEPTH = 288  # taps a step: the weight's panel likewise
CHUNKS = 64  # stretches of tasks, which threads take
PARTS, PART_SIZE = 16, 2**21  # partial sums of a weight gradient, at most, and the values of all together


@device
def ceil_div(a, b):
    return (a + b - 1) // b


@device
def out_size(size, kernel, stride, padding, dilation):
    """How many windows fit along an axis: ⌊(size + 2 padding - dilation (kernel - 1) - 1) / stride⌋ + 1."""
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


@device
def unit():
    """The stride (1, 1), as two ordinary integers: literal ones would make numba compile everything again."""
    return 1, 1


@device
def empty_output(x, weight, stride, padding, dilation):
    height = out_size(x.shape[2], weight.shape[2], stride[0], padding[0], dilation[0])
    width = out_size(x.shape[3], weight.shape[3], stride[1], padding[1], dilation[1])
    return np.empty((x.shape[0], weight.shape[0], height, width), np.float32)


@device
def forward_taps(kernel, padding, dilation):
    """The one phase of a forward pass, and its taps: rows (ky, kx, dy, dx), where weight (ky, kx) of pixel m of the output
    meets x[stride·m + (dy, dx)]."""
    taps = np.empty((kernel[0] * kernel[1], 4), np.int64)
    for t in range(len(taps)):
        ky, kx = t // kernel[1], t % kernel[1]
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
def pack_weights(weight, phases, taps, groups, backward):
    """The weights (F, C/groups, kh, kw) as the tile reads them: for each group and phase an array (blocks of NR outputs,
    inputs · taps, NR), one after the other. For the input gradient F are the inputs and C the outputs."""
    outputs, inputs = weight.shape[0] // groups, weight.shape[1]
    if backward:
        inputs, outputs = outputs, inputs
    panels = np.zeros(groups * ceil_div(outputs, NR) * inputs * len(taps) * NR, np.float32)
    to = 0
    for group in range(groups):
        first = group * (weight.shape[0] // groups)
        for f in range(len(phases)):
            for o in range(0, outputs, NR):
                for c in range(inputs):
                    for t in range(phases[f, 2], phases[f, 3]):
                        for j in range(min(NR, outputs - o)):
                            row, column = (first + c, o + j) if backward else (first + o + j, c)
                            panels[to + j] = weight[row, column, taps[t, 0], taps[t, 1]]
                        to += NR
    return panels


@device
def plan(images, channels, grid, step, taps):
    """How the work is cut: (images, rows, channels) of a task, and (top, left, height, width) of what it stages."""
    together, rows = 1, grid[0]
    if grid[0] * grid[1] <= PIXELS:
        together = min(images, PIXELS // (grid[0] * grid[1]))
    else:
        rows = ceil_div(grid[0], ceil_div(grid[0] * grid[1], PIXELS))
    block = min(channels, max(1, DEPTH // len(taps)))
    top, left, bottom, right = taps[0, 2], taps[0, 3], taps[0, 2], taps[0, 3]
    for t in range(len(taps)):
        top, bottom = min(top, taps[t, 2]), max(bottom, taps[t, 2])
        left, right = min(left, taps[t, 3]), max(right, taps[t, 3])
    height = (rows - 1) * step[0] + bottom - top + 1
    width = (grid[1] - 1) * step[1] + right - left + 1
    return together, rows, ceil_div(channels, ceil_div(channels, block)), top, left, height, width


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
def pixel_offsets(images, rows, columns, height, width, step):
    """v: where each pixel of a task lies in the staged images; padded to whole tiles."""
    v = np.zeros(ceil_div(images * rows * columns, GR) * GR, np.int64)
    p = 0
    for n in range(images):
        for y in range(rows):
            for x in range(columns):
                v[p] = (n * height + y * step[0]) * width + x * step[1]
                p += 1
    return v


@device
def stage(x, n0, images, c0, channels, top, left, together, height, width, staged):
    """staged[c, n, i, j] = x[n0 + n, c0 + c, top + i, left + j], rows outside the image 0.

    The columns outside are left as they are: 0 from the start.
    """
    C, H, W = x.shape[1:]
    first, last = max(0, -left), min(width, W - left)
    for c in range(channels):
        for n in range(images):
            to = (c * together + n) * height * width
            for i in range(top, top + height):
                if 0 <= i < H and first < last:
                    source = (((n0 + n) * C + c0 + c) * H + i) * W + left
                    copy_run(x, source + first, staged, to + first, last - first)
                else:
                    for j in range(first, last):
                        staged[to + j] = np.float32(0)
                to += width


@device
def unpack(sums, images, rows, columns, planes, y, n0, o0, outputs, row0, column0, stride):
    """y[n0 + n, o0 + o, row0 + stride·i, column0 + stride·j] = sums[o's block, pixel (n, i, j), o], as the tiles left it."""
    F, H, W = y.shape[1:]
    lines, flat, pixels = sums.ravel(), y.ravel(), rows * columns
    for n in range(images):
        for o in range(0, outputs, NR):
            here = min(NR, outputs - o)
            source = (o // NR * sums.shape[1] + n * pixels) * NR
            target = (((n0 + n) * F + o0 + o) * H + row0) * W + column0
            if stride[0] == 1 and stride[1] == 1:
                transpose(lines, source, NR, pixels, here, flat, target, H * W)
            else:
                transpose(lines, source, NR, pixels, here, planes, 0, pixels)
                for j in range(here):
                    for i in range(rows):
                        line, to = j * pixels + i * columns, target + (j * H + i * stride[0]) * W
                        for k in range(columns):
                            flat[to + k * stride[1]] = planes[line + k]


@device
def correlate(x, panels, phases, taps, step, y, stride, groups, chunk):
    """y[n, o, f + stride·m] = Σ_{c,t} x[n, c, step·m + tap_t] w[c, o, t] over the taps t of phase f, for one chunk of tasks."""
    B, C, F = x.shape[0], x.shape[1] // groups, y.shape[1] // groups
    H, W = y.shape[2:]
    grid = ceil_div(H, stride[0]), ceil_div(W, stride[1])
    together, rows, block, top, left, height, width = plan(B, C, grid, step, taps)
    bands, blocks = ceil_div(grid[0], rows), ceil_div(F, NR)
    tasks = ceil_div(B, together) * bands
    first, last = tasks * chunk // CHUNKS, tasks * (chunk + 1) // CHUNKS
    if first == last:
        return
    staged = np.zeros(block * together * height * width, np.float32)
    sums = np.empty((len(phases), blocks, ceil_div(together * rows * grid[1], GR) * GR, NR), np.float32)
    planes = np.empty(sums.shape[2] * NR, np.float32)
    for work in range(first * groups, last * groups):
        task, group = work // groups, work % groups
        n0, row0 = task // bands * together, task % bands * rows
        images = min(together, B - n0)
        for c in range(0, C, block):
            channels = min(block, C - c)
            u = tap_offsets(channels, phases, taps, top, left, together * height * width, width)
            stage(x, n0, images, group * C + c, channels, row0 * step[0] + top, left, together, height, width, staged)
            for f in range(len(phases)):
                here = min(rows, ceil_div(H - phases[f, 0], stride[0]) - row0)
                columns = ceil_div(W - phases[f, 1], stride[1])
                v = pixel_offsets(images, here, columns, height, width, step)
                T = phases[f, 3] - phases[f, 2]
                uf = u[channels * phases[f, 2]:]
                for o in range(blocks):
                    b0 = (blocks * C * (group * len(taps) + phases[f, 2]) + (o * C + c) * T) * NR
                    for p in range(0, images * here * columns, GR):
                        c0 = ((f * blocks + o) * sums.shape[2] + p) * NR
                        if F - o * NR > VL:
                            gather_tile(staged, uf, v, p, panels, b0, channels * T, sums, c0, NR, c > 0)
                        else:
                            narrow_gather_tile(staged, uf, v, p, panels, b0, channels * T, sums, c0, NR, c > 0)
                if c + channels == C:
                    unpack(sums[f], images, here, columns, planes, y, n0, group * F, F,
                           phases[f, 0] + row0 * stride[0], phases[f, 1], stride)


@device
def empty_parts(x, g, step, taps, groups):
    """Zeros for the partial sums of `correlate_weights`: (parts, blocks of channels, their taps, outputs)."""
    B, C, F = x.shape[0], x.shape[1] // groups, g.shape[1] // groups
    together, rows, block, _, _, _, _ = plan(B, C, g.shape[2:], step, taps)
    tasks = ceil_div(B, together) * ceil_div(g.shape[2], rows)
    outputs = ceil_div(F, NR) * NR
    parts = min(PARTS, tasks, max(1, PART_SIZE // (groups * C * len(taps) * outputs)))
    return np.zeros((parts, groups * ceil_div(C, block), ceil_div(block * len(taps), GR) * GR, outputs), np.float32)


@device
def correlate_weights(x, g, phases, taps, step, groups, parts, i):
    """parts[part, block, (c, t), o] += Σ_m x[n, c, step·m + tap_t] g[n, o, m] over a share of the tasks, where i numbers
    the pairs (block, part)."""
    B, C, F = x.shape[0], x.shape[1] // groups, g.shape[1] // groups
    H, W = g.shape[2:]
    together, rows, block, top, left, height, width = plan(B, C, (H, W), step, taps)
    share, part = i // parts.shape[0], i % parts.shape[0]
    group, c = share // ceil_div(C, block), share % ceil_div(C, block) * block
    channels = min(block, C - c)
    sums, ldc = parts[part, share], parts.shape[3]
    u = tap_offsets(channels, phases, taps, top, left, together * height * width, width)
    v = pixel_offsets(together, rows, W, height, width, step)
    staged = np.zeros(block * together * height * width, np.float32)
    upstream = np.zeros(ceil_div(F, NR) * len(v) * NR, np.float32)
    flat = g.ravel()
    bands = ceil_div(H, rows)
    tasks = ceil_div(B, together) * bands
    for task in range(tasks * part // parts.shape[0], tasks * (part + 1) // parts.shape[0]):
        n0, row0 = task // bands * together, task % bands * rows
        images, here = min(together, B - n0), min(rows, H - row0)
        stage(x, n0, images, group * C + c, channels, row0 * step[0] + top, left, together, height, width, staged)
        for n in range(images):
            for o in range(0, F, NR):
                transpose(flat, (((n0 + n) * g.shape[1] + group * F + o) * H + row0) * W, H * W, min(NR, F - o), here * W,
                          upstream, (o // NR * len(v) + n * here * W) * NR, NR)
        depth = images * here * W
        for o in range(0, F, NR):
            for t in range(0, channels * len(taps), GR):
                if F - o > VL:
                    gather_tile(staged, v, u, t, upstream, o * len(v), depth, sums, t * ldc + o, ldc, True)
                else:
                    narrow_gather_tile(staged, v, u, t, upstream, o * len(v), depth, sums, t * ldc + o, ldc, True)


@device
def add_parts(parts, dw, groups, o):
    """dw[o, c, ky, kx] = Σ over parts of parts[part, c's block, (c, ky, kx), o]."""
    C, kh, kw = dw.shape[1:]
    blocks, F = parts.shape[1] // groups, dw.shape[0] // groups
    block = ceil_div(C, blocks)
    for c in range(C):
        for t in range(kh * kw):
            total = np.float32(0)
            for part in range(parts.shape[0]):
                total += parts[part, o // F * blocks + c // block, c % block * kh * kw + t, o % F]
            dw[o, c, t // kw, t % kw] = total
