"""Fitting trainings into minutes: how many steps a time buys, and a guard for machines that change their speed."""

from __future__ import annotations

import math
from bisect import bisect_right
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
    """Changes the number of steps of a training that would end late or early on a machine that changes its speed.

    seconds: when this training should be over, on `run.seconds`, its test not counted. What is left of the schedule is
    squeezed or stretched to fit: a warm-up that is under way still rises to its full height, and the end is the old end.
    most: never more steps than this.
    """

    OFF = 0.05  # how far from `seconds` the forecast must be, as a part of it
    WORTH_SAYING = 0.1  # how far a plan must be from the one last told, as a part of it
    WINDOW = 0.06, 5.0  # part of `seconds` between two forecasts, and the least time

    def __init__(self, seconds: float, cost: Cost, most: int, say: Callable[[str], None] = print):
        self.seconds, self.cost, self.most, self.say = seconds, cost, most, say
        self._mark: tuple[int, float] | None = None
        self._told = 0  # the last plan that was told, in steps
        self._knots: list[tuple[int, float]] = []  # where the plan changed: the step, and where the old schedule was in it
        self._schedule: Callable[[int], float] = lambda step: 1.0

    def on_start(self, run) -> None:
        self._schedule, self._told = run.schedule, run.steps
        if self._knots:
            run.schedule = self._warped(run)

    def on_step(self, run) -> None:
        if self._mark is None:
            self._mark = (run.step, run.training_seconds)
            return
        steps, seconds = run.step - self._mark[0], run.training_seconds - self._mark[1]
        if seconds < max(self.WINDOW[0] * self.seconds, self.WINDOW[1]) or run.step >= run.steps:
            return
        self._mark = (run.step, run.training_seconds)
        now = Cost(seconds / steps, self.cost.steps_per_epoch, self.cost.evaluation)
        left = self.seconds - run.seconds
        if abs(self._left(now, run, run.steps) - left) <= self.OFF * self.seconds:
            return
        fits = range(run.step, max(run.steps, self.most) + 1)
        planned = fits[max(0, bisect_right(fits, left, key=lambda n: self._left(now, run, n)) - 1)]
        if planned == run.steps:
            return
        if abs(planned - self._told) > self.WORTH_SAYING * self._told:
            self.say(f"{'slower' if planned < self._told else 'faster'} than planned: "
                     f"{planned / run.steps_per_epoch:.2f} epochs instead of {self._told / run.steps_per_epoch:.2f}")
            self._told = planned
        self._knots.append((run.step, self._position(run, run.step)))
        run.steps, run.schedule = planned, self._warped(run)

    @staticmethod
    def _left(cost: Cost, run, steps: int) -> float:
        """Seconds until a training of `steps` steps is over."""
        evaluations = math.ceil(steps / run.steps_per_epoch) - len(run.history)
        return (steps - run.step) * cost.step + evaluations * cost.evaluation

    def _position(self, run, step: int) -> float:
        """Where in the schedule of `run.asked_steps` steps the changed plan is: in a straight line from its last change."""
        begin, position = self._knots[-1] if self._knots else (0, 0.0)
        part = (step - begin) / max(1, run.steps - begin)
        return position + part * (run.asked_steps - position)

    def _warped(self, run) -> Callable[[int], float]:
        return lambda step: self._schedule(math.floor(self._position(run, step)))

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "evaluation": self.cost.evaluation, "most": self.most, "knots": self._knots}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seconds, self.most = state["seconds"], state["most"]
        self.cost = replace(self.cost, evaluation=state["evaluation"])
        self._knots = [(step, position) for step, position in state["knots"]]
