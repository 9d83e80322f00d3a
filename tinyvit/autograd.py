"""The graph: `Op` is one of its nodes, `backward_walk` goes through it once, from the result to the leaves.

A tensor that comes out of an op points to that op; the op points to the ops (or leaf tensors) its inputs came from.
Nothing points the other way, so a graph goes when the last tensor that needs it goes, without the garbage collector.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import linecache
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .backend import xp
from .saved import Saved, memory_of

if TYPE_CHECKING:
    from .tensor import Tensor

# ---------------------------------------------------------------------------------------------- modes


class _Mode(threading.local):
    """Per thread: whether ops record the graph, and whether they look for NaN."""

    recording = True
    tracing = False


_mode = _Mode()


class _Switch:
    """A mode that is set for a `with` block or a decorated function, and restored after, also after an exception."""

    _name: str
    _value: bool

    def __new__(cls, function: Callable | None = None):
        return super().__new__(cls) if function is None else cls()(function)  # both @no_grad and @no_grad()

    def __init__(self):
        self._before: list[bool] = []

    def __enter__(self):
        self._before.append(getattr(_mode, self._name))
        setattr(_mode, self._name, self._value)
        return self

    def __exit__(self, *error) -> None:
        setattr(_mode, self._name, self._before.pop())

    def __call__(self, function: Callable) -> Callable:
        @functools.wraps(function)
        def inside(*args, **kwargs):
            with type(self)():
                return function(*args, **kwargs)

        return inside


class no_grad(_Switch):
    """Results computed inside do not require a gradient. `with no_grad(): ...`, or `@no_grad()` on a function."""

    _name, _value = "recording", False


class enable_grad(_Switch):
    """Records the graph again inside a `no_grad` block."""

    _name, _value = "recording", True


class detect_anomaly(_Switch):
    """Stops at the first op that makes a NaN out of numbers, forward or backward, naming the op and the user's line.

    Raises AnomalyError. Slower: every result and gradient is looked at.
    """

    _name, _value = "tracing", True


class AnomalyError(ArithmeticError):
    """An op produced NaN while `detect_anomaly` was on."""


def is_grad_enabled() -> bool:
    """Whether ops record the graph in this thread."""
    return _mode.recording


# ---------------------------------------------------------------------------------------------- the caller's line

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def user_line() -> str:
    """`file.py:12: y = a @ b`, the innermost line outside this package, or "" where there is none."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None:
        return ""
    file, number = frame.f_code.co_filename, frame.f_lineno
    return f"{os.path.basename(file)}:{number}: {linecache.getline(file, number).strip()}".rstrip(": ")


# ---------------------------------------------------------------------------------------------- ops

_counter = itertools.count()


