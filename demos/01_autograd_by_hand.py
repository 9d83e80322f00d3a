"""Backpropagation with pencil and paper, beside the engine: the same numbers.

    L = (tanh(w x + b) - w)²        w is used twice, so its gradient has two parts
"""

# %% forward: every step has a name
import math
from pathlib import Path

import tinyvit as tv

w, x, b = 0.8, 1.5, -0.4
u = w * x
s = u + b
y = math.tanh(s)
e = y - w
L = e * e
print(f"forward    u = w x    = {u:+.4f}")
print(f"           s = u + b  = {s:+.4f}")
print(f"           y = tanh s = {y:+.4f}")
print(f"           e = y - w  = {e:+.4f}")
print(f"           L = e²     = {L:+.4f}")

# %% backward: upstream gradient times local derivative, from the last line to the first
dL = 1.0
de = dL * 2 * e          # L = e²
dy = de * 1              # e = y - w
dw_there = de * -1       #           ... and w
ds = dy * (1 - y * y)    # y = tanh s
du, db = ds * 1, ds * 1  # s = u + b
dw_here = du * x         # u = w x
dw = dw_there + dw_here  # two ways from w to L: add them
print(f"backward   de = 2 e          = {de:+.4f}")
print(f"           dy = de           = {dy:+.4f}    dw gets {dw_there:+.4f}")
print(f"           ds = dy (1 - y²)  = {ds:+.4f}")
print(f"           du = db = ds      = {du:+.4f}")
print(f"           du x              = {dw_here:+.4f}    dw gets {dw_here:+.4f}")

# %% the engine
tw, tb = tv.tensor(w, requires_grad=True), tv.tensor(b, requires_grad=True)
loss = ((tw * x + tb).tanh() - tw) ** 2
graph = tv.show_graph(loss, names={"w": tw, "b": tb, "L": loss})
print(f"\n{graph}\n")
loss.backward()

# %% a third opinion: move w a little and look at L
h = 1e-6
measured = [((math.tanh((w + d) * x + b) - (w + d)) ** 2) for d in (h, -h)]
print(f"           {'by hand':>9} {'tinyvit':>9} {'measured':>9}")
print(f"dL/dw      {dw:+9.5f} {tw.grad:+9.5f} {(measured[0] - measured[1]) / (2 * h):+9.5f}")
print(f"dL/db      {db:+9.5f} {tb.grad:+9.5f}")

# %% the graph as a picture
out = Path("runs/demos")
out.mkdir(parents=True, exist_ok=True)
graph.save(out / "01_graph.png")
print(f"picture: {out / '01_graph.png'}")
