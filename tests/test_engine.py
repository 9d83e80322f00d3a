"""The rules of the engine: backward, modes, hooks, in-place writes, memory, threads, errors."""

import gc
import threading
import weakref

import numpy as np
import pytest

import tinyvit as tv
from tinyvit.autograd import Op
from tinyvit.saved import overwritten


def T(data):
    return tv.tensor(data, requires_grad=True)


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


# ---------------------------------------------------------------------------------------------- gradients add up


def test_two_paths_add_up():
    x = T([1.0, 2.0])
    y = x * 3
    z = y * 2 + y * 5
    z.backward(np.ones(2))
    assert x.grad.tolist() == [21, 21]


def test_doubling_sixty_times_walks_each_op_once():
    x = T(1.0)
    y = x
    for _ in range(60):
        y = y + y
    y.backward()
    assert x.grad == 2.0**60


def test_each_backward_adds_to_grad():
    x = T([1.0, 2.0])
    for n in (1, 2, 3):
        (x * x).sum().backward()
        assert x.grad.tolist() == [2 * n, 4 * n]
    x.zero_grad()
    assert x.grad is None


def test_ops_run_after_everyone_who_used_their_result():
    """A diamond whose short side was made last: walking depth first would run the op at the top too early."""
    x = T([2.0])
    a = x * x
    b = a * 3
    b = b * b
    c = a * 5
    (b + c).sum().backward()  # 9 x⁴ + 5 x²
    assert x.grad.tolist() == [36 * 8 + 10 * 2]


BROADCAST = [((4, 4), (4,)), ((5, 1), (1, 4)), ((3,), ()), ((2, 1, 3), (4, 1)), ((0, 3), (3,)), ((1,), (0,))]


@pytest.mark.parametrize(("a", "b"), BROADCAST)
def test_gradients_have_the_shapes_of_what_was_broadcast(a, b, rng):
    x, y = T(rng.standard_normal(a)), T(rng.standard_normal(b))
    out = x * y
    g = rng.standard_normal(out.shape)
    out.backward(g)
    assert x.grad.shape == a and y.grad.shape == b
    both = (g * y.data, g * x.data)
    for t, full in zip((x, y), both):
        extra = full.ndim - t.ndim
        axes = tuple(range(extra)) + tuple(extra + i for i, n in enumerate(t.shape) if n == 1)
        assert np.allclose(t.grad, full.sum(axis=axes).reshape(t.shape))


def test_matrix_times_ones():
    a, v = T(np.arange(6, dtype=np.float32).reshape(2, 3)), T(np.ones(3, np.float32))
    (a @ v).sum().backward()
    assert a.grad.tolist() == [[1, 1, 1], [1, 1, 1]]
    assert v.grad.tolist() == [3, 5, 7]


def test_mean_of_squares():
    x = T([1.0, 2.0, 3.0])
    (x**2).mean().backward()
    assert x.grad == pytest.approx([2 / 3, 4 / 3, 2])


def test_repeated_index_adds_up():
    x = T([1.0, 2.0, 3.0])
    x[[0, 0]].sum().backward()
    assert x.grad.tolist() == [2, 0, 0]


def test_outputs_nobody_used_count_as_zero():
    x = T(np.arange(6.0))
    pieces = tv.split(x, 3)
    (pieces[2] * np.array([10.0, 20.0])).sum().backward()
    assert x.grad.tolist() == [0, 0, 0, 0, 10, 20]


def test_several_outputs_meet_in_one_backward():
    x = T(np.arange(4.0).reshape(2, 2))
    a, b = tv.unbind(x)
    (a * b).sum().backward()
    assert x.grad.tolist() == [[2, 3], [0, 1]]


def test_rows_of_an_iteration_are_in_the_graph():
    x = T(np.arange(6.0).reshape(3, 2))
    sum((row * i for i, row in enumerate(x)), tv.tensor(0.0)).sum().backward()
    assert x.grad.tolist() == [[0, 0], [1, 1], [2, 2]]


def test_backward_of_a_leaf_is_its_gradient():
    x = T([1.0, 2.0])
    x.backward([3.0, 4.0])
    x.backward(tv.tensor([1.0, 1.0]))
    assert x.grad.tolist() == [4, 5]


def test_an_input_that_requires_no_gradient_gets_none():
    x, c = T([1.0, 2.0]), tv.tensor([3.0, 4.0])
    (x * c).sum().backward()
    assert c.grad is None and x.grad.tolist() == [3, 4]


# ---------------------------------------------------------------------------------------------- one array, one owner