class Op:
    """A node of the graph: one call of one operation.

    A subclass gives `forward` (arrays in, one array or a tuple of arrays out) and `backward` (one upstream gradient per
    output in, one gradient per input out, None where there is none). Tensors are the positional arguments of `apply`,
    everything else its keyword arguments. `backward` may return gradients in the broadcast shape; the engine sums
    them down to the input's. It must not write to what it is given, nor to what it saved.
    """

    keeps_integers = False  # whether integer inputs are computed with as they are; otherwise they become float32

    def __init__(self):
        self.number = next(_counter)
        self.parents: tuple[Op | Tensor | None, ...] = ()
        self.slots: tuple[int, ...] = ()  # which output of each parent
        self.needs: tuple[bool, ...] = ()
        self.shapes: tuple[tuple[int, ...] | None, ...] = ()
        self.dtypes: tuple[Any, ...] = ()
        self.outputs = 1
        self.out_shapes: tuple[tuple[int, ...], ...] = ()
        self.hooks: dict[int, list[Callable]] | None = None  # output slot -> functions of its gradient
        self.line = ""
        self.freed = False
        self._saved: tuple[Saved, ...] = ()
        self._outside: set[int] = set()

    def forward(self, *arrays, **params):
        raise NotImplementedError

    def backward(self, *gradients):
        raise NotImplementedError

    @property
    def name(self) -> str:
        return type(self).__name__

    def save(self, *arrays) -> None:
        """Keep arrays for backward. A no-op where there will be no backward."""
        if any(self.needs):
            self._saved = tuple(Saved(a if a is None else xp.asarray(a), self._outside) for a in arrays)

    @property
    def saved(self) -> tuple:
        """The arrays given to `save`. Raises RuntimeError if one was changed in place since."""
        for i, s in enumerate(self._saved):
            if s.changed():
                where = f" (at {self.line})" if self.line else ""
                raise RuntimeError(
                    f"{self.name}{where} kept an array of shape {s.array.shape} for backward (number {i} of those it saved), "
                    f"and it was changed in place since: make a new tensor (x = x + 1, not x.data += 1), or change it "
                    f"after backward()")
        return tuple(s.array for s in self._saved)

    @classmethod
    def apply(cls, *inputs, **params):
        """Run forward on tensors (or what can become one) and put the op into the graph. Returns Tensors."""
        from .tensor import Tensor

        op = cls()
        tensors = tuple(t if isinstance(t, Tensor) else None for t in inputs)
        arrays = op._arrays(inputs, tensors)
        recording = _mode.recording
        op.needs = tuple(recording and t is not None and t._requires_grad for t in tensors)
        needed = any(op.needs)
        if needed:
            op.shapes = tuple(None if a is None else a.shape for a in arrays)
            op.dtypes = tuple(None if t is None else t.dtype for t in tensors)  # before they were brought to one
            foreign = [a for a, t in zip(arrays, tensors) if t is None] + list(params.values())
            op._outside = {id(memory_of(a)) for a in foreign if hasattr(a, "dtype")}
        if _mode.tracing:
            op.line = user_line()
        try:
            with np.errstate(all="ignore"):
                result = op.forward(*arrays, **params)
        except (ValueError, TypeError, IndexError) as error:
            if "could not be broadcast together" in str(error):
                error = ValueError(_why_not_broadcast(op.name, arrays))
            line = user_line()
            if line and not getattr(error, "__notes__", None):
                error.add_note(f"in {op.name} at {line}")
            raise error.with_traceback(None) from None
        several = isinstance(result, tuple)
        results = tuple(xp.asarray(r) for r in (result if several else (result,)))  # NumPy turns 0-d results into scalars
        if _mode.tracing:
            op._trace_forward(arrays, results)
        if needed:
            op.parents = tuple((t._op or t) if t is not None and need else None for t, need in zip(tensors, op.needs))
            op.slots = tuple(t._slot if t is not None and need else 0 for t, need in zip(tensors, op.needs))
            op.outputs, op.out_shapes = len(results), tuple(r.shape for r in results)
        made = tuple(Tensor._made(r, op if needed else None, i) for i, r in enumerate(results))
        return made if several else made[0]

    def _arrays(self, inputs: Sequence, tensors: Sequence[Tensor | None]) -> list:
        """Arrays of one floating dtype: scalars never widen it, integers become floating unless `keeps_integers`."""
        arrays = [t._data if t is not None else None if v is None else xp.asarray(v) for v, t in zip(inputs, tensors)]
        present = [a for a in arrays if a is not None]
        first = present[0].dtype
        if first.kind == "f" and hasattr(inputs[0], "dtype") and all(a.dtype == first for a in present):
            return arrays
        for a, v in zip(arrays, inputs):
            if a is not None and a.dtype.kind not in "fiub":
                raise TypeError(f"{self.name} computes with numbers, not with {type(v).__name__} of dtype {a.dtype}")
        dtype = _floating_dtype(inputs, tensors, arrays)
        if dtype is None and self.keeps_integers:
            return arrays if len(present) < 2 else self._common_integers(arrays, inputs)
        dtype = dtype or np.dtype(np.float32)
        return [a if a is None or a.dtype == dtype else a.astype(dtype) for a in arrays]

    @staticmethod
    def _common_integers(arrays: list, inputs: Sequence) -> list:
        weak = [t if isinstance(t, int) else a for a, t in zip(arrays, inputs) if a is not None]
        dtype = np.result_type(*weak)
        return [a if a is None else a.astype(dtype, copy=False) for a in arrays]

    def _trace_forward(self, arrays: Sequence, results: Sequence) -> None:
        if any(_has_nan(r) for r in results) and not any(a is not None and _has_nan(a) for a in arrays):
            shapes = ", ".join(str(a.shape) for a in arrays if a is not None)
            raise AnomalyError(f"{self.name} made NaN out of numbers in its forward, inputs {shapes}, at {self.line}")

    def gradients(self, upstream: Sequence) -> tuple:
        """`backward`, checked and brought to the inputs' shapes and dtypes."""
        with np.errstate(all="ignore"):
            found = self.backward(*upstream)
        found = found if isinstance(found, tuple) else (found,)
        if len(found) != len(self.shapes):
            raise RuntimeError(f"{self.name}.backward returned {len(found)} gradients for {len(self.shapes)} inputs")
        result: list = []
        for g, need, shape, dtype in zip(found, self.needs, self.shapes, self.dtypes):
            if not need or g is None or shape is None:
                result.append(None)
                continue
            g = unbroadcast(xp.asarray(g), shape, self.name)
            result.append(g if g.dtype == dtype else g.astype(dtype))
        if _mode.tracing and any(g is not None and _has_nan(g) for g in result) \
                and not any(g is not None and _has_nan(g) for g in upstream):
            raise AnomalyError(f"{self.name} made NaN out of numbers in its backward; its forward ran at "
                               f"{self.line or 'an unknown line: use detect_anomaly around the forward too'}")
        return tuple(result)

    def release(self) -> None:
        """Let go of everything that backward needed; what stays is the fact that the op is done."""
        self.freed = True
        self.parents, self._saved = (), ()
        self.__dict__ = {k: v for k, v in self.__dict__.items() if k in _KEPT}


