"""Wrong derivatives, and who notices: a check with `.sum()` as the loss, and one with a random upstream gradient."""

# %% LayerNorm without weight and bias, right
import numpy as np

import tinyvit as tv


class LayerNorm(tv.Op):
    """n = (x - mean x) r,  r = 1/std x;   dx = r (g - mean(g) - n mean(g n))      x: (B, D), means over D"""

    def forward(self, x):
        r = 1 / x.std(axis=1, keepdims=True)
        n = (x - x.mean(axis=1, keepdims=True)) * r
        self.save(n, r)
        return n

    def backward(self, g):
        n, r = self.saved
        return self.formula(g, n, r)

    def formula(self, g, n, r):
        return r * (g - mean(g) - n * mean(g * n))


def mean(a):
    return a.mean(axis=1, keepdims=True)


# %% five ways of getting it wrong
WRONG = {
    "the sign": lambda self, g, n, r: -r * (g - mean(g) - n * mean(g * n)),
    "no factor r": lambda self, g, n, r: g - mean(g) - n * mean(g * n),
    "a hundred times too large": lambda self, g, n, r: 100 * r * (g - mean(g) - n * mean(g * n)),
    "std taken for a constant": lambda self, g, n, r: r * (g - mean(g)),
    "std and mean taken for constants": lambda self, g, n, r: r * g,
}
x = np.random.default_rng(0).normal(2, 3, (3, 5))


def error_with_sum(op) -> float:
    """The largest error of the gradient of op(x).sum(), against central differences."""
    t = tv.tensor(x, requires_grad=True)
    op.apply(t).sum().backward()
    numeric = np.empty_like(x)
    for i in np.ndindex(x.shape):
        moved = [x.copy(), x.copy()]
        moved[0][i] += 1e-5
        moved[1][i] -= 1e-5
        high, low = (op.apply(tv.tensor(m)).sum().item() for m in moved)
        numeric[i] = (high - low) / 2e-5
    return float(np.abs(t.grad - numeric).max())


# %% who notices?
print(f"{'LayerNorm with ...':36} {'.sum() as the loss':>20} {'random upstream':>18}")
for name, formula in {"nothing wrong": LayerNorm.formula, **WRONG}.items():
    op = type("LayerNorm", (LayerNorm,), {"formula": formula})
    by_sum = "passes" if error_with_sum(op) < 1e-6 else "fails"
    report = tv.gradcheck(op, [x], raise_on_error=False)
    print(f"{name:36} {by_sum:>20} {'passes' if report.ok else 'fails':>18}")

# %% the values of a normalised row add up to 0, whatever x is: the gradient of their sum is 0, and so is the wrong one
for name, formula in WRONG.items():
    op = type("LayerNorm", (LayerNorm,), {"formula": formula})
    print(f"\n{name}:\n{tv.gradcheck(op, [x], raise_on_error=False)}")
