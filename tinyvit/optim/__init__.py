"""Optimisers, schedules, clipping and averaging."""

from .algorithms import SGD, Adam, AdamW
from .clip import clip_grad_norm
from .ema import EMA
from .optimizer import Optimizer, param_groups
from .schedules import constant, warmup_cosine, warmup_linear

__all__ = ["EMA", "SGD", "Adam", "AdamW", "Optimizer", "clip_grad_norm", "constant", "param_groups", "warmup_cosine",
           "warmup_linear"]
