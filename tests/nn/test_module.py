"""Module: what it finds by itself, its state, its modes, and what it says when it is used wrongly."""

import copy
import pickle

import numpy as np
import pytest

import tinyvit as tv
from tinyvit import nn


class Scaled(nn.Module):
    """Own parameters, a buffer, modules in three ways."""

    def __init__(self, rng=None):
        super().__init__()
        self.first = nn.Linear(3, 4, rng=rng)
        self.scale = nn.Parameter(np.ones(4, np.float32))
        self.rest = nn.ModuleList([nn.Linear(4, 4, rng=rng), nn.Sequential(nn.ReLU(), nn.Linear(4, 2, rng=rng))])
        self.mean = np.zeros(4, np.float32)
        self._cache = np.ones(5)

    def forward(self, x):
        x = self.first(x) * self.scale
        for part in self.rest:
            x = part(x)
        return x


NAMES = ["scale", "mean", "first.weight", "first.bias", "rest.0.weight", "rest.0.bias", "rest.1.1.weight", "rest.1.1.bias"]


def test_parameters_modules_and_buffers_are_found_in_order():
    model = Scaled()
    assert list(model.state_dict()) == NAMES
    assert [n for n, _ in model.named_parameters()] == [n for n in NAMES if n != "mean"]
    assert [n for n, _ in model.named_modules()] == ["", "first", "rest", "rest.0", "rest.1", "rest.1.0", "rest.1.1"]
    assert [n for n, _ in model.named_buffers()] == ["mean"]
    assert [m is model.first or m is model.rest for m in model.children()] == [True, True]
    assert model.num_parameters() == 4 + 16 + 20 + 10
    model.first.requires_grad_(False)
    assert model.num_parameters(trainable=True) == 4 + 20 + 10


