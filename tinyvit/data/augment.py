"""Random changes of training images that leave their classes as they are, on whole batches (B, C, H, W).

Every function takes uint8 or float32 images and a generator, returns a new array and leaves its input alone.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from .errors import DataError

Augment = Callable[[np.ndarray, np.random.Generator, np.ndarray, int], np.ndarray]  # (x, rng, indices, epoch) -> x


def random_crop(x: np.ndarray, pad: int, rng: np.random.Generator) -> np.ndarray:
    """Shift every image by up to `pad` pixels each way: pad by reflection, then cut the old size out at a random place.

    Reflection leaves the edge pixel out: ... 2 1 | 0 1 2 ... Raises ValueError unless 0 <= pad < H, W.
    """
    b, _, h, w = x.shape
    if not 0 <= pad < min(h, w):
        raise ValueError(f"cannot pad images of {h}×{w} by {pad} by reflection; expected 0 to {min(h, w) - 1}")
    rows, columns = (np.pad(np.arange(n), pad, mode="reflect") for n in (h, w))
    padded = x.take(rows, axis=2).take(columns, axis=3)
    windows = sliding_window_view(padded, (h, w), axis=(2, 3))  # (B, C, 2·pad+1, 2·pad+1, H, W), a view
    down, right = rng.integers(0, 2 * pad + 1, (2, b))
    return windows[np.arange(b), :, down, right]


def random_flip(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Mirror each image left to right with probability ½."""
    return _flip(x, rng.random(len(x)) < 0.5)


def alternating_flip(x: np.ndarray, indices: np.ndarray, epoch: int) -> np.ndarray:
    """Mirror by chance in epoch 0, and from then on every image in every second epoch.

    Two epochs in a row then show each image both ways, where independent coins show half of them twice the same way (Keller
    Jordan, "94% on CIFAR-10 in 3.29 seconds on a single GPU", 2024). indices: (B,), each image's place in the data set, which
    decides its coin in epoch 0.
    """
    # The top bit after multiplication by 2⁶⁴/φ: neighbours get unrelated coins (Knuth, TAOCP 3, 6.4).
    coins = indices.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(63)
    return _flip(x, (coins + np.uint64(epoch)) % np.uint64(2) == 1)


def cutout(x: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Set a square of `size` pixels in every image to zero, which is the mean of normalised images.

    Its centre may be any pixel, so that parts of it may be outside (DeVries and Taylor 2017). Raises ValueError if size < 0.
    """
    if size < 0:
        raise ValueError(f"cutout of size {size}; expected 0 or more pixels")
    b, _, h, w = x.shape
    top, left = (rng.integers(0, n, (b, 1)) - size // 2 for n in (h, w))
    rows = (np.arange(h) >= top) & (np.arange(h) < top + size)  # (B, H)
    columns = (np.arange(w) >= left) & (np.arange(w) < left + size)  # (B, W)
    return x * ~(rows[:, None, :, None] & columns[:, None, None, :])


def mixup(x: np.ndarray, targets: np.ndarray, alpha: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """x' = λx + (1−λ)x[p] and the same for the targets, with one λ ~ Beta(α, α) for the batch and a random permutation p.

    Images are float32 (B, C, H, W) and targets float32 (B, K), for example from `one_hot` (Zhang et al. 2018). Raises
    ValueError for integer images, which would have to be rounded, for targets without classes, and for alpha <= 0.
    """
    if x.dtype.kind != "f":
        raise ValueError(f"mixup of {x.dtype} images; expected float32: normalize them first")
    if targets.ndim != 2 or len(targets) != len(x):
        raise ValueError(f"mixup targets are {targets.shape}; expected ({len(x)}, K): use one_hot(labels, K)")
    if not alpha > 0:
        raise ValueError(f"mixup with alpha {alpha}; expected more than 0")
    mix = float(rng.beta(alpha, alpha))  # a Python float, so that float32 stays float32
    other = rng.permutation(len(x))
    return mix * x + (1 - mix) * x[other], mix * targets + (1 - mix) * targets[other]


def standard_augment(crop: int = 4, flip: bool | str = True, cutout_size: int = 0) -> Augment:
    """What nearly every CIFAR-10 recipe does: mirroring, shifts of up to `crop` pixels, and cutout where a size is given.

    flip: True for independent coins, "alternating" for `alternating_flip`, False for none. Zero switches the others off.
    Returns a function (x, rng, indices, epoch) -> x for `Loader(augment=...)`. Raises ValueError for another flip.
    """
    if flip not in (True, False, "alternating"):
        raise ValueError(f"flip is {flip!r}; expected True, False or 'alternating'")

    def augment(x: np.ndarray, rng: np.random.Generator, indices: np.ndarray, epoch: int) -> np.ndarray:
        if flip == "alternating":
            x = alternating_flip(x, indices, epoch)
        elif flip:
            x = random_flip(x, rng)
        if crop:
            x = random_crop(x, crop, rng)
        return cutout(x, cutout_size, rng) if cutout_size else x

    return augment


def normalize(x: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """(x − mean) / std for each channel, float32; bytes are divided by 255 first.

    x: (..., C, H, W), uint8 in 0..255 or floating. mean, std: (C,), of values in [0, 1].

    >>> normalize(np.full((1, 3, 1, 1), 255, np.uint8), mean=[0.5, 0.5, 0.5], std=[0.25, 0.5, 1]).ravel()
    array([2. , 1. , 0.5], dtype=float32)
    """
    unit = 255.0 if x.dtype == np.uint8 else 1.0
    mean, std = (np.asarray(v, np.float64)[:, None, None] for v in (mean, std))
    out = np.multiply(x, (1 / (unit * std)).astype(np.float32), dtype=np.float32)
    out -= (mean / std).astype(np.float32)
    return out


def one_hot(labels: np.ndarray, classes: int) -> np.ndarray:
    """Labels (B,) as rows (B, K) of a 1 among zeros, float32. Raises DataError for a label outside 0..K−1.

    >>> one_hot(np.array([2, 0]), 3)
    array([[0., 0., 1.],
           [1., 0., 0.]], dtype=float32)
    """
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        raise DataError(f"label {labels[wrong[0]]} at place {wrong[0]} is not in 0..{classes - 1}")
    return np.eye(classes, dtype=np.float32)[labels]


def _flip(x: np.ndarray, which: np.ndarray) -> np.ndarray:
    """Mirror the images where `which` (B,) is true."""
    out = x.copy()
    out[which] = x[which, :, :, ::-1]
    return out