def _floating_dtype(inputs: Sequence, tensors: Sequence[Tensor | None], arrays: Sequence) -> np.dtype | None:
    """The floating dtype to compute in, None if nothing is floating.

    What has axes decides before what has none, and tensors before numbers; plain numbers and lists alone mean float32.
    """
    with_axes = [a.dtype for a, v in zip(arrays, inputs) if hasattr(v, "dtype") and a.ndim and a.dtype.kind == "f"]
    found = with_axes or [t.dtype for t in tensors if t is not None and t.dtype.kind == "f"]
    if found:
        return np.result_type(*found)
    return np.dtype(np.float32) if any(a is not None and a.dtype.kind == "f" for a in arrays) else None


_KEPT = frozenset(("freed", "hooks", "line", "number", "out_shapes", "outputs", "parents", "_saved"))


def _has_nan(array) -> bool:
    return array.dtype.kind == "f" and bool(xp.isnan(array).any())


def _why_not_broadcast(name: str, arrays: Sequence) -> str:
    shapes = [a.shape for a in arrays if a is not None]
    for axis in range(-1, -1 - max(map(len, shapes)), -1):
        sizes = {s[axis] for s in shapes if len(s) >= -axis} - {1}
        if len(sizes) > 1:
            break
    return (f"{name} cannot combine shapes {' and '.join(map(str, shapes))}: on axis {axis} they have "
            f"{' and '.join(str(s[axis]) for s in shapes if len(s) >= -axis)}, and sizes must be equal or 1 (counted from the "
            f"last axis); reshape or unsqueeze one of them")


