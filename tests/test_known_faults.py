"""Small inputs that broke other engines, from their public bug reports, with the right answers.

Rows whose machinery has its own test file are there: a read-only installation (test_backend.py), the pickle layout of
CIFAR-10 (data/).
"""

import threading
import time

import numpy as np
import pytest

import tinyvit as tv


def T(a, dtype=np.float32):
    return tv.tensor(np.asarray(a, dtype), requires_grad=True)


def test_a_tensor_used_twice_collects_both():
    x = T(1.0)
    y = 3 * x
    z = 2 * y + 5 * y
    z.backward()
    assert x.grad == 21


def test_second_backward_is_an_error_or_adds_once_more():
    a, b = T(3.0), T(2.0)
    e = (a + b) * 1.0
    e.backward()
    with pytest.raises(RuntimeError, match="retain_graph"):
        e.backward()
    a, b = T(3.0), T(2.0)
    e = (a + b) * 1.0
    e.backward(retain_graph=True)
    e.backward()
    assert a.grad == 2


def test_sixty_doublings_take_no_time():
    x = T(1.0)
    y = x
    for _ in range(60):
        y = y + y
    start = time.perf_counter()
    y.backward()
    assert time.perf_counter() - start < 5  # a walk that visits paths instead of nodes would take 2^60 steps
    assert x.grad == 2.0**60


def test_a_chain_of_100000_ops():
    x = T(1.0)
    y = x
    for _ in range(100_000):
        y = y + 1
    y.backward()
    assert x.grad == 1


@pytest.mark.parametrize(("op", "a", "b"), [
    ("add", (4, 4), (4,)), ("mul", (5, 1), (1, 4)), ("add", (3,), ()), ("mul", (2, 1, 3), (4, 1))])
def test_broadcast_gradients_have_their_inputs_shape(op, a, b, rng):
    ta, tb = T(rng.standard_normal(a)), T(rng.standard_normal(b))
    getattr(tv, op)(ta, tb).sum().backward()
    assert ta.grad.shape == a
    assert tb.grad.shape == b


def test_matrix_times_vector():
    a, v = T(np.arange(6).reshape(2, 3)), T(np.ones(3))
    (a @ v).sum().backward()
    assert np.array_equal(a.grad, np.ones((2, 3)))
    assert np.array_equal(v.grad, [3, 5, 7])


@pytest.mark.parametrize(("a", "b"), [
    ((3,), (3,)), ((3,), (3, 4)), ((2, 3), (3,)), ((5, 1, 2, 3), (4, 3, 2)), ((3,), (4, 3, 2)), ((4, 2, 3), (3,))])
def test_matmul_of_every_rank(a, b, rng):
    ta, tb = T(rng.standard_normal(a), np.float64), T(rng.standard_normal(b), np.float64)
    y = ta @ tb
    assert np.allclose(y.numpy(), ta.numpy() @ tb.numpy(), rtol=1e-12)
    tv.gradcheck(tv.matmul, [ta, tb])


def test_repeated_indices_accumulate():
    x = T([1, 2, 3])
    x[[0, 0]].sum().backward()
    assert np.array_equal(x.grad, [2, 0, 0])


def test_concat_with_an_empty_piece_and_a_negative_axis():
    pieces = [T(np.zeros((2, 0))), T(np.ones((2, 3))), T(np.ones((2, 1)))]
    y = tv.concat(pieces, axis=-1)
    assert np.array_equal(y.numpy(), tv.concat(pieces, axis=1).numpy())
    y.sum().backward()
    assert [p.grad.shape for p in pieces] == [(2, 0), (2, 3), (2, 1)]


def test_mean_of_squares():
    x = T([1, 2, 3])
    (x**2).mean().backward()
    assert np.allclose(x.grad, [2 / 3, 4 / 3, 2])


def test_integer_data_cannot_require_a_gradient():
    for data in ([1, 2, 3], np.array([1, 2, 3]), np.array([True])):
        with pytest.raises(TypeError, match=r"(int64|bool).*float"):
            tv.tensor(data, requires_grad=True)


@pytest.mark.parametrize("make", [
    lambda t: t * 0.5, lambda t: 0.5 * t, lambda t: t * np.float64(0.5), lambda t: np.float64(0.5) * t,
    lambda t: t / np.sqrt(64), lambda t: t**2, lambda t: np.array(0.5) * t, lambda t: t + 1,
    lambda t: np.float64(2) ** t, lambda t: np.float64(1) - t])
def test_scalars_on_either_side_stay_in_the_graph_and_float32(make):
    t = T([1, 2])
    y = make(t)
    assert isinstance(y, tv.Tensor) and y.requires_grad and y.dtype == np.float32 and y.shape == (2,)


def test_arrays_promote_as_in_numpy_and_numpy_functions_name_ours():
    t = T([1, 2, 3])
    y = np.ones(3) * t
    assert isinstance(y, tv.Tensor) and y.requires_grad and y.dtype == np.float64
    assert (np.ones(3, np.float32) * t).dtype == np.float32
    with pytest.raises(TypeError, match=r"tv\.exp"):
        np.exp(t)