def test_gradients_of_two_leaves_are_two_arrays():
    x, y = T([1.0, 2.0]), T([3.0, 4.0])
    upstream = np.ones(2, np.float32)
    (x + y).backward(upstream)
    x.grad[:] = 9
    assert y.grad.tolist() == [1, 1] and upstream.tolist() == [1, 1]


def test_one_array_returned_for_two_inputs_is_not_added_into():
    class TwiceTheSum(Op):
        def forward(self, a, b):
            return 2 * (a + b)

        def backward(self, g):
            h = 2 * g
            return h, h

    x, y = T([1.0]), T([1.0])
    a, b = x * 1.0, y * 1.0
    used_again = a * 3.0
    (TwiceTheSum.apply(a, b) + used_again).sum().backward()
    assert x.grad.tolist() == [5] and y.grad.tolist() == [2]


def test_backward_may_return_its_upstream_or_a_view_of_it():
    x = T(np.arange(4.0))
    y = x.reshape(2, 2)
    z = y.T
    (z + z + y).sum().backward()
    assert x.grad.tolist() == [3, 3, 3, 3]


def test_the_upstream_array_given_stays_the_callers():
    x = T([1.0, 2.0])
    upstream = np.ones(2, np.float32)
    x.backward(upstream)
    upstream[:] = 7
    assert x.grad.tolist() == [1, 1]


def test_assigned_gradient_is_a_copy_in_the_tensors_dtype():
    x = T([1.0, 2.0])
    given = np.array([5.0, 6.0])
    x.grad = given
    given[:] = 0
    assert x.grad.tolist() == [5, 6] and x.grad.dtype == np.float32
    x.grad = tv.tensor([1.0, 1.0])
    assert x.grad.tolist() == [1, 1]
    x.grad = None
    assert x.grad is None
    with pytest.raises(ValueError, match=r"shape \(3,\).*shape \(2,\)"):
        x.grad = np.ones(3)


# ---------------------------------------------------------------------------------------------- the graph is freed


def test_second_backward_says_that_the_graph_is_gone():
    a, b = T(3.0), T(2.0)
    c = a + b
    e = c * 1
    e.backward()
    with pytest.raises(RuntimeError, match=r"is gone.*retain_graph=True"):
        e.backward()
    assert a.grad == 1, "the failed walk must leave no gradient behind"


def test_retained_graph_can_be_walked_again():
    a, b = T(3.0), T(2.0)
    e = (a + b) * 1
    e.backward(retain_graph=True)
    e.backward()
    assert a.grad == 2
    with pytest.raises(RuntimeError, match="is gone"):
        e.backward()


def test_part_of_a_freed_graph_cannot_be_walked_from_elsewhere():
    a = T(3.0)
    c = a * 2
    d, e = c * 4, c * 5
    d.backward()
    with pytest.raises(RuntimeError, match="is gone"):
        e.backward()
    assert a.grad == 8


def test_leaves_get_all_gradients_or_none():
    class Fails(Op):
        def forward(self, x):
            return x + 0

        def backward(self, g):
            raise ZeroDivisionError

    x, y = T([1.0]), T([1.0])
    z = Fails.apply(x * 2) + y * 3  # y's gradient is known before Fails raises
    with pytest.raises(ZeroDivisionError):
        z.sum().backward()
    assert x.grad is None and y.grad is None


# ---------------------------------------------------------------------------------------------- memory and depth


@pytest.mark.usefixtures("no_collector")
def test_graph_goes_with_its_tensors_without_the_collector():
    x = T(np.ones(1000))
    y = x * x
    y.retain_grad()
    y.register_hook(lambda g: None)
    z = y.sum()
    op, array = weakref.ref(y.grad_fn), weakref.ref(y._data)
    del y, z
    assert op() is None and array() is None


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("retain", [True, False])
def test_graph_goes_after_backward_without_the_collector(retain):
    x = T(np.ones(1000))
    y = x * x
    array = weakref.ref(y._data)
    z = (y * y).sum()
    z.backward(retain_graph=retain)
    del y
    assert (array() is None) is not retain, "a freed graph lets go of its arrays, a retained one keeps them"
    op = weakref.ref(z.grad_fn)
    del z
    assert array() is None and op() is None


@pytest.mark.usefixtures("no_collector")
def test_graph_goes_after_an_error_in_backward():
    class Fails(Op):
        def forward(self, x):
            return x + 0

        def backward(self, g):
            raise ZeroDivisionError

    y = Fails.apply(T([1.0]) * 2)
    op = weakref.ref(y.grad_fn)
    with pytest.raises(ZeroDivisionError):
        y.sum().backward()
    del y
    assert op() is None


