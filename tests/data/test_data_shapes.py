"""The offline set: the same images each time, what the attributes say, and outlines that are where they should be."""

import time
import tracemalloc

import numpy as np
import pytest

from tinyvit.data import shapes
from tinyvit.data.distances import SHAPES, polygon


@pytest.fixture(scope="module")
def drawn():
    return shapes.generate(1000, 0)


def test_form(drawn):
    images, labels, attributes = drawn
    assert images.shape == (1000, 3, 32, 32) and images.dtype == np.uint8
    assert labels.dtype == np.int64 and (np.bincount(labels) == 100).all()
    assert all(len(values) == 1000 for values in attributes.values())
    assert len(shapes.CLASSES) == 10


def test_one_seed_one_set(drawn):
    again = shapes.generate(1000, 0)
    assert np.array_equal(drawn[0], again[0]) and np.array_equal(drawn[1], again[1])
    other = shapes.generate(1000, 1)
    assert not np.array_equal(drawn[1], other[1]) and not (drawn[0] == other[0]).all(axis=(1, 2, 3)).any()


@pytest.mark.parametrize("n", [1, 3, shapes.CHUNK, shapes.CHUNK + 1])
def test_any_number(n):
    images, labels, attributes = shapes.generate(n, 5)
    assert len(images) == len(labels) == len(attributes["place"]) == n
    with pytest.raises(ValueError, match="cannot draw 0 images"):
        shapes.generate(0, 5)


def test_attributes_say_what_is_there(drawn):
    images, labels, found = drawn
    assert (np.array(shapes.CLASSES)[labels] == found["shape"]).all()
    assert (found["color"] != found["background"]).all()
    for key, words in (("color", shapes.COLORS), ("background", shapes.COLORS)):
        assert set(found[key]) <= set(words)
    for key, words in (("pattern", shapes.PATTERNS), ("size", shapes.SIZES), ("place", shapes.PLACES)):
        assert set(found[key]) == set(words)
    assert (found["x"][np.char.find(found["place"], "left") >= 0] < 0).all()
    assert (found["y"][np.char.startswith(found["place"], "bottom")] > 0).all()
    assert found["radius"][found["size"] == "small"].max() < found["radius"][found["size"] == "large"].min()
    # plain squares have their colour in the middle, give or take light and noise
    plain = (found["shape"] == "square") & (found["pattern"] == "plain")
    middle = images[np.arange(1000), :, (found["y"] + 16).astype(int), (found["x"] + 16).astype(int)][plain] / 255
    goal = np.array([shapes.COLORS[color] for color in found["color"][plain]])
    assert np.median(np.abs(middle - goal)) < 0.12


def test_nothing_but_the_outline_gives_the_class_away(drawn):
    """The mean colours of the classes differ by no more than chance allows."""
    images, labels, _ = drawn
    colors = images.mean(axis=(2, 3))
    means = np.array([colors[labels == label].mean(axis=0) for label in range(10)])
    assert np.abs(means - colors.mean(axis=0)).max() < 4 * colors.std() / np.sqrt(100)


def test_fast_and_small():
    tracemalloc.start()
    started = time.process_time()
    shapes.generate(1400, 0)  # a tenth of the whole set
    seconds, peak = time.process_time() - started, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seconds < 2  # 0.3 on a quiet machine
    assert peak < 40e6


@pytest.mark.parametrize("name", SHAPES)
def test_outlines(name):
    """Inside and outside are where they should be, and a step of one pixel changes the distance by at most one pixel."""
    axis = np.linspace(-1.6, 1.6, 129, dtype=np.float32)
    u, v = np.meshgrid(axis, axis)
    distance = SHAPES[name](u, v)
    assert distance.dtype == np.float32
    area = (distance < 0).mean() * 3.2**2
    assert 0.9 < area < 2.8
    assert (distance[np.hypot(u, v) > 1.3] > 0).all()
    step = axis[1] - axis[0]
    assert np.abs(np.diff(distance, axis=0)).max() <= 1.01 * step and np.abs(np.diff(distance, axis=1)).max() <= 1.01 * step
    if name not in ("crescent",):  # the others are their own mirror images
        np.testing.assert_allclose(distance, distance[:, ::-1], atol=1e-5)


@pytest.mark.parametrize("sides", [3, 5, 6])
def test_polygons_have_their_corners(sides):
    corners = 2 * np.pi * np.arange(sides) / sides
    u, v = np.sin(corners).astype(np.float32), -np.cos(corners).astype(np.float32)
    np.testing.assert_allclose(polygon(u, v, sides), 0, atol=1e-6)