def test_a_shared_parameter_is_one_parameter_under_two_names():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    assert [n for n, _ in model.named_parameters()] == ["0.weight", "0.bias", "1.bias"]
    assert list(model.state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    shared = nn.Sequential(model[0], model[0])
    assert [n for n, _ in shared.named_modules()] == ["", "0"]


@pytest.mark.parametrize("container", [list, tuple, lambda parts: {"a": parts[0]}])
def test_modules_hidden_in_a_python_container_are_refused(container):
    model = nn.Module()
    model.parts = container([nn.Linear(2, 2)])
    with pytest.raises(TypeError, match=r"Module\.parts is a .*nn\.ModuleList"):
        list(model.parameters())


def test_a_list_filled_after_it_was_assigned_is_refused_too():
    model = nn.Module()
    model.parts = []
    model.parts.append(nn.Linear(2, 2))
    with pytest.raises(TypeError, match=r"nn\.ModuleList"):
        model.state_dict()


def test_forgetting_super_init_says_so():
    class Forgot(nn.Module):
        def __init__(self):
            self.layer = nn.Linear(2, 2)

    class Empty(nn.Module):
        def __init__(self):
            pass

    with pytest.raises(RuntimeError, match=r"Forgot\.layer .* call super\(\)\.__init__\(\)"):
        Forgot()
    with pytest.raises(RuntimeError, match=r"Empty\.__init__ must call super"):
        Empty()(1)


def test_a_module_without_forward_says_so():
    with pytest.raises(NotImplementedError, match=r"Module has no forward\(\)"):
        nn.Module()(1)


@pytest.mark.parametrize("value", [np.zeros((2, 2), np.float32), tv.tensor(np.zeros((2, 2)))])
def test_a_parameter_is_not_silently_replaced_by_something_that_is_none(value):
    layer = nn.Linear(2, 2)
    with pytest.raises(TypeError, match=r"Linear\.weight is a Parameter .* \.weight\.data"):
        layer.weight = value
    layer.bias = None
    layer.weight = nn.Parameter(value)
    assert [n for n, _ in layer.named_parameters()] == ["weight"]


def test_a_parameter_copies_its_data_and_becomes_float32():
    data = np.ones(3, np.float32)
    p = nn.Parameter(data)
    data[:] = 7
    assert np.array_equal(p.numpy(), [1, 1, 1])
    assert nn.Parameter([1, 2]).dtype == np.float32 and nn.Parameter(2.0).shape == () and p.requires_grad
    assert nn.Parameter(np.ones((2, 3)).T).numpy().flags.c_contiguous
    assert repr(p).startswith("parameter(")
    with pytest.raises(TypeError, match="int64"):
        nn.Parameter(np.arange(3))


# ------------------------------------------------------------------ state


def test_state_round_trips_and_is_a_copy(rng):
    a, b = Scaled(np.random.default_rng(1)), Scaled(np.random.default_rng(2))
    a.mean += 3
    state = a.state_dict()
    assert b.load_state_dict(state) == ([], [])
    for (name, p), (_, q) in zip(a.state_dict().items(), b.state_dict().items()):
        assert np.array_equal(p, q), name
    state["scale"][:] = -1
    assert np.array_equal(b.scale.numpy(), np.ones(4)) and np.array_equal(a.scale.numpy(), np.ones(4))


def test_a_state_that_does_not_fit_is_reported_whole_and_loads_nothing():
    model = Scaled()
    before = model.state_dict()
    state = {k: v + 1 for k, v in before.items()}
    del state["first.bias"], state["mean"]
    state |= {"head.weight": np.zeros(3), "scale": np.zeros(5), "rest.0.bias": np.array(["a"] * 4)}
    with pytest.raises(ValueError, match="does not fit Scaled") as error:
        model.load_state_dict(state)
    text = str(error.value)
    for part in ("2 missing from the state: mean, first.bias", "1 not in the model: head.weight", "nothing was loaded",
                 "scale: (5,) given, (4,) expected", "rest.0.bias: <U1 given, numbers expected"):
        assert part in text
    assert all(np.array_equal(v, before[k]) for k, v in model.state_dict().items())


def test_not_strict_loads_what_both_sides_have_and_reports_the_rest():
    model = Scaled()
    report = model.load_state_dict({"scale": np.full(4, 2), "other": np.zeros(1)}, strict=False)
    assert report.missing == [n for n in NAMES if n != "scale"] and report.unexpected == ["other"]
    assert np.array_equal(model.scale.numpy(), np.full(4, 2)) and model.scale.dtype == np.float32
    with pytest.raises(ValueError, match=r"scale: \(3,\) given"):
        model.load_state_dict({"scale": np.zeros(3)}, strict=False)


def test_a_long_report_is_shortened():
    with pytest.raises(ValueError, match=r"40 not in the model: k0, .* and 30 more"):
        nn.ReLU().load_state_dict({f"k{i}": np.zeros(1) for i in range(40)})


def test_loading_leaves_a_live_graph_right():
    layer = nn.Linear(2, 2)
    x = tv.tensor(np.ones((1, 2), np.float32), requires_grad=True)
    old = layer.weight.detach().numpy().copy()
    y = layer(x).sum()
    layer.load_state_dict({"weight": np.zeros((2, 2)), "bias": np.zeros(2)})
    y.backward()
    np.testing.assert_allclose(x.grad[0], old.sum(axis=0), rtol=1e-6)


def test_models_can_be_deep_copied_and_pickled(rng):
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.BatchNorm2d(4))
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert all(np.array_equal(v, twin.state_dict()[k]) for k, v in model.state_dict().items())
        twin[0].weight.data[...] = 0
        assert model[0].weight.numpy().any()
        assert isinstance(twin[0].weight, nn.Parameter) and twin[0].weight.requires_grad


# ------------------------------------------------------------------ modes


def test_train_and_eval_reach_every_module_and_evaluating_restores_each():
    model = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.BatchNorm2d(2)))
    assert all(m.training for m in model.modules())
    assert model.eval() is model and not any(m.training for m in model.modules())
    model[1].train()
    with model.evaluating():
        assert not any(m.training for m in model.modules())
    with pytest.raises(ZeroDivisionError), model.evaluating():
        1 / 0  # noqa: B018
    assert [m.training for m in model.modules()] == [False, False, True, True]


