"""Module: parameters, buffers and smaller modules under one name each, and a forward function."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..backend import to_numpy, xp
from ..tensor import Tensor


class Parameter(Tensor):
    """A tensor that training changes. As an attribute of a Module it is found by itself.

    The data is copied (numbers and lists become float32), unless `copy=False` hands over an array nobody else writes to.
    """

    __slots__ = ()

    def __init__(self, data, requires_grad: bool = True, copy: bool = True):
        if isinstance(data, Tensor):
            data = data._data
        if copy or not hasattr(data, "dtype"):
            data = xp.array(data, dtype=None if hasattr(data, "dtype") else np.float32, order="C")
        super().__init__(data, requires_grad, shared=False)

    def __repr__(self) -> str:
        return super().__repr__().replace("tensor(", "parameter(", 1)


class LoadReport(NamedTuple):
    """What `load_state_dict(strict=False)` did not use: keys the model has, and keys the state has."""

    missing: list[str]
    unexpected: list[str]


class _Slot(NamedTuple):
    """A place in a module's state: the attribute `key` of `owner`, a parameter or (None) a buffer."""

    name: str
    owner: Module
    key: str
    parameter: Parameter | None

    @property
    def array(self):
        return getattr(self.owner, self.key) if self.parameter is None else self.parameter._data

    def put(self, array) -> None:
        """Replace the array. A graph that still needs the old one keeps it."""
        if self.parameter is None:
            setattr(self.owner, self.key, array)
        else:
            self.parameter._data = array


