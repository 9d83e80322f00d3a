"""show_graph: the listing, and the picture."""

import subprocess
import sys

import numpy as np
import pytest

import tinyvit as tv
from tinyvit.graph import MOST_DRAWN, WIDTH
from tinyvit.graph_picture import _apart, _layers


def leaf(*shape):
    return tv.tensor(np.ones(shape, np.float32), requires_grad=True)


def block():
    """As many branches as a transformer block has."""
    x, w = leaf(2, 5, 8), leaf(8)
    n = x * w
    q, k, v = tv.split(n.reshape(10, 8), (3, 3, 2), axis=1)
    h = x + tv.concat([q * 2.0, tv.exp(k), v.relu()], axis=1).reshape(2, 5, 8)
    return h + tv.softmax(h * w)


def test_listing():
    x, w = leaf(3, 4), leaf(4)
    h = (x * w + 1.0).relu()
    loss = (h * h).mean()
    assert str(tv.show_graph(loss)).splitlines() == [
        "graph of loss: 5 ops, 2 leaves",
        "  x     leaf, float32, requires_grad                                      (3, 4)",
        "  w     leaf, float32, requires_grad                                        (4,)",
        "  %1    Mul(x, w)                                                         (3, 4)",
        "  %2    Add(%1, const())                                                  (3, 4)",
        "  h     ReLU(%2)                                                          (3, 4)",
        "  %3    Mul(h, h)                                                         (3, 4)",
        "  loss  Mean(%3)                                                              ()",
    ]


def test_names_can_be_given_and_are_not_needed():
    def unnamed():
        return tv.show_graph(leaf(2) * leaf(2))

    assert "Mul(leaf1, leaf2)" in str(unnamed())
    a, b = leaf(2), leaf(2)
    text = str(tv.show_graph(a * b, names={"left": a, "blocks.0.mlp.fc1.weight": b}))
    assert "Mul(left, blocks.0.mlp.fc1.weight)" in text and "graph of %1" in text


def test_parameters_of_a_module_are_named():
    class Model:
        def __init__(self):
            self.weight = leaf(2)

        def named_parameters(self):
            return [("head.weight", self.weight)]

    model = Model()
    other = Model()
    assert "Exp(head.weight)" in str(tv.show_graph(tv.exp(model.weight), names={"model": model}))
    assert "Mul(model.head.weight, other.head.weight)" in str(tv.show_graph(model.weight * other.weight))


def test_shared_nodes_appear_once():
    x = leaf(2)
    y = x
    for _ in range(30):
        y = y + y
    graph = tv.show_graph(y)
    assert sum(n.kind == "op" for n in graph.nodes) == 30 and sum(n.kind == "leaf" for n in graph.nodes) == 1


def test_outputs_of_an_op_with_several_are_told_apart():
    x = leaf(4, 2)
    a, b = tv.split(x, 2)
    text = str(tv.show_graph(b * a.exp(), names={"x": x}))
    assert "%1  Split(x)" in text and "(2, 2) (2, 2)" in text and "Exp(%1[0])" in text and "Mul(%1[1], %2)" in text


def test_leaf_alone():
    x = leaf(2)
    assert str(tv.show_graph(x)).splitlines()[0] == "graph of x: 0 ops, 1 leaf"


def test_lines_keep_to_the_width():
    pieces = {f"a_rather_long_name_for_a_tensor_{i}": leaf(1, 2) for i in range(12)}
    wide = tv.concat(list(pieces.values()))
    for graph in (tv.show_graph(wide, names=pieces), tv.show_graph(tv.unbind(leaf(40, 2))[0]), tv.show_graph(block())):
        assert max(map(len, str(graph).splitlines())) <= WIDTH
    assert all(name in str(tv.show_graph(wide, names=pieces)) for name in pieces)


