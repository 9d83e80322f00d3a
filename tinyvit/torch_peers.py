"""The models of this package in PyTorch, for the benchmark and the parity tests: the peer that we are measured against.

Imports torch, which only the `bench` extra installs; nothing else in the package imports this file. Parameter names are
ours, so `model.load_state_dict({k: torch.from_numpy(v) for k, v in ours.state_dict().items()})` copies weights over.

`python -m tinyvit.torch_peers MODEL train|infer BATCH` does one step for each line it reads, and answers with its seconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Multi-head self-attention, through PyTorch's fused kernel."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        B, N, D = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, N, D))


class MLP(nn.Module):
    """Two linear layers with an exact GELU between them."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x)))


class Block(nn.Module):
    """Pre-norm encoder block: x + MSA(LN x), then x + MLP(LN x)."""

    def __init__(self, width: int, heads: int, hidden: int):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(width, eps=1e-6), Attention(width, heads)
        self.norm2, self.mlp = nn.LayerNorm(width, eps=1e-6), MLP(width, hidden)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class PatchEmbed(nn.Module):
    """A strided convolution, flattened to tokens."""

    def __init__(self, width: int, patch: int):
        super().__init__()
        self.proj = nn.Conv2d(3, width, patch, patch)

    def forward(self, x):
        return self.proj(x).flatten(2).transpose(1, 2)


class ViT(nn.Module):
    """Class token, learned positions, linear head; 32×32 images and patch 4 by default."""

    def __init__(self, width=192, depth=4, heads=3, hidden=768, patch=4, image_size=32, num_classes=10):
        super().__init__()
        self.patch_embed = PatchEmbed(width, patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.randn(1, (image_size // patch) ** 2 + 1, width) * 0.02)
        self.blocks = nn.Sequential(*[Block(width, heads, hidden) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width, eps=1e-6), nn.Linear(width, num_classes)

    def forward(self, x):
        x = self.patch_embed(x)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks(x)[:, 0]))


class BasicBlock(nn.Module):
    """Two 3×3 convolutions around an identity, or a 1×1 projection where the shape changes."""

    def __init__(self, in_channels: int, out_channels: int, stride: int):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False), nn.BatchNorm2d(out_channels)
        self.conv2, self.bn2 = nn.Conv2d(out_channels, out_channels, 3, 1, 1, bias=False), nn.BatchNorm2d(out_channels)
        self.shortcut = nn.Sequential() if stride == 1 and in_channels == out_channels else nn.Sequential(
            nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """CIFAR ResNet: 3×3 stem, stages of basic blocks, global average pooling."""

    def __init__(self, widths: tuple[int, ...], blocks: int, num_classes=10):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False), nn.BatchNorm2d(widths[0])
        stages, channels = [], widths[0]
        for i, width in enumerate(widths):
            layers = []
            for b in range(blocks):
                layers.append(BasicBlock(channels, width, 2 if i and not b else 1))
                channels = width
            stages.append(nn.Sequential(*layers))
        self.stages, self.fc = nn.Sequential(*stages), nn.Linear(channels, num_classes)

    def forward(self, x):
        x = self.stages(F.relu(self.bn1(self.conv1(x))))
        return self.fc(x.mean((2, 3)))


def resnet20() -> ResNet:
    return ResNet((16, 32, 64), 3)


def resnet18() -> ResNet:
    return ResNet((64, 128, 256, 512), 2)


MODELS: dict[str, Callable[[], nn.Module]] = {"vit": ViT, "resnet18": resnet18, "resnet20": resnet20}


def make_step(name: str, train: bool, batch: int, memory_format) -> Callable[[], None]:
    """A training or inference step on random images."""
    torch.manual_seed(0)
    model = MODELS[name]().to(memory_format=memory_format).train(train)  # type: ignore[call-overload]
    optimizer = (torch.optim.AdamW(model.parameters(), fused=True) if name == "vit"
                 else torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))
    x = torch.randn(batch, 3, 32, 32).to(memory_format=memory_format)
    y = torch.randint(0, 10, (batch,))

    def training() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    def inference() -> None:
        with torch.no_grad():
            model(x)

    return training if train else inference


def serve(name: str, mode: str, batch: str) -> None:
    """Answer each line of standard input with the seconds of a step in both memory formats."""
    steps = [make_step(name, mode == "train", int(batch), f) for f in (torch.contiguous_format, torch.channels_last)]
    for _ in sys.stdin:
        seconds = []
        for step in steps:
            start = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - start)
        print(*seconds, flush=True)


if __name__ == "__main__":
    serve(*sys.argv[1:])
