"""A NaN in the loss says nothing about where it was made. `detect_anomaly` names the op, and your line."""

# %% a softmax as it is written in books
import numpy as np

import tinyvit as tv


def book_softmax(x):
    e = x.exp()
    return e / e.sum(axis=-1, keepdims=True)


x = tv.tensor([[1.0, 2.0, 3.0], [10.0, 20.0, 95.0]], requires_grad=True)
p = book_softmax(x)
print("loss:", (p * p).sum().item(), "and nobody says why")

# %% which op made a NaN out of numbers?
try:
    with tv.detect_anomaly():
        p = book_softmax(x)
except tv.AnomalyError as error:
    print("\n" + str(error))
print("e^95 is", x.exp().numpy()[1, 2], "in float32, and inf / inf is NaN. tv.softmax subtracts the maximum first:")
print(tv.softmax(x).numpy().round(4))

# %% forward is fine, and the gradient is NaN: the length of a vector that is zero
v = tv.tensor([[3.0, 4.0], [0.0, 0.0]], requires_grad=True)
length = (v * v).sum(axis=1).sqrt()
print("\nlengths:", length.numpy())
length.sum().backward()
print("gradient:\n", v.grad)

# %% the slope of a root at 0 is infinite, and infinite times v = 0 is NaN: it is made in Mul, not in Sqrt
v.zero_grad()
try:
    with tv.detect_anomaly():
        length = (v * v).sum(axis=1).sqrt()
        length.sum().backward()
except tv.AnomalyError as error:
    print("\n" + str(error))
tv.norm(v, axis=1).sum().backward()
print("tv.norm has the gradient 0 there:\n", v.grad)

# %% masking afterwards does not help: 0 · inf is NaN too. Choose before dividing
a, b = tv.tensor([1.0, 2.0]), tv.tensor([0.0, 4.0], requires_grad=True)
tv.where(b > 0, a / b, 0.0).sum().backward()
print("\nwhere(b > 0, a / b, 0):                ", b.grad)
b.zero_grad()
tv.where(b > 0, a / tv.where(b > 0, b, 1.0), 0.0).sum().backward()
print("where(b > 0, a / where(b > 0, b, 1), 0):", b.grad)
assert np.isfinite(b.grad).all()
