"""The table that `Module.summary` returns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..autograd import no_grad
from ..backend import xp
from ..tensor import Tensor
from .module import Module


@dataclass(frozen=True)
class Row:
    """One module: its depth in the tree, and parameters and operations including those of the modules inside it."""

    name: str
    kind: str
    depth: int
    output: str
    parameters: int
    gflop: float


@dataclass(frozen=True)
class Summary:
    """What `Module.summary` found. `print` it for the table.

    parameters: numbers in the model. gflop: 1e9 floating point operations of one forward pass of that input.
    """

    rows: list[Row]
    input_shape: tuple[int, ...]
    parameters: int
    trainable: int
    gflop: float

    def __str__(self) -> str:
        lines = [f"{'layer':36.36} {'output':>19} {'parameters':>12} {'GFLOP':>9}", "-" * 79]
        for row in self.rows:
            title = "  " * row.depth + (f"{row.name.rpartition('.')[2]} " if row.name else "") + row.kind
            title = title if len(title) <= 36 else title[:35] + "…"
            numbers = f"{_count(row.parameters):>12} {_gflop(row.gflop):>9}"
            lines.append(f"{title:36} {row.output:>19.19} {numbers}".rstrip())
        frozen = self.parameters - self.trainable
        note = f", {frozen:,} of them frozen" if frozen else ""
        lines += ["-" * 79, f"{self.parameters:,} parameters{note}; {self.gflop:.4g} GFLOP forward for {self.input_shape}",
                  "(each row includes the rows indented under it)"]
        return "\n".join(lines)


def _count(n: int) -> str:
    return f"{n:,}" if n else ""


def _gflop(value: float) -> str:
    return f"{value:.4f}" if value >= 5e-5 else ("<0.0001" if value else "")


def _shape_of(output) -> str:
    if isinstance(output, tuple | list) and output:
        return f"{_shape_of(output[0])}, …"
    shape = getattr(output, "shape", None)
    return "x".join(map(str, shape)) if shape else ""


def summarize(model: Module, input_shape: tuple[int, ...], depth: int | None) -> Summary:
    """Run one forward on zeros in evaluation mode, without gradients, and note what each module did."""
    outputs: dict[int, str] = {}
    work: dict[int, int] = {}

    def note(module: Module, inputs: tuple, output) -> None:
        outputs[id(module)] = _shape_of(output)
        work[id(module)] = work.get(id(module), 0) + module.flops(inputs, output)

    dtype = next((p.dtype for p in model.parameters()), np.dtype(np.float32))
    removers = [module.register_forward_hook(note) for module in model.modules()]
    try:
        with model.evaluating(), no_grad():
            model(Tensor(xp.zeros(input_shape, dtype)))
    finally:
        for remove in removers:
            remove()
    rows = []
    for name, module in model.named_modules():
        level = name.count(".") + 1 if name else 0
        if depth is None or level <= depth:
            gflop = sum(work.get(id(m), 0) for m in module.modules()) / 1e9
            rows.append(Row(name, type(module).__name__, level, outputs.get(id(module), ""), module.num_parameters(), gflop))
    return Summary(rows, tuple(input_shape), model.num_parameters(), model.num_parameters(trainable=True),
                   sum(work.values()) / 1e9)
