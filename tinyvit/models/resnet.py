"""Residual networks for 32×32 images: He et al. 2015, "Deep Residual Learning for Image Recognition", arXiv:1512.03385."""

from __future__ import annotations

import numpy as np

from ..nn import BatchNorm2d, Conv2d, Linear, Module, Parameter, Sequential, init
from ..registry import FUNCTIONS as F
from ..tensor import Tensor


class BasicBlock(Module):
    """y = relu(F(x) + shortcut(x)),  F = bn(conv(relu(bn(conv(x))))): (B, C, H, W) -> (B, out, H/stride, W/stride)

    The shortcut is x itself, or where the shape changes a 1×1 convolution and a batch norm (option B of the paper).
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int, rng: np.random.Generator | None = None):
        super().__init__()
        self.conv1 = Conv2d(in_channels, out_channels, 3, stride, 1, bias=False, rng=rng)
        self.bn1 = BatchNorm2d(out_channels)
        self.conv2 = Conv2d(out_channels, out_channels, 3, 1, 1, bias=False, rng=rng)
        self.bn2 = BatchNorm2d(out_channels)
        self.shortcut = Sequential()
        if stride != 1 or in_channels != out_channels:
            self.shortcut.append(Conv2d(in_channels, out_channels, 1, stride, bias=False, rng=rng))
            self.shortcut.append(BatchNorm2d(out_channels))

    def forward(self, x) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class ResNet(Module):
    """3×3 stem, stages of basic blocks that halve the image and widen, mean over positions, a linear head: logits (B, K)

    widths: channels of each stage. blocks: basic blocks in each stage.
    zero_init: start the last batch norm of each block with weight 0, so that it begins as its shortcut (Goyal et al. 2017,
        arXiv:1706.02677). Convolutions start normal with variance 2/fan_out (He et al. 2015, arXiv:1502.01852).
    """

    def __init__(self, widths=(16, 32, 64), blocks: int = 3, num_classes: int = 10, in_channels: int = 3,
                 zero_init: bool = False, rng: np.random.Generator | None = None):
        super().__init__()
        if not widths or blocks < 1 or num_classes < 1:
            raise ValueError(f"ResNet needs at least one width, block and class, got widths={widths}, blocks={blocks}, "
                             f"num_classes={num_classes}")
        self.conv1 = Conv2d(in_channels, widths[0], 3, 1, 1, bias=False, rng=rng)
        self.bn1 = BatchNorm2d(widths[0])
        self.stages, channels = Sequential(), widths[0]
        for stage, width in enumerate(widths):
            layers = Sequential()
            for block in range(blocks):
                layers.append(BasicBlock(channels, width, 2 if stage and not block else 1, rng))
                channels = width
            self.stages.append(layers)
        self.fc = Linear(channels, num_classes, rng=rng)
        for module in self.modules():
            if isinstance(module, Conv2d):
                module.weight = Parameter(init.kaiming_normal(module.weight.shape, rng), copy=False)
            if zero_init and isinstance(module, BasicBlock):
                module.bn2.weight._data[...] = 0

    def forward(self, x) -> Tensor:
        return self.fc(F.global_avg_pool2d(self.features(x)))

    def features(self, x) -> Tensor:
        """The last stage's output, (B, C, H/4, W/4) after three stages."""
        return self.stages(F.relu(self.bn1(self.conv1(x))))


# resnet20: section 4.2 of the paper. resnet18: the widths of its ImageNet net on CIFAR's stem, as in kuangliu/pytorch-cifar.
PRESETS = {
    "resnet20": {"widths": (16, 32, 64), "blocks": 3},
    "resnet18": {"widths": (64, 128, 256, 512), "blocks": 2},
}


def resnet(preset: str, rng: np.random.Generator | None = None, **options) -> ResNet:
    """A ResNet by name: resnet20 or resnet18, for CIFAR-10. Raises ValueError for an unknown name.

    options: any argument of `ResNet`, instead of the preset's.
    """
    if preset not in PRESETS:
        raise ValueError(f"unknown ResNet {preset!r}: choose from {', '.join(PRESETS)}")
    return ResNet(**{**PRESETS[preset], **options}, rng=rng)
