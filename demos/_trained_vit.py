"""The small ViT that two of the demos look into: trained here in a minute or two, and kept in runs/demos for the next one."""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np

import tinyvit as tv
from tinyvit.data import DataWarning, Loader, load, standard_augment
from tinyvit.training import classification, evaluate, fit, load_checkpoint

OUT = Path("runs/demos")
BATCH = 128


def trained_vit(description: str):
    """(model, data set, text that says what it is), as the command line asks."""
    p = argparse.ArgumentParser(description=description)
    p.add_argument("--checkpoint", metavar="FILE", help="a ViT of the comparison instead, such as runs/demo/vit.safetensors")
    p.add_argument("--data", default="auto", metavar="auto|cifar10|shapes|DIR", help="which images (default: auto)")
    p.add_argument("--steps", type=int, default=200, metavar="N", help="of training, each of 128 images (default: 200)")
    options, _ = p.parse_known_args()  # a notebook has arguments of its own
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        data = load(options.data, download=False)
    print(f"images: {data.note}")
    if options.checkpoint:
        state = load_checkpoint(options.checkpoint)
        model = tv.models.create(state["config"]["recipe"]["model"], num_classes=len(data.classes))
        model.load_state_dict(state["model"])
        steps = state["step"]
    else:
        steps = options.steps
        model = _train(data, steps)
    test = Loader(data.test_images[:1000], data.test_labels[:1000], 250, shuffle=False, mean=data.mean, std=data.std)
    accuracy = evaluate(model, test.epoch(0))["accuracy"]
    about = f"ViT after {steps:,} steps on {data.name}: {accuracy:.0%} of 1,000 test images right"
    print(about)
    if not options.checkpoint:
        print("a longer training shows more: python -m tinyvit.demo --minutes 10, then --checkpoint runs/demo/vit.safetensors")
    model.eval()
    return model, data, about


def _train(data, steps: int):
    """Train, or go on from the checkpoint of a training with the same settings: nothing is left to do if it was complete."""
    model = tv.models.create("cifar-quick", num_classes=len(data.classes), rng=np.random.default_rng(0))
    OUT.mkdir(parents=True, exist_ok=True)
    train, _ = data.split()
    loader = Loader(data.images[train], data.labels[train], BATCH, shuffle=True, augment=standard_augment(), mean=data.mean,
                    std=data.std, drop_last=True)
    optimizer = tv.optim.AdamW(tv.optim.param_groups(model, weight_decay=0.05), lr=1e-3)
    fit(model, loader, optimizer, loss=classification(label_smoothing=0.1), steps=steps, clip=1.0,
        schedule=tv.optim.warmup_linear(steps, steps // 10), resume=True,
        checkpoint=OUT / f"vit-{data.name}-{steps}.safetensors")
    return model