def test_numbers_and_lists_alone_are_float32():
    for y in (tv.exp(2.0), tv.softmax([1.0, 2.0]), tv.add([1.0, 2.0], 3.0), tv.tensor([1.0]) * [0.1], tv.relu([1, 2])):
        assert y.dtype == np.float32
    assert (T([1, 2], np.float64) * [0.1, 0.2]).numpy()[0] == 0.1  # and lose nothing beside a float64 tensor


def test_norm_at_zero():
    x = T([0, 0])
    y = tv.norm(x)
    y.backward()
    assert y.item() == 0
    assert np.array_equal(x.grad, [0, 0])


def test_softmax_of_large_values():
    assert np.array_equal(tv.softmax(T([800, 1, 1])).numpy(), [1, 0, 0])
    assert np.array_equal(tv.softmax(T([-1e4, -1e4])).numpy(), [0.5, 0.5])
    assert np.array_equal(tv.softmax(T([[1000, 1000], [0, 0]])).numpy(), [[0.5, 0.5], [0.5, 0.5]])


def test_cross_entropy_of_a_sure_mistake():
    x = T([[0, 1000]])
    y = tv.cross_entropy(x, np.array([0]))
    y.backward()
    assert y.item() == 1000
    assert np.array_equal(x.grad, [[-1, 1]])


def test_layer_norm_of_a_constant_row():
    x, w, b = T(np.full((1, 4), 3.0)), T(np.ones(4)), T([1, 2, 3, 4])
    y = tv.layer_norm(x, w, b, eps=1e-5)
    y.backward(np.array([[1, 0, 2, 0]], np.float32))
    assert np.array_equal(y.numpy(), [[1, 2, 3, 4]])
    assert np.isfinite(x.grad).all()


def test_variance_of_values_far_from_zero():
    assert tv.var(T(1e4 + np.arange(4))).item() == 1.25


def test_batch_norm_normalises_and_moves_the_running_variance():
    x = T(np.array([1, 2, 3, 4]).reshape(4, 1))
    mean, var = np.zeros(1, np.float32), np.ones(1, np.float32)
    y = tv.batch_norm(x, running_mean=mean, running_var=var, momentum=0.1)
    assert np.allclose(y.numpy().ravel(), (np.arange(4) - 1.5) / np.sqrt(1.25 + 1e-5), atol=1e-6)
    assert np.allclose(var, 0.9 + 0.1 * 5 / 3)
    assert np.allclose(mean, 0.25)
    with pytest.raises(ValueError, match="more than one value"):
        tv.batch_norm(T([[1.0]]))


def test_gelu_exact_and_tanh():
    assert tv.gelu(T(1.0)).item() == pytest.approx(0.8413447, abs=1e-6)
    assert tv.gelu(T(1.0), approximate="tanh").item() == pytest.approx(0.8411920, abs=1e-6)


@pytest.mark.parametrize(("size", "out"), [(7, 3), (5, 2)])
def test_conv_that_leaves_a_border_uncovered(size, out, rng):
    x, w = T(rng.standard_normal((1, 1, size, size))), T(np.ones((1, 1, 2, 2)))
    y = tv.conv2d(x, w, stride=2)
    y.sum().backward()
    assert y.shape == (1, 1, out, out)
    assert not x.grad[0, 0, -1].any() and not x.grad[0, 0, :, -1].any()
    assert (x.grad[0, 0, :-1, :-1] == 1).all()


def test_conv_input_gradient_counts_windows():
    x = T(np.ones((1, 1, 3, 3)))
    tv.conv2d(x, T(np.ones((1, 1, 2, 2)))).sum().backward()
    assert np.array_equal(x.grad[0, 0], [[1, 2, 1], [2, 4, 2], [1, 2, 1]])


def test_overlapping_max_pool_adds_up():
    image = np.zeros((1, 1, 5, 5))
    image[0, 0, 2, 2] = 1
    x = T(image)
    tv.max_pool2d(x, 3, stride=1).sum().backward()
    assert x.grad[0, 0, 2, 2] == 9
    assert x.grad.sum() == 9


def test_dropout_keeps_the_mean_and_is_the_identity_in_evaluation():
    layer = tv.nn.Dropout(0.5, rng=np.random.default_rng(0))
    x = T(np.ones(1_000_000))
    assert layer(x).numpy().mean() == pytest.approx(1, abs=0.01)
    layer.eval()
    assert np.array_equal(layer(x).numpy(), x.numpy())


def test_two_threads_in_a_convolution_at_once(rng):
    x, w = rng.standard_normal((8, 4, 16, 16)).astype(np.float32), rng.standard_normal((4, 4, 3, 3)).astype(np.float32)
    expected = tv.conv2d(T(x), T(w), padding=1).numpy()
    results = []

    def work():
        for _ in range(20):
            results.append(tv.conv2d(T(x), T(w), padding=1).numpy())

    threads = [threading.Thread(target=work) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(results) == 40
    assert all(np.array_equal(r, expected) for r in results)
