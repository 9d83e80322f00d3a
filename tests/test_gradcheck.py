"""gradcheck passes right gradients and says what is wrong with wrong ones."""

import numpy as np
import pytest

import tinyvit as tv
from tinyvit.autograd import Op
from tinyvit.diagnosis import diagnose


@pytest.fixture
def x(rng):
    return rng.standard_normal((3, 4))


def op(forward, backward):
    """An Op class from two functions."""
    return type("Student", (Op,), {"forward": forward, "backward": backward})


def keep(function):
    """A forward that saves its inputs."""

    def forward(self, *arrays):
        self.save(*arrays)
        return function(*arrays)

    return forward


def check(f, inputs, **options):
    return tv.gradcheck(f, inputs, raise_on_error=False, **options)


SQUARE = keep(lambda a: a * a)
MULTIPLY = keep(np.multiply)

# ---------------------------------------------------------------------------------------------- right gradients


def test_functions_ops_and_plain_arrays(x):
    assert tv.gradcheck(tv.softmax, [x])
    assert tv.gradcheck(tv.softmax, x, params={"axis": 0})
    assert tv.gradcheck(tv.mul, [tv.tensor(x), x[0]])
    assert tv.gradcheck(lambda a, b: tv.concat([a, b], axis=-1), [x, x])
    assert tv.gradcheck(op(keep(np.sin), lambda self, g: g * np.cos(self.saved[0])), [x])


def test_several_results_and_results_without_a_gradient(x):
    assert tv.gradcheck(lambda t: tv.unbind(t * t), [x])
    assert tv.gradcheck(lambda t: (t * 2, t > 0, t.sum()), [x])


def test_only_floating_inputs_are_checked(x):
    report = tv.gradcheck(lambda logits, target: tv.cross_entropy(logits, target), [x, np.array([0, 1, 3])])
    assert [a.name for a in report.arguments] == ["logits"]
    assert not check(lambda i: i * 2, [np.array([1])])


def test_inputs_are_left_alone(x):
    t = tv.tensor(x.astype(np.float32), requires_grad=True)
    before = t.numpy().copy()
    tv.gradcheck(tv.exp, [t])
    assert t.grad is None and t.dtype == np.float32 and np.array_equal(t.numpy(), before)


def test_works_inside_no_grad(x):
    with tv.no_grad():
        assert tv.gradcheck(tv.exp, [x])


def test_large_values_zero_size_scalars_and_infinities(x):
    assert tv.gradcheck(tv.softmax, [x * 1e4])
    assert tv.gradcheck(tv.softmax, [np.array([1e4, 1e4 + 1, 1e4 - 2])])
    assert tv.gradcheck(tv.exp, [np.zeros((0, 3))])
    assert tv.gradcheck(tv.exp, [np.array(0.5)])
    assert tv.gradcheck(tv.softmax, [np.array([0.0, -np.inf, 1.0])]).arguments[0].checked == 2


def test_a_zero_gradient_may_be_none_and_must_not_be_taken_for_an_error(x):
    assert tv.gradcheck(lambda a, b: a * 2, [x, x]), "b is not used"
    assert tv.gradcheck(lambda a: tv.softmax(a).sum(axis=-1), [x]), "nothing but rounding is left of this gradient"


def test_generators_start_each_call_in_the_same_state(x):
    rng = np.random.default_rng(3)
    state = rng.bit_generator.state
    assert tv.gradcheck(tv.dropout, [x], params={"p": 0.5, "rng": rng})
    assert rng.bit_generator.state == state
    assert tv.gradcheck(tv.nn.Dropout(0.5, rng=rng), [x])
    assert rng.bit_generator.state == state


class Affine:
    """What gradcheck needs of a module."""

    def __init__(self, rng):
        self.weight = tv.tensor(rng.standard_normal((4,)).astype(np.float32), requires_grad=True)
        self.bias = tv.tensor(np.zeros(4, np.float32), requires_grad=True)
        self.frozen = tv.tensor(np.ones(4, np.float32))
        self.calls = np.zeros(1)
        self.factor = 1.0

    def named_parameters(self):
        return [("weight", self.weight), ("bias", self.bias), ("frozen", self.frozen)]

    def named_buffers(self):
        return [("calls", self.calls)]

    def forward(self, images):
        self.calls += 1
        return images * self.weight * self.frozen + Scaled.apply(self.bias, by=self.factor)

    __call__ = forward


