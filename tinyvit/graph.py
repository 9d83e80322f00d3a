"""The graph behind a tensor, as text and as a picture.

>>> import tinyvit as tv
>>> x = tv.tensor([1.0, 2.0], requires_grad=True)
>>> y = (x * x).sum()
>>> print(tv.show_graph(y, names={"x": x, "y": y}))
graph of y: 2 ops, 1 leaf
  x   leaf, float32, requires_grad                                          (2,)
  %1  Mul(x, x)                                                             (2,)
  y   Sum(%1)                                                                 ()
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .autograd import Op
from .tensor import Tensor

WIDTH = 80  # columns of the text
MOST_LINES = 400  # a longer listing is shown by its ends
MOST_DRAWN = 500  # nodes in a picture


@dataclass
class Node:
    """One op, leaf or constant. `inputs` are (place of the node in the list, which of its outputs)."""

    kind: str  # "op", "leaf" or "constant"
    name: str  # what the listing calls its result
    label: str  # the op's name, or the leaf's
    shapes: tuple[tuple[int, ...], ...]
    dtype: str = ""
    inputs: list[tuple[int, int]] = field(default_factory=list)

    @property
    def shape(self) -> str:
        if len(self.shapes) > 2 and len(set(self.shapes)) == 1:
            return f"{len(self.shapes)} × {self.shapes[0]}"
        return " ".join([str(s) for s in self.shapes[:2]] + ["..."] * (len(self.shapes) > 2))

    def output(self, slot: int) -> str:
        return f"{self.name}[{slot}]" if len(self.shapes) > 1 else self.name


class Graph:
    """What `show_graph` returns: `print` it, `plot` it or `save` a picture of it. `nodes` are in forward order."""

    def __init__(self, nodes: list[Node]):
        self.nodes = nodes

    def __str__(self) -> str:
        ops, leaves = (sum(n.kind == kind for n in self.nodes) for kind in ("op", "leaf"))
        rows = [(n.name, self._made_by(n), n.shape) for n in self.nodes if n.kind != "constant"]
        if len(rows) > MOST_LINES:
            half, hidden = MOST_LINES // 2, len(rows) - MOST_LINES
            rows[half:-half] = [("...", f"{hidden:,} more", "")]
        margin = min(24, max(len(name) for name, *_ in rows))
        lines = [f"graph of {self.nodes[-1].name}: {ops:,} op{'s' * (ops != 1)}, {leaves:,} lea{'f' if leaves == 1 else 'ves'}"]
        for name, made_by, shape in rows:
            if len(name) > margin:
                lines.append(f"  {name}")
                name = ""
            lines += _row(f"  {name:<{margin}}  ", made_by, shape)
        return "\n".join(lines)

    __repr__ = __str__

    def _made_by(self, n: Node) -> str:
        if n.kind == "leaf":
            return f"leaf, {n.dtype}, requires_grad"
        return f"{n.label}({', '.join(self.nodes[i].output(slot) for i, slot in n.inputs)})"

    def plot(self, ax=None):
        """Draw into `ax`, or into a new figure of the size it takes. Returns the matplotlib axes."""
        from .graph_picture import draw

        if len(self.nodes) > MOST_DRAWN:
            raise ValueError(f"a picture of {len(self.nodes):,} nodes cannot be read: print the graph, or draw a part of at "
                             f"most {MOST_DRAWN}")
        return draw(self.nodes, ax)

    def save(self, file: str | os.PathLike) -> None:
        """Write the picture to `file`; the ending says the format (png, svg, pdf)."""
        self.plot().figure.savefig(file, dpi=150)


def show_graph(t: Tensor, *, names: Mapping[str, Any] | None = None, ax=None, file: str | os.PathLike | None = None) -> Graph:
    """The graph behind `t`, from leaves to result: every op with its inputs and the shape of its output.

    names: a dict of name -> Tensor (or module, for its parameters), such as `dict(model.named_parameters())`; by default
    the variables of the caller. ax: matplotlib axes to draw into. file: a picture to write (.png, .svg, .pdf).
    What requires no gradient leaves no trace in the graph but its shape: it is listed as `const(shape)`.

    Raises RuntimeError if t has no graph, or it was freed by backward() without retain_graph=True.
    """
    if not t.requires_grad:
        raise RuntimeError("show_graph() of a tensor that requires no gradient: there is no graph behind it. Make an input "
                           "with requires_grad=True, and compute outside no_grad()")
    given = sys._getframe(1).f_locals if names is None else names
    graph = Graph(_nodes(t, _names(given)))
    if ax is not None:
        graph.plot(ax)
    if file is not None:
        graph.save(file)
    return graph


def _names(given: Mapping[str, Any]) -> dict[tuple[int, int], str]:
    """(id of op or leaf, output) -> name. A tensor's first name counts."""
    found: dict[tuple[int, int], str] = {}
    one = sum(map(_is_module, given.values())) == 1  # its parameters need no prefix
    for name, value in given.items():
        if isinstance(value, Tensor) and value.requires_grad and not name.startswith("_"):
            found.setdefault((id(value._op or value), value._slot), name)
        elif _is_module(value):
            for inner, p in value.named_parameters():
                found.setdefault((id(p), 0), inner if one else f"{name}.{inner}")
    return found


