"""Functions of one element: exp, log, ..., and the activations of neural networks."""

from __future__ import annotations

import math

import numpy as np

from ..autograd import Op
from ..backend import kernel, prange, xp
from ..registry import case, public
from ..tensor import Tensor
from .fastmath import erf32, exp32, tanh32

_SQRT_HALF = math.sqrt(0.5)
_INV_SQRT_2PI = 1 / math.sqrt(2 * math.pi)
_TANH_SCALE, _TANH_CUBE = math.sqrt(2 / math.pi), 0.044715


class Exp(Op):
    """y = e^x;   dx = g y"""

    def forward(self, x):
        y = xp.exp(x)
        self.save(y)
        return y

    def backward(self, g):
        (y,) = self.saved
        return g * y


@public(case((3, 4)), case(()), case((0, 3)), case(lambda rng: [-200.0, 0.0, 3.0], differentiable=False))
def exp(x) -> Tensor:
    """e^x."""
    return Exp.apply(x)


class Log(Op):
    """y = ln x;   dx = g / x"""

    def forward(self, x):
        self.save(x)
        return xp.log(x)

    def backward(self, g):
        (x,) = self.saved
        return g / x


@public(case((3, 4), domain="positive"), case((), domain="positive"), case((0,)))
def log(x) -> Tensor:
    """The natural logarithm; -inf at 0 and NaN below, as in NumPy, without a warning."""
    return Log.apply(x)


class Sqrt(Op):
    """y = √x;   dx = g / (2y)      (inf at 0)"""

    def forward(self, x):
        y = xp.sqrt(x)
        self.save(y)
        return y

    def backward(self, g):
        (y,) = self.saved
        return 0.5 * g / y


@public(case((3, 4), domain="positive"), case((), domain="positive"), case((0,)))
def sqrt(x) -> Tensor:
    """The square root."""
    return Sqrt.apply(x)


class Abs(Op):
    """y = |x|;   dx = g sign x      (0 at 0)"""

    keeps_integers = True

    def forward(self, x):
        self.save(x)
        return xp.abs(x)

    def backward(self, g):
        (x,) = self.saved
        return g * xp.sign(x)


@public(case((3, 4), domain="nonzero"), case((0,)), case(lambda rng: [-1.0, 0.0, 2.0], differentiable=False))
def abs(x) -> Tensor:
    """|x|, with gradient 0 at 0."""
    return Abs.apply(x)


class Tanh(Op):
    """y = tanh x;   dx = g (1 - y²)"""

    def forward(self, x):
        y = xp.tanh(x)
        self.save(y)
        return y

    def backward(self, g):
        (y,) = self.saved
        return g * (1 - y * y)


@public(case((3, 4)), case(()), case((0,)))
def tanh(x) -> Tensor:
    """The hyperbolic tangent."""
    return Tanh.apply(x)


@kernel
def logistic(x):
    """1 / (1 + e^-x), written so that nothing overflows: e^-|x| is at most 1."""
    e = xp.exp(-xp.abs(x))
    return xp.where(x >= 0, 1 / (1 + e), e / (1 + e))


class Sigmoid(Op):
    """y = 1 / (1 + e^-x);   dx = g y (1 - y)"""

    def forward(self, x):
        y = logistic(x)
        self.save(y)
        return y

    def backward(self, g):
        (y,) = self.saved
        return g * y * (1 - y)


@public(case((3, 4)), case(()), case((0,)), case(lambda rng: [-1e4, -30.0, 0.0, 30.0, 1e4], differentiable=False))
def sigmoid(x) -> Tensor:
    """1 / (1 + e^-x), stable for any x."""
    return Sigmoid.apply(x)


class SiLU(Op):
    """y = x σ(x);   dx = g σ(x) (1 + x (1 - σ(x)))"""

    def forward(self, x):
        s = logistic(x)
        self.save(x, s)
        return x * s

    def backward(self, g):
        x, s = self.saved
        return g * s * (1 + x * (1 - s))


@public(case((3, 4)), case(()), case((0,)))
def silu(x) -> Tensor:
    """x σ(x), also called swish (Elfwing et al. 2017, arXiv:1702.03118)."""
    return SiLU.apply(x)


