"""A data set in memory, and how its training part is divided."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .errors import DataError

SPLITS = Path(__file__).with_name("splits.npz")


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Labelled 32×32 colour images, and where they came from.

    name: "cifar10" or "shapes". classes: K words; label k means classes[k].
    images, test_images: uint8 (M, 3, 32, 32), red, green and blue planes. labels, test_labels: int64 (M,).
    mean, std: float32 (3,), of the training pixels of each channel, scaled to [0, 1]; from the images if not given.
    official: are these the published bytes, so that accuracies can be compared with others'?
    note: one sentence about where the images came from, and what is wrong with them if anything is.
    attributes, test_attributes: what is known about each image besides its label, {word: array (M,)}, or None.

    Raises DataError for arrays that do not fit together.
    """

    name: str
    images: np.ndarray
    labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    classes: tuple[str, ...]
    official: bool
    note: str
    mean: np.ndarray = None  # type: ignore[assignment]
    std: np.ndarray = None  # type: ignore[assignment]
    attributes: dict[str, np.ndarray] | None = None
    test_attributes: dict[str, np.ndarray] | None = None

    def __post_init__(self):
        check_labelled(self.images, self.labels, len(self.classes), "the training part")
        check_labelled(self.test_images, self.test_labels, len(self.classes), "the test part")
        if self.mean is None or self.std is None:
            mean, std = channel_statistics(self.images)
            object.__setattr__(self, "mean", mean)  # the way a frozen dataclass fills in its own fields
            object.__setattr__(self, "std", std)

    def __repr__(self) -> str:
        return (f"Dataset({self.name!r}, {len(self.labels):,} training and {len(self.test_labels):,} test images, "
                f"{len(self.classes)} classes, official={self.official})")

    def split(self, tune: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Which training images to train on and which to validate on: two index arrays that do not overlap.

        CIFAR-10's are fixed lists in this package: 45,000 and 5,000. With `tune`, for choosing a recipe without a look at
        those 5,000, they are left out: 40,000 to train on, and another 5,000 to validate on. Other sets give a sixth to
        each list, 5,000 at most, by a fixed rule. Every prefix of the validation indices has all classes in proportion,
        so that `val[:1000]` is a fair sample; the training indices ascend.
        """
        validation, tuning = self._held_out()
        out = np.concatenate([validation, tuning]) if tune else validation
        train = np.setdiff1d(np.arange(len(self.labels)), out, assume_unique=True)
        return train, tuning if tune else validation

    def subset(self, n: int, seed: int = 0, *, tune: bool = False) -> np.ndarray:
        """Indices of `n` images out of the training indices of `split(tune)`, all classes in proportion.

        Subsets of one seed are nested: the 1,000 images of `subset(1000)` are the first 1,000 of `subset(5000)`, so that a
        curve over n shows more data, not other data. Raises ValueError for n outside 1..(images to train on).
        """
        train, _ = self.split(tune)
        if not 1 <= n <= len(train):
            raise ValueError(f"a subset of {n} images was asked for; this data set has 1 to {len(train)} to train on")
        return train[stratified_order(self.labels[train], np.random.default_rng(seed))[:n]]

    def _held_out(self) -> tuple[np.ndarray, np.ndarray]:
        """The two validation lists."""
        if self.name == "cifar10" and len(self.labels) == 50_000:
            with np.load(SPLITS) as lists:
                return lists["cifar10_validation"].astype(np.int64), lists["cifar10_tuning"].astype(np.int64)
        return held_out(self.labels)


def held_out(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rule: two stratified lists of a sixth of the images each, 5,000 at most. It made the lists in splits.npz.

    Those are stored all the same, since NumPy may change the streams of its generators.
    """
    size = min(len(labels) // 6, 5000)
    order = stratified_order(labels, np.random.default_rng(0))
    return order[:size], order[size : 2 * size]


def stratified_order(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A random order of the indices of `labels` (M,) whose every prefix has all classes in proportion, to within an image.

    The classes take turns: the i-th image of a class of m comes at (i + ½)/m of the way.

    >>> labels = np.array([0, 0, 0, 0, 1, 1])
    >>> labels[stratified_order(labels, np.random.default_rng(0))]
    array([0, 1, 0, 0, 1, 0])
    """
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    counts = np.unique(labels, return_counts=True)[1]
    place = np.concatenate([(np.arange(m) + 0.5) / m for m in counts]) if len(labels) else np.empty(0)
    return by_class[np.argsort(place, kind="stable")]


def channel_statistics(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each channel of uint8 images (M, 3, H, W), scaled to [0, 1]; two float32 (3,).

    Over all pixels of the set together: the mean of the images' own deviations, often copied for CIFAR-10, is too small.
    """
    counts = np.zeros((3, 256))  # a byte has 256 values, so a histogram knows all there is to know
    for start in range(0, len(images), 2000):
        for channel in range(3):
            counts[channel] += np.bincount(images[start : start + 2000, channel].ravel(), minlength=256)
    share = counts / counts.sum(axis=1, keepdims=True)
    values = np.arange(256) / 255
    mean = share @ values
    variance = (share * (values - mean[:, None]) ** 2).sum(axis=1)
    return mean.astype(np.float32), np.sqrt(variance).astype(np.float32)


def check_labelled(images: np.ndarray, labels: np.ndarray, classes: int, what: str) -> None:
    """Raise DataError unless images are uint8 (M, 3, 32, 32), labels int64 (M,) in 0..classes-1, and M is at least 1."""
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1:] != (3, 32, 32) or not len(images):
        raise DataError(f"images of {what} are {images.dtype} {images.shape}; expected uint8 (M, 3, 32, 32), M at least 1")
    if labels.dtype != np.int64 or labels.shape != (len(images),):
        raise DataError(f"labels of {what} are {labels.dtype} {labels.shape}; expected int64 ({len(images)},), one per image")
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        raise DataError(f"label {labels[wrong[0]]} of image {wrong[0]} of {what} is not in 0..{classes - 1}")
