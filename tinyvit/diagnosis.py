"""What is likely wrong with a gradient, told from its numbers: the analytic gradient against the numeric one.

Each rule below looks for one mistake people make in a backward and returns a sentence, or "" where it does not apply.
The first that applies is the diagnosis, so rules stand in the order of how sure they can be.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass
class Evidence:
    """What the rules look at. `a` and `n` are the analytic and numeric values at the entries that were checked."""

    analytic: np.ndarray  # the whole gradient, of the argument's shape
    where: np.ndarray  # flat indices of the entries that were checked
    n: np.ndarray
    x: np.ndarray | None  # the argument
    upstream: np.ndarray | None
    others: Mapping[str, np.ndarray]  # numeric gradients of the other arguments
    sides: Mapping[int, tuple[float, float]]  # flat index -> derivative from the left and from the right
    rtol: float

    @property
    def a(self) -> np.ndarray:
        return self.analytic.reshape(-1)[self.where]

    @property
    def wrong(self) -> np.ndarray:
        return ~self.same(self.a, self.n)

    def same(self, a, n) -> np.ndarray:
        """Which entries agree; what is tiny beside the largest entry counts as zero."""
        a, n = np.broadcast_arrays(a, n)
        scale = np.abs(n[np.isfinite(n)]).max(initial=0.0)
        return np.isfinite(a) & (np.abs(a - n) <= self.rtol * np.maximum(np.abs(a), np.abs(n)) + 1e-3 * self.rtol * scale)

    def agrees(self, candidate) -> bool:
        """Whether `candidate`, of the argument's shape, is the numeric gradient."""
        return bool(self.same(np.asarray(candidate, float).reshape(-1)[self.where], self.n).all())

    def index(self, flat: int) -> tuple[int, ...]:
        return tuple(int(i) for i in np.unravel_index(flat, self.analytic.shape))


def diagnose(analytic, numeric, x=None, *, where=None, upstream=None, others: Mapping[str, np.ndarray] | None = None,
             sides: Mapping[int, tuple[float, float]] | None = None, rtol: float = 1e-4) -> str:
    """The likely cause of a difference between a gradient and what central differences found, or "" if there is none to see.

    analytic: the gradient that backward gave, or None; of any shape, a wrong one included.
    numeric: the right gradient, in the shape of the argument; with `where` (flat indices) only its values at those places.
    x: the argument. upstream: the gradient of the result that backward was given, if the result was one array.
    others: right gradients of the other arguments by name, to recognise two that were swapped.
    sides: derivatives from the left and from the right, by flat index, at places where they were measured.

    >>> diagnose([-1.0, -2.0], [1.0, 2.0])
    'the sign is wrong: every entry is the negative of what it should be'
    """
    if analytic is None:
        return ("no gradient arrived: f left the graph on the way (.data, .numpy(), detach(), no_grad), or a backward "
                "returned None")
    analytic, numeric = np.asarray(analytic, float), np.asarray(numeric, float)
    shape = numeric.shape if where is None else np.shape(x) if x is not None else analytic.shape
    if analytic.shape != shape:
        return _shape(analytic, numeric if where is None else None, shape)
    where = np.arange(numeric.size) if where is None else np.asarray(where)
    e = Evidence(analytic, where, numeric.reshape(-1), None if x is None else np.asarray(x, float),
                 None if upstream is None else np.asarray(upstream, float), others or {}, sides or {}, rtol)
    with np.errstate(all="ignore"):
        return next(filter(None, (rule(e) for rule in RULES)), "") if e.wrong.any() else ""


