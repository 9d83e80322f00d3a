"""Optimisers: PyTorch's numbers, groups, exact resume, and what they refuse."""

import json

import numpy as np
import pytest
from compare import assert_close

import tinyvit as tv
from tinyvit import nn, optim
from tinyvit.backend import record_calls

SHAPES = [(5, 7), (7,), (2, 3, 2, 2), ()]


def _params(dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    return [nn.Parameter(rng.standard_normal(shape).astype(dtype)) for shape in SHAPES]


def _gradients(step, dtype=np.float32):
    rng = np.random.default_rng(100 + step)
    return [np.asarray(rng.standard_normal(shape) * 10.0 ** (step % 3 - 1), dtype) for shape in SHAPES]


def _steps(optimizer, params, steps, dtype=np.float32, schedule=lambda step: 1.0):
    rates = [g["lr"] for g in optimizer.param_groups]
    for step in steps:
        for group, rate in zip(optimizer.param_groups, rates):
            group["lr"] = rate * schedule(step)
        for p, g in zip(params, _gradients(step, dtype)):
            p.grad = g
        optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates):
        group["lr"] = rate


MAKERS = {
    "sgd": (lambda o, p: o.SGD(p, lr=0.1)),
    "sgd decay": (lambda o, p: o.SGD(p, lr=0.1, weight_decay=0.1)),
    "momentum": (lambda o, p: o.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01)),
    "nesterov": (lambda o, p: o.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True)),
    "adam": (lambda o, p: o.Adam(p, lr=0.01)),
    "adam decay": (lambda o, p: o.Adam(p, lr=0.01, weight_decay=0.1, betas=(0.8, 0.95), eps=1e-3)),
    "adamw": (lambda o, p: o.AdamW(p)),
    "adamw decay": (lambda o, p: o.AdamW(p, lr=0.05, weight_decay=0.3)),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", MAKERS)
def test_ten_steps_are_those_of_pytorch(name, dtype):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    ours = _params(dtype)
    theirs = [torch.nn.Parameter(torch.tensor(p.numpy())) for p in ours]
    a, b = MAKERS[name](optim, ours), MAKERS[name](torch.optim, theirs)
    for step in range(10):
        for p, q, g in zip(ours, theirs, _gradients(step, dtype)):
            p.grad, q.grad = g, torch.tensor(g)
        a.step()
        b.step()
    for p, q in zip(ours, theirs):
        assert p.dtype == dtype
        assert_close(p.numpy(), q.detach().numpy(), 2e-6 if dtype == "float32" else 1e-12, name)


@pytest.mark.parametrize("name", MAKERS)
def test_the_kernels_are_used_and_agree_with_the_references(name):
    with tv.using("numba"), record_calls() as calls:
        fast = _params()
        _steps(MAKERS[name](optim, fast), fast, range(3))
    with tv.using("numpy"):
        slow = _params()
        _steps(MAKERS[name](optim, slow), slow, range(3))
    assert len(calls) == 3 * (len(SHAPES) - 1) and all(took for _, _, took in calls)  # a 0-d array takes the reference
    for p, q in zip(fast, slow):
        assert_close(p.numpy(), q.numpy(), 1e-6, name)


@pytest.mark.parametrize("name", MAKERS)
def test_resuming_from_a_state_is_exact(name):
    straight, stopped, resumed = _params(), _params(), _params(seed=1)
    half = lambda step: 1 - step / 8
    _steps(MAKERS[name](optim, straight), straight, range(8), schedule=half)
    first = MAKERS[name](optim, stopped)
    _steps(first, stopped, range(4), schedule=half)
    state = first.state_dict()
    _steps(first, stopped, range(4, 6))  # a state is a copy: what follows does not change it
    second = MAKERS[name](optim, resumed)
    for p, q in zip(resumed, _params()):
        p.data = q.data
    replay = MAKERS[name](optim, resumed)
    _steps(replay, resumed, range(4), schedule=half)
    second.load_state_dict(state)
    _steps(second, resumed, range(4, 8), schedule=half)
    for p, q in zip(straight, resumed):
        assert np.array_equal(p.numpy(), q.numpy()), name


