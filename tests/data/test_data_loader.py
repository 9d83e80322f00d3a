"""Every image once an epoch, and each batch a function of seed, epoch and step alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyvit.data import DataError, Loader, normalize, standard_augment


def numbered(n):
    """Images whose first pixel is their number."""
    images = np.zeros((n, 3, 8, 8), np.uint8)
    images[:, 0, 0, 0] = np.arange(n)
    return images, np.arange(n) % 10


def make(n=50, batch_size=8, **options):
    return Loader(*numbered(n), batch_size, **{"shuffle": True, "seed": 3, **options})


@given(st.integers(1, 60), st.integers(1, 20), st.booleans(), st.booleans())
def test_every_image_once(n, batch_size, shuffle, drop_last):
    if drop_last and n < batch_size:
        return
    loader = make(n, batch_size, shuffle=shuffle, drop_last=drop_last)
    batches = list(loader.epoch(0))
    assert len(batches) == len(loader)
    seen = np.concatenate([(x[:, 0, 0, 0] * 255).round().astype(int) for x, _ in batches])
    labels = np.concatenate([y for _, y in batches])
    assert np.array_equal(labels, seen % 10)
    assert len(np.unique(seen)) == len(seen) == (n // batch_size * batch_size if drop_last else n)
    if not shuffle:
        assert np.array_equal(seen, np.arange(len(seen)))


def test_batches():
    images, labels = numbered(20)
    loader = Loader(images, labels.astype(np.int32), 8, shuffle=False, mean=[0.1, 0.2, 0.3], std=[0.5, 0.6, 0.7])
    x, y = next(iter(loader.epoch(0)))
    assert x.dtype == np.float32 and y.dtype == np.int64 and x.flags.c_contiguous
    assert np.array_equal(x, normalize(images[:8], [0.1, 0.2, 0.3], [0.5, 0.6, 0.7]))
    assert [len(y) for _, y in loader.epoch(0)] == [8, 8, 4]


@given(st.integers(0, 5), st.data())
def test_resuming_gives_the_same_batches(epoch, data):
    start = data.draw(st.integers(0, 7))
    whole = list(make(augment=standard_augment(crop=2)).epoch(epoch))
    rest = list(make(augment=standard_augment(crop=2)).epoch(epoch, start=start))
    assert len(rest) == len(whole) - start
    for (x, y), (xs, ys) in zip(rest, whole[start:]):
        assert np.array_equal(x, xs) and np.array_equal(y, ys)


def test_epochs_steps_and_seeds_differ():
    constant = np.random.default_rng(0).integers(0, 256, (1, 3, 32, 32), dtype=np.uint8).repeat(64, axis=0)
    firsts = []
    for seed in (0, 1):
        loader = Loader(constant, np.zeros(64, int), 32, shuffle=False, augment=standard_augment(), seed=seed)
        firsts += [x.tobytes() for epoch in (0, 1) for x, _ in loader.epoch(epoch)]
    assert len(set(firsts)) == 8
    orders = [np.concatenate([y for _, y in make(seed=seed).epoch(epoch)]).tobytes() for seed in (0, 1) for epoch in (0, 1)]
    assert len(set(orders)) == 4


def test_augment_gets_what_it_needs():
    calls = []

    def augment(x, rng, indices, epoch):
        calls.append((x[:, 0, 0, 0] * 255, rng.random(), indices, epoch))
        return x[:, :, ::-1]

    for x, _ in make(augment=augment).epoch(2):
        assert x.flags.c_contiguous
    for numbers, _, indices, epoch in calls:
        assert np.array_equal(numbers.round().astype(int), indices) and epoch == 2
    assert len({draw for _, draw, _, _ in calls}) == len(calls)


def test_floating_images():
    images = np.random.default_rng(0).random((10, 3, 8, 8))
    x, _ = next(iter(Loader(images, np.zeros(10, int), 10, shuffle=False).epoch(0)))
    assert x.dtype == np.float32
    np.testing.assert_allclose(x, images, rtol=1e-6)


def test_the_data_are_left_alone():
    images, labels = numbered(20)
    images.flags.writeable = labels.flags.writeable = False
    for x, y in Loader(images, labels, 8, shuffle=True, augment=standard_augment(cutout_size=3)).epoch(0):
        x += 1
        y += 1
    for left, right in zip((images, labels), numbered(20)):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize(("options", "message"), [
    ({"batch_size": 0}, "batch_size is 0"), ({"batch_size": -3}, "batch_size is -3"), ({"seed": -1}, "seed is -1"),
    ({"mean": [0.5]}, "three numbers each"), ({"std": [0.1, 0, 0.1]}, "std above 0"),
    ({"mean": [np.nan, 0, 0]}, "three numbers"),
    ({"batch_size": 51, "drop_last": True}, "50 images give no batch of 51"),
])
def test_arguments_that_make_no_sense(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


@pytest.mark.parametrize(("epoch", "start"), [(-1, 0), (0, -1), (0, 8)])
def test_epochs_that_are_none(epoch, start):
    with pytest.raises(ValueError, match=f"epoch {epoch} from step {start}; expected"):
        make().epoch(epoch, start)
    assert list(make().epoch(0, 7)) == []


@pytest.mark.parametrize(("images", "labels", "message"), [
    (np.zeros((4, 8, 8)), np.zeros(4, int), r"\(M, 3, H, W\)"),
    (np.zeros((4, 8, 8, 3)), np.zeros(4, int), r"\(4, 8, 8, 3\)"),
    (np.zeros((4, 3, 8, 8), np.int64), np.zeros(4, int), "int64"),
    (np.zeros((0, 3, 8, 8)), np.zeros(0, int), "at least one"),
    (np.zeros((4, 3, 8, 8)), np.zeros(5, int), r"labels are int64 \(5,\); expected whole numbers \(4,\)"),
    (np.zeros((4, 3, 8, 8)), np.zeros(4), "labels are float64"),
    (np.zeros((4, 3, 8, 8)), np.array([0, -1, 0, 0]), "label -1 of image 1 is out of range"),
    (np.zeros((4, 3, 8, 8)), np.array([0, 0, 0, 10]), "label 10 of image 3 .* expected 0 to 9"),
])
def test_data_that_do_not_fit(images, labels, message):
    with pytest.raises(DataError, match=message):
        Loader(images, labels, 2, shuffle=False, classes=10)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_pixels_that_are_not_finite(bad):
    images = np.zeros((2100, 3, 4, 4), np.float32)
    images[2050, 1, 2, 3] = bad
    with pytest.raises(DataError, match="image 2050 has NaN or infinite pixels"):
        Loader(images, np.zeros(2100, int), 2, shuffle=False)
