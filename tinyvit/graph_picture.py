"""Draws a graph in layers: inputs at the top, the result at the bottom, every node below what it is computed from.

The steps are Sugiyama's (1981): layers, stand-ins where an edge passes a layer, an order with few crossings, positions.
Coordinates are inches, so that the text fits its box in any figure.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .graph import Node

CHARACTER, LINE, ROW, GAP, MARGIN = 0.079, 0.16, 0.68, 0.18, 0.25  # inches, for a font of 9 points
FACES = {"op": "#cfe3f3", "leaf": "#f8dba8", "constant": "#eeeeee"}  # light blue, orange and grey (Okabe and Ito)
EDGES = {"op": "#0072B2", "leaf": "#B35F00", "constant": "#777777"}


def draw(nodes: list[Node], ax=None):
    """Draw into `ax`, or into a figure of its own. Returns the axes."""
    layers, edges = _layers(nodes)
    widths = [_width(n) for n in nodes] + [0.02] * (1 + max(max(layer) for layer in layers) - len(nodes))
    _untangle(layers, edges)
    pull = [1.0 if n.kind == "op" else 0.1 for n in nodes] + [4.0] * (len(widths) - len(nodes))
    x = _positions(layers, edges, widths, pull)
    y = {i: -ROW * depth for depth, layer in enumerate(layers) for i in layer}
    left = min(x[i] - widths[i] / 2 for i in x) - MARGIN
    right = max(x[i] + widths[i] / 2 for i in x) + MARGIN
    bottom, top = -ROW * (len(layers) - 1) - LINE - MARGIN, LINE + MARGIN
    scale = 1.0
    if ax is None:
        from matplotlib.figure import Figure

        ax = Figure(figsize=(right - left, top - bottom)).add_axes((0, 0, 1, 1))
    else:
        box = ax.get_window_extent().transformed(ax.figure.dpi_scale_trans.inverted())
        scale = min(box.width / (right - left), box.height / (top - bottom))
    ax.set_xlim(left, right)
    ax.set_ylim(bottom, top)
    ax.set_aspect("equal")
    ax.axis("off")
    for path in _paths(nodes, edges):
        _draw_edge(ax, [(x[i], y[i]) for i in path], scale)
    for i, n in enumerate(nodes):
        _draw_node(ax, n, x[i], y[i], widths[i], scale, result=i == len(nodes) - 1)
    return ax


def _texts(n: Node) -> tuple[str, str]:
    """The two lines in a node's box."""
    named = n.kind == "op" and not n.name.startswith("%")
    return f"{n.name} = {n.label}" if named else n.label, n.shape


def _width(n: Node) -> float:
    return max(map(len, _texts(n))) * CHARACTER + 0.16


# ---------------------------------------------------------------------------------------------- layout


def _layers(nodes: list[Node]) -> tuple[list[list[int]], list[tuple[int, int]]]:
    """Nodes by depth, and edges between neighbouring layers; edges that skip layers go through stand-ins.

    An op is one below its lowest input, a leaf or constant one above its first use.
    """
    depth = [0] * len(nodes)
    for i, n in enumerate(nodes):
        depth[i] = 1 + max((depth[j] for j, _ in n.inputs if nodes[j].kind == "op"), default=0) if n.kind == "op" else 0
    for i, n in enumerate(nodes):
        if n.kind != "op":
            depth[i] = min((depth[j] - 1 for j, m in enumerate(nodes) if any(k == i for k, _ in m.inputs)), default=0)
    layers: list[list[int]] = [[] for _ in range(max(depth) + 1)]
    for i, d in enumerate(depth):
        layers[d].append(i)
    edges, stand_ins = [], len(nodes)
    for i, n in enumerate(nodes):
        for j in dict.fromkeys(j for j, _ in n.inputs):
            above = j
            for d in range(depth[j] + 1, depth[i]):
                layers[d].append(stand_ins)
                edges.append((above, stand_ins))
                above, stand_ins = stand_ins, stand_ins + 1
            edges.append((above, i))
    return layers, edges


def _untangle(layers: list[list[int]], edges: list[tuple[int, int]], sweeps: int = 12) -> None:
    """Order each layer by the mean place of its neighbours, down and up in turns, and keep the order with fewest crossings."""
    above, below = _neighbours(edges)
    best, fewest = [list(layer) for layer in layers], _crossings(layers, edges)
    for sweep in range(sweeps):
        towards = above if sweep % 2 == 0 else below
        for d in range(len(layers)) if sweep % 2 == 0 else reversed(range(len(layers))):
            near = d - 1 if sweep % 2 == 0 else d + 1
            if 0 <= near < len(layers):
                place = {i: k for k, i in enumerate(layers[near])}
                own = {i: k for k, i in enumerate(layers[d])}
                mean = {i: sum(place[j] for j in towards[i]) / len(towards[i]) for i in layers[d] if i in towards}
                layers[d].sort(key=lambda i: mean.get(i, own[i]))
        crossings = _crossings(layers, edges)
        if crossings < fewest:
            best, fewest = [list(layer) for layer in layers], crossings
    layers[:] = best


