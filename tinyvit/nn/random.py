"""The package's own random generator, for whoever passes none."""

from __future__ import annotations

import numpy as np

_default = np.random.default_rng(0)


def manual_seed(seed: int) -> None:
    """Start the package's generator afresh from `seed`; layers that already hold it go on from there too.

    It starts from seed 0 (unlike PyTorch's, which starts somewhere else each time), so a script without any seed repeats.
    """
    _default.bit_generator.state = np.random.default_rng(seed).bit_generator.state


def generator(rng: np.random.Generator | None) -> np.random.Generator:
    """`rng`, or the package's generator for None. Raises TypeError for anything else, a seed for example."""
    if rng is None:
        return _default
    if not isinstance(rng, np.random.Generator):
        raise TypeError(f"rng must be a NumPy generator, got {rng!r}: pass np.random.default_rng(seed)")
    return rng
