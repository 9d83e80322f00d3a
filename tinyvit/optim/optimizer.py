"""Optimizer: parameters in groups, what each optimiser remembers of them, and how that is saved."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..backend import to_numpy, xp
from ..nn import Module, Parameter
from ..saved import overwritten
from ..tensor import Tensor

UNDECAYED = frozenset(("cls_token", "pos_embed", "pos_row", "pos_column"))


def param_groups(model: Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups: weights, which decay, and what must not: norms, biases, tokens and positions.

    The second are those of fewer than two axes or of a name in `UNDECAYED`. Frozen parameters are in neither.
    """
    decayed: list[Parameter] = []
    others: list[Parameter] = []
    for name, p in model.named_parameters():
        if p.requires_grad:
            plain = p.ndim < 2 or name.rpartition(".")[2] in UNDECAYED
            (others if plain else decayed).append(p)
    groups = {"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}
    return [group for group in groups if group["params"]]


class Optimizer:
    """Changes parameters in place from their gradients. A subclass gives `check`, `new_state` and `update`.

    params: tensors, or dicts {"params": tensors, "lr": ..., ...} that replace settings for a group.
    param_groups: the groups, each a dict of its tensors and all its settings; a schedule changes `group["lr"]`.
    Raises ValueError for no parameters, one given twice, an unknown or impossible setting; TypeError for no tensors.
    """

    def __init__(self, params: Iterable, **defaults):
        given = [params] if isinstance(params, Tensor | Mapping) else list(params)
        groups = given if any(isinstance(g, Mapping) for g in given) else [{"params": given}]
        self.param_groups: list[dict[str, Any]] = []
        self.state: dict[Tensor, dict[str, Any]] = {}  # of each parameter that had a gradient in some step
        name = type(self).__name__
        seen: set[int] = set()
        for group in groups:
            if not isinstance(group, Mapping) or "params" not in group:
                raise TypeError(f"{name}: a group is a dict with \"params\", got {group!r:.60}")
            unknown = sorted(set(group) - set(defaults) - {"params"})
            if unknown:
                raise ValueError(f"{name} has no setting {unknown[0]!r}: its settings are {', '.join(defaults)}")
            settings = {**defaults, **group}
            self.check(settings)
            inside = settings["params"]
            settings["params"] = [inside] if isinstance(inside, Tensor) else list(inside)
            for p in settings["params"]:
                self._check_parameter(p, seen)
            self.param_groups.append(settings)
        if not seen:
            raise ValueError(f"{name} got no parameters: pass model.parameters(), and freeze no more than you mean to")

    def _check_parameter(self, p, seen: set[int]) -> None:
        name = type(self).__name__
        if not isinstance(p, Tensor):
            raise TypeError(f"{name} changes tensors, got {type(p).__name__}: pass model.parameters()")
        if not p.is_leaf:
            raise ValueError(f"{name} got a computed tensor (of {p.grad_fn.name}, shape {p.shape}): "  # type: ignore[union-attr]
                             f"it changes parameters, which nobody computed")
        if id(p) in seen:
            raise ValueError(f"{name} got a parameter of shape {p.shape} twice: it would be changed twice in a step")
        if not getattr(p._data.flags, "writeable", True):
            raise ValueError(f"{name} cannot change a parameter of shape {p.shape} made in nn.skip_init(): load weights first")
        seen.add(id(p))

    def check(self, settings: Mapping[str, Any]) -> None:
        """Raise ValueError for settings that make no sense; a subclass adds its own."""
        for key in ("lr", "weight_decay"):
            value = settings[key]
            if not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{type(self).__name__}: {key} must be 0 or more, got {value}")

    def new_state(self, p, settings: Mapping[str, Any]) -> dict[str, Any]:
        """What to remember of an array of parameters: a dict of arrays and numbers."""
        return {}

    def update(self, p, g, state: dict[str, Any], settings: Mapping[str, Any]) -> None:
        """Change the array `p` (and `state`) in place, given its gradient `g`."""
        raise NotImplementedError

    def step(self) -> None:
        """Change every parameter that has a gradient; those whose grad is None stay as they are."""
        for group in self.param_groups:
            for p in group["params"]:
                g = p._grad
                if g is None:
                    continue
                if p not in self.state:
                    self.state[p] = self.new_state(p._data, group)
                self.update(p._data, g if g.flags.c_contiguous else g.copy(order="C"), self.state[p], group)
                overwritten(p._data)

    def zero_grad(self) -> None:
        """Forget the gradients of all parameters."""
        for group in self.param_groups:
            for p in group["params"]:
                p.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        """Settings of each group, and copies of what is remembered of each parameter (None where there is nothing yet)."""
        return {
            "groups": [{k: v for k, v in group.items() if k != "params"} for group in self.param_groups],
            "state": [_copied(self.state.get(p), to_numpy) for group in self.param_groups for p in group["params"]],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave. Raises ValueError if it is of another optimiser or of other parameters."""
        name, groups, entries = type(self).__name__, state["groups"], state["state"]
        owned = [(p, group) for group in self.param_groups for p in group["params"]]
        if len(groups) != len(self.param_groups) or len(entries) != len(owned):
            raise ValueError(f"{name}: the state is of {len(groups)} groups and {len(entries)} parameters, and this has "
                             f"{len(self.param_groups)} and {len(owned)}")
        for here, there in zip(self.param_groups, groups):
            if set(here) - {"params"} != set(there):
                raise ValueError(f"{name}: the state has the settings {', '.join(there)}: it is of another optimiser")
        for i, ((p, group), entry) in enumerate(zip(owned, entries)):
            if entry is not None and _shapes(entry) != _shapes(self.new_state(p._data, group)):
                raise ValueError(f"{name}: the state of parameter {i} does not fit its shape {p.shape}, or is of another "
                                 f"optimiser")
        for here, there in zip(self.param_groups, groups):
            here.update({k: tuple(v) if isinstance(v, list) else v for k, v in there.items()})
        self.state = {p: _copied(entry, xp.asarray) for (p, _), entry in zip(owned, entries) if entry is not None}

    def __repr__(self) -> str:
        lines = [f"{len(g['params'])} parameters, " + ", ".join(f"{k}={v}" for k, v in g.items() if k != "params")
                 for g in self.param_groups]
        return f"{type(self).__name__}(\n  " + "\n  ".join(lines) + "\n)"


def _shapes(entry: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {k: np.shape(v) for k, v in entry.items()}


def _copied(entry: Mapping[str, Any] | None, convert) -> Any:
    if entry is None:
        return None
    return {k: convert(v).copy() if hasattr(v, "dtype") else v for k, v in entry.items()}
