"""Splits that do not overlap and are fixed, subsets that are nested, and statistics of the pixels."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyvit.data import DataError, Dataset
from tinyvit.data.dataset import SPLITS, channel_statistics, held_out, stratified_order

LABELS = st.lists(st.integers(0, 4), min_size=1, max_size=60).map(np.array)


def make(labels, name="made", images=None):
    labels = np.asarray(labels, np.int64)
    images = np.zeros((len(labels), 3, 32, 32), np.uint8) if images is None else images
    return Dataset(name, images, labels, images[:2], labels[:2], tuple("abcdefghij"), official=True, note="made for a test",
                   mean=np.zeros(3, np.float32), std=np.ones(3, np.float32))


@given(LABELS, st.integers(0, 3), st.data())
def test_prefixes_have_all_classes_in_proportion(labels, seed, data):
    order = stratified_order(labels, np.random.default_rng(seed))
    assert sorted(order) == list(range(len(labels)))
    n = data.draw(st.integers(1, len(labels)))
    share = np.bincount(labels, minlength=5) / len(labels)
    assert (np.abs(np.bincount(labels[order[:n]], minlength=5) - n * share) <= 2).all()


@given(LABELS, st.booleans())
def test_splits_are_disjoint_and_fixed(labels, tune):
    data = make(labels)
    train, val = data.split(tune)
    again, val_again = data.split(tune)
    assert np.array_equal(train, again) and np.array_equal(val, val_again)
    assert len(val) == len(labels) // 6 and len(train) == len(labels) - (1 + tune) * len(val)
    assert len(np.union1d(train, val)) == len(train) + len(val)
    if tune:  # nothing of the other list is seen
        assert not np.intersect1d(data.split()[1], np.union1d(train, val)).size


@given(LABELS.filter(lambda labels: len(labels) > 6), st.integers(0, 3), st.data())
def test_subsets_are_nested(labels, seed, data):
    made = make(labels)
    train, _ = made.split()
    small, large = sorted(data.draw(st.tuples(*[st.integers(1, len(train))] * 2)))
    assert np.array_equal(made.subset(small, seed), made.subset(large, seed)[:small])
    assert np.isin(made.subset(large, seed), train).all() and len(np.unique(made.subset(large, seed))) == large


def test_subsets_of_balanced_classes_are_balanced():
    made = make(np.arange(1200) % 10)
    assert (np.bincount(made.labels[made.subset(100)]) == 10).all()
    assert not np.array_equal(made.subset(100, 0), made.subset(100, 1))
    assert not np.intersect1d(made.subset(500, tune=True), made.split(tune=True)[1]).size
    for n in (0, 1001):
        with pytest.raises(ValueError, match=f"subset of {n} images .* 1 to 1000"):
            made.subset(n)


def test_cifar10_has_fixed_lists():
    labels = np.arange(50_000) % 10
    data = make(labels, "cifar10", np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), (50_000, 3, 32, 32), (0,) * 4))
    (train, val), (less, tuning) = data.split(), data.split(tune=True)
    assert [len(x) for x in (train, val, less, tuning)] == [45_000, 5_000, 40_000, 5_000]
    assert [len(np.unique(np.concatenate(parts))) for parts in ((train, val), (less, tuning, val))] == [50_000, 50_000]
    assert val[:5].tolist() == [4214, 10377, 5892, 43565, 22391]  # these lists never change
    assert tuning[:5].tolist() == [48147, 39811, 33490, 21655, 40588]
    assert SPLITS.stat().st_size < 30_000


def test_a_rule_for_other_sizes():
    validation, tuning = held_out(np.arange(12_000) % 10)
    assert (np.bincount(validation % 10) == 200).all() and (np.bincount(tuning % 10) == 200).all()
    assert len(held_out(np.zeros(60_000))[0]) == 5_000


@given(st.integers(0, 5))
def test_statistics(seed):
    images = np.random.default_rng(seed).integers(0, 256, (7, 3, 32, 32), dtype=np.uint8)
    mean, std = channel_statistics(images)
    np.testing.assert_allclose(mean, (images / 255).mean(axis=(0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(std, (images / 255).std(axis=(0, 2, 3)), rtol=1e-6)
    assert mean.dtype == std.dtype == np.float32


def test_statistics_of_equal_pixels():
    mean, std = channel_statistics(np.full((3000, 3, 32, 32), 200, np.uint8))
    assert np.allclose(mean, 200 / 255) and (std == 0).all()


@pytest.mark.parametrize(("images", "labels", "message"), [
    (np.zeros((2, 3, 32, 32)), [0, 1], r"float64 .* expected uint8 \(M, 3, 32, 32\)"),
    (np.zeros((2, 32, 32, 3), np.uint8), [0, 1], r"\(2, 32, 32, 3\)"),
    (np.zeros((0, 3, 32, 32), np.uint8), [], "M at least 1"),
    (np.zeros((2, 3, 32, 32), np.uint8), [0], r"labels .* expected int64 \(2,\)"),
    (np.zeros((2, 3, 32, 32), np.uint8), [0, 10], r"label 10 of image 1 of the training part is not in 0\.\.9"),
    (np.zeros((2, 3, 32, 32), np.uint8), [-1, 0], "label -1 of image 0"),
])
def test_arrays_that_do_not_fit(images, labels, message):
    with pytest.raises(DataError, match=message):
        make(labels, images=images)


def test_repr_is_short():
    assert repr(make([0, 1])) == "Dataset('made', 2 training and 2 test images, 10 classes, official=True)"
