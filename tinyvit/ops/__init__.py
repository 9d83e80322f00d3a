"""The ops, one file per family: formula, forward, backward and kernel of an op on one screen."""

from . import (  # noqa: F401
    activations,
    arithmetic,
    attention,
    conv,
    dropout,
    loss,
    matmul,
    norm,
    patches,
    pool,
    reduce,
    shape,
    softmax,
)
