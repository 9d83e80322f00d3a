"""One model of a comparison: built from a recipe, measured, trained, tested."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from .. import backend
from ..data import Dataset, Loader
from .budget import Cost
from .history import History
from .hooks import Hook
from .interrupt import stopping_at_once
from .loop import fit
from .metrics import classification, evaluate
from .progress import Progress
from .recipes import Recipe

EVALUATION_BATCH = 256
RECORD = ("epoch", "train_loss", "val_accuracy", "seconds")  # what of the history goes into results.json


@dataclass(frozen=True)
class Images:
    """Which images of a data set are trained on, validated on and tested on; the last may be none."""

    data: Dataset
    train: np.ndarray  # indices into data.images
    val: np.ndarray  # the same
    test: bool = True

    @property
    def official(self) -> bool:
        """Whether an accuracy on these can be compared with published ones."""
        return self.data.name == "cifar10" and self.data.official

    @property
    def test_size(self) -> int:
        return len(self.data.test_labels) if self.test else 0

    def few(self, n: int) -> Images:
        """The first n images to train on, for validation too: little to copy, and enough to try a model on."""
        data, few = self.data, self.train[:n]
        data = replace(data, images=data.images[few], labels=data.labels[few], test_images=data.test_images[:1],
                       test_labels=data.test_labels[:1], attributes=None, test_attributes=None)
        return Images(data, np.arange(len(few)), np.arange(len(few)), test=False)


class Contestant:
    """A model in a comparison, and how it fares.

    The same seed gives the same weights, batches and dropout, whatever else is in the comparison.
    """

    def __init__(self, name: str, recipe: Recipe, images: Images, seed: int):
        self.name, self.recipe, self.images, self.seed = name, recipe, images, seed
        self.model, self.loader, self.optimizer = self._build()
        summary = self.model.summary((1, 3, 32, 32))
        self.params, self.gflop = summary.parameters, summary.gflop
        self.history = History()

    def _build(self):
        data, train = self.images.data, self.images.train
        rng = np.random.default_rng([self.seed, *self.name.encode()])
        model = self.recipe.build_model(len(data.classes), rng)
        size = min(self.recipe.batch, len(train))
        loader = Loader(data.images[train], data.labels[train], size, shuffle=True, augment=self.recipe.augmentation(1),
                        mean=data.mean, std=data.std, seed=self.seed, drop_last=True)
        return model, loader, self.recipe.build_optimizer(model)

    def _plain(self, images: np.ndarray, labels: np.ndarray) -> Loader:
        return Loader(images, labels, EVALUATION_BATCH, shuffle=False, mean=self.images.data.mean, std=self.images.data.std)

    @property
    def _loss(self) -> Callable:
        return classification(self.recipe.label_smoothing)

    def warm_up(self, timed: float = 0.0) -> Cost:
        """Train a copy for some steps and throw it away: compiles all kernels, so that no training has that in its time.

        Returns what training, evaluation and test cost on this machine, the better the more seconds are `timed`.
        """
        model, loader, optimizer = self._build()

        def train(steps: int) -> float:
            history = fit(model, loader, optimizer, loss=self._loss, steps=steps, clip=self.recipe.clip, progress=False)
            return loader.batch_size / history.last("images_per_second")

        sample = self.images.val[:EVALUATION_BATCH]
        batch = list(self._plain(self.images.data.images[sample], self.images.data.labels[sample]).epoch(0))
        with stopping_at_once():
            train(1)
            evaluate(model, batch)
            step = train(1)
            if timed:
                step = train(max(3, round(timed / step)))
        begun = time.perf_counter()
        evaluate(model, batch)
        image = (time.perf_counter() - begun) / len(sample)
        return Cost(step, len(loader), image * len(self.images.val), image * self.images.test_size)

    def train(self, steps: int, *, checkpoint: Path, resume: bool, config: dict[str, Any], hooks: Sequence[Hook] = (),
              title: str = "") -> None:
        """Train for `steps` steps, or what is left of them."""
        data, val = self.images.data, self.images.val
        self.loader.augment = self.recipe.augmentation(steps / len(self.loader))
        loader = self._plain(data.images[val], data.labels[val])

        def validate() -> dict[str, float]:
            return {"val_" + key: value for key, value in evaluate(self.model, loader.epoch(0)).items()}

        self.history = fit(self.model, self.loader, self.optimizer, loss=self._loss, steps=steps,
                           schedule=self.recipe.schedule(steps), evaluate=validate, hooks=hooks, checkpoint=checkpoint,
                           resume=resume, config=config, clip=self.recipe.clip, progress=Progress(title))

    def result(self) -> dict[str, Any]:
        """The model's part of results.json. Looks at the test images, which nothing before has done."""
        data, last = self.images.data, self.history[-1]
        tested = evaluate(self.model, self._plain(data.test_images, data.test_labels).epoch(0)) if self.images.test else {}
        return {
            "name": self.name, "params": self.params, "gflop_forward": round(self.gflop, 4), "epochs": last["epoch"],
            "seconds": round(last["seconds"], 2), "images_per_second": round(last["images_per_second"], 1),
            "val_accuracy": last["val_accuracy"], "test_accuracy": tested.get("accuracy"),
            "history": [{key: record[key] for key in RECORD} for record in self.history],
        }


def compile_kernels(recipes: dict[str, Recipe], images: Images) -> list[str]:
    """Compile all numba kernels that these need, for the first here and for each other in a process of its own.

    numba compiles one kernel at a time in a process, and keeps it in the cache for all; without a cache all are compiled
    here. Returns the names of those whose process failed: their kernels are compiled when they are first called.
    """
    few = images.few(EVALUATION_BATCH)
    here = 1 if backend._cache_folder() is not None else len(recipes)
    others = list(recipes.items())[here:]
    context = multiprocessing.get_context("spawn")
    processes = {name: context.Process(target=_compile_apart, args=(name, recipe, few), daemon=True)
                 for name, recipe in others}
    try:
        for process in processes.values():
            process.start()
        for name, recipe in list(recipes.items())[:here]:
            _compile(name, recipe, few)
        for process in processes.values():
            process.join()
    finally:
        for process in processes.values():
            if process.is_alive():
                process.terminate()
    return [name for name, process in processes.items() if process.exitcode]


def _compile(name: str, recipe: Recipe, few: Images) -> None:
    Contestant(name, recipe, few, seed=0).warm_up()


def _compile_apart(name: str, recipe: Recipe, few: Images) -> None:
    backend.use("numba")
    try:
        _compile(name, recipe, few)
    except KeyboardInterrupt:  # Ctrl-C goes to all processes of a terminal; the first one answers
        sys.exit(1)