# ---------------------------------------------------------------------------------------------- relu


@kernel
def relu_forward(x):
    return xp.maximum(x, 0)


@relu_forward.numba(flat=True)
def relu_forward(x):
    y = np.empty_like(x)
    for i in prange(x.size):
        y[i] = np.float32(0) if x[i] <= 0 else x[i]  # a NaN stays
    return y


@kernel
def relu_backward(g, y):
    return g * (y > 0)


@relu_backward.numba(flat=True)
def relu_backward(g, y):
    dx = np.empty_like(g)
    for i in prange(g.size):
        dx[i] = g[i] if y[i] > 0 else np.float32(0)
    return dx


class ReLU(Op):
    """y = max(x, 0);   dx = g where y > 0, 0 elsewhere"""

    def forward(self, x):
        y = relu_forward(x)
        self.save(y)
        return y

    def backward(self, g):
        (y,) = self.saved
        return relu_backward(g, y)


@public(case((3, 4), domain="nonzero"), case((), domain="nonzero"), case((0, 3)),
        case(lambda rng: [-1.0, 0.0, 2.0], differentiable=False))
def relu(x) -> Tensor:
    """max(x, 0), with gradient 0 at 0."""
    return ReLU.apply(x)


# ---------------------------------------------------------------------------------------------- erf and gelu

# W. J. Cody's scheme as in Cephes (Moshier), about 1e-16 relative: a rational function of x² for |x| <= 1,
# 1 - e^(-x²) P(x)/Q(x) beyond. At |x| = 6 erf is 1 to the last bit of a float64.
_T = (9.60497373987051638749e0, 9.00260197203842689217e1, 2.23200534594684319226e3, 7.00332514112805075473e3,
      5.55923013010394962768e4)
_U = (1.0, 3.35617141647503099647e1, 5.21357949780152679795e2, 4.59432382970980127987e3, 2.26290000613890934246e4,
      4.92673942608635921086e4)
_P = (2.46196981473530512524e-10, 5.64189564831068821977e-1, 7.46321056442269912687e0, 4.86371970985681366614e1,
      1.96520832956077098242e2, 5.26445194995477358631e2, 9.34528527171957607540e2, 1.02755188689515710272e3,
      5.57535335369399327526e2)
_Q = (1.0, 1.32281951154744992508e1, 8.67072140885989742329e1, 3.54937778887819891062e2, 9.75708501743205489753e2,
      1.82390916687909736289e3, 2.24633760818710981792e3, 1.65666309194161350182e3, 5.57535340817727675546e2)


def _polynomial(coefficients, x):
    """c_0 x^n + ... + c_n by Horner's rule."""
    y = xp.zeros_like(x) + coefficients[0]
    for c in coefficients[1:]:
        y = y * x + c
    return y


@kernel
def erf_of(x):
    """erf x = 2/√π ∫_0^x e^(-t²) dt; NumPy has none, CuPy has."""
    if xp.module is not np:
        from cupyx.scipy.special import erf as cupy_erf

        return cupy_erf(x)
    a = xp.minimum(xp.abs(x), 6)
    square = a * a
    inner = a * _polynomial(_T, square) / _polynomial(_U, square)
    outer = 1 - xp.exp(-square) * _polynomial(_P, a) / _polynomial(_Q, a)
    return xp.copysign(xp.where(a <= 1, inner, outer), x)


@erf_of.numba(flat=True)
def erf_of(x):
    y = np.empty_like(x)
    for i in prange(x.size):
        y[i] = erf32(x[i])
    return y


class Erf(Op):
    """y = erf x;   dx = g 2/√π e^(-x²)"""

    def forward(self, x):
        self.save(x)
        return erf_of(x)

    def backward(self, g):
        (x,) = self.saved
        return g * xp.exp(-x * x) * (2 / math.sqrt(math.pi))


@public(case((3, 4)), case(()), case((0,)), case(lambda rng: [-9.0, -1.0, 0.0, 1e-8, 1.0, 2.5, 9.0]))
def erf(x) -> Tensor:
    """The error function 2/√π ∫_0^x e^(-t²) dt."""
    return Erf.apply(x)