class Scaled(Op):
    """Passes x on, and `by` times its gradient back."""

    def forward(self, x, by):
        self.by = by
        return x + 0

    def backward(self, g):
        return g * self.by


def test_modules_are_checked_with_their_parameters(x, rng):
    model = Affine(rng)
    weight, data = model.weight, model.weight.data
    weight.grad = np.ones(4)
    report = tv.gradcheck(model, [x])
    assert [a.name for a in report.arguments] == ["images", "weight", "bias"]
    assert weight.data is data and weight.grad.tolist() == [1, 1, 1, 1] and model.calls == 0
    model.factor = 1.5
    with pytest.raises(tv.GradcheckError, match="bias"):
        tv.gradcheck(model, [x])
    assert weight.data is data and model.bias.dtype == np.float32, "everything is put back after a failure too"


# ---------------------------------------------------------------------------------------------- the report


def test_error_is_an_assertion_with_the_report(x):
    wrong = op(keep(lambda a: a * a), lambda self, g: g * self.saved[0])
    with pytest.raises(tv.GradcheckError) as caught:
        tv.gradcheck(wrong, [x])
    assert isinstance(caught.value, AssertionError)
    text = str(caught.value)
    assert "Student: FAILED" in text and "12 of 12 entries differ" in text and "ratio" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_report_names_argument_worst_entry_and_numbers(x):
    def backward(self, g):
        a, b = self.saved
        db = g * a
        db[1, 2] += 100
        return g * b, db

    report = check(op(lambda self, a, b: MULTIPLY(self, a, b), backward), [x, x + 5])
    assert not report and not report.ok
    a, b = report.arguments
    assert a.ok and a.error < 1e-8
    assert (b.name, b.worst, b.differ, b.checked) == ("b", (1, 2), 1, 12)
    assert b.analytic - b.numeric == pytest.approx(100)
    assert str(report).index(b.name) < str(report).index("ok, relative error"), "what is wrong comes first"


def test_names_of_arguments(x):
    def function(first, second):
        return first * second

    assert [a.name for a in check(function, [x, x]).arguments] == ["first", "second"]
    assert [a.name for a in check(lambda *xs: xs[0] * xs[1], [x, x]).arguments] == ["xs[0]", "xs[1]"]
    assert [a.name for a in check(tv.Tensor.exp, [x]).arguments] == ["self"]
    assert [a.name for a in check(op(lambda self, left: left + 0, lambda self, g: g), [x]).arguments] == ["left"]


def test_large_arrays_are_sampled_and_one_wrong_entry_is_still_found(rng):
    big = rng.standard_normal((60, 50))
    report = tv.gradcheck(tv.exp, [big], samples=20)
    assert report.arguments[0].checked == 20 and "random sample of 3000" in str(report)

    def backward(self, g):
        dx = g * np.exp(self.saved[0])
        dx[31, 17] *= 1.1
        return dx

    report = check(op(keep(np.exp), backward), [big], samples=20)
    assert report.arguments[0].worst == (31, 17)


def test_wrong_result_type_is_an_error(x):
    with pytest.raises(TypeError, match=r"returns a Tensor.*got ndarray"):
        tv.gradcheck(lambda t: t.numpy(), [x])


def test_errors_of_f_pass_through(x):
    with pytest.raises(ValueError, match="cannot combine shapes"):
        tv.gradcheck(tv.add, [x, x.T])


# ---------------------------------------------------------------------------------------------- what is wrong with f itself


def problem(f, inputs) -> str:
    report = check(f, inputs)
    assert not report.ok
    return report.problem


def test_float32_inside(x):
    assert "returned float32" in problem(lambda t: t.astype(np.float32), [x])
    sine = keep(lambda a: np.sin(a.astype(np.float32)).astype(np.float64))
    assert "computes in float32" in problem(op(sine, lambda self, g: g * np.cos(self.saved[0])), [x])


