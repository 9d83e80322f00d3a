"""Norm-wise comparison: ‖a - b‖ <= tolerance · ‖b‖, with NaN and inf at the same places."""

import numpy as np

TOLERANCE = {"float32": 1e-4, "float64": 1e-8}


def distance(actual, expected) -> float:
    """‖actual - expected‖ / ‖expected‖ over the finite entries; inf if shapes or the places of NaN and inf differ."""
    a, b = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    if a.shape != b.shape or not np.array_equal(np.isnan(a), np.isnan(b)):
        return np.inf
    infinite = ~np.isfinite(b)
    if not np.array_equal(a[infinite & ~np.isnan(b)], b[infinite & ~np.isnan(b)]):
        return np.inf
    a, b = a[~infinite], b[~infinite]
    scale = np.linalg.norm(b)
    return float(np.linalg.norm(a - b) / scale) if scale else float(np.linalg.norm(a))


def assert_close(actual, expected, tolerance: float, what: str = "") -> None:
    far = distance(actual, expected)
    shapes = f"shapes {np.shape(actual)} and {np.shape(expected)}"
    assert far <= tolerance, f"{what}: relative distance {far:.3g} > {tolerance:g}, {shapes}"