def test_the_state_is_json_but_for_its_arrays():
    params = _params()
    optimizer = optim.AdamW(params)
    params[0].grad = np.ones(SHAPES[0])
    optimizer.step()
    state = optimizer.state_dict()
    assert state["state"][1] is None and state["state"][0]["step"] == 1
    plain = json.loads(json.dumps(state, default=lambda a: a.tolist()))
    assert plain["groups"] == [{"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 1e-2}]


def test_parameters_without_a_gradient_stay_and_keep_no_state():
    params = _params()
    before = [p.numpy().copy() for p in params]
    optimizer = optim.AdamW(params, weight_decay=0.5)
    params[1].grad = np.ones(7)
    optimizer.step()
    changed = [not np.array_equal(p.numpy(), b) for p, b in zip(params, before)]
    assert changed == [False, True, False, False] and len(optimizer.state) == 1
    optimizer.zero_grad()
    assert all(p.grad is None for p in params)


def test_groups_have_their_own_settings():
    a, b = nn.Parameter(np.ones(2)), nn.Parameter(np.ones(2))
    optimizer = optim.SGD([{"params": a, "lr": 1.0}, {"params": [b], "weight_decay": 0.5}], lr=0.1)
    a.grad = b.grad = np.ones(2)
    optimizer.step()
    np.testing.assert_allclose(a.numpy(), 0.0)
    np.testing.assert_allclose(b.numpy(), 1 - 0.1 * 1.5)
    assert "1 parameters, lr=0.1, momentum=0.0, weight_decay=0.5" in repr(optimizer)


def test_a_transposed_gradient_is_taken_right():
    p, q = nn.Parameter(np.zeros((3, 2), np.float32)), nn.Parameter(np.zeros((3, 2), np.float32))
    g = np.arange(6, dtype=np.float32).reshape(2, 3)
    p._grad, q._grad = g.T, np.ascontiguousarray(g.T)
    for t in (p, q):
        optim.AdamW([t], lr=0.1).step()
    assert np.array_equal(p.numpy(), q.numpy()) and np.array_equal(g, np.arange(6).reshape(2, 3))


def test_a_graph_kept_over_a_step_refuses_a_second_backward():
    w = nn.Parameter(np.ones((2, 2), np.float32))
    x = tv.tensor(np.ones((2, 2), np.float32), requires_grad=True)
    optimizer = optim.SGD([w], lr=0.1)
    y = (x * w).sum()
    y.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="changed in place"):
        y.backward()
    for _ in range(2):  # and an ordinary step is not disturbed
        optimizer.zero_grad()
        (x * w).sum().backward()
        optimizer.step()


@pytest.mark.parametrize(("make", "error", "text"), [
    (lambda p: optim.SGD([]), ValueError, "SGD got no parameters"),
    (lambda p: optim.SGD([{"params": []}]), ValueError, "SGD got no parameters"),
    (lambda p: optim.SGD([p], lr=-0.1), ValueError, "lr must be 0 or more, got -0.1"),
    (lambda p: optim.AdamW([{"params": [p], "lr": float("nan")}]), ValueError, "AdamW: lr must be 0 or more, got nan"),
    (lambda p: optim.SGD([p], weight_decay=-1), ValueError, "weight_decay"),
    (lambda p: optim.SGD([p], momentum=1.0), ValueError, r"momentum must be in \[0, 1\)"),
    (lambda p: optim.SGD([p], nesterov=True), ValueError, "needs a momentum"),
    (lambda p: optim.Adam([p], betas=(0.9, 1.0)), ValueError, "betas"),
    (lambda p: optim.Adam([p], eps=-1e-8), ValueError, "eps"),
    (lambda p: optim.SGD([p, p]), ValueError, "twice"),
    (lambda p: optim.SGD([p * 2]), ValueError, "computed tensor"),
    (lambda p: optim.SGD([np.ones(3)]), TypeError, "changes tensors, got ndarray"),
    (lambda p: optim.SGD([{"weights": [p]}]), TypeError, 'a dict with "params"'),
    (lambda p: optim.SGD([{"params": [p], "beta": 1}]), ValueError, "SGD has no setting 'beta'"),
])
def test_wrong_arguments_are_named(make, error, text):
    with pytest.raises(error, match=text):
        make(nn.Parameter(np.ones(3)))


def test_a_state_of_another_optimiser_or_of_other_parameters_is_refused():
    params = _params()
    adam, sgd = optim.Adam(params), optim.SGD(params, momentum=0.9)
    _steps(adam, params, range(1))
    state = adam.state_dict()
    with pytest.raises(ValueError, match="of another optimiser"):
        sgd.load_state_dict(state)
    with pytest.raises(ValueError, match="1 groups and 4 parameters, and this has 1 and 3"):
        optim.Adam(params[:3]).load_state_dict(state)
    with pytest.raises(ValueError, match=r"parameter 0 does not fit its shape \(7,\)"):
        optim.Adam([params[1], params[0], *params[2:]]).load_state_dict(state)


def test_param_groups_spare_norms_biases_tokens_and_positions():
    class Small(nn.Module):
        def __init__(self):
            super().__init__()
            self.cls_token = nn.Parameter(np.zeros((1, 1, 4)))
            self.pos_embed = nn.Parameter(np.zeros((1, 3, 4)))
            self.layer, self.norm, self.frozen = nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4)
            self.frozen.requires_grad_(False)

    model = Small()
    decayed, others = optim.param_groups(model, 0.1)
    assert [p is model.layer.weight for p in decayed["params"]] == [True] and decayed["weight_decay"] == 0.1
    assert len(others["params"]) == 5 and others["weight_decay"] == 0.0
    assert len(optim.param_groups(nn.LayerNorm(3), 0.1)) == 1
    optim.AdamW(optim.param_groups(model, 0.1), lr=1e-3)
