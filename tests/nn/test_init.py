"""How weights start, and where chance comes from."""

import numpy as np
import pytest

import tinyvit as tv
from tinyvit import nn
from tinyvit.nn import init


def test_the_package_generator_is_reseeded_also_for_layers_that_hold_it():
    tv.manual_seed(5)
    a, drop = nn.Linear(4, 4), nn.Dropout(0.5)
    x = np.ones(100, np.float32)
    first = drop(tv.tensor(x)).numpy().copy()
    tv.manual_seed(5)
    b = nn.Linear(4, 4)
    assert np.array_equal(a.weight.numpy(), b.weight.numpy())
    assert np.array_equal(first, drop(tv.tensor(x)).numpy())
    assert not np.array_equal(first, drop(tv.tensor(x)).numpy())


def test_a_generator_of_ones_own_leaves_the_package_generator_alone():
    tv.manual_seed(1)
    a = nn.Linear(3, 3)
    tv.manual_seed(1)
    nn.Linear(3, 3, rng=np.random.default_rng(9))
    assert np.array_equal(nn.Linear(3, 3).weight.numpy(), a.weight.numpy())


def test_a_seed_in_place_of_a_generator_is_refused():
    with pytest.raises(TypeError, match=r"default_rng\(seed\)"):
        nn.Linear(2, 2, rng=3)


@pytest.mark.parametrize(("make", "bound"), [
    (lambda rng: init.kaiming_uniform((64, 100), rng), 0.1),
    (lambda rng: init.kaiming_uniform((64, 4, 5, 5), rng), 0.1),
    (lambda rng: init.bias_uniform((500, 100), rng), 0.1),
    (lambda rng: init.xavier_uniform((64, 86), rng), 0.2),
    (lambda rng: init.trunc_normal((100, 100), 0.02, rng), 0.04),
])
def test_bounded_starts_fill_their_range(make, bound, rng):
    w = make(rng)
    assert w.dtype == np.float32 and 0.95 * bound < np.abs(w).max() <= bound and abs(w.mean()) < 0.15 * bound


def test_standard_deviations(rng):
    assert init.normal((300, 300), 0.5, rng).std() == pytest.approx(0.5, rel=0.02)
    assert init.kaiming_normal((200, 10, 3, 3), rng).std() == pytest.approx((2 / 1800) ** 0.5, rel=0.02)
    # A normal cut at two standard deviations has a standard deviation of 0.8796.
    assert init.trunc_normal((300, 300), 1.0, rng).std() == pytest.approx(0.8796, rel=0.01)


def test_layers_start_as_in_pytorch(rng):
    layer = nn.Linear(100, 400, rng=rng)
    assert 0.095 < np.abs(layer.weight.numpy()).max() <= 0.1 and 0.095 < np.abs(layer.bias.numpy()).max() <= 0.1
    conv = nn.Conv2d(8, 64, 5, groups=2, rng=rng)
    assert conv.weight.shape == (64, 4, 5, 5) and 0.095 < np.abs(conv.weight.numpy()).max() <= 0.1


def test_skipped_weights_take_no_memory_until_they_are_loaded():
    with nn.skip_init():
        layer = nn.Linear(3000, 2000)
    assert layer.weight.shape == (2000, 3000) and layer.weight.numpy().strides == (0, 0)
    with pytest.raises(ValueError, match="load weights first"):
        tv.optim.SGD(layer.parameters(), lr=0.1)
    layer.load_state_dict({"weight": np.ones((2000, 3000)), "bias": np.ones(2000)})
    assert layer.weight.numpy().flags.writeable and layer.weight.numpy().sum() == 6e6
    assert nn.Linear(2, 2).weight.numpy().any()