def _neighbours(edges: list[tuple[int, int]]) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    above: dict[int, list[int]] = {}
    below: dict[int, list[int]] = {}
    for i, j in edges:
        above.setdefault(j, []).append(i)
        below.setdefault(i, []).append(j)
    return above, below


def _crossings(layers: list[list[int]], edges: list[tuple[int, int]]) -> int:
    depth = {i: d for d, layer in enumerate(layers) for i in layer}
    place = {i: k for layer in layers for k, i in enumerate(layer)}
    by_layer: dict[int, list[tuple[int, int]]] = {}
    for i, j in edges:
        by_layer.setdefault(depth[i], []).append((place[i], place[j]))
    return sum((a - c) * (b - d) < 0 for group in by_layer.values() for k, (a, b) in enumerate(group) for c, d in group[:k])


def _positions(layers: list[list[int]], edges: list[tuple[int, int]], widths: list[float], pull: list[float],
               sweeps: int = 100) -> dict[int, float]:
    """x of every node, so that edges are short and boxes apart: layer after layer, Σ pull_i pull_j (x_i - x_j)² gets smaller.

    pull: stand-ins have most, which makes long edges straight, and leaves least, which keeps the ops in line.
    """
    above, below = _neighbours(edges)
    x: dict[int, float] = {}
    for layer in layers:
        x.update(zip(layer, _apart([0.0] * len(layer), [1.0] * len(layer), [widths[i] for i in layer])))
    for sweep in range(sweeps):
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            wish, weight = [], []
            for i in layer:
                near = above.get(i, []) + below.get(i, [])
                total = sum(pull[j] for j in near)
                wish.append(sum(pull[j] * x[j] for j in near) / total if near else x[i])
                weight.append(pull[i] * total if near else pull[i])
            x.update(zip(layer, _apart(wish, weight, [widths[i] for i in layer])))
    return x


def _apart(wish: list[float], weight: list[float], widths: list[float]) -> list[float]:
    """Places in the order given, a gap apart, nearest to the wished ones in weighted squares (isotonic regression)."""
    offsets = [0.0]
    blocks: list[tuple[float, float, int]] = []  # runs of boxes that touch: weight, place of the first box, number of boxes
    for a, b in pairwise(widths):
        offsets.append(offsets[-1] + (a + b) / 2 + GAP)
    for x, w, offset in zip(wish, weight, offsets):
        blocks.append((w, x - offset, 1))
        while len(blocks) > 1 and blocks[-2][1] > blocks[-1][1]:
            w2, x2, n2 = blocks.pop()
            w1, x1, n1 = blocks.pop()
            blocks.append((w1 + w2, (w1 * x1 + w2 * x2) / (w1 + w2), n1 + n2))
    places = [place for _, place, count in blocks for _ in range(count)]
    return [place + offset for place, offset in zip(places, offsets)]


# ---------------------------------------------------------------------------------------------- drawing


def _paths(nodes: list[Node], edges: list[tuple[int, int]]) -> list[list[int]]:
    """Edges from node to node, through their stand-ins."""
    after = {i: j for i, j in edges if i >= len(nodes)}
    paths = []
    for i, j in edges:
        if i < len(nodes):
            path = [i, j]
            while path[-1] in after:
                path.append(after[path[-1]])
            paths.append(path)
    return paths


def _draw_edge(ax, points: list[tuple[float, float]], scale: float) -> None:
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path

    points = [(points[0][0], points[0][1] - LINE), *points[1:-1], (points[-1][0], points[-1][1] + LINE + 0.02)]
    corners, codes = [points[0]], [Path.MOVETO]
    for (x0, y0), (x1, y1) in pairwise(points):  # curves that leave and arrive vertically
        corners += [(x0, y0 + (y1 - y0) / 2), (x1, y1 + (y0 - y1) / 2), (x1, y1)]
        codes += [Path.CURVE4] * 3
    ax.add_patch(FancyArrowPatch(path=Path(corners, codes), arrowstyle="-|>", mutation_scale=8 * scale, color="#555555",
                                 linewidth=1.0 * scale, zorder=1))


def _draw_node(ax, n: Node, x: float, y: float, width: float, scale: float, result: bool) -> None:
    from matplotlib.patches import FancyBboxPatch

    corner = f"round,pad=0,rounding_size={LINE if n.kind == 'op' else 0.02}"
    ax.add_patch(FancyBboxPatch(
        (x - width / 2, y - LINE), width, 2 * LINE, boxstyle=corner, facecolor=FACES[n.kind], edgecolor=EDGES[n.kind],
        linewidth=(2.4 if result else 1.0) * scale, linestyle="--" if n.kind == "constant" else "-", zorder=2))
    first, second = _texts(n)
    font = {"ha": "center", "va": "center", "family": "DejaVu Sans Mono", "zorder": 3}
    weight = "bold" if n.kind == "op" else "normal"
    ax.text(x, y + LINE * 0.42, first, fontsize=9 * scale, fontweight=weight, color="#111111", **font)
    ax.text(x, y - LINE * 0.45, second, fontsize=8 * scale, color="#444444", **font)
