"""Signed distances to outlines: negative inside, positive outside, in units in which each shape is about 1 in radius.

A distance makes an anti-aliased picture without any list of pixels: coverage = clip(½ − distance in pixels, 0, 1). They
combine, too: min is the union of two shapes, max their intersection, max(a, −b) is a without b. Some are exact near the
outline only, which is where coverage needs them. Points (u, v) are arrays of one shape; v points down, as rows of an image do.
After Inigo Quilez, "2D distance functions" (https://iquilezles.org/articles/distfunctions2d/).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

Distance = Callable[[np.ndarray, np.ndarray], np.ndarray]


def length(u, v):
    """√(u² + v²); np.hypot, which is safe from overflow, takes five times as long."""
    return np.sqrt(u * u + v * v)


def circle(u, v, radius: float = 0.9):
    return length(u, v) - radius


def box(u, v, width: float, height: float):
    """A rectangle of half a width and half a height; exact beside its edges, too small beyond its corners."""
    return np.maximum(np.abs(u) - width, np.abs(v) - height)


def polygon(u, v, sides: int, radius: float = 1.0):
    """A regular polygon, one corner up: the intersection of n half-planes at a distance r cos(π/n) from the centre."""
    middles = [2 * math.pi * (k + 0.5) / sides for k in range(sides)]  # directions of the edges' middles, from the top
    planes = [math.sin(a) * u - math.cos(a) * v for a in middles]
    return np.maximum.reduce(planes) - radius * math.cos(math.pi / sides)


def square(u, v):
    return box(u, v, 0.8, 0.8)


def triangle(u, v):
    return polygon(u, v, 3, 1.15)


def pentagon(u, v):
    return polygon(u, v, 5)


def star(u, v):
    """Five points: two reflections fold the plane into one wedge of a tenth of a turn, whose edge is a straight line."""
    c, s = math.cos(math.pi / 5), math.sin(math.pi / 5)
    u, v = np.abs(u), -v
    for normal_u in (c, -c):
        side = 2 * np.maximum(normal_u * u - s * v, 0)
        u, v = u - side * normal_u, v + side * s
    u, v = np.abs(u), v - 1.1  # from the tip
    edge_u, edge_v = 0.45 * s, 0.45 * c - 1  # along the edge
    unit = math.hypot(edge_u, edge_v)
    return v * edge_u / unit - u * edge_v / unit


def ring(u, v):
    return np.abs(length(u, v) - 0.72) - 0.22


def cross(u, v):
    return np.minimum(box(u, v, 1.0, 0.32), box(u, v, 0.32, 1.0))


def crescent(u, v):
    return np.maximum(circle(u, v, 0.95), -circle(u - 0.5, v, 0.85))


def heart(u, v):
    """A square on its corner and a circle on each of its two upper sides."""
    half = math.sqrt(0.5)
    right, left = half * (u - v), half * (-u - v)  # the square's own axes, which point up
    right, left = right + 0.18, left + 0.18
    side = 0.56
    return np.minimum.reduce([box(right, left, side, side), circle(right - side, left, side), circle(right, left - side, side)])


def arrow(u, v):
    """Points up: a triangle on a stem."""
    head = polygon(u, v + 0.3, 3, 0.85)
    return np.minimum(head, box(u, v - 0.45, 0.26, 0.55))


def capsule(u, v, half_length, radius):
    """All points within a radius of a segment that lies along u; a disc where its half length is 0."""
    return length(np.maximum(np.abs(u) - half_length, 0), v) - radius


SHAPES: dict[str, Distance] = {
    "circle": circle, "square": square, "triangle": triangle, "pentagon": pentagon, "star": star,
    "ring": ring, "cross": cross, "crescent": crescent, "heart": heart, "arrow": arrow,
}
