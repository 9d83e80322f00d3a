"""Batches of a data set. Their order and augmentation depend on the seed, the epoch and the step, and on nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from .augment import Augment, normalize
from .errors import DataError


class Loader:
    """Batches (x, y) of images and labels: x float32 (B, 3, H, W), normalised and augmented; y int64 (B,).

        for x, y in loader.epoch(3): ...

    images: uint8 or floating (M, 3, H, W); bytes are scaled to [0, 1]. labels: whole numbers (M,).
    mean, std: (3,), of each channel; what is not given is 0 and 1. augment: (x, rng, indices, epoch) -> x, called on
    normalised images, so that its zero is the mean colour; indices (B,) are the images' places in `images`.
    drop_last: leave out a last batch that is smaller than the others. `len(loader)` is the number of steps of an epoch.
    classes: if given, labels must be below it.

    There is no state between batches: step s of epoch e takes its numbers from a generator made of (seed, e, s), so a
    training that resumes there sees the same images, bit for bit, as one that never stopped.

    Raises ValueError for arguments that make no sense, DataError for images and labels that do not fit together, labels
    below 0 or not below `classes`, and images with NaN or infinity.
    """

    def __init__(self, images: np.ndarray, labels: np.ndarray, batch_size: int, *, shuffle: bool,
                 augment: Augment | None = None, mean: Sequence[float] | np.ndarray | None = None,
                 std: Sequence[float] | np.ndarray | None = None, seed: int = 0, drop_last: bool = False,
                 classes: int | None = None):
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; expected 1 or more")
        if seed < 0:
            raise ValueError(f"seed is {seed}; expected 0 or more")
        self.mean = np.zeros(3) if mean is None else np.asarray(mean, np.float64)
        self.std = np.ones(3) if std is None else np.asarray(std, np.float64)
        if self.mean.shape != (3,) or self.std.shape != (3,) or not (np.isfinite(self.mean).all() and (self.std > 0).all()):
            raise ValueError(f"mean {mean} and std {std} must be three numbers each, std above 0")
        _check(images, labels, classes)
        if drop_last and len(images) < batch_size:
            raise ValueError(f"{len(images)} images give no batch of {batch_size} with drop_last: make the batches smaller")
        self.images, self.labels = images, labels.astype(np.int64, copy=False)
        self.batch_size, self.shuffle, self.augment = batch_size, shuffle, augment
        self.seed, self.drop_last = seed, drop_last

    def __len__(self) -> int:
        whole, rest = divmod(len(self.images), self.batch_size)
        return whole + bool(rest and not self.drop_last)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The batches of one epoch, counted from 0, from step `start` on."""
        if epoch < 0 or not 0 <= start <= len(self):
            raise ValueError(f"epoch {epoch} from step {start}; expected an epoch of 0 or more, a step of 0 to {len(self)}")
        order = self._generator(epoch).permutation(len(self.images)) if self.shuffle else np.arange(len(self.images))
        return (self._batch(order, epoch, step) for step in range(start, len(self)))

    def _batch(self, order: np.ndarray, epoch: int, step: int) -> tuple[np.ndarray, np.ndarray]:
        indices = order[step * self.batch_size : (step + 1) * self.batch_size]
        x = normalize(self.images[indices], self.mean, self.std)
        if self.augment is not None:
            x = self.augment(x, self._generator(epoch, step), indices, epoch)
        return np.ascontiguousarray(x), self.labels[indices]

    def _generator(self, *place: int) -> np.random.Generator:
        """The generator of an epoch's order, (epoch,), or of a step's augmentation, (epoch, step)."""
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=place))


def _check(images: np.ndarray, labels: np.ndarray, classes: int | None) -> None:
    if images.ndim != 4 or images.shape[1] != 3 or not (images.dtype == np.uint8 or images.dtype.kind == "f"):
        raise DataError(f"images are {images.dtype} {images.shape}; expected uint8 or float32 (M, 3, H, W)")
    if not len(images):
        raise DataError("there are no images: a loader needs at least one")
    if labels.shape != (len(images),) or labels.dtype.kind not in "iu":
        raise DataError(f"labels are {labels.dtype} {labels.shape}; expected whole numbers ({len(images)},), one an image")
    wrong = np.flatnonzero((labels < 0) | (labels >= (np.inf if classes is None else classes)))
    if len(wrong):
        expected = "0 or more" if classes is None else f"0 to {classes - 1}"
        raise DataError(f"label {labels[wrong[0]]} of image {wrong[0]} is out of range; expected {expected}")
    if images.dtype.kind == "f":
        for start in range(0, len(images), 1000):  # in parts, since isfinite makes an array as long as its input
            bad = ~np.isfinite(images[start : start + 1000]).all(axis=(1, 2, 3))
            if bad.any():
                raise DataError(f"image {start + bad.argmax()} has NaN or infinite pixels; expected finite ones")
