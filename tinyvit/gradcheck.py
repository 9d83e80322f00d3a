"""Check a gradient: what backward computes against central differences, with a diagnosis where they differ.

    tv.gradcheck(tv.softmax, [x])                    a function of tensors
    tv.gradcheck(Softmax, [x], params={"axis": 0})   an op
    tv.gradcheck(model, [images])                    a module: its inputs and its parameters

Everything is computed in float64, so this checks formulas (references); that float32 kernels equal them is tested apart.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .autograd import Op, enable_grad, no_grad
from .backend import to_numpy, xp
from .diagnosis import diagnose
from .tensor import Tensor


class GradcheckError(AssertionError):
    """A gradient is wrong; the message is the report."""


@dataclass
class ArgumentReport:
    """How the gradient of one argument compares. `error` is ‖analytic - numeric‖ / ‖numeric‖ over the entries checked."""

    name: str
    shape: tuple[int, ...]
    checked: int
    differ: int = 0
    error: float = 0.0
    worst: tuple[int, ...] | None = None  # where they differ most; None if the shapes differ
    analytic: float = math.nan
    numeric: float = math.nan
    cause: str = ""

    @property
    def ok(self) -> bool:
        return self.differ == 0

    def __str__(self) -> str:
        size = math.prod(self.shape)
        sampled = "" if self.checked == size else f", a random sample of {size}"
        head = f"{self.name} {self.shape}: "
        if self.ok:
            return _wrap(head + f"ok, relative error {self.error:.1e} ({self.checked} entries{sampled})", "  ")
        worst = []
        head += f"{self.differ} of {self.checked} entries differ{sampled}"
        if self.worst is not None:
            ratio = f", ratio {self.analytic / self.numeric:.6g}" if self.numeric else ""
            head += f", relative error {self.error:.2g}"
            worst = [f"worst at {list(self.worst)}: backward {self.analytic:.8g}, "
                     f"central differences {self.numeric:.8g}{ratio}"]
        cause = self.cause or "no simple pattern; derive the formula again on the smallest input that fails"
        return "\n".join([_wrap(head, "  "), *(_wrap(line, "    ") for line in (*worst, f"likely cause: {cause}"))])


@dataclass
class GradcheckReport:
    """What gradcheck found. True if all is well; `str` is the text, at most 80 columns wide."""

    name: str
    arguments: list[ArgumentReport] = field(default_factory=list)
    problem: str = ""  # what is wrong with the function as a whole, such as writing into its input

    @property
    def ok(self) -> bool:
        return not self.problem and all(a.ok for a in self.arguments)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        lines = [f"gradcheck of {self.name}: {'ok' if self.ok else 'FAILED'}"]
        if self.problem:
            lines.append(_wrap(self.problem, "  "))
        return "\n".join(lines + [str(a) for a in sorted(self.arguments, key=lambda a: a.ok)])


def _wrap(text: str, indent: str) -> str:
    return textwrap.fill(text, 80, initial_indent=indent, subsequent_indent=indent + "  ", break_on_hyphens=False)


def gradcheck(f: Callable, inputs, *, params: dict[str, Any] | None = None, eps: float = 1e-6, rtol: float = 1e-5,
              atol: float = 1e-7, samples: int = 200, seed: int = 0, raise_on_error: bool = True) -> GradcheckReport:
    """Compare the gradients of `f` with central differences (f(x+h) - f(x-h)) / 2h in float64.

    f: a function of tensors that returns a Tensor or a tuple of them, an Op class, or a module, whose parameters are
    checked as well. inputs: Tensors or arrays; floating ones are checked, as float64 copies, all else is passed as it is.
    params: keyword arguments of f. Random generators among them, or in the module, start each call in the same state, so
    that dropout can be checked.

    The upstream gradient is random and fixed by `seed`. Arguments of more than `samples` entries are checked at a random
    sample, and in one random direction through all entries, which finds a wrong entry that the sample missed. An entry
    is wrong where |analytic - numeric| > rtol max(|analytic|, |numeric|) + atol max|numeric| + rounding of f; before it
    counts it is measured again with a longer step and a formula of five points. The step is `eps` √max(1, |x|).

    Raises GradcheckError with the report unless `raise_on_error` is False. What f itself raises passes through.
    """
    inputs = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    report = GradcheckReport(getattr(f, "__qualname__", type(f).__name__).split("<locals>.")[-1])
    with _Subject(f, inputs, params or {}, seed) as subject, enable_grad(), np.errstate(all="ignore"):
        report.problem = subject.examine()
        if not report.problem:
            gradients, report.problem = subject.analytic()
            report.arguments = _Comparison(subject, eps, rtol, atol, samples, np.random.default_rng(seed)).run(gradients)
            if not report.ok and not report.problem and subject.rounds_to_float32():
                report.problem = ("f computes in float32 although it was given float64: every result is a float32 number; "
                                  "look for astype, np.float32 or an array of float32 inside f")
                for a in report.arguments:
                    a.cause = "rounding to float32"
    if raise_on_error and not report.ok:
        raise GradcheckError(str(report))
    return report


# ---------------------------------------------------------------------------------------------- what is checked


class _Argument:
    def __init__(self, name: str, tensor: Tensor):
        self.name, self.tensor, self.array = name, tensor, tensor._data


class _Subject:
    """f with float64 arguments that can be moved a little, and everything put back in the end."""

    def __init__(self, f: Callable, inputs: Sequence, params: dict[str, Any], seed: int):
        self.f = f.apply if isinstance(f, type) and issubclass(f, Op) else f
        self.params, self.seed = params, seed
        self.module: Any = f if hasattr(f, "named_parameters") else None
        self.inputs = [_widened(v) for v in inputs]
        names = _argument_names(f, len(inputs))
        self.arguments = [_Argument(n, t) for n, t in zip(names, self.inputs) if isinstance(t, Tensor) and t._requires_grad]
        self.parameters: list[tuple[Tensor, Any, Any]] = []  # with the data and gradient they had
        self.buffers: list[tuple[Any, Any]] = []
        drawing = [v for v in params.values() if isinstance(v, np.random.Generator)]
        drawing += f.generators() if hasattr(f, "generators") else []
        self.generators = [(g, g.bit_generator.state) for g in drawing]

    def __enter__(self) -> _Subject:
        for name, p in self.module.named_parameters() if self.module else ():
            if p._requires_grad:
                self.parameters.append((p, p._data, p._grad))
                p._data, p._grad = p._data.astype(np.float64, order="C"), None
                self.arguments.append(_Argument(name, p))
        for _, buffer in self.module.named_buffers() if hasattr(self.module, "named_buffers") else ():
            array = buffer._data if isinstance(buffer, Tensor) else buffer
            self.buffers.append((array, array.copy()))
        return self

    def __exit__(self, *error) -> None:
        for p, data, grad in self.parameters:
            p._data, p._grad = data, grad
        for array, before in self.buffers:
            array[...] = before
        for generator, state in self.generators:
            generator.bit_generator.state = state

    def call(self) -> tuple[Tensor, ...]:
        """The floating results of f."""
        for generator, state in self.generators:
            generator.bit_generator.state = state
        found = self.f(*self.inputs, **self.params)
        results = tuple(found) if isinstance(found, (tuple, list)) else (found,)
        for r in results:
            if not isinstance(r, Tensor):
                raise TypeError(f"gradcheck needs a function that returns a Tensor or a tuple of them, got {type(r).__name__}")
        return tuple(r for r in results if r.dtype.kind == "f")

    def values(self) -> list[np.ndarray]:
        with no_grad():
            return [np.array(to_numpy(r._data), np.float64) for r in self.call()]

    def examine(self) -> str:
        """What makes a comparison pointless: a result of another dtype, randomness, writing into arguments."""
        if not self.arguments:
            return "nothing to check: no input is a Tensor or array of floats, and f has no parameters"
        before = [a.array.copy() for a in self.arguments]
        with no_grad():
            results = self.call()
        self.y = self.values()
        # A stream of its own: inputs are often drawn from default_rng(seed) too, and must not equal the upstream gradient.
        rng = np.random.default_rng((self.seed, 20_231))
        self.upstream = [np.asarray(rng.standard_normal(y.shape)) for y in self.y]
        if not self.y:
            return "f returns nothing floating, so there is no gradient to check"
        if written := self.written(before, "f"):
            return written
        narrow = {r.dtype for r in results} - {np.dtype(np.float64)}
        if narrow:
            return f"f returned {narrow.pop()} although it was given float64: something inside casts (astype, dtype=...)"
        if not all(np.allclose(a, b, rtol=1e-9, atol=1e-12, equal_nan=True) for a, b in zip(self.y, self.values())):
            return ("f is not deterministic: two calls with the same input differ. Is dropout or another random draw inside? "
                    "Use eval(), or make its generator anew in each call")
        return ""

    def analytic(self) -> tuple[list, str]:
        """The gradient of every argument as an array or None, and what backward did wrong beside that."""
        results = self.call()
        before = [a.array.copy() for a in self.arguments]
        upstream = [xp.array(u) for u in self.upstream]
        tracked = [(r, u) for r, u in zip(results, upstream) if r._requires_grad]
        try:
            for i, (r, u) in enumerate(tracked):
                r.backward(u, retain_graph=i < len(tracked) - 1)
        except Exception as error:
            return self._raw_gradients(results), f"backward raised {type(error).__name__}: {error}"
        if written := self.written(before, "backward"):
            return [], written
        if not all(np.array_equal(to_numpy(u), v) for u, v in zip(upstream, self.upstream)):
            return [], "backward wrote into the upstream gradient g: make a new array (g = g * y, not g *= y)"
        return [None if a.tensor._grad is None else to_numpy(a.tensor._grad) for a in self.arguments], ""

    def written(self, before: Sequence, who: str) -> str:
        for a, b in zip(self.arguments, before):
            if not xp.array_equal(a.array, b, equal_nan=True):
                at = list(map(int, np.argwhere(to_numpy(a.array != b))[0]))
                return f"{who} wrote into its argument {a.name}, first at {at}: compute a new array (x = x * 2, not x *= 2)"
        return ""

    def _raw_gradients(self, results: Sequence[Tensor]) -> list:
        """What the backward of f's only op returns, as it is: it may have the wrong shape, which tells what went wrong."""
        op = results[0]._op
        place = {id(p): i for i, p in enumerate(op.parents if op is not None else ())}
        if op is None or any(r._op is not op for r in results) or not all(id(a.tensor) in place for a in self.arguments):
            return []
        with contextlib.suppress(Exception):
            found = op.backward(*(xp.array(u) for u in self.upstream))
            found = found if isinstance(found, tuple) else (found,)
            return [None if (g := found[place[id(a.tensor)]]) is None else to_numpy(xp.asarray(g)) for a in self.arguments]
        return []

    def rounds_to_float32(self) -> bool:
        """Whether results that move with the arguments are all exactly float32 numbers."""
        rng = np.random.default_rng(self.seed)
        before = [a.array.copy() for a in self.arguments]
        for a in self.arguments:
            a.array[...] += xp.asarray(1e-4 * rng.standard_normal(a.array.shape))
        try:
            moved = self.values()
        except Exception:  # outside f's domain
            return False
        finally:
            for a, b in zip(self.arguments, before):
                a.array[...] = b
        change = any(((m != y) & (m != np.round(m))).any() for m, y in zip(moved, self.y))
        return change and all(np.array_equal(m.astype(np.float32).astype(np.float64), m, equal_nan=True) for m in moved)


