"""Tensor: making one, dtypes, NumPy on either side, comparisons, and how it looks."""

import copy
import math
import operator
import pickle

import numpy as np
import pytest

import tinyvit as tv


def T(data):
    return tv.tensor(data, requires_grad=True)


# ---------------------------------------------------------------------------------------------- making one


def test_lists_become_float32_and_arrays_keep_their_dtype():
    assert tv.tensor([1, 2]).dtype == np.float32
    assert tv.tensor(3).dtype == np.float32 and tv.tensor(3).shape == ()
    assert tv.tensor(np.array([1.0])).dtype == np.float64
    assert tv.tensor(np.array([1])).dtype == np.int64
    assert tv.tensor([1.0], dtype=np.float64).dtype == np.float64
    assert tv.tensor(tv.tensor(np.array([1.0]))).dtype == np.float64


def test_tensor_copies_and_the_class_does_not():
    a = np.ones(2)
    assert not np.shares_memory(tv.tensor(a).data, a)
    assert tv.Tensor(a).data is a
    assert isinstance(tv.Tensor([1.0, 2.0]).data, np.ndarray)


@pytest.mark.parametrize("data", [[1, 2, 3], np.array([1, 2, 3]), np.array([True]), np.array([1], np.uint8)],
                         ids=["list", "int64", "bool", "uint8"])
def test_integers_cannot_require_a_gradient(data):
    with pytest.raises(TypeError, match=rf"{np.asarray(data).dtype}.*astype\(np\.float32\)"):
        tv.tensor(data, requires_grad=True)


def test_requires_grad_can_be_switched_on_a_leaf_only():
    x = tv.tensor([1.0])
    x.requires_grad = True
    y = x * 2
    with pytest.raises(RuntimeError, match=r"leaf.*detach"):
        y.requires_grad = False
    x.requires_grad = False
    assert not (x * 2).requires_grad
    with pytest.raises(TypeError, match="int64"):
        tv.tensor(np.array([1])).requires_grad = True


@pytest.mark.parametrize(("data", "error"), [
    ([[1, 2], [3]], ValueError), ("abc", (TypeError, ValueError)), ([1j], (TypeError, ValueError)), (np.array([1j]), TypeError),
    (np.array(["a"]), TypeError), (np.array([None]), TypeError)],
                         ids=["ragged", "text", "complex list", "complex", "strings", "objects"])
def test_what_is_not_numbers_is_refused(data, error):
    with pytest.raises(error):
        tv.tensor(data)


# ---------------------------------------------------------------------------------------------- dtypes

SCALARS = [2, 2.0, True, np.float64(2), np.float32(2), np.float16(2), np.int64(2), np.array(2.0), np.array(2), math.sqrt(64),
           np.sqrt(64)]
OPERATORS = [operator.add, operator.sub, operator.mul, operator.truediv, operator.pow]


@pytest.mark.parametrize("scalar", SCALARS, ids=lambda s: f"{type(s).__name__}-{getattr(s, 'dtype', '')}{s}")
@pytest.mark.parametrize("op", OPERATORS, ids=lambda f: f.__name__)
def test_scalars_on_either_side_leave_float32_alone(op, scalar):
    x = T([1.0, 2.0])
    left, right = op(scalar, x), op(x, scalar)
    for y, expected in ((left, op(float(scalar), x.numpy())), (right, op(x.numpy(), float(scalar)))):
        assert isinstance(y, tv.Tensor) and y.requires_grad and y.dtype == np.float32
        assert y.numpy() == pytest.approx(expected)
        x.grad = None
        y.sum().backward()
        assert x.grad.dtype == np.float32 and np.isfinite(x.grad).all()


def test_arrays_on_either_side_stay_in_the_graph_and_promote_as_in_numpy():
    x = T([1.0, 2.0])
    a = np.ones(2)
    for y in (a * x, x * a, np.ones((3, 1)) + x, np.ones((2, 2)) @ x, np.add(a, x), np.multiply(x, a)):
        assert isinstance(y, tv.Tensor) and y.requires_grad and y.dtype == np.float64
    assert (x * np.ones(2, np.float32)).dtype == np.float32
    assert (np.array([1, 2]) * x).dtype == np.float32
    assert (tv.tensor([True, False], dtype=bool) * x).dtype == np.float32
    assert (x + [1, 2]).dtype == np.float32  # noqa: RUF005 (an addition)
    (np.arange(2.0) * x).sum().backward()
    assert x.grad.dtype == np.float32 and x.grad.tolist() == [0, 1]


