"""A ViT is told nothing about where a patch is; it learns a code for each place. Do near places get similar codes?

After figure 7 (centre) of Dosovitskiy et al. 2021, arXiv:2010.11929.

    python demos/05_position_embeddings.py
    python demos/05_position_embeddings.py --checkpoint runs/demo/vit.safetensors
"""

# %% a trained ViT
import numpy as np
from _trained_vit import OUT, trained_vit
from matplotlib.figure import Figure

model, data, about = trained_vit(__doc__)

# %% its position embeddings, without that of the class token
rows, columns = model.patch_embed.grid
codes = model.pos_embed.numpy()[0, 1:]
print("position embeddings:", codes.shape)

# %% cosine similarity of all pairs
codes = codes - codes.mean(axis=0)  # what all places share says nothing about where they are
codes /= np.linalg.norm(codes, axis=1, keepdims=True)
similarity = codes @ codes.T

# %% does it fall with distance?
r, c = np.divmod(np.arange(rows * columns), columns)
distance = np.hypot(r[:, None] - r, c[:, None] - c)
print("mean similarity by distance, in patches:")
for near in range(1, 6):
    pairs = (distance >= near - 0.5) & (distance < near + 0.5)
    print(f"  {near}: {similarity[pairs].mean():+.3f}")
same_row, same_column = (r[:, None] == r) & (distance > 1.5), (c[:, None] == c) & (distance > 1.5)
print(f"in the same row, not neighbours: {similarity[same_row].mean():+.3f}, "
      f"in the same column: {similarity[same_column].mean():+.3f}")

# %% a picture: for each place, how similar all places are to it
figure = Figure(figsize=(8, 7.6), dpi=100)
grid = figure.subplots(rows, columns, gridspec_kw={"wspace": 0.08, "hspace": 0.08, "left": 0.07, "right": 0.86, "top": 0.9,
                                                   "bottom": 0.06})
largest = np.abs(similarity[~np.eye(rows * columns, dtype=bool)]).max()
for place, axes in enumerate(grid.flat):
    shown = axes.imshow(similarity[place].reshape(rows, columns), cmap="RdBu_r", vmin=-largest, vmax=largest)
    axes.set_xticks([])
    axes.set_yticks([])
for i in range(rows):
    grid[i, 0].set_ylabel(i + 1)
for j in range(columns):
    grid[-1, j].set_xlabel(j + 1)
figure.supxlabel("column of the patch", y=0.01, fontsize=11)
figure.supylabel("row of the patch", x=0.01, fontsize=11)
figure.colorbar(shown, cax=figure.add_axes((0.89, 0.2, 0.02, 0.6)), label="cosine similarity")
figure.suptitle(f"Similarity of position embeddings\n{about}", fontsize=11)
OUT.mkdir(parents=True, exist_ok=True)
figure.savefig(OUT / "05_position_embeddings.png")
print(f"picture: {OUT / '05_position_embeddings.png'}")