def test_writing_into_inputs(x):
    def forward(self, a):
        a[1, 2] = 0
        return a + 1

    def backward(self, g):
        self.kept *= 2
        return g

    def hold(self, a):
        self.kept = a
        return a + 1

    assert "f wrote into its argument a, first at [1, 2]" in problem(op(forward, lambda self, g: g), [x])
    assert "backward wrote into its argument" in problem(op(hold, backward), [x])


def test_writing_into_the_upstream_gradient(x):
    def backward(self, g):
        g *= 2
        return g

    assert "upstream gradient" in problem(op(lambda self, a: a * 2, backward), [x])


def test_randomness(x):
    rng = np.random.default_rng(0)
    assert "not deterministic" in problem(lambda t: tv.dropout(t, 0.5, rng), [x])


def test_exception_in_backward(x):
    assert "backward raised ZeroDivisionError" in problem(op(lambda self, a: a + 0, lambda self, g: 1 // 0), [x])


# ---------------------------------------------------------------------------------------------- diagnoses


WRONG = {
    "factor 2 is missing": (SQUARE, lambda self, g: g * self.saved[0]),
    "sign is wrong": (SQUARE, lambda self, g: -2 * g * self.saved[0]),
    "upstream gradient is missing": (SQUARE, lambda self, g: 2 * self.saved[0]),
    "multiplied in twice": (SQUARE, lambda self, g: 2 * g * g * self.saved[0]),
    "1/x times": (SQUARE, lambda self, g: 2 * g),
    "x times": (SQUARE, lambda self, g: 2 * g * self.saved[0] ** 2),
    "1.01 everywhere": (SQUARE, lambda self, g: 2.02 * g * self.saved[0]),
    "ratio 7 everywhere": (SQUARE, lambda self, g: 14 * g * self.saved[0]),
    "zero everywhere": (SQUARE, lambda self, g: 0 * g),
    "no gradient arrived": (SQUARE, lambda self, g: None),
    "wrong only where x < 0": (SQUARE, lambda self, g: 2 * g * np.abs(self.saved[0])),
    "wrong only where x > 0 (the gradient is zero there)": (SQUARE, lambda self, g: 2 * g * np.minimum(self.saved[0], 0)),
    "infinite": (SQUARE, lambda self, g: g / 0),
    "gradient is NaN": (SQUARE, lambda self, g: g * np.nan),
    "it is transposed, return its .T": (SQUARE, lambda self, g: (2 * g * self.saved[0]).T),
    "transpose instead of reshape": (SQUARE, lambda self, g: (2 * g * self.saved[0]).T.reshape(3, 4)),
    "reversed along axis 1": (SQUARE, lambda self, g: (2 * g * self.saved[0])[:, ::-1]),
    "right values in the wrong places": (SQUARE, lambda self, g: np.roll(2 * g * self.saved[0], 5)),
    "last index of axis 1": (SQUARE, lambda self, g: 2 * g * self.saved[0] * np.array([1, 1, 1, 3])),
    "zero at the wrong entries": (SQUARE, lambda self, g: 2 * g * self.saved[0] * (np.arange(12).reshape(3, 4) % 5 > 0)),
    "1/4 everywhere, and 4 is the size of axis 1": (lambda self, a: a.sum(1), lambda self, g: g[:, None] / 4 + np.zeros(4)),
    "12 everywhere, and 12 is the number of values": (lambda self, a: a.mean(), lambda self, g: np.broadcast_to(g, (3, 4))),
    "same all along axis 1: a term": (lambda self, a: a - a.mean(1, keepdims=True), lambda self, g: g),
    "same all along axis 1 but differs": (lambda self, a: a * np.array([[2], [3], [4]]), lambda self, g: g),
    "does not depend on this argument": (lambda self, a: 0 * a + 1, lambda self, g: g),
}


@pytest.mark.parametrize("cause", WRONG)
def test_diagnosis(cause, x):
    with pytest.raises(tv.GradcheckError) as caught:
        tv.gradcheck(op(*WRONG[cause]), [x])
    assert cause in " ".join(str(caught.value).split()), caught.value


@pytest.mark.parametrize(("db", "cause"), [
    (lambda g: g[0], "one slice of g: sum g over axis 0"),
    (lambda g: g[-1:], "one slice of g: sum g over axis 0"),
    (lambda g: g.mean(0), "1/3 everywhere, and 3 is the size of axis 0"),
    (lambda g: g.sum(), "something was summed"),
    (lambda g: g.sum(1), "something was summed"),
], ids=["first row", "last row", "mean", "sum of all", "sum over the wrong axis"])
def test_diagnosis_of_a_bias(db, cause, x):
    report = check(op(lambda self, a, b: a + b, lambda self, g: (g, db(g))), [x, x[0]])
    assert [a.name for a in report.arguments if not a.ok] == ["b"]
    assert cause in report.arguments[1].cause


def test_diagnosis_of_swapped_results(x):
    def backward(self, g):
        a, b = self.saved
        return g * a, g * b

    report = check(op(lambda self, a, b: MULTIPLY(self, a, b), backward), [x, x + 1])
    assert "the gradient of b: are two results" in report.arguments[0].cause
    assert "the gradient of a: are two results" in report.arguments[1].cause


def test_missing_result_of_backward_is_named(x):
    assert "returned 1 gradients for 2 inputs" in problem(op(lambda self, a, b: a + b, lambda self, g: g), [x, x])


def test_kinks_are_told_from_mistakes(x):
    x[0, 0] = x[2, 3] = 0
    report = check(tv.relu, [x])
    assert report.arguments[0].differ == 2
    assert "has a kink" in report.arguments[0].cause and "0 from the left" in report.arguments[0].cause
    x[0, 0] = x[2, 3] = 1
    assert tv.gradcheck(tv.relu, [x])
    jump = op(lambda self, a: np.floor(a), lambda self, g: 0 * g)
    assert "jumps" in check(jump, [np.array([0.5, 1.0, 2.5])]).arguments[0].cause


def test_edge_of_the_domain_is_told_from_mistakes():
    assert "NaN or infinite around [0]" in check(tv.sqrt, [np.array([0.0, 1.0])]).arguments[0].cause


def test_gradient_lost_on_the_way(x):
    report = check(lambda a: tv.Tensor(a.numpy() * 2.0), [x])
    assert "left the graph" in report.arguments[0].cause


# ---------------------------------------------------------------------------------------------- diagnose, by itself


def test_diagnose_right_and_unknown(x, rng):
    assert diagnose(x, x) == ""
    assert diagnose(rng.standard_normal((3, 4)), x) == ""


@pytest.mark.parametrize(("analytic", "numeric", "cause"), [
    (np.ones((2, 3, 4)), np.full((3, 4), 2.0), "sum the gradient over axis 0"),
    (np.ones((3, 4)), np.full((3, 1), 4.0), "sum the gradient over axis 1"),
    (np.arange(12.0).reshape(4, 3), np.arange(12.0).reshape(4, 3).T, "return its .T"),
    (np.arange(24.0).reshape(2, 3, 4), np.arange(24.0).reshape(2, 3, 4).transpose(2, 0, 1), "transpose it by (2, 0, 1)"),
    (np.arange(12.0), np.arange(12.0).reshape(3, 4), "reshape it"),
    (np.ones(4), np.ones((3, 4)), "should be spread back"),
    (np.ones((5, 5)), np.ones((3, 4)), "they must be equal"),
    (None, np.ones(3), "no gradient arrived"),
])
def test_diagnose_shapes(analytic, numeric, cause):
    assert cause in diagnose(analytic, numeric)


def test_diagnose_of_a_sample(x):
    where = np.array([1, 5, 7])
    assert "sign" in diagnose(-x, x.reshape(-1)[where], x, where=where)
    assert diagnose(x, x.reshape(-1)[where], x, where=where) == ""


def test_diagnose_infinities_without_a_warning(x):
    assert "infinite" in diagnose(np.full(3, np.inf), np.ones(3))
    assert "NaN" in diagnose(np.array([np.nan, 1.0]), np.ones(2))
    assert "f itself" in diagnose(np.array([np.inf, 1.0]), np.array([np.inf, 1.0]))