class Module:
    """A part of a model. Subclasses set attributes in `__init__` and compute in `forward`.

    Found among the attributes, in the order they were set: Parameters (trained), Modules (parts of this one), arrays
    (buffers: saved with the parameters, not trained) and NumPy generators. An array under a name with a leading underscore is
    private to the module, no buffer.

    >>> class Scale(Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.factor = Parameter(2.0)
    ...     def forward(self, x):
    ...         return x * self.factor
    >>> Scale()(3.0)
    tensor(6., grad_fn=Mul)
    """

    training: bool

    def __init__(self):
        self._hooks: dict[object, Callable] = {}
        self.training = True  # whether dropout drops and batch norm looks at the batch: see train() and eval()

    def __setattr__(self, name: str, value) -> None:
        if "_hooks" not in self.__dict__ and name != "_hooks":
            raise RuntimeError(f"{type(self).__name__}.{name} is set before the module is ready: call super().__init__() "
                               f"first in {type(self).__name__}.__init__")
        if isinstance(self.__dict__.get(name), Parameter) and not (value is None or isinstance(value, Parameter)):
            raise TypeError(f"{type(self).__name__}.{name} is a Parameter and cannot become a {type(value).__name__}: write "
                            f"its values with .{name}.data = ..., or assign an nn.Parameter")
        object.__setattr__(self, name, value)

    def forward(self, *args, **kwargs):
        """What the module computes; called through `module(...)`."""
        raise NotImplementedError(f"{type(self).__name__} has no forward(): define what it computes")

    def __call__(self, *args, **kwargs):
        if "_hooks" not in self.__dict__:
            raise RuntimeError(f"{type(self).__name__}.__init__ must call super().__init__()")
        result = self.forward(*args, **kwargs)
        for hook in tuple(self._hooks.values()):
            changed = hook(self, args, result)
            result = result if changed is None else changed
        return result

    def register_forward_hook(self, hook: Callable) -> Callable[[], None]:
        """Call `hook(module, inputs, output)` after each forward; what it returns (unless None) replaces the output.

        Returns a function that removes the hook.
        """
        key = object()
        self._hooks[key] = hook

        def remove() -> None:
            self._hooks.pop(key, None)

        return remove

    # ------------------------------------------------------------------ what is inside

    def _attributes(self, kind: type | tuple[type, ...]) -> Iterator[tuple[str, Any]]:
        return ((name, value) for name, value in vars(self).items() if isinstance(value, kind))

    def _tree(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Every module with its dotted name, this one first, a shared one once for each of its names."""
        self._refuse_lists()
        yield prefix, self
        for name, child in self._attributes(Module):
            yield from child._tree(f"{prefix}.{name}" if prefix else name)

    def _refuse_lists(self) -> None:
        for name, value in self._attributes((list, tuple, dict)):
            inside = value.values() if isinstance(value, dict) else value
            if not name.startswith("_") and any(isinstance(v, Module | Parameter) for v in inside):
                raise TypeError(f"{type(self).__name__}.{name} is a {type(value).__name__}, in which modules and parameters "
                                f"are not found: use nn.ModuleList, or give each an attribute of its own")

    def _state(self) -> Iterator[_Slot]:
        """Every parameter and buffer, those of a module before those of its parts, under each of its names."""
        for prefix, module in self._tree():
            for kind in (Parameter, _array_types()):
                for key, value in module._attributes(kind):
                    if kind is Parameter or not key.startswith("_"):
                        name = f"{prefix}.{key}" if prefix else key
                        yield _Slot(name, module, key, value if kind is Parameter else None)

    def children(self) -> Iterator[Module]:
        """The modules that are attributes of this one."""
        return (child for _, child in self._attributes(Module))

    def named_modules(self) -> Iterator[tuple[str, Module]]:
        """(name, module) of this module (named "") and all inside, each once."""
        return _once(self._tree())

    def modules(self) -> Iterator[Module]:
        return (m for _, m in self.named_modules())

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """(dotted name, parameter) of all inside, each once: a shared parameter has its first name."""
        return _once((slot.name, slot.parameter) for slot in self._state() if slot.parameter is not None)

    def parameters(self) -> Iterator[Parameter]:
        return (p for _, p in self.named_parameters())

    def named_buffers(self) -> Iterator[tuple[str, np.ndarray]]:
        """(dotted name, array) of what is saved but not trained, such as the running mean of a batch norm."""
        return _once((slot.name, slot.array) for slot in self._state() if slot.parameter is None)

    def buffers(self) -> Iterator[np.ndarray]:
        return (b for _, b in self.named_buffers())

    def generators(self) -> Iterator[np.random.Generator]:
        """The random generators that layers draw from, each once: what a checkpoint has to keep for an exact resume."""
        return (g for _, g in _once(pair for m in self.modules() for pair in m._attributes(np.random.Generator)))

    def num_parameters(self, trainable: bool = False) -> int:
        """How many numbers the parameters hold; only those that require a gradient if `trainable`."""
        return sum(p.size for p in self.parameters() if p.requires_grad or not trainable)

    # ------------------------------------------------------------------ changing all of it

    def train(self, mode: bool = True):
        """Switch this module and all inside to training (or, with False, evaluation). Returns the module."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self):
        """`train(False)`: dropout keeps everything, batch norm uses its running statistics."""
        return self.train(False)

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """`eval()` for the length of a `with` block; afterwards each module is as it was before."""
        before = [(m, m.training) for m in self.modules()]
        self.eval()
        try:
            yield
        finally:
            for module, mode in before:
                module.training = mode

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for p in self.parameters():
            p.zero_grad()

    def requires_grad_(self, value: bool = True):
        """Have all parameters collect gradients, or (False) freeze them. Returns the module."""
        for p in self.parameters():
            p.requires_grad = value
        return self

    def astype(self, dtype):
        """Change parameters and floating buffers to another floating dtype, in this module itself. Returns the module."""
        if np.dtype(dtype).kind != "f":
            raise TypeError(f"a module computes in a floating dtype, not in {np.dtype(dtype)}: use float32 or float64")
        self.zero_grad()
        for slot in self._state():
            if slot.array.dtype.kind == "f":
                slot.put(slot.array.astype(dtype))
        return self

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of all parameters and buffers, under their dotted names."""
        return {slot.name: np.array(to_numpy(slot.array)) for slot in self._state()}

    def load_state_dict(self, state: Mapping, strict: bool = True) -> LoadReport:
        """Copy `state` (name -> array or tensor) into parameters and buffers, in their dtype.

        With strict=False, names that only one side has are returned and not used. Raises ValueError, listing every name
        that is missing, not expected or of another shape, and loads nothing then.
        """
        slots = {slot.name: slot for slot in self._state()}
        arrays = {name: np.asarray(value) for name, value in state.items()}
        missing = [name for name in slots if name not in arrays]
        unexpected = [name for name in arrays if name not in slots]
        wrong = [f"{name}: {arrays[name].shape} given, {slot.array.shape} expected" for name, slot in slots.items()
                 if name in arrays and arrays[name].shape != slot.array.shape]
        wrong += [f"{name}: {arrays[name].dtype} given, numbers expected" for name in slots
                  if name in arrays and arrays[name].dtype.kind not in "fiub"]
        if wrong or (strict and (missing or unexpected)):
            parts = (("missing from the state", missing if strict else []), ("not in the model", unexpected if strict else []),
                     ("of another shape or kind", wrong))
            raise ValueError("\n".join([f"the state does not fit {type(self).__name__}; nothing was loaded",
                                        *(f"  {len(names)} {what}: {_shortened(names)}" for what, names in parts if names)]))
        for name, slot in slots.items():
            if name in arrays:
                slot.put(xp.array(arrays[name], dtype=slot.array.dtype, order="C"))
        return LoadReport(missing, unexpected)

    # ------------------------------------------------------------------ looks

    def extra_repr(self) -> str:
        """What stands in the brackets of `repr`."""
        return ""

    def __repr__(self) -> str:
        parts = [f"({name}): {child!r}".replace("\n", "\n  ") for name, child in self._attributes(Module)]
        extra = [self.extra_repr()] if self.extra_repr() else []
        inside = "\n  ".join(["", *extra, *parts]) + "\n" if parts else "".join(extra)
        return f"{type(self).__name__}({inside})"

    def flops(self, inputs: tuple, output) -> int:
        """Floating point operations of one forward, a multiply-add being 2; what parts of this module do is not counted.

        Only products of matrices and convolutions count, so most modules do 0. `summary` adds them up.
        """
        return 0

    def summary(self, input_shape: tuple[int, ...], depth: int | None = 3):
        """A table of the modules down to `depth`: output shapes, parameters and GFLOP of a forward pass.

        input_shape: with the batch axis, as in (1, 3, 32, 32). Returns a `Summary`: print it, or read `.parameters`, `.gflop`.
        """
        from .summary import summarize

        return summarize(self, input_shape, depth)


def _array_types() -> tuple[type, ...]:
    return (np.ndarray,) if xp.module is np else (np.ndarray, xp.ndarray)


def _once(pairs: Iterator) -> Iterator:
    seen: dict[int, object] = {}  # holds on to what it has seen, so that no id is used twice
    for name, value in pairs:
        if id(value) not in seen:
            seen[id(value)] = value
            yield name, value


def _shortened(names: list[str], limit: int = 10) -> str:
    return ", ".join(names[:limit]) + (f", and {len(names) - limit} more" if len(names) > limit else "")


class ModuleList(Module):
    """Modules in a list, found by the module that holds it; named 0, 1, 2, ... in the state dict."""

    def __init__(self, modules=()):
        super().__init__()
        for module in modules:
            self.append(module)

    def append(self, module: Module):
        if not isinstance(module, Module):
            raise TypeError(f"{type(self).__name__} holds modules, got {type(module).__name__}"
                            f"{': wrap a function in a Module' if callable(module) else ''}")
        setattr(self, str(len(self)), module)
        return self

    def __len__(self) -> int:
        return sum(1 for _ in self.children())

    def __iter__(self) -> Iterator[Any]:
        return self.children()

    def __getitem__(self, index):
        found = list(self.children())[index]
        return ModuleList(found) if isinstance(index, slice) else found


class Sequential(ModuleList):
    """Modules applied one after the other: `Sequential(Linear(4, 8), ReLU(), Linear(8, 2))`."""

    def __init__(self, *modules: Module):
        super().__init__(modules)

    def __getitem__(self, index):
        found = list(self.children())[index]
        return Sequential(*found) if isinstance(index, slice) else found

    def forward(self, x):
        for module in self:
            x = module(x)
        return x
