"""matmul, linear and embedding beyond their declared cases: known values, layouts, every size of tile edge, errors."""

import numpy as np
import pytest
from compare import assert_close

import tinyvit as tv
from tinyvit import backend
from tinyvit.ops.matmul import Matmul, column_sums, matmul_batch


def t(array, requires_grad=True):
    return tv.tensor(np.asarray(array, np.float32), requires_grad=requires_grad)


def test_matrix_times_vector():
    a, v = t(np.arange(6).reshape(2, 3)), t(np.ones(3))
    (a @ v).sum().backward()
    assert np.array_equal(a.grad, np.ones((2, 3)))
    assert np.array_equal(v.grad, [3, 5, 7])


def test_dot_product_is_a_number():
    a, b = t([1, 2, 3]), t([4, 5, 6])
    y = a @ b
    assert y.shape == () and y.item() == 32
    y.backward()
    assert np.array_equal(a.grad, [4, 5, 6])
    assert np.array_equal(b.grad, [1, 2, 3])


@pytest.mark.parametrize(("a", "b"), [((4,), (4, 3)), ((2, 3), (3,)), ((4, 2, 3), (3,)), ((3,), (4, 3, 2)),
                                      ((5, 1, 2, 3), (4, 3, 2)), ((2, 3), (5, 3, 4)),
                                      ((5, 2, 3), (3, 4)), ((1, 2, 3), (6, 3, 2))])
def test_gradients_have_the_shapes_of_their_inputs(a, b, rng):
    """<G, A B> is linear in A and in B, so <dA, A> = <dB, B> = <G, Y>: it holds only if every axis is summed once."""
    a, b = (tv.tensor(rng.standard_normal(s), requires_grad=True) for s in (a, b))
    y = a @ b
    assert y.shape == (a.numpy() @ b.numpy()).shape
    g = rng.standard_normal(y.shape)
    y.backward(g)
    assert a.grad.shape == a.shape and b.grad.shape == b.shape
    total = (g * y.numpy()).sum()
    assert (a.grad * a.numpy()).sum() == pytest.approx(total)
    assert (b.grad * b.numpy()).sum() == pytest.approx(total)


@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 5, 17, 65, 130])
def test_batch_kernel_at_every_kind_of_edge(trans_a, trans_b, rows, rng):
    pytest.importorskip("numba")
    for columns in (1, 8, 15, 16, 33):
        for depth in (1, 7, 64):
            a = rng.standard_normal((3, depth, rows) if trans_a else (3, rows, depth), dtype=np.float32)
            b = rng.standard_normal((3, columns, depth) if trans_b else (3, depth, columns), dtype=np.float32)
            y = matmul_batch.compiled(a, b, trans_a, trans_b)
            assert_close(y, matmul_batch.reference(a, b, trans_a, trans_b), 1e-6, f"{rows} {depth} {columns}")


def test_transposed_views_are_not_copied(rng):
    """The attention product q kᵀ and its gradients reach the kernel as they are stored."""
    q, k = (t(rng.standard_normal((16, 2, 20, 8))) for _ in range(2))
    pytest.importorskip("numba")
    with backend.using("numba"), backend.record_calls() as calls:
        (q @ k.swapaxes(-1, -2)).backward(np.ones((16, 2, 20, 20), np.float32))
    found = [(args[0].shape, args[2], args[3]) for kernel, args, fast in calls if kernel is matmul_batch]
    assert found == [((32, 20, 8), False, True), ((32, 20, 20), False, False), ((32, 20, 8), True, False)]


def test_only_the_gradients_asked_for(rng, monkeypatch):
    a, b = t(rng.standard_normal((2, 3))), t(rng.standard_normal((3, 4)), requires_grad=False)
    y = a @ b
    assert y.grad_fn.saved[0] is None  # A is needed only for dB
    assert isinstance(y.grad_fn, Matmul)
    y.backward(np.ones((2, 4)))
    assert b.grad is None


@pytest.mark.parametrize(("a", "b", "words"), [
    ((2, 3), (4, 5), ["(2, 3)", "(4, 5)", "axis -1", "axis -2"]), ((3,), (4,), ["(3,)", "(4,)"]),
    ((2, 3), (2, 3), ["transpose"]), ((2, 2, 3), (3, 3, 4), ["axis -3", "2 and 3"]), ((), (3,), ["()"])])
def test_matmul_errors_name_shapes_and_axis(a, b, words):
    with pytest.raises(ValueError, match="matmul") as error:
        tv.matmul(np.zeros(a, np.float32), np.zeros(b, np.float32))
    assert all(w in str(error.value) for w in words), str(error.value)


@pytest.mark.parametrize("shapes", [((2, 3), (4, 5), None), ((2, 3), (4, 3), (3,)), ((2, 3), (3,), None), ((), (4, 3), None)])
def test_linear_errors_name_the_shapes(shapes):
    x, weight, bias = (None if s is None else np.zeros(s, np.float32) for s in shapes)
    with pytest.raises(ValueError, match="linear needs") as error:
        tv.linear(x, weight, bias)
    assert str(weight.shape) in str(error.value)


def test_linear_is_matmul_plus_bias(rng):
    x, w, b = (rng.standard_normal(s) for s in ((2, 5, 3), (4, 3), (4,)))
    assert_close(tv.linear(x, w, b).numpy(), x @ w.T + b, 1e-12)


def test_column_sums_repeat_bit_for_bit_and_are_right(rng):
    pytest.importorskip("numba")
    for rows in (1, 5, 16, 17, 1000):
        x = rng.standard_normal((rows, 37), dtype=np.float32)
        first = column_sums.compiled(x)
        assert np.array_equal(first, column_sums.compiled(x))
        assert_close(first, x.sum(0, dtype=np.float64), 1e-5)


def test_embedding_adds_up_repeated_rows():
    weight = t(np.arange(8).reshape(4, 2))
    y = tv.embedding([[0, 0], [3, 0]], weight)
    assert np.array_equal(y.numpy(), [[[0, 1], [0, 1]], [[6, 7], [0, 1]]])
    y.backward(np.arange(8, dtype=np.float32).reshape(2, 2, 2))
    assert np.array_equal(weight.grad, [[0 + 2 + 6, 1 + 3 + 7], [0, 0], [0, 0], [4, 5]])


def test_embedding_errors():
    weight = np.zeros((4, 2), np.float32)
    with pytest.raises(IndexError, match="index 4 for a weight of 4 rows"):
        tv.embedding([0, 4], weight)
    with pytest.raises(IndexError, match="index -1"):
        tv.embedding([-1], weight)
    with pytest.raises(TypeError, match="integer indices, got float"):
        tv.embedding([0.5], weight)
    with pytest.raises(ValueError, match=r"\(rows, width\)"):
        tv.embedding([0], weight[0])