@pytest.mark.usefixtures("no_collector")
def test_results_outside_the_graph_keep_nothing():
    x = T(np.ones(1000))
    with tv.no_grad():
        y = x * x
        array = weakref.ref(y._data)
        z = y.sum()
    del y
    assert array() is None and z.grad_fn is None


def test_hundred_thousand_ops_without_recursion():
    x = T(1.0)
    y = x
    for _ in range(100_000):
        y = y + 1
    y.backward(retain_graph=True)
    assert x.grad == 1
    op = weakref.ref(y.grad_fn)
    del y  # a chain this long must not overflow the stack when it goes either
    assert op() is None


# ---------------------------------------------------------------------------------------------- modes


def test_no_grad_as_block_decorator_and_after_an_exception():
    x = T([1.0])

    @tv.no_grad()
    def with_call():
        return x * 2

    @tv.no_grad
    def without_call():
        return x * 2

    with tv.no_grad():
        assert not (x * 2).requires_grad and not tv.is_grad_enabled()
        with tv.enable_grad():
            assert (x * 2).requires_grad
        assert not (x * 2).requires_grad
    assert not with_call().requires_grad and not without_call().requires_grad
    with pytest.raises(ZeroDivisionError), tv.no_grad():
        raise ZeroDivisionError
    assert tv.is_grad_enabled() and (x * 2).requires_grad
    assert with_call.__name__ == "with_call"


def test_one_no_grad_object_can_be_entered_twice():
    off = tv.no_grad()
    with off:
        with off:
            pass
        assert not tv.is_grad_enabled()
    assert tv.is_grad_enabled()


def test_leaf_made_under_no_grad_keeps_its_wish():
    with tv.no_grad():
        x = T([1.0])
    (x * 2).sum().backward()
    assert x.grad.tolist() == [2]


def test_no_grad_holds_in_its_own_thread_only():
    seen = {}
    with tv.no_grad():
        thread = threading.Thread(target=lambda: seen.update(other=tv.is_grad_enabled()))
        thread.start()
        thread.join()
        assert not tv.is_grad_enabled()
    assert seen == {"other": True}


def test_detach_shares_memory_and_stops_the_gradient():
    x = T([1.0, 2.0])
    y = x * 2
    d = y.detach()
    assert not d.requires_grad and d.is_leaf and np.shares_memory(d.data, y.data)
    (y * d).sum().backward()
    assert x.grad.tolist() == [4, 8]


def test_threads_compute_graphs_of_their_own(rng):
    arrays = [rng.standard_normal((20, 20)) for _ in range(4)]
    found = [None] * 4

    def work(i):
        for _ in range(20):
            x = T(arrays[i])
            y = x
            for _ in range(5):
                y = tv.tanh(y * 1.1 + x)
            y.sum().backward()
            found[i] = x.grad

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    in_threads = list(found)
    for i in range(4):
        work(i)
        assert np.array_equal(in_threads[i], found[i])


# ---------------------------------------------------------------------------------------------- hooks


def test_hooks_of_leaf_and_result_see_and_replace_the_gradient():
    x = T([1.0, 2.0])
    y = x * 3
    seen = []
    y.register_hook(lambda g: seen.append(g.copy()))
    y.register_hook(lambda g: g * 10)
    x.register_hook(lambda g: g + 1)
    y.sum().backward()
    assert seen[0].tolist() == [1, 1]
    assert x.grad.tolist() == [31, 31]


def test_hook_of_a_leaf_runs_once_with_the_whole_gradient():
    x = T([1.0])
    seen = []
    x.register_hook(lambda g: seen.append(float(g[0])))
    (x * 2 + x * 5).sum().backward()
    assert seen == [7]


def test_removed_hook_is_not_called():
    x = T([1.0])
    y = x * 2
    removes = [t.register_hook(lambda g: g * 100) for t in (x, y)]
    for remove in removes:
        remove()
        remove()  # a second time does no harm
    y.sum().backward()
    assert x.grad.tolist() == [2]


def test_hook_cannot_write_into_a_gradient_that_others_share():
    x, y = T([1.0, 2.0]), T([1.0, 2.0])

    def scale(g):
        g *= 10

    x.register_hook(scale)
    with pytest.raises(ValueError, match="read-only"):
        (x + y).backward(np.ones(2))


def test_gradient_a_hook_kept_is_not_written_to_later():
    x = T([1.0])
    kept = []
    x.register_hook(kept.append)
    (x * 2).sum().backward()
    x.grad[:] = 50
    assert kept[0].tolist() == [2]


