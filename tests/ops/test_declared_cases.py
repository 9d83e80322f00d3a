"""Every public op on every case it declares: gradients, layouts, dtypes, kernels, mutation, and that wrong ones are caught."""

import inspect

import numpy as np
import pytest
from compare import assert_close, distance
from opcases import ALL, IDS, LAYOUTS, Run

import tinyvit as tv
from tinyvit import backend
from tinyvit.autograd import Op
from tinyvit.registry import CASES, FUNCTIONS

DIFFERENTIABLE = [(n, c) for n, c in ALL if c.differentiable]


@pytest.mark.parametrize(("name", "case"), DIFFERENTIABLE, ids=[i for i, (_, c) in zip(IDS, ALL) if c.differentiable])
def test_gradient_against_central_differences(name, case):
    run = Run(name, case)
    tv.gradcheck(run.apply, run.inputs)


@pytest.mark.parametrize(("name", "case"), ALL, ids=IDS)
def test_layouts_dtypes_and_mutation(name, case):
    """The same values in any memory layout give the same result, float32 stays float32, and nothing given is written to."""
    expected = None
    for layout in LAYOUTS:
        run = Run(name, case, np.float32, layout)
        before = [t._data.copy() for t in run.inputs]
        outputs = run.apply(*run.inputs)
        upstream = [run.upstream(y.shape, i).astype(np.float32) for i, y in enumerate(outputs)]
        kept = [g.copy() for g in upstream]
        for i, (y, g) in enumerate(zip(outputs, upstream)):
            if "dtype" not in case.params:
                assert y.dtype == np.float32, f"{layout}: result is {y.dtype}"
            y.backward(g.astype(y.dtype, copy=False), retain_graph=i < len(outputs) - 1)
        for t, b in zip(run.inputs, before):
            assert np.array_equal(t._data, b, equal_nan=True), f"{layout}: an input was written to"
            assert t.grad is None or (t.grad.dtype == np.float32 and t.grad.shape == t.shape), layout
        for g, k in zip(upstream, kept):
            assert np.array_equal(g, k), f"{layout}: the upstream gradient was written to"
        found = [y.numpy() for y in outputs] + [np.zeros(t.shape) if t.grad is None else t.grad for t in run.inputs]
        expected = expected or found
        for a, b in zip(found, expected):
            assert_close(a, b, 1e-5, f"{layout} against contiguous")


@pytest.mark.parametrize(("name", "case"), ALL, ids=IDS)
def test_gradients_are_owned_by_their_tensor(name, case):
    """Writing into one gradient changes no other array: neither another gradient, nor the upstream one, nor a value."""
    run = Run(name, case)
    outputs = run.apply(*run.inputs)
    run.backward(outputs)
    gradients = [t.grad for t in run.inputs if t.grad is not None]
    others = [t._data for t in run.inputs] + [y._data for y in outputs]
    for i, g in enumerate(gradients):
        assert g.flags.writeable
        assert not any(np.shares_memory(g, o) for o in gradients[i + 1 :] + others)


def test_every_public_op_declares_a_zero_size_case():
    without = [name for name, cases in CASES.items()
               if not any(0 in s for c in cases for s in c.inputs if not callable(s))]
    assert not without, f"no case of zero size: {without}"


# ---------------------------------------------------------------------------------------------- kernels


@pytest.fixture(scope="module")
def kernel_calls():
    """Every call a declared case makes, forward and backward, that a numba version could take."""
    with backend.using("numba"), backend.record_calls() as calls:
        for name, case in ALL:
            run = Run(name, case, np.float32)
            run.backward(run.apply(*run.inputs))
    return calls


COMPILED = sorted(name for name, kernel in backend.KERNELS.items()
                  if kernel.source is not None and kernel.reference.__module__.startswith("tinyvit.ops"))


@pytest.mark.parametrize("name", COMPILED)
def test_kernel_equals_reference(name, kernel_calls):
    kernel = backend.KERNELS[name]
    calls = [args for k, args, _ in kernel_calls if k is kernel]
    assert calls, f"no declared case reaches {name}: add a case to an op that uses it"
    for args in calls:
        ours = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
        theirs = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
        results = [kernel.compiled(*ours), kernel.reference(*theirs)]
        a, b = ([r] if not isinstance(r, tuple) else list(r) for r in results)
        if kernel.mutates:
            a, b = a + ours, b + theirs
        for x, y in zip(a, b, strict=True):
            if isinstance(x, np.ndarray):
                assert x.dtype == y.dtype, f"{name}: kernel gives {x.dtype}, reference {y.dtype}"
                assert_close(x, y, 2e-5, name)


@pytest.mark.parametrize("name", COMPILED)
def test_kernel_has_the_signature_of_its_reference(name):
    kernel = backend.KERNELS[name]
    assert list(inspect.signature(kernel.source).parameters) == list(inspect.signature(kernel.reference).parameters)


# ---------------------------------------------------------------------------------------------- wrong backwards are caught


def _op_classes() -> dict[type[Op], list[tuple]]:
    """Every Op class that the public functions use, with the differentiable cases whose graph has it."""
    found: dict[type[Op], list[tuple]] = {}
    for name, case in DIFFERENTIABLE:
        run = Run(name, case)
        seen, todo = set(), [y._op for y in run.apply(*run.inputs)]
        while todo:
            op = todo.pop()
            if op is None or op in seen:
                continue
            seen.add(op)
            todo.extend(p for p in op.parents if isinstance(p, Op))
            if (name, case) not in found.setdefault(type(op), []):
                found[type(op)].append((name, case))
    return found


OPS = _op_classes()
WRONG = {"scaled by 1.01": lambda g: g * 1.01, "negated": lambda g: -g, "zeros": np.zeros_like,
         "reversed": lambda g: np.ascontiguousarray(g.reshape(-1)[::-1].reshape(g.shape))}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("op", OPS, ids=[op.__name__ for op in OPS])
def test_a_wrong_backward_is_caught(op, wrong, monkeypatch):
    right = op.backward

    def backward(self, *gs):
        found = right(self, *gs)
        found = found if isinstance(found, tuple) else (found,)
        return tuple(None if g is None else WRONG[wrong](np.asarray(g)) for g in found)

    monkeypatch.setattr(op, "backward", backward)
    reports = (tv.gradcheck(run.apply, run.inputs, raise_on_error=False) for run in (Run(*c) for c in OPS[op]))
    assert any(not report.ok for report in reports), f"{op.__name__} with a backward {wrong} passes every case"


def test_every_op_class_is_among_those_checked():
    def below(cls):
        return {cls} | {d for c in cls.__subclasses__() for d in below(c)}

    ops = {c for c in below(Op) if c.__module__.startswith("tinyvit.ops")}
    assert ops == set(OPS), f"ops that no declared case uses: {ops ^ set(OPS)}"


def test_every_public_op_is_in_the_package():
    assert set(vars(FUNCTIONS)) == set(CASES)
    for name in CASES:
        assert getattr(tv, name) is getattr(FUNCTIONS, name)
        assert getattr(tv, name).__doc__, f"{name} has no docstring"


def test_distance_sees_what_it_should():
    assert distance([1.0, 2.0], [1.0, 2.0]) == 0
    assert distance([1.0, np.nan], [1.0, 2.0]) == np.inf
    assert distance([np.inf], [-np.inf]) == np.inf
    assert distance([1.01], [1.0]) == pytest.approx(0.01)
