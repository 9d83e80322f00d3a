"""A convolution three ways: loops, im2col and one matrix product, and tv.conv2d. The same numbers; how long does each take?"""

# %% 8 images of 16 channels, 32 filters of 3 × 3
import time
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import tinyvit as tv
from tinyvit.ops.conv import im2col

rng = np.random.default_rng(0)
x = rng.standard_normal((8, 16, 32, 32), dtype=np.float32)
w = rng.standard_normal((32, 16, 3, 3), dtype=np.float32)


# %% one: the definition
def loops(x, w):
    (B, _, H, W), (F, _, kh, kw) = x.shape, w.shape
    y = np.empty((B, F, H - kh + 1, W - kw + 1), np.float32)
    for b in range(B):
        for f in range(F):
            for i in range(y.shape[2]):
                for j in range(y.shape[3]):
                    y[b, f, i, j] = (w[f] * x[b, :, i : i + kh, j : j + kw]).sum()
    return y


# %% two: every window as a column, and a matrix product
def product(x, w):
    F, _, kh, kw = w.shape
    columns = im2col(x, (kh, kw), (1, 1), (0, 0), (1, 1))  # (B, C kh kw, H' W')
    return (w.reshape(F, -1) @ columns).reshape(len(x), F, x.shape[2] - kh + 1, -1)


# %% three: the package's, which never builds the whole matrix
def package(x, w):
    return tv.conv2d(x, w).numpy()


# %% the same numbers?
def seconds(f, x) -> float:
    begun = time.perf_counter()
    f(x, w)
    return time.perf_counter() - begun


first = x[:1]
right = loops(first, w)
fast = {"im2col, product": product, "tv.conv2d": package}
gflop = 2 * w.size * 30 * 30 / 1e9  # a multiplication and an addition for each weight, at each place; for one image
print(f"{'':16} {'difference':>10} {'ms an image':>12} {'GFLOP/s':>9}")
for name, f in {"loops": loops, **fast}.items():
    difference = np.abs(f(first, w) - right).max()
    taken = seconds(f, first) if f is loops else min(seconds(f, x) for _ in range(20)) / len(x)
    print(f"{name:16} {difference:10.0e} {1000 * taken:12.3f} {gflop / taken:9.3g}")

# %% a picture, of something small enough to see: a 5 × 5 image, 3 × 3 windows, one filter
image = np.arange(1.0, 26).reshape(1, 1, 5, 5)
filters = np.eye(3).reshape(1, 1, 3, 3)  # adds up a diagonal: easy to check by eye
columns = im2col(image, (3, 3), (1, 1), (0, 0), (1, 1))[0]
answer = filters.reshape(1, 9) @ columns


def show(axes, matrix, title, highlight=(), cmap="Blues"):
    matrix = np.atleast_2d(matrix)
    axes.imshow(matrix, cmap=cmap, vmin=-0.6 * np.abs(matrix).max(), vmax=1.6 * np.abs(matrix).max())
    for (i, j), value in np.ndenumerate(matrix):
        axes.text(j, i, f"{value:.0f}", ha="center", va="center", fontsize=9)
    for corner, width, height in highlight:
        axes.add_patch(Rectangle(corner, width, height, fill=False, edgecolor="#D55E00", linewidth=2.5))
    axes.set_title(title, fontsize=10)
    axes.axis("off")


figure = Figure(figsize=(11, 4), dpi=110)
place = figure.add_axes
show(place((0.01, 0.22, 0.22, 0.58)), image[0, 0], "image, 5 × 5\none window marked", [((0.5, 0.5), 3, 3)])
show(place((0.245, 0.12, 0.2, 0.2)), filters.reshape(1, 9), "weights, 1 × 9", cmap="Greens")
show(place((0.48, 0.05, 0.32, 0.8)), columns, "im2col, 9 × 9: each column a window", [((3.5, -0.5), 1, 9)])
show(place((0.83, 0.3, 0.16, 0.42)), answer.reshape(3, 3), "weights @ im2col\nas an image, 3 × 3", [((0.5, 0.5), 1, 1)],
     "Purples")
show(place((0.27, 0.42, 0.15, 0.38)), filters[0, 0], "filter, 3 × 3", cmap="Greens")
for start, text in ((0.455, "@"), (0.81, "=")):
    figure.text(start, 0.45, text, fontsize=22, ha="center", va="center")
out = Path("runs/demos")
out.mkdir(parents=True, exist_ok=True)
figure.savefig(out / "03_conv_is_im2col_matmul.png")
print(f"picture: {out / '03_conv_is_im2col_matmul.png'}")