def test_hook_that_returns_another_shape_is_an_error():
    x = T([1.0, 2.0])
    x.register_hook(lambda g: g[:1])
    with pytest.raises(ValueError, match=r"hook returned shape \(1,\).*\(2,\)"):
        x.sum().backward()


def test_hook_needs_a_tensor_with_a_gradient():
    with pytest.raises(RuntimeError, match="does not require a gradient"):
        tv.tensor([1.0]).register_hook(print)


def test_retain_grad_keeps_it_on_a_result():
    x = T([1.0, 2.0])
    y = x * 3
    z = y * y
    assert z.sum().grad is None
    y.retain_grad()
    y.retain_grad()  # asking twice does not count twice
    z.sum().backward(retain_graph=True)
    assert y.grad.tolist() == [6, 12] and z.grad is None
    z.sum().backward()
    assert y.grad.tolist() == [12, 24]


# ---------------------------------------------------------------------------------------------- in-place writes

CHANGED = "changed in place"


def test_write_through_data_after_the_op():
    x = T([1.0, 2.0, 3.0])
    y = (x * x).sum()
    x.data[0] = 7
    with pytest.raises(RuntimeError, match=rf"Mul kept an array of shape \(3,\).*{CHANGED}"):
        y.backward()
    assert x.grad is None


@pytest.mark.parametrize("take", [
    lambda x: x.data, lambda x: x.numpy(), lambda x: np.asarray(x), lambda x: x.data[1:], lambda x: x.detach().data,
    lambda x: x.reshape(2, 2).data, lambda x: x.reshape(2, 2).T[0].numpy(), lambda x: np.asarray(x).reshape(2, 2)])
def test_write_through_anything_taken_before_the_op(take):
    x = T([1.0, 2.0, 3.0, 4.0])
    handle = take(x)
    y = (x * x).sum()
    handle += 1
    with pytest.raises(RuntimeError, match=CHANGED):
        y.backward()


def test_write_through_a_view_of_the_result():
    x = T([1.0, 2.0, 3.0, 4.0])
    y = tv.exp(x)  # keeps its result
    y.reshape(2, 2).data[1, 1] = 0
    with pytest.raises(RuntimeError, match="Exp kept"):
        y.sum().backward()


USER_ARRAYS = {
    "operand": lambda a, w: a * w,
    "view of it as operand": lambda a, w: a[::-1] * w,
    "Tensor around it": lambda a, w: tv.Tensor(a) * w,
    "assigned to data": lambda a, w: _assigned(a) * w,
    "made a tensor by the op": lambda a, w: tv.layer_norm(a, w, tv.tensor(np.zeros(4, np.float32))),
    "condition": lambda a, w: tv.where(a.view(bool)[:4], w, w * 2),
    "soft target": lambda a, w: tv.cross_entropy(w.reshape(1, 4), a.reshape(1, 4)),
}


def _assigned(a):
    t = T(np.zeros(4, np.float32))
    t.data = a
    return t


@pytest.mark.parametrize("use", USER_ARRAYS.values(), ids=USER_ARRAYS.keys())
def test_write_into_an_array_the_caller_passed(use):
    a, w = np.array([1.0, 2.0, 4.0, 8.0], np.float32), T([1.0, 2.0, 3.0, 4.0])
    y = use(a, w).sum()
    a[:] = np.frombuffer(b"\1\0\0\1" * 4, np.float32)
    with pytest.raises(RuntimeError, match=CHANGED):
        y.backward()


def test_write_into_an_index_after_the_op_changes_nothing():
    x, index = T([1.0, 2.0, 3.0]), np.array([0, 0])
    y = x[index].sum()
    index[:] = 1
    y.backward()
    assert x.grad.tolist() == [2, 0, 0]


def test_write_into_class_numbers_after_the_op_changes_nothing():
    logits, target = T([[0.0, 0.0]]), np.array([0])
    y = tv.cross_entropy(logits, target)
    target[:] = 1
    y.backward()
    assert logits.grad == pytest.approx(np.array([[-0.5, 0.5]]))


def test_tv_tensor_copies_what_it_is_given():
    a, w = np.ones(3, np.float32), T([1.0, 2.0, 3.0])
    y = (tv.tensor(a) * w).sum()
    a[:] = 5
    y.backward()
    assert w.grad.tolist() == [1, 1, 1]


def _through_data(p):
    p.data -= 0.1 * p.grad


def _by_an_optimiser(p):
    overwritten(p._data)
    p._data -= 0.1 * p.grad


