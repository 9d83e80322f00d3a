"""Arithmetic, element by element, with broadcasting (the engine undoes the broadcasting in backward)."""

from __future__ import annotations

from ..autograd import Op
from ..backend import xp
from ..registry import case, public
from ..tensor import Tensor


class Add(Op):
    """y = a + b;   da = g, db = g"""

    keeps_integers = True

    def forward(self, a, b):
        return a + b

    def backward(self, g):
        return g, g


@public(case((3, 4), (3, 4)), case((4, 4), (4,)), case((3,), ()), case((2, 1, 3), (4, 1)), case((0, 3), (3,)))
def add(a, b) -> Tensor:
    """a + b."""
    return Add.apply(a, b)


class Sub(Op):
    """y = a - b;   da = g, db = -g"""

    keeps_integers = True

    def forward(self, a, b):
        return a - b

    def backward(self, g):
        return g, -g


@public(case((3, 4), (3, 4)), case((5, 1), (1, 4)), case((), (3,)), case((0,), (1,)))
def sub(a, b) -> Tensor:
    """a - b."""
    return Sub.apply(a, b)


class Mul(Op):
    """y = a b;   da = g b, db = g a"""

    keeps_integers = True

    def forward(self, a, b):
        self.save(a if self.needs[1] else None, b if self.needs[0] else None)
        return a * b

    def backward(self, g):
        a, b = self.saved
        return None if b is None else g * b, None if a is None else g * a


@public(case((3, 4), (3, 4)), case((5, 1), (1, 4)), case((3,), ()), case((2, 1, 3), (4, 1)), case((2, 0), (1, 1)))
def mul(a, b) -> Tensor:
    """a * b, element by element."""
    return Mul.apply(a, b)


class Div(Op):
    """y = a / b;   da = g / b, db = -g a / b²"""

    def forward(self, a, b):
        self.save(a if self.needs[1] else None, b)
        return a / b

    def backward(self, g):
        a, b = self.saved
        return g / b, None if a is None else -g * a / (b * b)


@public(case((3, 4), (3, 4), domain="nonzero"), case((3, 1), (4,), domain="nonzero"), case((), (2,), domain="nonzero"),
        case((0,), (0,)))
def div(a, b) -> Tensor:
    """a / b. Division by zero gives inf or NaN as in NumPy, without a warning."""
    return Div.apply(a, b)


class Neg(Op):
    """y = -x;   dx = -g"""

    keeps_integers = True

    def forward(self, x):
        return -x

    def backward(self, g):
        return -g


@public(case((3, 4)), case(()), case((0, 2)))
def neg(x) -> Tensor:
    """-x."""
    return Neg.apply(x)


class Pow(Op):
    """y = a^b;   da = g b a^(b-1), db = g a^b ln a      (0^0 = 1; db = 0 where a = 0 and b >= 0)"""

    def forward(self, a, b):
        y = a**b
        self.save(a, b, y if self.needs[1] else None)
        return y

    def backward(self, g):
        a, b, y = self.saved
        da = g * b * a ** xp.where(b == 0, xp.ones_like(b), b - 1) if self.needs[0] else None
        if y is None:
            return da, None
        zero = (a == 0) & (b >= 0)
        return da, xp.where(zero, xp.zeros_like(y), g * y * xp.log(xp.where(zero, xp.ones_like(y), a)))


@public(case((3, 4), (3, 4), domain="positive"), case((3, 1), (4,), domain="positive"), case((), (3,), domain="positive"),
        case((0,), ()))
def pow(a, b) -> Tensor:
    """a ** b. The base must be positive for a gradient with respect to the exponent; a number as exponent may be anything."""
    return Pow.apply(a, b)


class Maximum(Op):
    """y = max(a, b);   da = g where a > b, g/2 where a = b, 0 elsewhere; db likewise"""

    keeps_integers = True

    def forward(self, a, b):
        self.save(a, b)
        return xp.maximum(a, b)

    def backward(self, g):
        a, b = self.saved
        half = 0.5 * g * (a == b)
        return g * (a > b) + half, g * (b > a) + half