def _is_module(value) -> bool:
    return hasattr(value, "named_parameters") and not isinstance(value, type)


def _nodes(t: Tensor, names: dict[tuple[int, int], str]) -> list[Node]:
    """All nodes below `t`, each once, inputs before what uses them."""
    ops, todo = {}, [t._op] if t._op is not None else []
    while todo:
        op = todo.pop()
        if op.number not in ops:
            if op.freed:
                raise RuntimeError(f"the graph behind {op.name} is gone: backward() freed it. Call show_graph() before "
                                   f"backward(), or pass retain_graph=True to it")
            ops[op.number] = op
            todo.extend(p for p in op.parents if isinstance(p, Op))
    nodes: list[Node] = []
    place: dict[int, int] = {}

    def put(node: Node) -> int:
        nodes.append(node)
        return len(nodes) - 1

    def leaf(p: Tensor) -> int:
        if id(p) not in place:
            name = names.get((id(p), 0)) or f"leaf{sum(n.kind == 'leaf' for n in nodes) + 1}"
            place[id(p)] = put(Node("leaf", name, name, (p.shape,), str(p.dtype)))
        return place[id(p)]

    unnamed = itertools.count(1)
    for op in (ops[number] for number in sorted(ops)):
        inputs = []
        for parent, slot, shape in zip(op.parents, op.slots, op.shapes):
            if parent is None:
                if shape is not None:
                    inputs.append((put(Node("constant", f"const{shape}", "const", (shape,))), 0))
            else:
                inputs.append((place[id(parent)] if isinstance(parent, Op) else leaf(parent), slot))
        name = names.get((id(op), 0)) if op.outputs == 1 else None
        name = name or f"%{next(unnamed)}"
        place[id(op)] = put(Node("op", name, op.name, op.out_shapes, inputs=inputs))
    if not ops:
        leaf(t)
    return nodes


def _row(head: str, text: str, shape: str) -> list[str]:
    """`head text      shape`, the shape at the right margin, broken after a comma where it is too long."""
    lines, room = [], WIDTH - len(head)
    while len(text) > room:
        cut = text.rfind(", ", 0, room - 1) + 1 or room
        lines.append(head + text[:cut])
        head, text = " " * len(head), "  " + text[cut:].lstrip()
    if len(text) + 1 + len(shape) > room:
        lines.append(head + text)
        head, text = " " * len(head), ""
    lines.append(f"{head}{text}{shape:>{max(0, room - len(text))}}")
    return [line.rstrip() for line in lines]
