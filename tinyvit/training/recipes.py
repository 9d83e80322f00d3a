"""How the demo trains: a model, an optimiser and their settings under one name each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from .. import models, optim
from ..data.augment import Augment, standard_augment


@dataclass(frozen=True)
class Recipe:
    """One model and how to train it. Learning rates are for the batch size given."""

    model: str  # what models.create calls it
    optimizer: str  # "adamw" | "sgd"
    lr: float
    weight_decay: float
    batch: int = 128
    warmup: float = 0.1  # part of all steps in which the learning rate rises
    label_smoothing: float = 0.0
    clip: float | None = None
    share: float = 1.0  # part of a time budget, against the other models'

    def build_model(self, classes: int, rng):
        return models.create(self.model, num_classes=classes, rng=rng)

    def augmentation(self, epochs: float) -> Augment:
        """Mirror images, and from CROP_FROM epochs on shifted ones: below that a model sees too little twice to overfit."""
        return standard_augment(crop=4 if epochs >= CROP_FROM else 0, flip=True)

    def build_optimizer(self, model):
        groups = optim.param_groups(model, self.weight_decay)
        if self.optimizer == "adamw":
            return optim.AdamW(groups, lr=self.lr)
        return optim.SGD(groups, lr=self.lr, momentum=0.9, nesterov=True)

    def schedule(self, steps: int) -> Callable[[int], float]:
        """Up in a straight line, then down to zero in another."""
        return optim.warmup_linear(steps, max(1, round(self.warmup * steps)))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


VIT = Recipe("cifar", "adamw", lr=1e-3, weight_decay=0.05, label_smoothing=0.1, clip=1.0, share=1.2)
VIT_QUICK = Recipe("cifar-quick", "adamw", lr=1e-3, weight_decay=0.05, batch=64, clip=1.0, share=0.7)
RESNET20 = Recipe("resnet20", "sgd", lr=0.1, weight_decay=5e-4, batch=64, warmup=0.2)
RESNET18 = Recipe("resnet18", "sgd", lr=0.1, weight_decay=5e-4)

PRESETS = ("quick", "chapter", "best")
MODELS = ("vit", "resnet", "pretrained")
CROP_FROM = 5.0
WIDE_FROM = 20.0  # minutes from which `quick` takes the 192 wide ViT, which needs several epochs to be worth its cost


def recipes(preset: str, minutes: float | None, gpu: bool = False) -> dict[str, Recipe]:
    """The recipe of each model name of a preset; `quick` grows with the time there is, and on a GPU."""
    if preset == "chapter":
        return {"vit": VIT, "resnet": RESNET18}
    if preset == "quick" and gpu:
        return {"vit": VIT, "resnet": RESNET18}
    if preset == "quick" and (minutes is None or minutes < WIDE_FROM):
        return {"vit": VIT_QUICK, "resnet": RESNET20}
    return {"vit": VIT, "resnet": RESNET20}
