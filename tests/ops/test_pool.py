"""What the declared cases of the pools cannot see: ties, NaN, overlap, padding and errors, on references and kernels."""

import numpy as np
import pytest

import tinyvit as tv


@pytest.fixture(params=["numpy", "numba"], autouse=True)
def on_each_backend(request):
    with tv.using(request.param):
        yield


def T(array):
    return tv.tensor(np.asarray(array, np.float32), requires_grad=True)


def test_a_peak_collects_from_every_window_it_wins():
    x = np.zeros((1, 1, 5, 5))
    x[0, 0, 2, 2] = 1
    x = T(x)
    y = tv.max_pool2d(x, 3, stride=1)
    np.testing.assert_array_equal(y.numpy()[0, 0], np.ones((3, 3)))
    y.sum().backward()
    want = np.zeros((5, 5))
    want[2, 2] = 9
    np.testing.assert_array_equal(x.grad[0, 0], want)


@pytest.mark.parametrize("pool", ["max_pool2d", "avg_pool2d"])
@pytest.mark.parametrize("size", [7, 5])
def test_rows_that_no_window_reaches_get_no_gradient(pool, size):
    x = T(np.arange(size * size).reshape(1, 1, size, size))
    y = getattr(tv, pool)(x, 2)
    assert y.shape == (1, 1, size // 2, size // 2)
    y.sum().backward()
    assert not x.grad[0, 0, -1].any() and not x.grad[0, 0, :, -1].any()
    assert x.grad.sum() == (size // 2) ** 2


def test_the_first_of_equal_values_takes_the_gradient():
    x = T(np.zeros((1, 1, 4, 4)))
    tv.max_pool2d(x, 2).sum().backward()
    np.testing.assert_array_equal(x.grad[0, 0], [[1, 0, 1, 0], [0, 0, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]])


def test_padding_never_wins_and_never_gets_a_gradient():
    x = T(-np.ones((1, 1, 2, 2)))
    y = tv.max_pool2d(x, 2, stride=1, padding=1)
    np.testing.assert_array_equal(y.numpy()[0, 0], -np.ones((3, 3)))
    y.sum().backward()
    np.testing.assert_array_equal(x.grad[0, 0], [[4, 2], [2, 1]])


def test_a_window_of_minus_infinity_gives_its_gradient_to_its_first_pixel():
    x = T(np.full((1, 1, 2, 2), -np.inf))
    y = tv.max_pool2d(x, 2, stride=1, padding=1)
    assert (y.numpy() == -np.inf).all()
    y.backward(np.ones(y.shape, np.float32))
    np.testing.assert_array_equal(x.grad[0, 0], [[4, 2], [2, 1]])


def test_nan_wins():
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    x[0, 0, 0, 0] = np.nan
    y = tv.max_pool2d(x, 2).numpy()[0, 0]
    assert np.isnan(y[0, 0]) and not np.isnan(y.ravel()[1:]).any()


def test_padding_counts_in_the_mean():
    y = tv.avg_pool2d(np.full((1, 1, 2, 2), 4.0, np.float32), 2, stride=1, padding=1).numpy()[0, 0]
    np.testing.assert_array_equal(y, [[1, 2, 1], [2, 4, 2], [1, 2, 1]])


def test_global_average():
    x = T(np.arange(24).reshape(2, 3, 2, 2))
    y = tv.global_avg_pool2d(x)
    np.testing.assert_array_equal(y.numpy(), x.numpy().mean((2, 3)))
    y.sum().backward()
    np.testing.assert_array_equal(x.grad, np.full((2, 3, 2, 2), 0.25))


@pytest.mark.parametrize("pool", ["max_pool2d", "avg_pool2d"])
@pytest.mark.parametrize(("shape", "settings", "error", "words"), [
    ((3, 4, 4), {"kernel": 2}, ValueError, ["(B, C, H, W)", "(3, 4, 4)", "unsqueeze"]),
    ((1, 1, 4, 4), {"kernel": 5}, ValueError, ["kernel 5", "height 4"]),
    ((1, 1, 4, 0), {"kernel": 1}, ValueError, ["kernel 1", "width 0"]),
    ((1, 1, 4, 4), {"kernel": 0}, ValueError, ["kernel", "at least 1"]),
    ((1, 1, 4, 4), {"kernel": 2, "stride": 0}, ValueError, ["stride", "at least 1"]),
    ((1, 1, 4, 4), {"kernel": 2, "padding": 2}, ValueError, ["padding", "half the kernel"]),
    ((1, 1, 4, 4), {"kernel": 2.0}, TypeError, ["kernel", "2.0"]),
])
def test_errors_say_what_does_not_fit(pool, shape, settings, error, words):
    with pytest.raises(error) as caught:
        getattr(tv, pool)(np.zeros(shape, np.float32), **settings)
    message = str(caught.value)
    assert message.startswith(pool) and "\n" not in message
    assert all(word in message for word in words), message


def test_global_average_of_nothing_is_an_error():
    with pytest.raises(ValueError, match="at least one pixel"):
        tv.global_avg_pool2d(np.zeros((1, 2, 0, 3), np.float32))
