"""EMA: a moving average of a model's weights, which often scores better than the weights themselves."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..backend import kernel, to_numpy, xp
from ..nn import Module
from ..saved import overwritten


@kernel
def move_towards(average, value, part):
    average += part * (value - average)


@move_towards.numba(mutates=True, serial=True, flat=True)
def move_towards(average, value, part):
    part = np.float32(part)
    for i in range(average.size):
        average[i] += part * (value[i] - average[i])


class EMA:
    """average ← d average + (1 - d) value for every parameter and floating buffer,  d = min(decay, (1 + t) / (10 + t))

    t counts the updates from 0, so that a short training is not held back by its first weights (as TensorFlow's
    ExponentialMovingAverage with num_updates). Call `update()` after each step; `with ema.apply():` computes with the average.
    """

    def __init__(self, model: Module, decay: float = 0.999):
        if not 0 <= decay < 1:
            raise ValueError(f"EMA: decay must be in [0, 1), got {decay}")
        self.model, self.decay, self.updates = model, decay, 0
        self.applied = False  # whether the model holds the averages, and `_average` the weights
        self._average = {name: array.copy() for name, array in self._arrays().items()}

    def _arrays(self) -> dict[str, Any]:
        """The model's arrays by name, a shared one under its first."""
        found = {name: p._data for name, p in self.model.named_parameters()}
        return found | {name: b for name, b in self.model.named_buffers() if b.dtype.kind == "f"}

    def update(self) -> None:
        """Move the averages towards the present weights. Raises RuntimeError inside `apply()`."""
        self._not_applied("update")
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for name, array in self._arrays().items():
            move_towards(self._average[name], array, 1 - decay)
        self.updates += 1

    def swap(self) -> None:
        """Exchange the model's weights with the averages; a second swap brings them back."""
        for name, array in self._arrays().items():
            weights = array.copy()
            array[...] = self._average[name]
            self._average[name][...] = weights
            overwritten(array)
        self.applied = not self.applied

    @contextlib.contextmanager
    def apply(self) -> Iterator[None]:
        """The model has the averaged weights inside the `with` block, and its own afterwards, also after an exception."""
        self._not_applied("apply")
        self.swap()
        try:
            yield
        finally:
            self.swap()

    def state_dict(self) -> dict[str, Any]:
        """Copies of the averages, and how many updates they have seen. Raises RuntimeError inside `apply()`."""
        self._not_applied("state_dict")
        return {"updates": self.updates, "average": {name: np.array(to_numpy(a)) for name, a in self._average.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave. Raises ValueError if it is of another model, RuntimeError inside `apply()`."""
        self._not_applied("load_state_dict")
        given = state["average"]
        wrong = sorted(name for name in self._average.keys() | given.keys()
                       if name not in given or name not in self._average or given[name].shape != self._average[name].shape)
        if wrong:
            raise ValueError(f"the averages are of another model: {len(wrong)} arrays are missing, not expected or of another "
                             f"shape, {wrong[0]} for one")
        self._average = {name: xp.array(given[name], dtype=a.dtype) for name, a in self._average.items()}
        self.updates = state["updates"]

    def _not_applied(self, what: str) -> None:
        if self.applied:
            raise RuntimeError(f"EMA.{what}() while the model holds the averages: leave apply() first, or swap() back")