def unbroadcast(g, shape: tuple[int, ...], name: str = "op"):
    """Sum g over the axes along which an input of `shape` was broadcast: the adjoint of broadcasting."""
    if g.shape == shape:
        return g
    extra = g.ndim - len(shape)
    if extra < 0 or any(have != want and want != 1 for have, want in zip(g.shape[extra:], shape)):
        raise RuntimeError(f"{name}.backward returned a gradient of shape {g.shape} for an input of shape {shape}")
    axes = tuple(range(extra)) + tuple(extra + i for i, want in enumerate(shape) if want == 1 and g.shape[extra + i] != 1)
    return g.sum(axis=axes, keepdims=True).reshape(shape)


# ---------------------------------------------------------------------------------------------- the walk


class _Pending:
    """The gradients that have arrived so far at one place, and whether the array is ours to add into."""

    __slots__ = ("array", "ours")

    def __init__(self):
        self.array, self.ours = None, False

    def add(self, g, fresh: bool) -> None:
        if self.array is None:
            self.array, self.ours = g, fresh
        elif self.ours:
            self.array += g
        else:
            self.array, self.ours = xp.asarray(self.array + g), True


def backward_walk(root: Tensor, gradient, retain_graph: bool) -> None:
    """Send `gradient` from `root` to the leaves: each op once, after all the ops that used its results.

    Ops are numbered as they are made, so the highest number waiting has heard from everyone who used it. Leaves get
    their gradients at the end, all or (where something raises) none.
    """
    leaves: dict[int, tuple[Tensor, _Pending]] = {}
    waiting: dict[Op, list[_Pending]] = {}
    heap: list[tuple[int, Op]] = []

    def deliver(target: Op | Tensor, slot: int, g, fresh: bool) -> None:
        if isinstance(target, Op):
            if target.freed:
                raise RuntimeError(
                    f"the graph behind {target.name}{_at(target)} is gone: an earlier backward() freed it. Compute the "
                    f"result again, or pass retain_graph=True to the earlier backward()")
            if target not in waiting:
                waiting[target] = [_Pending() for _ in range(target.outputs)]
                heapq.heappush(heap, (-target.number, target))
            waiting[target][slot].add(g, fresh)
        else:
            leaves.setdefault(id(target), (target, _Pending()))[1].add(g, fresh)

    deliver(root._op or root, root._slot, gradient, False)
    while heap:
        op = heapq.heappop(heap)[1]
        arrived = waiting.pop(op)
        upstream = [_hooked(p.array, (op.hooks or {}).get(i)) for i, p in enumerate(arrived)]
        taken = {id(memory_of(a)) for a in (*upstream, *(s.array for s in op._saved)) if a is not None}
        found = op.gradients(upstream)
        memory = [id(memory_of(g)) for g in found]
        for parent, slot, g, m in zip(op.parents, op.slots, found, memory):
            if parent is not None and g is not None:
                deliver(parent, slot, g, m not in taken and memory.count(m) == 1 and _can_add_into(g))
        del upstream, arrived, found
        if not retain_graph:
            op.release()

    for leaf, pending in leaves.values():
        g = _hooked(pending.array, leaf._hooks)
        if leaf._grad is not None:
            leaf._grad = xp.asarray(leaf._grad + g)
        else:
            leaf._grad = g if pending.ours and not leaf._hooks else g.copy()


def _can_add_into(g) -> bool:
    """Whether every element has a place of its own: a broadcast view has not, and NumPy marks it read-only."""
    return getattr(g.flags, "writeable", True) and 0 not in g.strides


def _read_only(g):
    """A view that cannot be written to (on NumPy): a hook gets one, because the array may be another tensor's gradient too."""
    view = g.view()
    if isinstance(view, np.ndarray):
        view.flags.writeable = False
    return view


def _at(op: Op) -> str:
    return f" (at {op.line})" if op.line else ""


def _hooked(g, hooks: list[Callable] | None):
    for hook in tuple(hooks or ()) if g is not None else ():
        changed = hook(_read_only(g))
        if changed is not None:
            changed = xp.asarray(changed, dtype=g.dtype)
            if changed.shape != g.shape:
                raise ValueError(f"a gradient hook returned shape {changed.shape} for a gradient of shape {g.shape}")
            g = changed
    return g

