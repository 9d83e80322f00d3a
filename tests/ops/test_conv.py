"""What the declared cases of conv2d cannot see: im2col, known answers, errors, what is computed, and large shapes."""

import numpy as np
import pytest

import tinyvit as tv
from tinyvit import backend
from tinyvit.ops import conv
from tinyvit.ops.microkernel import GR, NR, VL


def T(array):
    return tv.tensor(np.asarray(array, np.float32), requires_grad=True)


def by_definition(x, w, stride, padding, dilation, groups):
    """The sum in conv2d's docstring, one output value at a time."""
    B, C, H, W = x.shape
    F, _, kh, kw = w.shape
    padded = np.pad(x, ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2))
    height = (H + 2 * padding[0] - dilation[0] * (kh - 1) - 1) // stride[0] + 1
    width = (W + 2 * padding[1] - dilation[1] * (kw - 1) - 1) // stride[1] + 1
    y = np.zeros((B, F, height, width), x.dtype)
    for o in range(F):
        first = o // (F // groups) * (C // groups)
        for i in range(height):
            for j in range(width):
                rows = i * stride[0] + np.arange(kh) * dilation[0]
                columns = j * stride[1] + np.arange(kw) * dilation[1]
                window = padded[:, first:first + C // groups][:, :, rows[:, None], columns]
                y[:, o, i, j] = (window * w[o]).sum(axis=(1, 2, 3))
    return y


SETTINGS = [((1, 1), (0, 0), (1, 1), 1), ((1, 1), (1, 2), (1, 1), 1), ((2, 2), (1, 1), (1, 1), 1), ((3, 1), (0, 1), (1, 2), 1),
            ((1, 1), (1, 1), (1, 1), 2), ((2, 3), (4, 4), (2, 3), 1)]


@pytest.mark.parametrize(("stride", "padding", "dilation", "groups"), SETTINGS)
@pytest.mark.parametrize("name", ["numpy", "numba"])
def test_forward_is_the_sum_in_the_docstring(rng, name, stride, padding, dilation, groups):
    x, w = rng.standard_normal((2, 4, 9, 8), np.float32), rng.standard_normal((6, 4 // groups, 3, 2), np.float32)
    with tv.using(name):
        y = tv.conv2d(x, w, stride=stride, padding=padding, dilation=dilation, groups=groups)
    np.testing.assert_allclose(y.numpy(), by_definition(x, w, stride, padding, dilation, groups), atol=1e-5)


@pytest.mark.parametrize(("stride", "padding", "dilation", "groups"), SETTINGS)
def test_convolution_is_im2col_and_a_matrix_product(rng, stride, padding, dilation, groups):
    x, w = rng.standard_normal((2, 4, 9, 8)), rng.standard_normal((6, 4, 3, 2))
    columns = conv.im2col(x, (3, 2), stride, padding, dilation)
    y = tv.conv2d(x, w, stride=stride, padding=padding, dilation=dilation).numpy()
    np.testing.assert_allclose(y.reshape(2, 6, -1), w.reshape(6, -1) @ columns, atol=1e-12)


@pytest.mark.parametrize(("stride", "padding", "dilation", "groups"), SETTINGS)
def test_col2im_is_the_adjoint_of_im2col(rng, stride, padding, dilation, groups):
    x = rng.standard_normal((2, 3, 9, 8))
    columns = conv.im2col(x, (3, 2), stride, padding, dilation)
    other = rng.standard_normal(columns.shape)
    back = conv.col2im(other, x.shape, (3, 2), stride, padding, dilation)
    assert back.shape == x.shape
    np.testing.assert_allclose((columns * other).sum(), (x * back).sum())


# Shapes at the seams of the kernels: blocks of filters (NR, VL) and of channels, bands of rows, several images to a task,
# fewer pixels than a tile has rows, phases without a tap, images narrower than the padding.
SEAMS = [(2, 3, 5, 7, NR + 1, (3, 3), 1, 1), (1, 2, 40, 33, VL, (3, 3), 1, 1), (21, 5, 4, 4, VL + 1, (3, 3), 1, 1),
         (3, 70, 9, 9, 40, (3, 3), 2, 1), (2, 33, 18, 5, 2 * NR, (1, 1), 2, 0), (2, 3, 8, 8, 4, (4, 4), 4, 0),
         (2, 3, 7, 7, 4, (2, 2), 3, 0), (1, 1, 1, 1, 1, (1, 1), 1, 0), (1, 2, 3, 300, 3, (3, 3), 1, 1),
         (GR, 1, 1, 1, 2, (3, 3), 1, 3)]


@pytest.mark.parametrize(("B", "C", "H", "W", "F", "size", "stride", "padding"), SEAMS)
def test_kernels_equal_references(rng, B, C, H, W, F, size, stride, padding):
    x, w = rng.standard_normal((B, C, H, W), np.float32), rng.standard_normal((F, C, *size), np.float32)
    settings = ((stride, stride), (padding, padding), (1, 1), 1)
    y = conv.conv2d_forward.reference(x, w, *settings)
    g = rng.standard_normal(y.shape, np.float32)
    for kernel, args in ((conv.conv2d_forward, (x, w)), (conv.conv2d_input_gradient, (g, w, x.shape)),
                         (conv.conv2d_weight_gradient, (g, x, size))):
        want = kernel.reference(*args, *settings)
        got = kernel.compiled(*args, *settings)
        assert got.dtype == np.float32
        assert np.linalg.norm(got - want) <= 2e-6 * np.linalg.norm(want), kernel.name


def test_results_do_not_depend_on_the_number_of_threads(rng):
    import numba

    x, w = rng.standard_normal((9, 20, 20, 12), np.float32), rng.standard_normal((20, 20, 3, 3), np.float32)

    def run():
        a, b = T(x), T(w)
        with tv.using("numba"):
            y = tv.conv2d(a, b, stride=2, padding=1)
            y.backward(np.ones(y.shape, np.float32))
        return y.numpy(), a.grad, b.grad

    threads = numba.get_num_threads()
    many = run()
    try:
        numba.set_num_threads(1)
        one = run()
    finally:
        numba.set_num_threads(threads)
    assert all(np.array_equal(a, b) for a, b in zip(many, one))
    assert all(np.array_equal(a, b) for a, b in zip(many, run()))


@pytest.mark.parametrize("size", [7, 5])
def test_rows_that_no_window_reaches_get_no_gradient(size):
    x, w = T(np.ones((1, 1, size, size))), T(np.ones((1, 1, 2, 2)))
    y = tv.conv2d(x, w, stride=2)
    assert y.shape == (1, 1, size // 2, size // 2)
    y.sum().backward()
    want = np.zeros((size, size))
    want[:-1, :-1] = 1
    np.testing.assert_array_equal(x.grad[0, 0], want)


def test_overlapping_windows_add_up():
    x, w = T(np.ones((1, 1, 3, 3))), T(np.ones((1, 1, 2, 2)))
    tv.conv2d(x, w).sum().backward()
    np.testing.assert_array_equal(x.grad[0, 0], [[1, 2, 1], [2, 4, 2], [1, 2, 1]])
    np.testing.assert_array_equal(w.grad[0, 0], [[4, 4], [4, 4]])


def test_backward_computes_only_what_is_asked_for():
    x, w = np.ones((1, 2, 4, 4), np.float32), np.ones((3, 2, 3, 3), np.float32)
    with tv.using("numba"), backend.record_calls() as calls:
        tv.conv2d(x, T(w)).sum().backward()
        first = {kernel.name for kernel, *_ in calls}
        calls.clear()
        tv.conv2d(T(x), w).sum().backward()
        second = {kernel.name for kernel, *_ in calls}
    assert "conv2d_weight_gradient" in first and "conv2d_input_gradient" not in first
    assert "conv2d_input_gradient" in second and "conv2d_weight_gradient" not in second


def test_nan_stays_where_it_was(rng):
    x, w = rng.standard_normal((1, 2, 12, 12), np.float32), rng.standard_normal((3, 2, 3, 3), np.float32)
    x[0, 1, 5, 6] = np.nan
    for name in ("numpy", "numba"):
        with tv.using(name):
            bad = np.isnan(tv.conv2d(x, w, padding=1).numpy())
        want = np.zeros((12, 12), bool)
        want[4:7, 5:8] = True
        assert (bad == want).all(), name


@pytest.mark.parametrize(("shapes", "settings", "error", "words"), [
    (((3, 8, 8), (4, 3, 3, 3)), {}, ValueError, ["(B, C, H, W)", "(3, 8, 8)", "unsqueeze"]),
    (((1, 3, 8, 8), (4, 3, 3)), {}, ValueError, ["weight", "(4, 3, 3)"]),
    (((1, 3, 8, 8), (4, 2, 3, 3)), {}, ValueError, ["3 channels", "(4, 2, 3, 3)", "(4, 3, 3, 3)"]),
    (((1, 3, 8, 8), (4, 3, 3, 3), (3,)), {}, ValueError, ["bias", "(3,)", "(4,)"]),
    (((1, 3, 8, 8), (4, 3, 3, 3)), {"groups": 2}, ValueError, ["groups=2", "divide"]),
    (((1, 3, 8, 8), (4, 3, 3, 3)), {"groups": 0}, ValueError, ["groups=0"]),
    (((1, 3, 2, 8), (4, 3, 3, 3)), {}, ValueError, ["kernel 3", "height 2", "pad"]),
    (((1, 3, 8, 4), (4, 3, 3, 3)), {"dilation": 2}, ValueError, ["dilated to 5", "width 4"]),
    (((1, 3, 8, 8), (4, 3, 3, 3)), {"stride": 0}, ValueError, ["stride", "at least 1"]),
    (((1, 3, 8, 8), (4, 3, 3, 3)), {"padding": -1}, ValueError, ["padding", "at least 0"]),
    (((1, 3, 8, 8), (4, 3, 3, 3)), {"padding": "same"}, TypeError, ["padding", "'same'"]),
    (((1, 3, 8, 8), (4, 3, 3, 3)), {"stride": (1, 2, 3)}, TypeError, ["stride", "(1, 2, 3)"]),
    (((1, 3, 8, 8), (4, 3, 3, 3)), {"stride": 1.5}, TypeError, ["stride", "1.5"]),
    (((1, 3, 8, 8), (4, 3, 0, 3)), {}, ValueError, ["weight", "(4, 3, 0, 3)"]),
])
def test_errors_say_what_does_not_fit(shapes, settings, error, words):
    with pytest.raises(error) as caught:
        tv.conv2d(*(np.zeros(s, np.float32) for s in shapes), **settings)
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words), message