@kernel
def gelu_forward(x):
    return 0.5 * x * (1 + erf_of(x * _SQRT_HALF))


@gelu_forward.numba(flat=True)
def gelu_forward(x):
    y = np.empty_like(x)
    for i in prange(x.size):
        y[i] = np.float32(0.5) * x[i] * (np.float32(1) + erf32(x[i] * np.float32(_SQRT_HALF)))
    return y


@kernel
def gelu_backward(g, x):
    return g * (0.5 * (1 + erf_of(x * _SQRT_HALF)) + x * xp.exp(-0.5 * x * x) * _INV_SQRT_2PI)


@gelu_backward.numba(flat=True)
def gelu_backward(g, x):
    dx = np.empty_like(g)
    for i in prange(g.size):
        v = x[i]
        phi = exp32(np.float32(-0.5) * v * v) * np.float32(_INV_SQRT_2PI)
        dx[i] = g[i] * (np.float32(0.5) * (np.float32(1) + erf32(v * np.float32(_SQRT_HALF))) + v * phi)
    return dx


class GELU(Op):
    """y = x Φ(x) = x/2 (1 + erf(x/√2));   dx = g (Φ(x) + x φ(x)),  φ(x) = e^(-x²/2)/√(2π)"""

    def forward(self, x):
        self.save(x)
        return gelu_forward(x)

    def backward(self, g):
        (x,) = self.saved
        return gelu_backward(g, x)


@kernel
def gelu_tanh_forward(x):
    return 0.5 * x * (1 + xp.tanh(_TANH_SCALE * (x + _TANH_CUBE * x * x * x)))


@gelu_tanh_forward.numba(flat=True)
def gelu_tanh_forward(x):
    y = np.empty_like(x)
    for i in prange(x.size):
        v = x[i]
        t = tanh32(np.float32(_TANH_SCALE) * (v + np.float32(_TANH_CUBE) * v * v * v))
        y[i] = np.float32(0.5) * v * (np.float32(1) + t)
    return y


@kernel
def gelu_tanh_backward(g, x):
    t = xp.tanh(_TANH_SCALE * (x + _TANH_CUBE * x * x * x))
    inner = _TANH_SCALE * (1 + 3 * _TANH_CUBE * x * x)
    return g * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner)


@gelu_tanh_backward.numba(flat=True)
def gelu_tanh_backward(g, x):
    dx = np.empty_like(g)
    for i in prange(g.size):
        v = x[i]
        t = tanh32(np.float32(_TANH_SCALE) * (v + np.float32(_TANH_CUBE) * v * v * v))
        inner = np.float32(_TANH_SCALE) * (np.float32(1) + np.float32(3 * _TANH_CUBE) * v * v)
        half = np.float32(0.5)
        dx[i] = g[i] * (half * (np.float32(1) + t) + half * v * (np.float32(1) - t * t) * inner)
    return dx


class GELUTanh(Op):
    """y = x/2 (1 + t), t = tanh(√(2/π) (x + 0.044715 x³));   dx = g ((1 + t)/2 + x/2 (1 - t²) √(2/π) (1 + 0.134145 x²))"""

    def forward(self, x):
        self.save(x)
        return gelu_tanh_forward(x)

    def backward(self, g):
        (x,) = self.saved
        return gelu_tanh_backward(g, x)


@public(case((3, 4)), case(()), case((0,)), case((3, 4), approximate="tanh"), case((0,), approximate="tanh"),
        case(lambda rng: [-1e4, -5.0, 0.0, 5.0, 1e4]))
def gelu(x, approximate: str = "none") -> Tensor:
    """x Φ(x), exact by default; `approximate="tanh"` is the tanh form (Hendrycks and Gimpel 2016, arXiv:1606.08415).

    The two differ by up to 5e-4. Raises ValueError for another value of `approximate`.
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f'gelu knows approximate="none" and "tanh", got {approximate!r}')
    return (GELU if approximate == "none" else GELUTanh).apply(x)
