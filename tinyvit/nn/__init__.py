"""Modules: what has parameters, and how they start. `nn.functional` does not exist: the functions are tv.relu, ..."""

from . import init
from .init import skip_init
from .layers import (
    GELU,
    AvgPool2d,
    BatchNorm2d,
    Conv2d,
    Dropout,
    DropPath,
    Flatten,
    GlobalAvgPool2d,
    Identity,
    LayerNorm,
    Linear,
    MaxPool2d,
    ReLU,
)
from .module import LoadReport, Module, ModuleList, Parameter, Sequential
from .random import manual_seed
from .summary import Summary
from .transformer import MLP, MultiHeadAttention, PatchEmbed, TransformerBlock

__all__ = ["GELU", "MLP", "AvgPool2d", "BatchNorm2d", "Conv2d", "DropPath", "Dropout", "Flatten", "GlobalAvgPool2d",
           "Identity", "LayerNorm", "Linear", "LoadReport", "MaxPool2d", "Module", "ModuleList", "MultiHeadAttention",
           "Parameter", "PatchEmbed", "ReLU", "Sequential", "Summary", "TransformerBlock", "init", "manual_seed", "skip_init"]
