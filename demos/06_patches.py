"""An image as a sentence: cutting it into patches and multiplying is a convolution whose stride is its kernel's size."""

# %% an image, 32 × 32, in patches of 8 × 8: 16 words of 192 numbers
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import tinyvit as tv
from tinyvit.data.shapes import CLASSES, generate

B, C, P, D = 2, 3, 8, 5
images, labels, _ = generate(B, seed=7)
x = tv.tensor(images / np.float32(255))
tokens = tv.patchify(x, P)
print("images (B, C, H, W):       ", x.shape)
print("patches (B, N, C P P):     ", tokens.shape)

# %% one way: a matrix product with every patch, the same matrix for all
rng = np.random.default_rng(0)
weight = tv.tensor(rng.standard_normal((D, C, P, P)).astype(np.float32))
bias = tv.tensor(rng.standard_normal(D).astype(np.float32))
linear = tv.linear(tokens, weight.reshape(D, -1), bias)
print("linear, (B, N, D):         ", linear.shape)

# %% the other: a convolution that moves by a whole patch
conv = tv.conv2d(x, weight, bias, stride=P)
print("conv2d, (B, D, H/P, W/P):  ", conv.shape)
conv = conv.flatten(2).swapaxes(1, 2)
print(f"largest difference:         {np.abs(linear.numpy() - conv.numpy()).max():.0e} of {np.abs(conv.numpy()).max():.1f}")

# %% by hand, for one patch: row 1, column 2 of the grid of 4 × 4 is token 6
patch = x.numpy()[0, :, P : 2 * P, 2 * P : 3 * P]
by_hand = weight.numpy().reshape(D, -1) @ patch.reshape(-1) + bias.numpy()
print("token 6 by hand:            close:", np.allclose(by_hand, linear.numpy()[0, 6], atol=1e-4))

# %% nothing is lost: the patches put back give the image
back = tv.unpatchify(tokens, P, height=32, width=32)
print("unpatchify(patchify(x)) = x:", np.array_equal(back.numpy(), x.numpy()))

# %% and a transformer does not know their order: without position embeddings, shuffled patches give shuffled answers
block = tv.nn.TransformerBlock(width=D * 2, heads=2, mlp=16, rng=rng)
z = tv.tensor(rng.standard_normal((1, 16, D * 2)).astype(np.float32))
order = rng.permutation(16)
print("block(shuffled) = shuffled block:", np.allclose(block(z[:, order]).numpy(), block(z).numpy()[:, order], atol=1e-5))

# %% a picture: the image as the ViT gets it
figure = Figure(figsize=(8, 4), dpi=110)
left, right = figure.subfigures(1, 2)
axes = left.subplots()
axes.imshow(images[0].transpose(1, 2, 0))
axes.set_xticks(np.arange(0, 33, P) - 0.5, range(0, 33, P))
axes.set_yticks(np.arange(0, 33, P) - 0.5, range(0, 33, P))
axes.grid(color="white", linewidth=1.2)
axes.set_title(f"a {CLASSES[labels[0]]}, 32 × 32", fontsize=11)
for n, axes in enumerate(right.subplots(4, 4).flat):
    axes.imshow(tokens.numpy()[0, n].reshape(C, P, P).transpose(1, 2, 0))
    axes.set_title(f"token {n}", fontsize=7, pad=2)
    axes.axis("off")
right.suptitle("16 patches, in the order of reading", fontsize=11)
out = Path("runs/demos")
out.mkdir(parents=True, exist_ok=True)
figure.savefig(out / "06_patches.png")
print(f"picture: {out / '06_patches.png'}")
