"""Schedules, clipping and averaging."""

import math

import numpy as np
import pytest

import tinyvit as tv
from tinyvit import nn, optim


@pytest.mark.parametrize("make", [optim.warmup_linear, optim.warmup_cosine])
def test_a_schedule_rises_to_one_falls_and_ends_at_zero(make):
    factors = [make(100, 10)(step) for step in range(101)]
    assert factors[0] == 0.1 and factors[9] == factors[10] == 1 and factors[100] == 0
    assert 0 < factors[99] < 0.02 and factors == [make(100, 10)(s) for s in range(101)]
    assert (np.diff(factors[10:]) < 0).all() and make(100, 10)(500) == 0
    assert make(100, 0)(0) == 1 and make(4, 4)(3) == 1 and make(4, 4)(4) == 0
    assert make(100, 10, final=0.2)(100) == 0.2 and make(100, 0, final=0.2)(50) == pytest.approx(0.6)


def test_shapes_between_the_ends():
    assert optim.warmup_linear(100)(25) == pytest.approx(0.75)
    assert optim.warmup_cosine(100)(25) == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))
    assert [optim.constant()(s) for s in (0, 10**9)] == [1.0, 1.0]


@pytest.mark.parametrize("arguments", [(0, 0), (10, 11), (10, -1), (10, 1, -0.5)])
def test_impossible_schedules_are_refused(arguments):
    with pytest.raises(ValueError, match="warmup_cosine"):
        optim.warmup_cosine(*arguments)


# ------------------------------------------------------------------ clipping


def _with_gradients(*gradients):
    params = [nn.Parameter(np.zeros(np.shape(g), np.float32)) for g in gradients]
    for p, g in zip(params, gradients):
        p.grad = g
    return [*params, nn.Parameter(np.zeros(3))]


def test_clipping_scales_all_gradients_together():
    params = _with_gradients([3.0, 0.0], [[4.0]])
    assert optim.clip_grad_norm(params, 1.0) == pytest.approx(5)
    np.testing.assert_allclose(np.concatenate([p.grad.ravel() for p in params[:2]]), [0.6, 0, 0.8], rtol=1e-6)
    assert params[0].grad.dtype == np.float32


def test_small_gradients_and_none_are_left_alone():
    params = _with_gradients([3.0, 0.0], [[4.0]])
    before = params[0].grad
    assert optim.clip_grad_norm(iter(params), 5.1) == pytest.approx(5) and params[0].grad is before
    assert np.array_equal(before, [3, 0])
    assert optim.clip_grad_norm(params, math.inf) == pytest.approx(5)
    assert optim.clip_grad_norm([params[2]], 1.0) == 0.0
    assert optim.clip_grad_norm(params[0], 1.0) == pytest.approx(3)


def test_clipping_agrees_with_pytorch(rng):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    gradients = [rng.standard_normal(s).astype(np.float32) for s in ((40, 50), (7,), (2, 3, 4))]
    params, theirs = _with_gradients(*gradients), [torch.nn.Parameter(torch.zeros(g.shape)) for g in gradients]
    for p, g in zip(theirs, gradients):
        p.grad = torch.tensor(g)
    assert optim.clip_grad_norm(params, 2.0) == pytest.approx(float(torch.nn.utils.clip_grad_norm_(theirs, 2.0)), rel=1e-6)
    for p, q in zip(params, theirs):
        np.testing.assert_allclose(p.grad, q.grad.numpy(), rtol=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_gradients_that_are_no_numbers_raise_and_nothing_is_scaled(bad):
    params = _with_gradients([3.0], [0.0, bad])
    with pytest.raises(FloatingPointError, match=r"parameter 1 .*shape \(2,\).* NaN or inf"):
        optim.clip_grad_norm(params, 1.0)
    assert params[0].grad[0] == 3


def test_squares_beyond_float32_are_still_a_norm():
    params = _with_gradients([3e30, 0.0], [4e30])
    assert optim.clip_grad_norm(params, 1.0) == pytest.approx(5e30, rel=1e-6)
    np.testing.assert_allclose(params[1].grad, 0.8, rtol=1e-6)


def test_a_limit_that_is_not_positive_is_refused():
    with pytest.raises(ValueError, match="max_norm > 0, got 0"):
        optim.clip_grad_norm([], 0)


# ------------------------------------------------------------------ averaging


def _model():
    return nn.Sequential(nn.Linear(2, 3, rng=np.random.default_rng(0)), nn.BatchNorm2d(3))


def _move(model, rng):
    for p in model.parameters():
        p.data = rng.standard_normal(p.shape)
    model[1].running_mean += 1


@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_the_average_follows_its_formula(backend, rng):
    with tv.using(backend):
        model = _model()
        ema = optim.EMA(model, decay=0.25)
        expected = {k: v.astype(np.float64) for k, v in model.state_dict().items()}
        for t in range(5):
            _move(model, rng)
            ema.update()
            decay = min(0.25, (1 + t) / (10 + t))
            expected = {k: decay * v + (1 - decay) * model.state_dict()[k] for k, v in expected.items()}
        weights = model.state_dict()
        with ema.apply():
            for name, value in model.state_dict().items():
                np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-6)
        assert all(np.array_equal(v, weights[k]) for k, v in model.state_dict().items())


def test_weights_come_back_after_an_error_and_nothing_is_updated_inside():
    model = _model()
    ema = optim.EMA(model)
    _move(model, np.random.default_rng(1))
    weights = model.state_dict()
    for forbidden in (ema.update, ema.state_dict, lambda: ema.apply().__enter__()):
        with pytest.raises(RuntimeError, match="holds the averages"), ema.apply():
            forbidden()
        assert all(np.array_equal(v, weights[k]) for k, v in model.state_dict().items())
    ema.swap()
    ema.swap()
    assert all(np.array_equal(v, weights[k]) for k, v in model.state_dict().items())


def test_a_shared_parameter_is_swapped_once():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    ema = optim.EMA(model, 0.5)
    old = model[0].weight.numpy().copy()
    model[0].weight.data = np.zeros((2, 2))
    with ema.apply():
        assert np.array_equal(model[1].weight.numpy(), old)
    assert not model[0].weight.numpy().any()


def test_averages_go_on_exactly_from_their_state(rng):
    model, twin = _model(), _model()
    ema, other = optim.EMA(model, 0.5), optim.EMA(twin, 0.5)
    _move(model, rng)
    ema.update()
    state = ema.state_dict()
    twin.load_state_dict(model.state_dict())
    other.load_state_dict(state)
    ema.update()
    other.update()
    assert all(np.array_equal(v, other.state_dict()["average"][k]) for k, v in ema.state_dict()["average"].items())
    with pytest.raises(ValueError, match="of another model"):
        optim.EMA(nn.Linear(2, 3)).load_state_dict(state)
    with pytest.raises(ValueError, match=r"decay must be in \[0, 1\)"):
        optim.EMA(model, 1.0)


def test_a_graph_kept_over_a_swap_refuses_its_backward():
    w = nn.Linear(2, 2, bias=False)
    x = tv.tensor(np.ones((1, 2), np.float32), requires_grad=True)
    ema = optim.EMA(w)
    y = w(x).sum()
    with ema.apply(), pytest.raises(RuntimeError, match="changed in place"):
        y.backward()