@pytest.mark.parametrize("step", [_through_data, _by_an_optimiser])
def test_step_between_two_walks_of_a_retained_graph(step):
    w = T([1.0, 2.0])
    y = (w * w).sum()
    y.backward(retain_graph=True)
    step(w)
    with pytest.raises(RuntimeError, match=CHANGED):
        y.backward()
    (w * w).sum().backward()  # a new graph is fine


def test_no_alarm_without_a_reason():
    x, a = T([1.0, 2.0, 3.0, 4.0]), np.array([2.0, 2.0, 2.0, 2.0], np.float32)
    y = (x[:2] * a[:2]).sum()
    a[2:] = 0  # another part of the same memory
    x.data[3] = 9
    y.backward()
    assert x.grad.tolist() == [2, 2, 0, 0]
    z = (x * x).sum()
    z.backward()
    x.data[:] = 0  # after backward
    (x + 1).sum().backward()  # nothing was kept
    s = x + 1
    x.data[:] = 5
    s.sum().backward()
    x.data += 0
    t = (x * x).sum()
    x.data[:] = x.data.copy()  # the same values
    t.backward()


def test_message_names_the_line_when_anomalies_are_watched():
    x = T([1.0])
    with tv.detect_anomaly():
        y = x * x  # this line
    x.data[0] = 2
    with pytest.raises(RuntimeError, match=r"at test_engine\.py:\d+: y = x \* x"):
        y.sum().backward()


# ---------------------------------------------------------------------------------------------- errors


def test_backward_without_anything_to_differentiate():
    with pytest.raises(RuntimeError, match="requires_grad=True"):
        tv.tensor([1.0]).backward()
    with tv.no_grad():
        y = T([1.0]).sum()
    with pytest.raises(RuntimeError, match="no_grad"):
        y.backward()


def test_backward_from_several_values_needs_a_gradient():
    y = T([1.0, 2.0]) * 2
    with pytest.raises(RuntimeError, match=r"shape \(2,\).*\.sum\(\)"):
        y.backward()
    with pytest.raises(ValueError, match=r"gradient of shape \(3,\) for a tensor of shape \(2,\)"):
        y.backward(np.ones(3))
    y.backward([1.0, 1.0])


def test_shapes_that_do_not_fit_name_both_shapes_the_axis_and_the_line():
    message = r"Add cannot combine shapes \(2, 3\) and \(2, 4\): on axis -1 they have 3 and 4"
    with pytest.raises(ValueError, match=message) as caught:
        T(np.zeros((2, 3))) + np.zeros((2, 4))
    assert any("test_engine.py" in note and "np.zeros((2, 4))" in note for note in caught.value.__notes__)


def test_error_deep_in_the_package_points_at_the_users_line():
    with pytest.raises(ValueError, match="reshape") as caught:
        T(np.zeros((2, 3))).reshape(4, 4)  # here
    assert any("test_engine.py" in note and "# here" in note for note in caught.value.__notes__)


def test_wrong_backward_of_an_op_is_named():
    class Narrow(Op):
        def forward(self, x):
            return x + 0

        def backward(self, g):
            return g[:1]

    class Few(Op):
        def forward(self, a, b):
            return a + b

        def backward(self, g):
            return g

    with pytest.raises(RuntimeError, match=r"Narrow.backward returned a gradient of shape \(1,\) for .* shape \(2,\)"):
        Narrow.apply(T([1.0, 2.0])).sum().backward()
    with pytest.raises(RuntimeError, match=r"Few.backward returned 1 gradients for 2 inputs"):
        Few.apply(T([1.0, 2.0]), T([1.0, 2.0])).sum().backward()


def test_nan_tracer_names_op_and_line_forward():
    message = r"Log made NaN.*forward.*\(1,\).*test_engine\.py:\d+: tv\.log"
    with pytest.raises(tv.AnomalyError, match=message), tv.detect_anomaly():
        tv.log(T([-1.0]))


def test_nan_tracer_names_op_and_line_backward():
    with tv.detect_anomaly():
        x = T([0.0])
        y = tv.sqrt(x)  # the culprit
        with pytest.raises(tv.AnomalyError, match=r"Sqrt made NaN.*backward.*test_engine\.py:\d+: y = tv\.sqrt\(x\)"):
            (y * 0.0).sum().backward()


def test_nan_tracer_lets_nan_that_was_there_before_pass():
    with tv.detect_anomaly():
        assert np.isnan((T([np.nan]) * 2).data).all()
    assert np.isnan(tv.log(T([-1.0])).data).all(), "off again"
