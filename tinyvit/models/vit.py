"""Vision Transformer: Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words", arXiv:2010.11929, equations 1 to 4."""

from __future__ import annotations

import numpy as np

from ..autograd import no_grad
from ..backend import to_numpy, xp
from ..nn import Conv2d, Dropout, LayerNorm, Linear, Module, ModuleList, Parameter, PatchEmbed, TransformerBlock, init
from ..registry import FUNCTIONS as F
from ..tensor import Tensor

POSITIONS = ("1d", "2d", "sincos", "none")


class ViT(Module):
    """An encoder over image patches with a classifier on top: (B, C, H, W) -> logits (B, K)

    z_0  = [x_class; x_p¹ E; ...; x_pᴺ E] + E_pos                                   (1)
    z'_l = MSA(LN(z_{l-1})) + z_{l-1},   z_l = MLP(LN(z'_l)) + z'_l,  l = 1 ... L   (2, 3)
    y    = LN(z_L⁰), then the head                                                  (4)

    pos: "1d" learned, one code a token (the paper's); "2d" learned, a row's code and a column's, D/2 each (appendix D.4);
        "sincos" fixed, the same halves from sines and cosines (Chen et al. 2021, arXiv:2104.02057); "none".
        All but "1d" give the class token no code: it is learned anyway.
    pool: what the head sees: "cls" the class token, "mean" the mean of all patches; then there is no class token (N tokens).
    head: "linear", or "mlp": a layer of width D and tanh before it, as the paper has in pre-training.
    drop_path: the last block's; it grows in a straight line from 0 in the first.

    Parameters are named as in timm. Weights start as in the paper's code (google-research/vision_transformer): Xavier uniform,
    with q, k and v apart; biases and the class token at 0; positions normal with std 0.02, cut at two std; the patch embedding
    as a convolution does. The head starts as timm's does, like the positions (0 in the paper's code).
    Raises ValueError for settings that do not fit together.
    """

    def __init__(self, image_size=224, patch=16, in_channels: int = 3, num_classes: int = 1000, width: int = 768,
                 depth: int = 12, heads: int = 12, mlp: int = 3072, pos: str = "1d", pool: str = "cls", head: str = "linear",
                 dropout: float = 0.0, drop_path: float = 0.0, eps: float = 1e-6, rng: np.random.Generator | None = None):
        super().__init__()
        _check(depth=depth, num_classes=num_classes, width=width, pos=pos, pool=pool, head=head)
        self.pos, self.pool = pos, pool
        self.patch_embed = PatchEmbed(image_size, patch, in_channels, width, rng=rng)
        self.cls_token = Parameter(xp.zeros((1, 1, width), np.float32), copy=False) if pool == "cls" else None
        self._add_positions(width, rng)
        self.dropout = Dropout(dropout, rng)
        rates = np.linspace(0, drop_path, depth).tolist()
        with init.skip_init():  # the linear layers' weights are drawn below
            self.blocks = ModuleList(TransformerBlock(width, heads, mlp, dropout, rate, eps, rng=rng) for rate in rates)
            self.norm = LayerNorm(width, eps)
            self.pre_logits = Linear(width, width) if head == "mlp" else None
            self.head = Linear(width, num_classes)
        for name, module in self.named_modules():
            if isinstance(module, Linear):
                module.weight = Parameter(_first_weights(name, module.weight.shape, rng), copy=False)
            if isinstance(module, Linear | Conv2d):
                module.bias = Parameter(xp.zeros(module.weight.shape[0], np.float32), copy=False)

    def _add_positions(self, width: int, rng: np.random.Generator | None) -> None:
        (rows, columns), tokens = self.patch_embed.grid, self.patch_embed.tokens
        if self.pos == "1d":
            count = tokens + (self.cls_token is not None)
            self.pos_embed = Parameter(init.trunc_normal((1, count, width), 0.02, rng), copy=False)
        elif self.pos == "2d":
            self.pos_row = Parameter(init.trunc_normal((rows, 1, width // 2), 0.02, rng), copy=False)
            self.pos_column = Parameter(init.trunc_normal((1, columns, width // 2), 0.02, rng), copy=False)
        elif self.pos == "sincos":
            self._codes = xp.asarray(sincos_positions(rows, columns, width))  # private, so not a buffer: it never changes

    def forward(self, x) -> Tensor:
        x = self.features(x)
        x = x[:, 0] if self.pool == "cls" else x.mean(axis=1)
        if self.pre_logits is not None:
            x = self.pre_logits(x).tanh()
        return self.head(x)

    def features(self, x) -> Tensor:
        """The tokens after the final norm: (B, N+1, D), the class token first; (B, N, D) with pool="mean"."""
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def embed(self, x) -> Tensor:
        """Equation 1: images to the tokens that the first block sees."""
        x = self.patch_embed(x)
        if self.pos in ("2d", "sincos"):
            x = x + self._grid_codes()
        if self.cls_token is not None:
            x = F.concat([F.broadcast_to(self.cls_token, (x.shape[0], 1, x.shape[2])), x], axis=1)
        if self.pos == "1d":
            x = x + self.pos_embed
        return self.dropout(x)

    def _grid_codes(self):
        """The codes of the patches, (N, D)."""
        if self.pos == "sincos":
            return self._codes.astype(self.patch_embed.proj.weight.dtype, copy=False)
        shape = *self.patch_embed.grid, self.pos_row.shape[2]
        codes = F.concat([F.broadcast_to(self.pos_row, shape), F.broadcast_to(self.pos_column, shape)], axis=2)
        return codes.reshape(self.patch_embed.tokens, -1)

    def attention_maps(self, x) -> list[np.ndarray]:
        """The attention of each block, in evaluation mode: arrays (B, h, N+1, N+1), or N with pool="mean"."""
        maps = []
        with no_grad(), self.evaluating():
            x = self.embed(x)
            for block in self.blocks:
                maps.append(to_numpy(block.attn.attention(block.norm1(x))._data))
                x = block(x)
        return maps


def _first_weights(name: str, shape: tuple[int, ...], rng: np.random.Generator | None):
    """A linear layer's weights (out, in) to start with."""
    if name == "head":
        return init.trunc_normal(shape, 0.02, rng)
    if name.endswith("qkv"):
        return xp.concatenate([init.xavier_uniform((shape[0] // 3, shape[1]), rng) for _ in range(3)])
    return init.xavier_uniform(shape, rng)


def _check(depth: int, num_classes: int, width: int, pos: str, pool: str, head: str) -> None:
    for what, value, known in (("pos", pos, POSITIONS), ("pool", pool, ("cls", "mean")), ("head", head, ("linear", "mlp"))):
        if value not in known:
            raise ValueError(f"ViT: {what} must be one of {', '.join(known)}, got {value!r}")
    if depth < 1 or num_classes < 1:
        raise ValueError(f"ViT: depth and num_classes must be at least 1, got {depth} and {num_classes}")
    factor = {"2d": 2, "sincos": 4}.get(pos, 1)
    if width % factor:
        raise ValueError(f"ViT: pos={pos!r} needs a width that is a multiple of {factor}, got {width}")


def sincos_positions(rows: int, columns: int, width: int) -> np.ndarray:
    """Codes (rows · columns, width): sin(t ω), cos(t ω) of the row, then of the column, ω_i = 10000^(-4 i / width)."""
    omega = 10000.0 ** (-np.arange(width // 4) / (width // 4))
    r, c = np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")
    angles = [t.reshape(-1, 1) * omega for t in (r, c)]
    return np.concatenate([f(a) for a in angles for f in (np.sin, np.cos)], axis=1).astype(np.float32)


# Table 1 of the paper; Ti and S from DeiT (Touvron et al. 2021, arXiv:2012.12877); the last two are for CIFAR-10.
PRESETS = {
    "ti16": {"patch": 16, "width": 192, "depth": 12, "heads": 3, "mlp": 768},
    "s16": {"patch": 16, "width": 384, "depth": 12, "heads": 6, "mlp": 1536},
    "b16": {"patch": 16, "width": 768, "depth": 12, "heads": 12, "mlp": 3072},
    "l16": {"patch": 16, "width": 1024, "depth": 24, "heads": 16, "mlp": 4096},
    "h14": {"patch": 14, "width": 1280, "depth": 32, "heads": 16, "mlp": 5120},
    "cifar": {"image_size": 32, "num_classes": 10, "patch": 4, "width": 192, "depth": 4, "heads": 3, "mlp": 768},
    "cifar-quick": {"image_size": 32, "num_classes": 10, "patch": 4, "width": 96, "depth": 4, "heads": 3, "mlp": 192},
}


def vit(preset: str, rng: np.random.Generator | None = None, **options) -> ViT:
    """A ViT by name: ti16, s16, b16, l16, h14 (224 px, 1000 classes) or cifar, cifar-quick (32 px, 10 classes).

    options: any argument of `ViT`, instead of the preset's. Raises ValueError for an unknown name.
    """
    if preset not in PRESETS:
        raise ValueError(f"unknown ViT {preset!r}: choose from {', '.join(PRESETS)}")
    return ViT(**{**PRESETS[preset], **options}, rng=rng)
