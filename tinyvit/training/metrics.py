"""The usual loss of a classifier, and how good a model is."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from ..autograd import no_grad
from ..backend import to_numpy, xp
from ..ops.loss import cross_entropy


def classification(label_smoothing: float = 0.0) -> Callable:
    """A loss for `fit` with batches (images (B, C, H, W), labels (B,)): cross-entropy, and the metric "accuracy"."""

    def loss(model, batch):
        images, labels = batch
        logits = model(images)
        value = cross_entropy(logits, labels, label_smoothing=label_smoothing)
        with no_grad():
            right = logits.detach().argmax(1).data == xp.asarray(labels)
        return value, {"accuracy": right.mean()}

    return loss


def evaluate(model, batches: Iterable) -> dict[str, float]:
    """{"accuracy", "loss"} of a classifier on batches of (images, labels), in eval mode and without a graph.

    The loss is the mean cross-entropy without label smoothing. The model's mode is what it was afterwards.
    Raises ValueError where there is no image.
    """
    right, total, count = 0, 0.0, 0
    with model.evaluating(), no_grad():
        for images, labels in batches:
            logits = model(images)
            total += cross_entropy(logits, labels).item() * len(images)
            right += int((to_numpy(logits.data).argmax(1) == np.asarray(labels)).sum())
            count += len(images)
    if count == 0:
        raise ValueError("there is no image to evaluate on")
    return {"accuracy": right / count, "loss": total / count}
