"""Models, one paper a file. `create(name)` makes any of them."""

from __future__ import annotations

import numpy as np

from ..nn import Module
from .resnet import PRESETS as RESNETS
from .resnet import BasicBlock, ResNet, resnet
from .vit import PRESETS as VITS
from .vit import ViT, vit

NAMES = (*VITS, *RESNETS)


def create(name: str, num_classes: int | None = None, rng: np.random.Generator | None = None, **options) -> Module:
    """A model by the name of its preset, one of `NAMES`: "cifar" and "b16" are ViTs, "resnet20" is a ResNet.

    num_classes: the preset's own if None. rng: where the weights are drawn from; the package's generator if None.
    options: arguments of the model's class. Raises ValueError for an unknown name.
    """
    if num_classes is not None:
        options["num_classes"] = num_classes
    if name in VITS:
        return vit(name, rng, **options)
    if name in RESNETS:
        return resnet(name, rng, **options)
    raise ValueError(f"unknown model {name!r}: choose from {', '.join(NAMES)}")


__all__ = ["NAMES", "BasicBlock", "ResNet", "ViT", "create", "resnet", "vit"]