def _shape(analytic: np.ndarray, numeric: np.ndarray | None, shape: tuple[int, ...]) -> str:
    """A gradient must have the shape of its argument: which operation would bring it there?"""
    said = f"the gradient has shape {analytic.shape} and the argument {shape}"

    def fits(candidate) -> bool:
        if candidate.shape != shape:
            return False
        if numeric is None:
            return True
        return bool(np.allclose(candidate, numeric, rtol=1e-4, atol=1e-6 * np.abs(numeric).max(initial=0.0)))

    if analytic.ndim == 2 and fits(analytic.T):
        return f"{said}: it is transposed, return its .T"
    extra = analytic.ndim - len(shape)
    if extra >= 0:
        axes = tuple(range(extra)) + tuple(extra + i for i, n in enumerate(shape) if n == 1 and analytic.shape[extra + i] != 1)
        if axes and fits(analytic.sum(axis=axes, keepdims=True).reshape(_after(analytic.shape, extra, axes))):
            return f"{said}: the argument was broadcast, so sum the gradient over axis {', '.join(map(str, axes))}"
    for axes in itertools.permutations(range(analytic.ndim)) if analytic.ndim in (3, 4) else ():
        if fits(analytic.transpose(axes)):
            return f"{said}: its axes are in another order, transpose it by {axes}"
    if analytic.size == math.prod(shape) and fits(analytic.reshape(shape)):
        return f"{said}: the values are right, reshape it"
    if analytic.size < math.prod(shape):
        return f"{said}: something was summed or indexed that should not be, or should be spread back to the argument's shape"
    return f"{said}: they must be equal"