def test_long_graphs_show_their_ends():
    y = leaf(2)
    for _ in range(20_000):
        y = y + 1.0
    graph = tv.show_graph(y)
    text = str(graph)
    assert len(text.splitlines()) < 500 and "more" in text and "graph of y: 20,000 ops" in text
    with pytest.raises(ValueError, match=f"print the graph.*{MOST_DRAWN}"):
        graph.plot()


def test_no_graph_and_a_freed_one():
    x = leaf(2)
    with tv.no_grad():
        y = x * 2
    with pytest.raises(RuntimeError, match="requires no gradient"):
        tv.show_graph(y)
    y = (x * 2).sum()
    y.backward(retain_graph=True)
    tv.show_graph(y)
    y.backward()
    with pytest.raises(RuntimeError, match=r"gone.*show_graph\(\) before backward"):
        tv.show_graph(y)


def test_looking_changes_nothing():
    x = leaf(3)
    y = (x * x).sum()
    tv.show_graph(y).plot()
    y.backward()
    assert x.grad.tolist() == [2, 2, 2]


# ---------------------------------------------------------------------------------------------- the picture


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_picture_is_written(tmp_path, ending):
    file = tmp_path / f"graph.{ending}"
    tv.show_graph(block(), file=file)
    assert file.stat().st_size > 5000


def test_every_node_is_in_the_picture_and_no_boxes_overlap():
    graph = tv.show_graph(block())
    ax = graph.plot()
    from matplotlib.patches import FancyBboxPatch

    boxes = [p.get_bbox() for p in ax.patches if isinstance(p, FancyBboxPatch)]
    assert len(boxes) == len(graph.nodes)
    for i, a in enumerate(boxes):
        assert ax.get_xlim()[0] < a.x0 and a.x1 < ax.get_xlim()[1] and ax.get_ylim()[0] < a.y0 and a.y1 < ax.get_ylim()[1]
        for b in boxes[:i]:
            assert a.x1 <= b.x0 or b.x1 <= a.x0 or a.y1 <= b.y0 or b.y1 <= a.y0


def test_text_fits_its_box():
    ax = tv.show_graph(block()).plot()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.patches import FancyBboxPatch

    renderer = FigureCanvasAgg(ax.figure).get_renderer()
    boxes = [p.get_window_extent(renderer) for p in ax.patches if isinstance(p, FancyBboxPatch)]
    for text in ax.texts:
        t = text.get_window_extent(renderer)
        assert any(b.x0 <= t.x0 and t.x1 <= b.x1 and b.y0 - 1 <= t.y0 and t.y1 <= b.y1 + 1 for b in boxes), text.get_text()


def test_picture_goes_into_axes_that_are_given():
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4, 4))
    ax = figure.subplots()
    x = leaf(2)
    assert tv.show_graph(x * x, ax=ax).plot(ax) is ax
    assert len(ax.texts) >= 4


def test_inputs_are_above_what_uses_them():
    nodes = tv.show_graph(block()).nodes
    layers, edges = _layers(nodes)
    depth = {i: d for d, layer in enumerate(layers) for i in layer}
    assert all(depth[j] == depth[i] + 1 for i, j in edges)
    assert sorted(i for layer in layers for i in layer) == list(range(len(depth)))


def test_boxes_are_moved_as_little_as_needed():
    assert _apart([0.0, 10.0], [1, 1], [1, 1]) == [0.0, 10.0]
    near = _apart([0.0, 0.0, 20.0], [1, 1, 1], [1, 1, 1])
    assert near[0] == -near[1] and near[1] - near[0] > 1 and near[2] == 20
    heavy = _apart([0.0, 0.0], [9, 1], [1, 1])
    assert abs(heavy[0]) < abs(heavy[1]), "the heavier one gives way less"


def test_drawing_leaves_pyplot_and_its_backend_alone(tmp_path):
    code = f"""
import sys, tinyvit as tv
x = tv.tensor([1.0], requires_grad=True)
print(tv.show_graph(x * x))
assert "matplotlib" not in sys.modules
tv.show_graph(x * x, file={str(tmp_path / "g.png")!r})
assert "matplotlib.pyplot" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