def test_ufunc_called_by_name_is_the_operator():
    x = T([1.0, 2.0])
    assert np.add(x, 2).tolist() == [3, 4] and np.subtract(2, x).tolist() == [1, 0]
    assert np.power(x, np.float64(2)).tolist() == [1, 4]
    assert np.add(x, 2).dtype == np.float32


def test_zero_d_tensor_does_not_widen_or_narrow():
    assert (T([1.0]) * tv.tensor(np.array(2.0))).dtype == np.float32
    assert (tv.tensor(np.array([1.0])) * T(2.0)).dtype == np.float64
    assert (T(1.0) * 2).dtype == np.float32


def test_integer_tensors():
    x = tv.tensor(np.array([1, 2]))
    assert (x * 2).dtype == np.int64 and (x + x).dtype == np.int64 and (-x).dtype == np.int64
    assert (x / 2).dtype == np.float32 and (x + 0.5).dtype == np.float32 and tv.exp(x).dtype == np.float32
    assert tv.tensor(np.array([250], np.uint8)).astype(np.float32).tolist() == [250]
    assert [10, 20, 30][tv.tensor(np.array(1))] == 20
    with pytest.raises(TypeError, match="float32"):
        [10, 20][T(1.0)]


def test_astype_is_in_the_graph():
    x = T([1.0, 2.0])
    y = x.astype(np.float64)
    (y * 3).sum().backward()
    assert y.dtype == np.float64 and x.grad.dtype == np.float32 and x.grad.tolist() == [3, 3]
    assert not x.astype(np.int64).requires_grad


# ---------------------------------------------------------------------------------------------- NumPy functions


def test_asarray_works_with_a_gradient_too():
    x = T([1.0, 2.0])
    assert np.asarray(x) is x.data
    assert np.asarray(x, dtype=np.float64).dtype == np.float64
    assert not np.shares_memory(np.array(x), x.data)
    with pytest.raises(ValueError, match="only by a copy"):
        np.asarray(x, dtype=np.float64, copy=False)
    assert np.allclose(x, [1, 2])
    np.testing.assert_array_equal(x, [1, 2])


@pytest.mark.parametrize(("call", "name"), [
    (np.exp, "tv.exp"), (np.log, "tv.log"), (np.negative, "tv.neg"), (np.abs, "tv.abs"), (np.sum, "tv.sum"),
    (np.mean, "tv.mean"), (np.max, "tv.max"), (np.add.reduce, "tv.sum"), (lambda t: np.concatenate([t, t]), "tv.concat"),
    (lambda t: np.stack([t, t]), "tv.stack"), (lambda t: np.where(np.array([True]), t, 0), "tv.where"),
    (lambda t: np.clip(t, 0, 1), "tv.clip"), (lambda t: np.expand_dims(t, 0), "tv.unsqueeze")])
def test_numpy_functions_that_would_lose_the_gradient_name_ours(call, name):
    with pytest.raises(TypeError, match=rf"{name}\(.*numpy\(\)"):
        call(T([1.0]))


def test_numpy_function_we_have_none_of_says_so():
    with pytest.raises(TypeError, match=r"no such op.*np\.arcsin\(t\.numpy\(\)\)"):
        np.arcsin(T([0.5]))


def test_array_cannot_take_a_tensor_in_place():
    a = np.ones(2)
    with pytest.raises(TypeError, match=r"write a = a \+ t"):
        a += T([1.0, 2.0])
    assert a.tolist() == [1, 1]


def test_what_is_not_a_number_cannot_be_combined():
    for other in ("a", None, 1j, np.array(["a"]), {}):
        with pytest.raises(TypeError):
            T([1.0]) + other


# ---------------------------------------------------------------------------------------------- Python's protocols


def test_comparisons_give_bool_tensors_without_gradient():
    x = T([1.0, 2.0, 3.0])
    for y, expected in ((x > 2, [0, 0, 1]), (x >= 2, [0, 1, 1]), (x < 2, [1, 0, 0]), (x <= 2, [1, 1, 0]), (x == 2, [0, 1, 0]),
                        (x != 2, [1, 0, 1]), (operator.gt(2, x), [1, 0, 0]), (np.array([2.0]) > x, [1, 0, 0]),
                        (operator.eq(np.float64(2), x), [0, 1, 0]), (x < tv.tensor([9.0]), [1, 1, 1])):
        assert isinstance(y, tv.Tensor) and y.dtype == bool and not y.requires_grad
        assert y.tolist() == [bool(e) for e in expected]


