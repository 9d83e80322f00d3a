"""The training loop. It knows no model and no task: a loss function says what to do with a batch."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..optim import clip_grad_norm
from .checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from .history import Average, History
from .hooks import Hook
from .interrupt import Interrupted, Stop, catching_stop, stopping_at_once
from .progress import Progress

Loss = Callable[[Any, Any], Any]  # (model, batch) -> Tensor, or (Tensor, {"name": value})
READ_EVERY = 0.3  # seconds between two looks at the losses, which make a GPU wait


class TrainingError(RuntimeError):
    """Training cannot go on: the loss is NaN or infinite. The message names the epoch and the step."""


def fit(model, loader, optimizer, *, loss: Loss, epochs: float | None = None, steps: int | None = None,
        schedule: Callable[[int], float] | None = None, evaluate: Callable[[], dict[str, float]] | None = None,
        hooks: Sequence[Hook] = (), checkpoint: str | os.PathLike | None = None, resume: bool = False,
        config: dict[str, Any] | None = None, clip: float | None = None, ema=None,
        progress: bool | Hook = True) -> History:
    """Train `model` and return what happened, one record per epoch.

    loader: `data.Loader`, or anything with a length that gives the batches of one epoch each time it is iterated over.
    loss: (model, batch) -> a Tensor of one value, or that and a dict of metrics; metrics appear in the history as
        "train_NAME". `classification()` makes the usual one for (images, labels).
    epochs, steps: how long, one of the two; epochs may be a fraction.
    schedule: step -> factor on every group's learning rate; steps count from 0.
    evaluate: called after every epoch; its dict goes into the history. It sees the averaged weights if `ema` is given.
    hooks: see `Hook`.
    checkpoint: a file, replaced after every epoch and when training is interrupted. `resume=True` continues from it, if
        it exists, with the same result, bit for bit, as if training had not stopped. `config` is kept in it and must be
        the same when resuming.
    clip: the largest norm of all gradients together. ema: an average of weights with `update()` and `apply()`.
    progress: True shows one line that moves (plain lines where the output is not a terminal), False nothing.

    Raises TrainingError at a loss that is NaN or infinite, CheckpointError where `resume` finds a damaged or foreign
    checkpoint, ValueError for arguments that make no sense, and Interrupted (a KeyboardInterrupt) after Ctrl-C or
    SIGTERM, once the step in progress is done and the checkpoint written.
    """
    run = Run(model, loader, optimizer, _count_steps(loader, epochs, steps), schedule, ema)
    run.loss, run.clip, run.evaluate = loss, clip, evaluate
    run.config, run.checkpoint = config or {}, Path(checkpoint) if checkpoint is not None else None
    run.hooks = [*hooks, *([Progress()] if progress is True else [progress] if progress else [])]
    rates = [group["lr"] for group in optimizer.param_groups]  # before restore, which brings back scaled ones
    if run.checkpoint is not None:
        run.checkpoint.parent.mkdir(parents=True, exist_ok=True)  # now, and not when hours of training are to be saved
        if resume and run.checkpoint.exists():
            run.restore()
    with catching_stop() as stop:
        try:
            for hook in run.hooks:
                hook.on_start(run)
            while not run.finished:
                _train_epoch(run, rates, stop)
                _close_epoch(run, stop)
        finally:
            for group, rate in zip(optimizer.param_groups, rates):
                group["lr"] = rate
            for hook in run.hooks:
                hook.on_end(run)
    return run.history


def _count_steps(loader, epochs: float | None, steps: int | None) -> int:
    if (epochs is None) == (steps is None):
        raise ValueError(f"fit needs one of epochs= and steps=, and got epochs={epochs}, steps={steps}")
    if len(loader) == 0:
        raise ValueError("the loader has no batch: give it more images or a smaller batch size")
    count = steps if steps is not None else max(1, round(epochs * len(loader))) if epochs > 0 else 0  # type: ignore[operator]
    if count < 1:
        raise ValueError(f"fit must do at least one step: epochs={epochs}, steps={steps}")
    return count


class Run:
    """A training in progress: what hooks see, and what a checkpoint holds.

    step, steps: optimiser steps done, and in all. epoch: how many epochs are done, as a fraction.
    seconds: since training began, without the time it was stopped. images: how many were trained on.
    """

    config: dict[str, Any]
    checkpoint: Path | None
    hooks: list[Hook]
    loss: Loss
    clip: float | None
    evaluate: Callable[[], dict[str, float]] | None

    def __init__(self, model, loader, optimizer, steps: int, schedule: Callable[[int], float] | None = None, ema=None):
        self.model, self.loader, self.optimizer, self.ema = model, loader, optimizer, ema
        self.asked_steps = self.steps = steps  # a hook may change `steps`
        self.step, self.steps_per_epoch = 0, len(loader)
        self.schedule = schedule or (lambda step: 1.0)
        self.history = History()
        self.average = Average()  # of the epoch in progress
        self.images, self.training_seconds = 0, 0.0
        self._before, self._since = 0.0, time.perf_counter()

    @property
    def seconds(self) -> float:
        return self._before + time.perf_counter() - self._since

    @property
    def epoch(self) -> float:
        whole, rest = divmod(self.step, self.steps_per_epoch)
        return round(whole + rest / self.steps_per_epoch, 2) if rest else whole

    @property
    def images_per_second(self) -> float:
        """Training only, without evaluations."""
        return self.images / self.training_seconds if self.training_seconds else 0.0

    @property
    def epoch_end(self) -> int:
        """The step after which the epoch in progress is over."""
        return min((len(self.history) + 1) * self.steps_per_epoch, self.steps)

    @property
    def finished(self) -> bool:
        return self.step >= self.steps and len(self.history) >= math.ceil(self.steps / self.steps_per_epoch)

    def place(self, step: int) -> str:
        """Where a step is, in words for people, who count from 1."""
        epoch, within = divmod(step, self.steps_per_epoch)
        return f"epoch {epoch + 1}, step {within + 1} of {self.steps_per_epoch} (step {step + 1} in all)"

    def means(self) -> dict[str, float]:
        """Means of "loss" and the metrics over the epoch in progress, as far as they were read."""
        return self.average.means()

    def read(self) -> None:
        """Look at the losses that wait. Raises TrainingError at one that is not finite."""
        for step, value in self.average.read():
            if not math.isfinite(value):
                raise TrainingError(f"the loss became {value} in {self.place(step)}: try a smaller learning rate, or find the "
                                    f"op with detect_anomaly")
        for hook in self.hooks:
            hook.on_report(self)

    # -------------------------------------------------------------- checkpoints

    def save(self) -> None:
        """Write the checkpoint, if there is to be one."""
        if self.checkpoint is not None:
            save_checkpoint(self.checkpoint, self.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """Everything that the rest of the training depends on."""
        return {
            "config": self.config, "step": self.step, "steps": self.steps, "asked_steps": self.asked_steps,
            "history": list(self.history), "average": self.average.state_dict(), "images": self.images,
            "seconds": self.seconds, "training_seconds": self.training_seconds,
            "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
            "ema": self.ema.state_dict() if self.ema is not None else None,
            "generators": [g.bit_generator.state for g in self.model.generators()],
            "hooks": {type(hook).__name__: hook.state_dict() for hook in self.hooks if hook.state_dict()},
        }

    def restore(self) -> None:
        """Continue from the checkpoint. Raises CheckpointError where it is damaged or of another run."""
        assert self.checkpoint is not None
        state = load_checkpoint(self.checkpoint)
        for key in sorted({*state["config"], *self.config}):
            there, here = state["config"].get(key), self.config.get(key)
            if there != here:
                raise CheckpointError(f"the checkpoint {self.checkpoint} is of another run: {key} was {there!r} there "
                                      f"and is {here!r} now; resume with the same arguments, or train without resume")
        try:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            if self.ema is not None:
                self.ema.load_state_dict(state["ema"])
            for generator, saved in zip(self.model.generators(), state["generators"], strict=True):
                generator.bit_generator.state = saved
            for hook in self.hooks:
                if type(hook).__name__ in state["hooks"]:
                    hook.load_state_dict(state["hooks"][type(hook).__name__])
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"the checkpoint {self.checkpoint} is of another model or optimiser: "
                                  f"{' '.join(str(error).split())}") from None
        if self.asked_steps == state["asked_steps"]:
            self.steps = state["steps"]
        elif len(state["history"]) * self.steps_per_epoch > state["step"]:
            raise CheckpointError(f"the training in {self.checkpoint} ended inside an epoch, after {state['step']} "
                                  f"steps: it cannot be made longer; train again without resume")
        self.step, self.images = state["step"], state["images"]
        self.history = History(state["history"])
        self.average.load_state_dict(state["average"])
        self.training_seconds, self._before = state["training_seconds"], state["seconds"]


def _train_epoch(run: Run, rates: list[float], stop: Stop) -> None:
    """The rest of the epoch in progress."""
    if run.step >= run.epoch_end:
        return
    run.model.train()
    epoch = len(run.history)
    begun = read = time.perf_counter()
    for batch in _batches(run.loader, epoch, run.step - epoch * run.steps_per_epoch):
        _train_step(run, batch, rates)
        now = time.perf_counter()
        run.training_seconds += now - begun
        begun = now
        if now - read > READ_EVERY or run.step >= run.epoch_end:
            run.read()
            read = now
        for hook in run.hooks:
            hook.on_step(run)
        if stop.requested:
            _interrupt(run)
        if run.step >= run.epoch_end:
            if read != now:  # a hook made the training shorter, and this step the last one
                run.read()
            return
    raise ValueError(f"the loader promised {run.steps_per_epoch} batches (its len) and gave "
                     f"{run.step - epoch * run.steps_per_epoch}")


def _batches(loader, epoch: int, start: int) -> Iterator:
    """The batches of one epoch, without the first `start`."""
    if hasattr(loader, "epoch"):
        return loader.epoch(epoch, start)
    return itertools.islice(loader, start, None)


def _train_step(run: Run, batch, rates: list[float]) -> None:
    factor = run.schedule(run.step)
    for group, rate in zip(run.optimizer.param_groups, rates):
        group["lr"] = rate * factor
    result = run.loss(run.model, batch)
    loss, metrics = result if isinstance(result, tuple) else (result, {})
    run.optimizer.zero_grad()
    loss.backward()
    count = _size(batch)
    run.average.add(run.step, count, {"loss": loss.detach(), **metrics})
    if run.clip is not None:
        try:
            clip_grad_norm(run.model.parameters(), run.clip)
        except FloatingPointError as error:
            run.read()  # raises if the loss is no number either, which is then the better place to look
            raise TrainingError(f"in {run.place(run.step)}: {error}") from None
    run.optimizer.step()
    if run.ema is not None:
        run.ema.update()
    run.images += count
    run.step += 1


def _size(batch) -> int:
    """How many images a batch holds: the length of its first array."""
    while isinstance(batch, tuple | list | dict) and len(batch):
        batch = next(iter(batch.values() if isinstance(batch, dict) else batch))
    return len(batch)


def _close_epoch(run: Run, stop: Stop) -> None:
    """Evaluate, write the record and the checkpoint."""
    try:
        with stopping_at_once(), run.ema.apply() if run.ema is not None else contextlib.nullcontext():
            if stop.requested:
                raise KeyboardInterrupt
            found = run.evaluate() if run.evaluate is not None else {}
    except KeyboardInterrupt:
        _interrupt(run)
    means = run.means()
    record = {"epoch": run.epoch, "train_loss": means.pop("loss"), **{f"train_{k}": v for k, v in means.items()},
              **found, "images_per_second": run.images_per_second, "seconds": run.seconds}
    for hook in run.hooks:
        hook.on_epoch(run, record)
    run.history.append(record)
    run.average = Average()
    run.save()
    if stop.requested:
        _interrupt(run)


def _interrupt(run: Run) -> None:
    """Save and leave."""
    run.read()
    run.save()
    saved = f", saved to {run.checkpoint}" if run.checkpoint is not None else ""
    raise Interrupted(f"stopped after step {run.step} of {run.steps} (epoch {run.epoch}){saved}", run.checkpoint)