def test_zero_grad_and_requires_grad():
    layer = nn.Linear(2, 2)
    layer(np.ones((1, 2), np.float32)).sum().backward()
    assert layer.weight.grad is not None
    layer.zero_grad()
    assert layer.weight.grad is None and layer.bias.grad is None
    layer.requires_grad_(False)
    assert not layer(np.ones((1, 2), np.float32)).requires_grad


def test_astype_changes_parameters_and_buffers_and_what_is_computed():
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2)).astype("float64")
    assert {v.dtype for v in model.state_dict().values()} == {np.dtype("float64")}
    assert model(np.ones((2, 1, 2, 2))).dtype == np.float64
    with pytest.raises(TypeError, match="floating"):
        model.astype(int)


def test_generators_are_found_once_in_order():
    a, b = np.random.default_rng(1), np.random.default_rng(2)
    model = nn.Sequential(nn.Dropout(0.5, a), nn.Sequential(nn.DropPath(0.1, b), nn.Dropout(0.2, a)), nn.Linear(2, 2, rng=b))
    assert list(model.generators()) == [a, b]


def test_hooks_see_and_may_replace_the_output_and_can_be_removed():
    layer, seen = nn.ReLU(), []
    remove = layer.register_forward_hook(lambda module, inputs, output: seen.append((module, inputs, output)))
    other = layer.register_forward_hook(lambda module, inputs, output: output * 2)
    x = tv.tensor([1.0, -1.0])
    y = layer(x)
    assert seen[0][0] is layer and seen[0][1] == (x,) and np.array_equal(y.numpy(), [2, 0])
    remove()
    remove()
    assert np.array_equal(layer(x).numpy(), [2, 0]) and len(seen) == 1
    other()
    assert np.array_equal(layer(x).numpy(), [1, 0])


# ------------------------------------------------------------------ containers and looks


def test_containers():
    parts = nn.ModuleList([nn.ReLU(), nn.GELU()]).append(nn.Identity())
    assert len(parts) == 3 and [type(p).__name__ for p in parts[1:]] == ["GELU", "Identity"]
    chain = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    assert isinstance(chain[:2], nn.Sequential) and chain[:2](np.zeros((4, 2), np.float32)).shape == (4, 3)
    assert chain[:2][0] is chain[0]
    x = tv.tensor([1.0])
    assert nn.Sequential()(x) is x
    with pytest.raises(IndexError):
        parts[5]
    with pytest.raises(TypeError, match="Sequential holds modules, got function: wrap"):
        nn.Sequential(lambda x: x)


def test_repr_is_a_tree():
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, groups=2), nn.GELU()))
    assert repr(model) == """Sequential(
  (0): Linear(3, 4, bias=False)
  (1): Sequential(
    (0): Conv2d(2, 4, kernel_size=(3, 3), padding=(1, 1), groups=2)
    (1): GELU()
  )
)"""


def test_summary_counts_shapes_parameters_and_operations():
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.GlobalAvgPool2d(), nn.Linear(8, 10))
    model[1].eval()
    found = model.summary((1, 3, 16, 16))
    assert found.parameters == 8 * 27 + 8 + 16 + 90 == found.trainable
    assert found.gflop == (2 * 8 * 256 * 27 + 2 * 80) / 1e9
    assert [r.output for r in found.rows] == ["1x10", "1x8x16x16", "1x8x16x16", "1x8x16x16", "1x8", "1x10"]
    assert model.training and not model[1].training and not model._hooks
    assert max(map(len, str(found).splitlines())) <= 80 and "330 parameters" in str(found)
    assert np.array_equal(model[1].running_mean, np.zeros(8))
    twice = nn.Sequential(model[0], nn.ReLU())
    assert twice.summary((2, 3, 16, 16)).gflop == 2 * 2 * 8 * 256 * 27 / 1e9


def test_summary_stops_at_its_depth_and_removes_its_hooks_after_an_error():
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2)))
    assert [r.kind for r in model.summary((1, 2), depth=1).rows] == ["Sequential", "Sequential"]
    assert model.summary((1, 2), depth=1).rows[1].parameters == 6
    with pytest.raises(ValueError):
        model.summary((1, 3))
    assert not any(m._hooks for m in model.modules())