def test_identity_is_what_sets_and_dictionaries_use():
    x, y = T([1.0]), T([1.0])
    assert {x: 1, y: 2}[y] == 2 and len({x, y}) == 2 and x in [x]


def test_truth_length_and_numbers():
    assert tv.tensor([2.0]) and not tv.tensor(0.0)
    with pytest.raises(ValueError, match=r"\(2,\).*\.all\(\) or \.any\(\)"):
        bool(tv.tensor([1.0, 2.0]) > 0)
    assert len(tv.tensor(np.zeros((3, 2)))) == 3
    assert float(T([2.5])) == 2.5 and int(T(2.5)) == 2 and T([2.5]).item() == 2.5
    for call in (len, iter):
        with pytest.raises(TypeError, match="0-d"):
            call(tv.tensor(1.0))
    with pytest.raises(ValueError, match=r"\(2,\).*\.sum\(\) or \.mean\(\)"):
        T([1.0, 2.0]).item()


def test_iteration_goes_over_the_first_axis():
    rows = list(T([[1.0, 2.0], [3.0, 4.0]]))
    assert [r.tolist() for r in rows] == [[1, 2], [3, 4]] and all(r.requires_grad for r in rows)
    assert list(T(np.zeros((0, 3)))) == []


def test_in_place_operators_make_new_tensors():
    x = T([1.0])
    y = x
    y += 1
    y *= 3
    assert x.tolist() == [1] and y.tolist() == [6] and y.requires_grad


def test_elements_cannot_be_assigned():
    with pytest.raises(TypeError, match=r"tv\.where"):
        T([1.0])[0] = 2


def test_data_can_be_replaced_by_the_same_shape():
    x = T([1.0, 2.0])
    x.data = [3, 4]
    assert x.dtype == np.float32 and x.tolist() == [3, 4] and x.requires_grad
    x.data = tv.tensor([5.0, 6.0])
    assert x.tolist() == [5, 6]
    with pytest.raises(ValueError, match=r"\(3,\).*\(2,\)"):
        x.data = np.zeros(3)


def test_copies_are_tensors_of_their_own():
    x = T([1.0, 2.0])
    for y in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert y.requires_grad and y.tolist() == [1, 2] and not np.shares_memory(y.data, x.data)


def test_looks():
    assert repr(tv.tensor([1.0, 2.0])) == "tensor([1., 2.])"
    assert repr(T([1.0])) == "tensor([1.], requires_grad=True)"
    assert repr(T([1.0]) * 2) == "tensor([2.], grad_fn=Mul)"
    assert repr(tv.tensor(np.array([1]))) == "tensor([1], dtype=int64)"
    assert f"{tv.tensor(1.23456):.2f} {tv.tensor([1.0])}" == "1.23 tensor([1.])"
    assert len(repr(tv.tensor(np.zeros((1000, 1000))))) < 1000
    assert f"{tv.tensor([]).shape}" == "(0,)"


def test_shape_and_its_kin():
    x = T(np.zeros((2, 3)))
    assert (x.shape, x.ndim, x.size, x.is_leaf, (x * 1).is_leaf, x.T.shape) == ((2, 3), 2, 6, True, False, (3, 2))
    assert x.grad_fn is None and (x * 1).grad_fn.name == "Mul"
    assert tv.tensor([3.0, 9.0, 9.0]).argmax().item() == 1


def test_methods_are_the_functions():
    x = T([[0.5, 2.0], [1.0, 0.25]])
    for name in ("exp", "log", "sqrt", "abs", "tanh", "sigmoid", "relu", "gelu", "sum", "mean", "var", "max", "min", "softmax",
                 "flatten"):
        assert np.array_equal(getattr(x, name)().numpy(), getattr(tv, name)(x).numpy()), name
    assert x.clip(0.4, 1).tolist() == [[0.5, 1.0], [1.0, pytest.approx(0.4)]]
    assert x.reshape(4).shape == x.reshape((4,)).shape == x.reshape(-1).shape == (4,)
    assert x.unsqueeze(0).shape == (1, 2, 2) and x.unsqueeze(0).squeeze(0).shape == (2, 2)
    assert x.transpose(1, 0).tolist() == x.permute(1, 0).tolist() == x.swapaxes(0, 1).tolist() == x.T.tolist()