@public(case((3, 4), (3, 4)), case((3, 1), (4,)), case((), (3,)), case((0,), (0,)),
        case(lambda rng: [1.0, 2.0, 3.0], lambda rng: [1.0, 5.0, 0.0], differentiable=False))
def maximum(a, b) -> Tensor:
    """The larger of a and b, element by element. A tie gives half the gradient to each."""
    return Maximum.apply(a, b)


class Minimum(Op):
    """y = min(a, b);   da = g where a < b, g/2 where a = b, 0 elsewhere; db likewise"""

    keeps_integers = True

    def forward(self, a, b):
        self.save(a, b)
        return xp.minimum(a, b)

    def backward(self, g):
        a, b = self.saved
        half = 0.5 * g * (a == b)
        return g * (a < b) + half, g * (b < a) + half


@public(case((3, 4), (3, 4)), case((3, 1), (4,)), case((), (3,)), case((0,), (0,)),
        case(lambda rng: [1.0, 2.0, 3.0], lambda rng: [1.0, 5.0, 0.0], differentiable=False))
def minimum(a, b) -> Tensor:
    """The smaller of a and b, element by element. A tie gives half the gradient to each."""
    return Minimum.apply(a, b)


class Clip(Op):
    """y = min(max(x, low), high);   dx = g where low <= x <= high (1 at the bounds), 0 elsewhere"""

    keeps_integers = True

    def forward(self, x, low, high):
        inside = xp.ones(x.shape, bool)
        if low is not None:
            inside &= x >= low
        if high is not None:
            inside &= x <= high
        self.save(inside)
        return x if low is None and high is None else xp.clip(x, low, high)

    def backward(self, g):
        (inside,) = self.saved
        return g * inside


@public(case((3, 4), low=-0.5, high=0.7), case((5,), low=0.0), case((5,), high=0.1), case((0, 2), low=0.0, high=1.0),
        case(lambda rng: [-1.0, 0.0, 0.5, 1.0, 2.0], low=0.0, high=1.0, differentiable=False))
def clip(x, low: float | None = None, high: float | None = None) -> Tensor:
    """x limited to [low, high]; either bound may be None. Raises ValueError if low > high."""
    if low is not None and high is not None and low > high:
        raise ValueError(f"clip needs low <= high, got low={low} and high={high}")
    return Clip.apply(x, low=low, high=high)


class Where(Op):
    """y = a where the condition holds, b elsewhere;   da = g where it holds, db = g where it does not"""

    keeps_integers = True

    def forward(self, a, b, condition):
        self.save(condition)
        return xp.where(condition, a, b)

    def backward(self, g):
        (condition,) = self.saved
        zero = xp.zeros((), g.dtype)
        return xp.where(condition, g, zero), xp.where(condition, zero, g)


@public(case((3, 4), (3, 4), condition=lambda rng: rng.random((3, 4)) < 0.5),
        case((4,), (), condition=lambda rng: rng.random((3, 1)) < 0.5),
        case((0,), (0,), condition=lambda rng: rng.random(0) < 1))
def where(condition, a, b) -> Tensor:
    """a where `condition` (bool, array or Tensor) is true, b elsewhere. No NaN leaks from the side not taken."""
    condition = condition._data if isinstance(condition, Tensor) else xp.asarray(condition)
    if condition.dtype != bool:
        raise TypeError(f"where() needs a bool condition, got {condition.dtype}: compare first, as in tv.where(x > 0, a, b)")
    return Where.apply(a, b, condition=condition)


class AsType(Op):
    """y = x in another floating dtype;   dx = g in x's"""

    def forward(self, x, dtype):
        return x.astype(dtype)

    def backward(self, g):
        return g


@public(case((3, 4), dtype="float64"), case((0,), dtype="float64"))
def astype(x, dtype) -> Tensor:
    """x as another floating dtype; the gradient comes back in x's own."""
    return AsType.apply(x, dtype=dtype)
