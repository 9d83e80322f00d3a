"""Fitting trainings into minutes: how many steps a time buys, and a guard for machines that slow down."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from .hooks import Hook


@dataclass(frozen=True)
class Cost:
    """What a training costs on this machine, in seconds."""

    step: float  # one step, loading its batch included
    steps_per_epoch: int
    evaluation: float  # after every epoch, also after one that ends early
    test: float = 0.0  # once, at the end

    def seconds(self, steps: int) -> float:
        """How long `steps` steps take, with their evaluations and the test."""
        return steps * self.step + math.ceil(steps / self.steps_per_epoch) * self.evaluation + self.test

    def steps(self, seconds: float) -> int:
        """The most steps that fit into `seconds`; 0 where none does.

        >>> cost = Cost(step=1.0, steps_per_epoch=10, evaluation=2.0, test=1.0)
        >>> cost.steps(25.0), cost.steps(28.0), cost.seconds(13)
        (20, 13, 18.0)
        """
        seconds -= self.test
        epochs = max(0, math.floor(seconds / (self.steps_per_epoch * self.step + self.evaluation)))
        rest = seconds - epochs * (self.steps_per_epoch * self.step + self.evaluation) - self.evaluation
        return epochs * self.steps_per_epoch + max(0, min(self.steps_per_epoch, math.floor(rest / self.step)))


def share(seconds: float, costs: dict[str, Cost], weights: dict[str, float]) -> dict[str, float]:
    """Seconds for each model: its test, and of what the tests leave, a part in proportion to its weight.

    >>> share(100.0, {"a": Cost(1, 10, 1, 10), "b": Cost(1, 10, 1, 30)}, {"a": 2, "b": 1})
    {'a': 50.0, 'b': 50.0}
    """
    rest = seconds - sum(cost.test for cost in costs.values())
    total = sum(weights[name] for name in costs)
    return {name: cost.test + rest * weights[name] / total for name, cost in costs.items()}


class Pace(Hook):
    """Shortens a training that would not end in time, once it is sure; the learning rate still goes down to zero.

    seconds: when this training must be over, on `run.seconds`, its test not counted. The new schedule falls in a
    straight line from where the old one was.
    """

    LATE = 1.04  # how far beyond `seconds` the forecast must be
    WINDOW = 8, 0.05  # steps, or part of the time, between two forecasts: whichever is over first

    def __init__(self, seconds: float, cost: Cost, say: Callable[[str], None] = print):
        self.seconds, self.cost, self.say = seconds, cost, say
        self._mark: tuple[int, float] | None = None
        self._fall: tuple[int, float] | None = None  # the step and the factor from which the learning rate falls

    def on_start(self, run) -> None:
        if self._fall is not None:
            run.schedule = self._falling(run)

    def on_step(self, run) -> None:
        if self._mark is None:
            self._mark = (run.step, run.training_seconds)
            return
        steps, seconds = run.step - self._mark[0], run.training_seconds - self._mark[1]
        if steps < self.WINDOW[0] and seconds < self.WINDOW[1] * self.seconds:
            return
        self._mark = (run.step, run.training_seconds)
        now = Cost(seconds / steps, self.cost.steps_per_epoch, self.cost.evaluation)
        left = self.seconds - run.seconds
        if self._left(now, run, run.steps) <= left + (self.LATE - 1) * self.seconds:
            return
        fits = max((n for n in range(run.step, run.steps) if self._left(now, run, n) <= left), default=run.step)
        self.say(f"slower than planned: {fits / run.steps_per_epoch:.2f} epochs instead of "
                 f"{run.steps / run.steps_per_epoch:.2f}")
        self._fall = (run.step, run.schedule(run.step))
        run.steps, run.schedule = fits, self._falling(run)

    @staticmethod
    def _left(cost: Cost, run, steps: int) -> float:
        """Seconds until a training of `steps` steps is over."""
        evaluations = math.ceil(steps / run.steps_per_epoch) - len(run.history)
        return (steps - run.step) * cost.step + evaluations * cost.evaluation

    def _falling(self, run) -> Callable[[int], float]:
        begin, factor = self._fall  # type: ignore[misc]
        return lambda step: factor * (run.steps - step) / max(1, run.steps - begin)

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "evaluation": self.cost.evaluation, "fall": self._fall}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seconds = state["seconds"]
        self.cost = replace(self.cost, evaluation=state["evaluation"])
        self._fall = tuple(state["fall"]) if state["fall"] is not None else None
