"""What does a ViT look at? The attention of the class token, over the image, for each head.

    python demos/04_attention_map.py
    python demos/04_attention_map.py --checkpoint runs/demo/vit.safetensors
"""

# %% a trained ViT
import numpy as np
from _trained_vit import OUT, trained_vit
from matplotlib.figure import Figure

from tinyvit.data import normalize

model, data, about = trained_vit(__doc__)
images, labels = data.test_images[:6], data.test_labels[:6]
x = normalize(images, data.mean, data.std)

# %% attention of the last block: (B, h, N + 1, N + 1), each row adds up to 1
maps = model.attention_maps(x)[-1]
print("attention of the last block:", maps.shape)
print("each row adds up to 1:", np.allclose(maps.sum(axis=-1), 1, atol=1e-5))

# %% the row of the class token: how much of each patch flows into the answer
rows, columns = model.patch_embed.grid
to_patches = maps[:, :, 0, 1:].reshape(len(x), -1, rows, columns)
itself = maps[:, :, 0, 0].mean(axis=0)
print("the class token looks at itself with weight", ", ".join(f"{w:.2f}" for w in itself), "(one number a head)")
even = 1 / (rows * columns + 1)
print(f"strongest patch: {to_patches.max() / even:.1f} times what even attention would give it")

# %% a picture: images on the left, one column for each head
answers = model(x).numpy().argmax(axis=1)
heads = to_patches.shape[1]
figure = Figure(figsize=(2 + 1.9 * heads, 1.75 * len(x) + 0.8), dpi=110, layout="constrained")
grid = figure.subplots(len(x), 1 + heads)
for image, label, answer, attention, row in zip(images, labels, answers, to_patches, grid):
    row[0].imshow(image.transpose(1, 2, 0))
    row[0].set_ylabel(data.classes[label], fontsize=11)
    row[0].set_xlabel(f"says: {data.classes[answer]}", fontsize=9)
    for head, axes in enumerate(row[1:]):
        axes.imshow(image.transpose(1, 2, 0).mean(axis=2), cmap="gray", extent=(0, 1, 0, 1))
        axes.imshow(attention[head], cmap="inferno", alpha=0.75, extent=(0, 1, 0, 1))
        axes.set_xlabel(f"strongest {attention[head].max() / even:.0f} × even", fontsize=9)
for head, axes in enumerate(grid[0, 1:], 1):
    axes.set_title(f"head {head}", fontsize=11)
for axes in grid.flat:
    axes.set_xticks([])
    axes.set_yticks([])
figure.suptitle(f"Attention of the class token, last block\n{about}", fontsize=11)
OUT.mkdir(parents=True, exist_ok=True)
figure.savefig(OUT / "04_attention_map.png")
print(f"picture: {OUT / '04_attention_map.png'}")
