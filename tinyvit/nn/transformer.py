"""The parts of a Transformer: patches to tokens, attention, MLP and the pre-norm block."""

from __future__ import annotations

import numpy as np

from ..autograd import no_grad
from ..registry import FUNCTIONS as F
from ..tensor import Tensor
from .layers import GELU, Conv2d, Dropout, DropPath, LayerNorm, Linear, pair, positive
from .module import Module


class PatchEmbed(Module):
    """Cuts an image into patches and maps each to a token: (B, C, H, W) -> (B, N, D), N = H/P · W/P, row by row

    The weight is that of a convolution of kernel and stride P, (D, C, P, P), and both ways to compute it agree:
    method="linear" copies the patches out and multiplies, "conv" convolves.
    """

    def __init__(self, image_size, patch, in_channels: int = 3, width: int = 768, method: str = "linear",
                 rng: np.random.Generator | None = None):
        super().__init__()
        self.image_size, self.patch = pair("PatchEmbed", "image_size", image_size), pair("PatchEmbed", "patch", patch)
        positive("PatchEmbed", image_size=min(self.image_size), patch=min(self.patch))
        for axis, size, p in zip(("height", "width"), self.image_size, self.patch):
            if size % p:
                below, above = size // p * p, (size // p + 1) * p
                raise ValueError(f"PatchEmbed: patches of {p} do not divide the image's {axis} {size}: use images of "
                                 f"{f'{below} or ' if below else ''}{above}, or another patch size")
        if method not in ("linear", "conv"):
            raise ValueError(f"PatchEmbed: method must be 'linear' or 'conv', got {method!r}")
        self.method = method
        self.grid = self.image_size[0] // self.patch[0], self.image_size[1] // self.patch[1]
        self.tokens = self.grid[0] * self.grid[1]
        self.proj = Conv2d(in_channels, width, self.patch, self.patch, rng=rng)

    def forward(self, x) -> Tensor:
        expected = (self.proj.weight.shape[1], *self.image_size)
        if tuple(x.shape[1:]) != expected:
            raise ValueError(f"this model takes images (B, {', '.join(map(str, expected))}), got {tuple(x.shape)}: resize the "
                             f"images, or make the model with image_size= and in_channels= of yours")
        if self.method == "conv":
            return self.proj(x).flatten(2).swapaxes(1, 2)
        return F.linear(F.patchify(x, self.patch), self.proj.weight.reshape(self.proj.weight.shape[0], -1), self.proj.bias)

    def flops(self, inputs, output) -> int:
        return 0 if self.method == "conv" else 2 * output.size * (self.proj.weight.size // output.shape[2])

    def extra_repr(self) -> str:
        return f"image_size={self.image_size}, patch={self.patch}, method={self.method!r}"


class MultiHeadAttention(Module):
    """Self-attention: (B, N, D) -> (B, N, D); mask: bool (True may be looked at) or float (added), broadcast to (B, h, N, N)

    q, k, v = x W_qkvᵀ, cut into h heads of d = D/h;  y = concat_heads softmax(q kᵀ/√d + mask) v · W_projᵀ
    (Vaswani et al. 2017, arXiv:1706.03762, section 3.2). The rows of W_qkv are [Q; K; V], head by head, as in timm.
    """

    def __init__(self, width: int, heads: int, bias: bool = True, dropout: float = 0.0,
                 rng: np.random.Generator | None = None):
        super().__init__()
        positive("MultiHeadAttention", width=width, heads=heads)
        if width % heads:
            fits = [h for h in range(1, width + 1) if width % h == 0]
            near = sorted(fits, key=lambda h: abs(h - heads))[:3]
            raise ValueError(f"MultiHeadAttention: {heads} heads do not divide the width {width}: "
                             f"use {', '.join(map(str, sorted(near)))} heads, or a width that is a multiple of {heads}")
        self.heads = heads
        self.qkv = Linear(width, 3 * width, bias, rng)
        self.proj = Linear(width, width, bias, rng)
        self.dropout = Dropout(dropout, rng)

    def forward(self, x, mask=None) -> Tensor:
        return self.dropout(self.proj(F.multi_head_attention(self.qkv(x), self.heads, mask)))

    def attention(self, x, mask=None) -> Tensor:
        """How much each token looks at each other one: (B, h, N, N), rows sum to 1. Without gradient, for plots."""
        with no_grad():
            B, N, D = x.shape
            q, k, _ = self.qkv(x).reshape(B, N, 3, self.heads, D // self.heads).transpose(2, 0, 3, 1, 4)
            return F.attention_weights(q, k, mask)

    def flops(self, inputs, output) -> int:
        B, N, D = output.shape
        return 2 * 2 * B * N * N * D

    def extra_repr(self) -> str:
        return f"heads={self.heads}"


class MLP(Module):
    """x -> W₂ GELU(W₁ x + b₁) + b₂, dropout after each: (..., width) -> (..., width)"""

    def __init__(self, width: int, hidden: int, dropout: float = 0.0, approximate: str = "none",
                 rng: np.random.Generator | None = None):
        super().__init__()
        self.fc1 = Linear(width, hidden, rng=rng)
        self.act = GELU(approximate)
        self.fc2 = Linear(hidden, width, rng=rng)
        self.dropout = Dropout(dropout, rng)

    def forward(self, x) -> Tensor:
        x = self.dropout(self.act(self.fc1(x)))
        return self.dropout(self.fc2(x))


class TransformerBlock(Module):
    """z' = z + MSA(LN(z)),  z = z' + MLP(LN(z')): (B, N, D) -> (B, N, D)      the pre-norm encoder block

    `drop_path` leaves a whole branch out, for each example with that probability, in training.
    """

    def __init__(self, width: int, heads: int, mlp: int, dropout: float = 0.0, drop_path: float = 0.0, eps: float = 1e-6,
                 approximate: str = "none", rng: np.random.Generator | None = None):
        super().__init__()
        self.norm1 = LayerNorm(width, eps)
        self.attn = MultiHeadAttention(width, heads, dropout=dropout, rng=rng)
        self.norm2 = LayerNorm(width, eps)
        self.mlp = MLP(width, mlp, dropout, approximate, rng)
        self.drop_path = DropPath(drop_path, rng)

    def forward(self, x, mask=None) -> Tensor:
        x = x + self.drop_path(self.attn(self.norm1(x), mask))
        return x + self.drop_path(self.mlp(self.norm2(x)))