def _widened(value):
    """A float64 copy that requires a gradient, of what is floating; anything else as it is."""
    array = value._data if isinstance(value, Tensor) else value
    if isinstance(array, (np.ndarray, xp.ndarray)) and array.dtype.kind == "f":
        return Tensor(xp.array(array, dtype=np.float64, order="C"), requires_grad=True)
    return value


def _argument_names(f: Callable, count: int) -> list[str]:
    """Names of the first `count` positional arguments; `*xs` gives xs[0], xs[1], ..."""
    function = getattr(f, "forward", f)  # an op's or a module's says more than apply(*inputs) or __call__
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    if isinstance(f, type):
        parameters = parameters[1:]  # self
    names: list[str] = []
    for p in parameters:
        if p.kind is p.VAR_POSITIONAL:
            names += [f"{p.name}[{i}]" for i in range(count - len(names))]
        elif p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD):
            names.append(p.name)
    return (names + [f"argument {i}" for i in range(len(names), count)])[:count]


# ---------------------------------------------------------------------------------------------- comparison


@dataclass
class _Comparison:
    """Analytic gradients beside derivatives of Σ upstream · f measured at single entries."""

    subject: _Subject
    eps: float
    rtol: float
    atol: float
    samples: int
    rng: np.random.Generator

    def run(self, gradients: Sequence) -> list[ArgumentReport]:
        compared = [self.compare(a, g) for a, g in zip(self.subject.arguments, gradients)]
        whole = {r.name: n.reshape(r.shape) for r, _, n, _ in compared if n.size == math.prod(r.shape)}
        for a, g, (report, where, numeric, wrong) in zip(self.subject.arguments, gradients, compared):
            if not report.ok:
                complete = a.name in whole
                report.cause = diagnose(
                    g, whole[a.name] if complete else numeric, to_numpy(a.array), where=None if complete else where,
                    upstream=self.subject.upstream[0] if len(self.subject.upstream) == 1 else None,
                    others={k: v for k, v in whole.items() if k != a.name}, sides=self.sides(a, where[wrong][:20]))
        return [report for report, *_ in compared]

    def compare(self, a: _Argument, gradient) -> tuple[ArgumentReport, np.ndarray, np.ndarray, np.ndarray]:
        """The report, the flat indices compared, the numeric derivatives there and which of them differ."""
        shape, x = a.array.shape, to_numpy(a.array).reshape(-1)
        where = np.flatnonzero(np.isfinite(x))
        fits = gradient is None or gradient.shape == shape
        flat = gradient.reshape(-1) if gradient is not None and fits else np.zeros(x.size)
        if where.size > self.samples:
            hidden = self.hunt(a, where, flat) if fits else []
            where = np.union1d(self.rng.choice(where, self.samples, replace=False), np.array(hidden, int))
        numeric = np.array([self.central(a, i, self.step(x[i])) for i in where.tolist()])
        analytic = flat[where]
        for k in np.flatnonzero(self.wrong(analytic, numeric, x[where])):
            i, h = int(where[k]), 1e3 * self.step(x[where[k]])
            again = (4 * self.central(a, i, h) - self.central(a, i, 2 * h)) / 3  # the formula of five points
            if abs(analytic[k] - again) < abs(analytic[k] - numeric[k]):
                numeric[k] = again
        wrong = self.wrong(analytic, numeric, x[where]) if fits else np.ones(where.size, bool)
        report = ArgumentReport(a.name, shape, where.size, int(wrong.sum()))
        far = np.linalg.norm(analytic - numeric)
        report.error = float(far / (np.linalg.norm(numeric) + self.rounding(1.0) * math.sqrt(where.size))) if far else 0.0
        if wrong.any() and fits:
            worst = int(np.argmax(np.where(wrong, np.nan_to_num(np.abs(analytic - numeric), nan=np.inf), -1)))
            report.worst = tuple(int(i) for i in np.unravel_index(where[worst], shape))
            report.analytic, report.numeric = float(analytic[worst]), float(numeric[worst])
        return report, where, numeric, wrong

    def wrong(self, analytic, numeric, x) -> np.ndarray:
        largest = np.abs(numeric[np.isfinite(numeric)]).max(initial=0.0)
        allowed = self.rtol * np.maximum(np.abs(analytic), np.abs(numeric)) + self.atol * largest + self.rounding(x)
        return ~(np.abs(analytic - numeric) <= allowed) | ~np.isfinite(analytic)

    def step(self, x):
        return self.eps * np.sqrt(np.maximum(1.0, np.abs(x)))

    def rounding(self, x):
        """What rounding of f's result alone can do to a difference quotient at x."""
        weighted = np.concatenate([(u * y).reshape(-1) for u, y in zip(self.subject.upstream, self.subject.y)])
        return 8 * np.finfo(float).eps * np.linalg.norm(weighted[np.isfinite(weighted)]) / self.step(x)

    def moved(self, a: _Argument, where, by) -> list[np.ndarray]:
        """The results with the entries `where` of the argument moved."""
        flat = a.array.reshape(-1)
        before = flat[where].copy()
        flat[where] = before + xp.asarray(by)
        try:
            return self.subject.values()
        finally:
            flat[where] = before

    def slope(self, high: list[np.ndarray], low: list[np.ndarray], distance: float) -> float:
        """Σ upstream (high - low) / distance: subtracted first and summed after, which loses fewer digits."""
        changes = [u * np.where(p == m, 0.0, p - m) for u, p, m in zip(self.subject.upstream, high, low)]  # inf = inf too
        return sum(float(c.sum()) for c in changes) / distance

    def central(self, a: _Argument, i: int, h: float) -> float:
        x = float(a.array.reshape(-1)[i])
        return self.slope(self.moved(a, i, h), self.moved(a, i, -h), (x + h) - (x - h))

    def sides(self, a: _Argument, where: Sequence[int]) -> dict[int, tuple[float, float]]:
        """Derivatives from the left and from the right at those of the entries where they differ."""
        found = {}
        for i in where:
            x = float(a.array.reshape(-1)[i])
            h = float(self.step(x))
            left = self.slope(self.subject.y, self.moved(a, i, -h), x - (x - h))
            right = self.slope(self.moved(a, i, h), self.subject.y, (x + h) - x)
            if abs(right - left) > 1e-3 * max(abs(left), abs(right)) + 100 * self.rounding(x):
                found[int(i)] = (left, right)
        return found

    def hunt(self, a: _Argument, where: np.ndarray, gradient: np.ndarray) -> list[int]:
        """A wrong entry found by moving all entries at random and halving; [] if all of them together are right."""
        signs = self.rng.choice([-1.0, 1.0], where.size)
        h = float(np.max(self.step(to_numpy(a.array).reshape(-1)[where])))

        def differs(part: slice) -> bool:
            at, v = where[part], signs[part]
            numeric = self.slope(self.moved(a, at, h * v), self.moved(a, at, -h * v), 2 * h)
            allowed = self.rtol * np.linalg.norm(gradient[at]) + self.rounding(1.0) * math.sqrt(len(at))
            return not abs(numeric - gradient[at] @ v) <= allowed

        low, high = 0, where.size
        if not differs(slice(low, high)):
            return []
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if differs(slice(low, middle)) else (middle, high)
        return [int(where[low])]
