"""Augmentation against plain loops, out of place, for both kinds of images."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyvit.data import (
    DataError,
    alternating_flip,
    cutout,
    mixup,
    normalize,
    one_hot,
    random_crop,
    random_flip,
    standard_augment,
)

SEEDS = st.integers(0, 1000)
SHAPES = st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(2, 9), st.integers(2, 9))


def batch(shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).integers(0, 256, shape).astype(dtype)


@given(SHAPES, SEEDS, st.sampled_from([np.uint8, np.float32]), st.data())
def test_crop_is_what_a_loop_does(shape, seed, dtype, data):
    x = batch(shape, seed, dtype)
    pad = data.draw(st.integers(0, min(shape[2:]) - 1))
    y = random_crop(x, pad, np.random.default_rng(seed))
    down, right = np.random.default_rng(seed).integers(0, 2 * pad + 1, (2, len(x)))
    for i in range(len(x)):
        padded = np.pad(x[i], ((0, 0), (pad, pad), (pad, pad)), mode="reflect")
        assert np.array_equal(y[i], padded[:, down[i] : down[i] + shape[2], right[i] : right[i] + shape[3]])
    assert y.dtype == dtype and y.flags.c_contiguous and not np.shares_memory(x, y)


def test_crop_visits_every_place():
    x = np.broadcast_to(np.arange(32, dtype=np.float32), (2000, 1, 32, 32))
    middle = random_crop(x, 2, np.random.default_rng(0))[:, 0, 16, 16]
    assert sorted(set(middle)) == [14, 15, 16, 17, 18]
    for pad in (-1, 32):
        with pytest.raises(ValueError, match="expected 0 to 31"):
            random_crop(x, pad, np.random.default_rng(0))


@given(SHAPES, SEEDS)
def test_flip_is_what_a_loop_does(shape, seed):
    x = batch(shape, seed)
    y = random_flip(x, np.random.default_rng(seed))
    which = np.random.default_rng(seed).random(len(x)) < 0.5
    for i in range(len(x)):
        assert np.array_equal(y[i], x[i][:, :, ::-1] if which[i] else x[i])


@given(st.lists(st.integers(0, 60_000), min_size=1, max_size=20), st.integers(0, 10))
def test_alternating_flip_shows_both_sides_in_two_epochs(indices, epoch):
    x = batch((len(indices), 1, 4, 4))
    one, two, three = (alternating_flip(x, np.array(indices), epoch + i) for i in range(3))
    assert np.array_equal(one[:, :, :, ::-1], two) and np.array_equal(one, three)


def test_alternating_flip_starts_with_fair_coins():
    x = np.broadcast_to(np.arange(2.0), (50_000, 1, 1, 2))
    coins = alternating_flip(x, np.arange(50_000), 0)[:, 0, 0, 0]
    assert abs(coins.mean() - 0.5) < 0.01
    pairs = coins[:-1] + 2 * coins[1:]
    assert len(np.unique(pairs)) == 4  # neighbours are not always alike or always different


@given(SHAPES, SEEDS, st.integers(0, 12))
def test_cutout_is_what_a_loop_does(shape, seed, size):
    x = batch(shape, seed) + 1
    y = cutout(x, size, np.random.default_rng(seed))
    rng = np.random.default_rng(seed)
    rows, columns = rng.integers(0, shape[2], len(x)), rng.integers(0, shape[3], len(x))
    for i in range(len(x)):
        expected = x[i].copy()
        top, left = rows[i] - size // 2, columns[i] - size // 2
        expected[:, max(top, 0) : max(top + size, 0), max(left, 0) : max(left + size, 0)] = 0
        assert np.array_equal(y[i], expected)


def test_cutout_keeps_the_type():
    assert cutout(batch((2, 3, 8, 8), dtype=np.uint8), 3, np.random.default_rng(0)).dtype == np.uint8
    assert cutout(batch((2, 3, 8, 8)), 3, np.random.default_rng(0)).dtype == np.float32
    with pytest.raises(ValueError, match="cutout of size -1"):
        cutout(batch((2, 3, 8, 8)), -1, np.random.default_rng(0))


@given(SEEDS, st.floats(0.1, 5))
def test_mixup(seed, alpha):
    x, targets = batch((6, 3, 4, 4), seed), one_hot(np.arange(6) % 4, 4)
    mixed, soft = mixup(x, targets, alpha, np.random.default_rng(seed))
    rng = np.random.default_rng(seed)
    share, other = rng.beta(alpha, alpha), rng.permutation(6)
    np.testing.assert_allclose(mixed, share * x + (1 - share) * x[other], rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(soft, share * targets + (1 - share) * targets[other], atol=1e-6)
    np.testing.assert_allclose(soft.sum(axis=1), 1, rtol=1e-6)
    assert mixed.dtype == soft.dtype == np.float32


def test_mixup_says_what_it_needs(rng):
    x, targets = batch((4, 3, 8, 8)), one_hot(np.arange(4), 4)
    with pytest.raises(ValueError, match="normalize them first"):
        mixup(x.astype(np.uint8), targets, 1.0, rng)
    with pytest.raises(ValueError, match="use one_hot"):
        mixup(x, np.arange(4), 1.0, rng)
    with pytest.raises(ValueError, match="alpha 0"):
        mixup(x, targets, 0, rng)


def test_nothing_changes_its_input(rng):
    x, targets = batch((8, 3, 32, 32)), one_hot(np.arange(8), 10)
    before = x.copy(), targets.copy()
    for array in (x, targets):
        array.flags.writeable = False
    random_crop(x, 4, rng)
    random_flip(x, rng)
    alternating_flip(x, np.arange(8), 1)
    cutout(x, 8, rng)
    mixup(x, targets, 0.2, rng)
    normalize(x, [0.5] * 3, [0.2] * 3)
    standard_augment(cutout_size=4)(x, rng, np.arange(8), 0)
    np.testing.assert_array_equal(x, before[0])
    np.testing.assert_array_equal(targets, before[1])


@given(SEEDS)
def test_normalize(seed):
    x, mean, std = batch((3, 3, 5, 5), seed, np.uint8), np.array([0.49, 0.48, 0.45]), np.array([0.25, 0.24, 0.26])
    y = normalize(x, mean, std)
    np.testing.assert_allclose(y, (x / 255 - mean[:, None, None]) / std[:, None, None], atol=1e-6)
    assert y.dtype == np.float32
    np.testing.assert_allclose(normalize((x / 255).astype(np.float32), mean, std), y, atol=1e-5)
    assert np.array_equal(normalize(x[0], mean, std), y[0])


def test_one_hot():
    assert np.array_equal(one_hot(np.array([1, 0]), 3), [[0, 1, 0], [1, 0, 0]])
    for wrong in (-1, 3):
        with pytest.raises(DataError, match=rf"label {wrong} at place 1 is not in 0\.\.2"):
            one_hot(np.array([0, wrong]), 3)


def test_standard_augment_can_be_switched_off(rng):
    x = batch((8, 3, 32, 32))
    assert np.array_equal(standard_augment(crop=0, flip=False)(x, rng, np.arange(8), 0), x)
    alternating = standard_augment(crop=0, flip="alternating")
    assert np.array_equal(alternating(x, rng, np.arange(8), 3), alternating_flip(x, np.arange(8), 3))
    assert (standard_augment(crop=0, flip=False, cutout_size=8)(x + 1, rng, np.arange(8), 0) == 0).any()
    with pytest.raises(ValueError, match="expected True, False or 'alternating'"):
        standard_augment(flip="sometimes")