def _after(shape: tuple[int, ...], extra: int, axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(1 if i in axes else n for i, n in enumerate(shape))[extra:]


# ---------------------------------------------------------------------------------------------- rules


def _not_finite(e: Evidence) -> str:
    if not np.isfinite(e.n).all():
        at = e.where[~np.isfinite(e.n)][0]
        return f"f itself is NaN or infinite around {_place(e, at)}: choose inputs where it is defined"
    bad = ~np.isfinite(e.a)
    if not bad.any():
        return ""
    at = e.where[bad][0]
    kind = "NaN" if np.isnan(e.a[bad][0]) else "infinite"
    return (f"the gradient is {kind} at {_place(e, at)}, where f is smooth: a division by zero, or 0 times inf, which "
            f"multiplying with a mask does not mend (choose with where() before dividing)")


def _kinks(e: Evidence) -> str:
    at = [i for i in e.where[e.wrong] if i in e.sides]
    if not at or len(at) < min(e.wrong.sum(), len(e.sides)):
        return ""
    left, right = e.sides[at[0]]
    jump = "jumps" if max(abs(left), abs(right)) > 1e3 * max(1.0, np.median(np.abs(e.n))) else "has a kink"
    return (f"f {jump} at every wrong entry, such as {_place(e, at[0])}: its derivative is {left:.4g} from the left and "
            f"{right:.4g} from the right, so there is no one right answer; check it elsewhere (no ties, not at 0)")


def _zero(e: Evidence) -> str:
    if not e.analytic.any():
        return "the gradient is zero everywhere: it was never added to, or was multiplied with zero on the way"
    if not e.same(e.n, 0).any() or np.abs(e.n).max() > 1e-6 * np.abs(e.a).max():
        return ""
    return "f does not depend on this argument, so the gradient should be zero (is one term missing that cancels the rest?)"


def _factor(e: Evidence) -> str:
    ratio = _constant(e.a, e.n, e)
    if ratio is None:
        return ""
    if _near(ratio, -1):
        return "the sign is wrong: every entry is the negative of what it should be"
    sign = ", and the sign is wrong" if ratio < 0 else ""
    size = abs(ratio)
    for n, name in _counts(e).items():
        if n > 2 and _near(size, 1 / n):
            return f"ratio 1/{n} everywhere, and {n} is {name}: a mean where a sum is due{sign}?"
        if n > 2 and _near(size, n):
            return f"ratio {n} everywhere, and {n} is {name}: a sum where a mean is due{sign}?"
    for value, mend in ((2.0, "a factor 2 too much (counted twice?)"), (0.5, "a factor 2 is missing (the 2 of d x² = 2x dx?)")):
        if _near(size, value):
            return f"ratio {value:g} everywhere: {mend}{sign}"
    whole = round(size) if size >= 1 else round(1 / size)
    exact = f"{whole if size >= 1 else f'1/{whole}'}" if _near(size, whole if size >= 1 else 1 / whole) else f"{size:.6g}"
    return f"ratio {'-' if ratio < 0 else ''}{exact} everywhere: a constant factor"


def _counts(e: Evidence) -> dict[int, str]:
    """Numbers that a mean or a sum may have introduced, and what they are."""
    found: dict[int, str] = {}
    for what, array in (("the argument", e.analytic), ("the result", e.upstream)):
        if array is None:
            continue
        for axis, n in enumerate(array.shape):
            found.setdefault(n, f"the size of axis {axis} of {what}")
        found.setdefault(array.size, f"the number of values in {what}")
        for i, j in itertools.combinations(range(array.ndim), 2):
            found.setdefault(array.shape[i] * array.shape[j], f"the number of values in axes {i} and {j} of {what}")
    return found


def _upstream(e: Evidence) -> str:
    if e.upstream is None or not _spreads(e.upstream.shape, e.analytic.shape):
        return ""
    if e.agrees(e.analytic * e.upstream):
        return "the upstream gradient is missing: multiply with g (the chain rule)"
    return "the upstream gradient g is multiplied in twice" if e.agrees(e.analytic / e.upstream) else ""


def _slice_of_upstream(e: Evidence) -> str:
    """The gradient of something that was broadcast and added is g summed; here it is one slice of g."""
    if e.upstream is None or not _spreads(e.analytic.shape, e.upstream.shape) or e.analytic.size == e.upstream.size:
        return ""
    extra = e.upstream.ndim - e.analytic.ndim
    axes = [i for i in range(e.upstream.ndim) if i < extra or e.analytic.shape[i - extra] != e.upstream.shape[i]]
    for end in (0, -1):
        piece = e.upstream[tuple([end] if i in axes else slice(None) for i in range(e.upstream.ndim))]
        if np.allclose(piece.reshape(e.analytic.shape), e.analytic, rtol=e.rtol):
            return (f"the gradient is one slice of g: sum g over axis {', '.join(map(str, axes))}, along which the argument "
                    f"was broadcast")
    return ""


def _swapped(e: Evidence) -> str:
    for name, numeric in e.others.items():
        if numeric.shape == e.analytic.shape and len(e.where) == e.analytic.size and e.same(e.analytic, numeric).all():
            return f"it is the gradient of {name}: are two results of backward in the wrong order?"
    return ""


def _input_factor(e: Evidence) -> str:
    if e.x is None or e.x.shape != e.analytic.shape:
        return ""
    for name, factor in (("x", e.x), ("x²", e.x**2), ("1/x", 1 / e.x)):
        ratio = _constant(e.a, e.n * factor.reshape(-1)[e.where], e)
        if ratio is not None:
            times = "" if _near(ratio, 1) else f" {ratio:.4g} times"
            return (f"the gradient is{times} {name} times what it should be, x being the argument: a factor that depends on it "
                    f"is wrong")
    return ""


def _places(e: Evidence) -> str:
    """Right values in wrong places: transposed, flipped, shuffled."""
    for axes in itertools.permutations(range(e.analytic.ndim)) if e.analytic.ndim in (2, 3, 4) else ():
        moved = e.analytic.transpose(axes)
        if moved.shape == e.analytic.shape and e.agrees(moved):
            return ("the gradient is transposed: return its .T" if moved.ndim == 2 else
                    f"the axes are in the wrong order: transpose by {axes}")
    for moved, axes in _misread(e.analytic):
        if e.agrees(moved):
            return f"the values are right but stored for axes in the order {axes}: transpose instead of reshape"
    for axis in range(e.analytic.ndim):
        if e.agrees(np.flip(e.analytic, axis)):
            return f"the gradient is reversed along axis {axis}"
    if len(e.where) == e.analytic.size and e.same(np.sort(e.a), np.sort(e.n)).all():
        return "the right values in the wrong places: an index, an order of axes or a reshape"
    return ""


def _misread(a: np.ndarray):
    """The gradient as it would be if it had been reshaped where it should have been transposed."""
    if a.ndim in (2, 3, 4):
        for axes in itertools.permutations(range(a.ndim)):
            if axes != tuple(range(a.ndim)):
                yield a.reshape([a.shape[i] for i in axes]).transpose(np.argsort(axes)), axes


def _region(e: Evidence) -> str:
    """Wrong in one part of the argument only: for one sign of x, or at one end of an axis."""
    wrong, zero = e.wrong, e.same(e.n, 0) & e.same(e.a, 0)
    telling = wrong | ~zero
    if e.x is not None and e.x.shape == e.analytic.shape:
        x = e.x.reshape(-1)[e.where]
        for said, part in (("x < 0", x < 0), ("x > 0", x > 0), ("x = 0", x == 0), ("|x| > 1", np.abs(x) > 1),
                           ("|x| < 1", np.abs(x) < 1)):
            if wrong.any() and (wrong == part)[telling].all() and (telling & ~part).any():
                return f"wrong only where {said}{_there(e, wrong)}: the formula of that branch"
    index = np.unravel_index(e.where, e.analytic.shape)
    for axis, n in enumerate(e.analytic.shape):
        for at, said in ((0, "first"), (n - 1, "last")):
            part = index[axis] == at
            if n > 1 and (wrong == part)[telling].all() and (telling & ~part).any():
                return f"wrong only at the {said} index of axis {axis}{_there(e, wrong)}: a border, or an index off by one?"
    if wrong.sum() == 1 and len(wrong) > 2:
        return "right everywhere else: an index, or an entry that is computed twice?"
    if not e.a[wrong].any():
        return "zero at the wrong entries and right elsewhere: is a part left out, or overwritten (=) instead of added to (+=)?"
    return ""


def _there(e: Evidence, wrong: np.ndarray) -> str:
    ratio = _constant(e.a[wrong], e.n[wrong], e)
    if ratio is not None:
        return f" (ratio {ratio:.4g} there)"
    return " (the gradient is zero there)" if not e.a[wrong].any() else ""


def _along_axis(e: Evidence) -> str:
    """Error or ratio that is the same all along an axis: a term or a factor common to each row."""
    if len(e.where) != e.analytic.size or e.analytic.ndim == 0:
        return ""
    n = e.n.reshape(e.analytic.shape)
    difference = e.analytic - n
    ratio = e.analytic / n
    for axis in reversed(range(e.analytic.ndim)):
        if e.analytic.shape[axis] < 3:
            continue
        if (np.ptp(difference, axis=axis) <= 1e-3 * np.abs(difference).max(axis=axis)).all():
            return (f"the error is the same all along axis {axis}: a term common to each row is missing (such as a mean "
                    f"subtracted in forward)")
        if np.isfinite(ratio).all() and (np.ptp(ratio, axis=axis) <= 1e-3 * np.abs(ratio - 1).max(axis=axis)).all():
            return (f"the ratio is the same all along axis {axis} but differs between rows: a factor of each row is wrong (a "
                    f"scale, a weight, 1/σ)")
    return ""


RULES = (_not_finite, _kinks, _zero, _upstream, _factor, _swapped, _slice_of_upstream, _places, _input_factor, _region,
         _along_axis)


# ---------------------------------------------------------------------------------------------- arithmetic of the rules


def _constant(a: np.ndarray, n: np.ndarray, e: Evidence) -> float | None:
    """The number c with a = c n in every entry, if there is one and it takes at least two entries to tell."""
    if not (np.isfinite(a).all() and np.isfinite(n).all()):
        return None
    square = float(n @ n)
    telling = np.abs(n) > 1e-3 * np.abs(n).max(initial=0.0)
    if square == 0 or telling.sum() < min(2, e.analytic.size):
        return None
    ratio = float(a @ n) / square
    return ratio if ratio and e.same(a, ratio * n).all() else None


def _near(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-3)


def _spreads(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, to) == to
    except ValueError:
        return False


def _place(e: Evidence, flat: int) -> str:
    value = "" if e.x is None or e.x.shape != e.analytic.shape else f" (x = {e.x.reshape(-1)[flat]:.4g})"
    return f"{list(e.index(int(flat)))}{value}"
