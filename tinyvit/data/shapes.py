"""The offline set: ten shapes of many sizes, colours and patterns on cluttered grounds, drawn here and needing no file.

It has CIFAR-10's form (32×32 colour images, ten classes) and takes learning as CIFAR-10 does: a shape's colour, place and
ground say nothing about its class, noise and clutter are in the way, and single pixels say little. A model that scores well
has learned outlines; how well says nothing about CIFAR-10, or about anybody's published accuracy.
"""

from __future__ import annotations

import numpy as np

from .dataset import Dataset
from .distances import SHAPES, capsule

CLASSES = tuple(SHAPES)
TRAIN, TEST = 12_000, 2_000
CHUNK = 125  # images drawn at a time: half a megabyte a plane stays in the cache

COLORS = {
    "red": (0.85, 0.12, 0.12), "orange": (0.96, 0.55, 0.10), "yellow": (0.95, 0.88, 0.20), "green": (0.15, 0.62, 0.22),
    "cyan": (0.20, 0.78, 0.82), "blue": (0.15, 0.28, 0.85), "purple": (0.52, 0.18, 0.68), "pink": (0.96, 0.55, 0.72),
    "brown": (0.45, 0.28, 0.14), "white": (0.95, 0.95, 0.93), "gray": (0.52, 0.52, 0.54), "black": (0.08, 0.08, 0.10),
}
PATTERNS = ("plain", "striped", "checked", "dotted")
SIZES = ("small", "medium", "large")
PLACES = ("top left", "top", "top right", "left", "centre", "right", "bottom left", "bottom", "bottom right")
PALETTE = np.array(list(COLORS.values()), np.float32)
NAMES = np.array(list(COLORS))

PIXELS = np.arange(32, dtype=np.float32) - np.float32(15.5)  # where columns and rows are, seen from the middle of the image


def dataset(note: str = "the offline set of shapes, made by tinyvit") -> Dataset:
    """The offline set: 12,000 training and 2,000 test images, always the same ones."""
    images, labels, attributes = generate(TRAIN, 0)
    test_images, test_labels, test_attributes = generate(TEST, 1)
    return Dataset("shapes", images, labels, test_images, test_labels, CLASSES, official=False, note=note,
                   attributes=attributes, test_attributes=test_attributes)


def generate(n: int, seed: int) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Draw `n` images: uint8 (n, 3, 32, 32), labels int64 (n,) in 0..9, classes in equal numbers, and attributes.

    The attributes say what was drawn, enough for a caption, one entry per image. Words: "shape", "color", "pattern",
    "background", "size" and "place". float32: "x" and "y", the centre in pixels from the middle of the image, right and down;
    "radius" in pixels; "angle" in radians, clockwise.
    Equal seeds give equal images on one machine. Raises ValueError if n < 1.
    """
    if n < 1:
        raise ValueError(f"cannot draw {n} images; expected 1 or more")
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(n) % len(CLASSES))
    scene = _invent(n, rng)
    images = np.empty((n, 3, 32, 32), np.uint8)
    for start in range(0, n, CHUNK):
        part = slice(start, start + CHUNK)
        images[part] = _draw(labels[part], {key: value[part] for key, value in scene.items()}, rng)
    return images, labels, _describe(labels, scene)


def _invent(n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Everything random about the shapes and their grounds; nothing here knows the class."""

    def between(low: float, high: float, *shape: int) -> np.ndarray:
        return rng.uniform(low, high, (n, *shape)).astype(np.float32)

    color, background = _two_colors(n, rng)
    radius = between(6.5, 12.5)
    reach = 16.5 - radius[:, None]  # a large shape has less room; a little of it may leave the image
    return {
        "color": color, "background": background, "pattern": rng.choice(len(PATTERNS), n, p=[0.7, 0.1, 0.1, 0.1]),
        "radius": radius, "centre": between(-0.85, 0.85, 2) * reach, "angle": between(-0.45, 0.45), "squash": between(0.8, 1.0),
        "wavelength": between(2.6, 4.5), "contrast": between(0.25, 0.6),
        "ground_pattern": rng.choice(len(PATTERNS), n, p=[0.55, 0.15, 0.15, 0.15]), "ground_angle": between(-np.pi, np.pi),
        "ground_wavelength": between(3.5, 8.0), "ground_contrast": between(0.05, 0.3), "gradient": between(-0.25, 0.25, 3),
        "light": between(-0.3, 0.3, 2), "noise": between(0.02, 0.09),
    }


def _two_colors(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Colours of shape and ground, two index arrays (n,): far enough apart to be told from each other, the shape the lighter.

    An outline that is now bright, now dark is the same to a person, but takes a small network much longer to learn.
    """
    distance = np.linalg.norm(PALETTE[:, None] - PALETTE, axis=2)
    lighter = PALETTE.sum(axis=1)[:, None] > PALETTE.sum(axis=1)
    pairs = np.argwhere((distance > 0.5) & lighter)
    return tuple(pairs[rng.integers(len(pairs), size=n)].T)


def _describe(labels: np.ndarray, scene: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    x, y = scene["centre"].T
    size = np.digitize(scene["radius"], [8.5, 10.5])
    place = 3 * np.digitize(y, [-2.0, 2.0]) + np.digitize(x, [-2.0, 2.0])
    return {
        "shape": np.array(CLASSES)[labels], "color": NAMES[scene["color"]], "pattern": np.array(PATTERNS)[scene["pattern"]],
        "background": NAMES[scene["background"]], "size": np.array(SIZES)[size], "place": np.array(PLACES)[place],
        "x": x, "y": y, "radius": scene["radius"], "angle": scene["angle"],
    }


def _draw(labels: np.ndarray, scene: dict[str, np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """Paint from back to front: ground, clutter, shape, a little more clutter, light, noise. uint8 (n, 3, 32, 32)."""
    n = len(labels)
    canvas = _ground(scene, rng)
    for _ in range(3):
        _paint(canvas, *_clutter(n, rng, largest=2.0))
    _paint(canvas, *_shape(labels, scene, rng))
    _paint(canvas, *_clutter(n, rng, largest=1.3))
    canvas *= _plane(1, *scene["light"].T / 16)[:, None]
    canvas += scene["noise"][:, None, None] * rng.standard_normal(canvas.shape, np.float32)
    return (255 * np.clip(canvas, 0, 1) + 0.5).astype(np.uint8).reshape(n, 3, 32, 32)


def _paint(canvas: np.ndarray, color: np.ndarray, cover: np.ndarray) -> None:
    """Lay colours (n, 3, 1024 or 1) over the canvas (n, 3, 1024) where cover (n, 1024) is 1, partly where it is less."""
    canvas += cover[:, None] * (color - canvas)


def _cover(distance: np.ndarray) -> np.ndarray:
    """How much of each pixel is inside, from its distance in pixels."""
    return np.clip(np.float32(0.5) - distance, 0, 1)


def _plane(start: np.ndarray | float, right: np.ndarray, down: np.ndarray) -> np.ndarray:
    """start + right·x + down·y at every pixel, (n, 1024): one addition for each, since it is a sum of a row and a column."""
    rows, columns = down[:, None] * PIXELS, right[:, None] * PIXELS + np.reshape(start, (-1, 1))
    return (rows[:, :, None] + columns[:, None, :]).reshape(-1, 1024)


def _turned(centre: np.ndarray, angle: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The pixels in the coordinates of something at `centre` (n, 2) that is turned by `angle` (n,): u, v (n, 1024)."""
    x, y = centre.T
    c, s = np.cos(angle), np.sin(angle)
    return _plane(-c * x - s * y, c, s), _plane(s * x - c * y, -s, c)


def _pattern(kind: np.ndarray, u: np.ndarray, v: np.ndarray, wavelength: np.ndarray) -> np.ndarray:
    """How much of the second tone each pixel has, 0 to 1, for kinds (n,) that are indices into PATTERNS."""
    scale = 2 * np.float32(np.pi) / wavelength[:, None]
    a, b = np.sin(scale * u), np.sin(scale * v)
    kind = kind[:, None]
    wave = np.where(kind == 1, a, np.where(kind == 2, 2 * a * b, 2 * (a + b) - 2))
    return np.clip(0.5 + wave, 0, 1) * (kind > 0)


def _tones(color: np.ndarray, contrast: np.ndarray, amount: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Colours (n, 3, 1024): each image's own, a little off the palette, and a second tone of it where amount is 1."""
    own = PALETTE[color] + rng.uniform(-0.1, 0.1, (len(color), 3)).astype(np.float32)
    goal = own.mean(axis=1, keepdims=True) < 0.45  # dark colours get a light tone, light ones a dark one
    step = contrast[:, None] * (goal - own)
    return own[:, :, None] + step[:, :, None] * amount[:, None]


def _ground(scene: dict[str, np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """A pattern in two tones of the background's colour, which changes across the image."""
    u, v = _turned(np.zeros((len(scene["angle"]), 2), np.float32), scene["ground_angle"])
    amount = _pattern(scene["ground_pattern"], u, v, scene["ground_wavelength"])
    canvas = _tones(scene["background"], scene["ground_contrast"], amount, rng)
    canvas += scene["gradient"][:, :, None] * (u / 22)[:, None]
    return canvas


def _shape(labels: np.ndarray, scene: dict[str, np.ndarray], rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Colours and cover of the shape itself."""
    u, v = _turned(scene["centre"], scene["angle"])
    amount = _pattern(scene["pattern"], u, v, scene["wavelength"])
    radius, squash = scene["radius"][:, None], scene["squash"][:, None]
    distance = np.empty_like(u)
    for label, outline in enumerate(SHAPES.values()):
        mine = labels == label
        distance[mine] = outline(u[mine] / (radius * squash)[mine], v[mine] / radius[mine])
    return _tones(scene["color"], scene["contrast"], amount, rng), _cover(radius * distance)


def _clutter(n: int, rng: np.random.Generator, largest: float) -> tuple[np.ndarray, np.ndarray]:
    """Colours and cover of a piece of clutter in each image: a dot or a stroke."""
    u, v = _turned(rng.uniform(-16, 16, (n, 2)).astype(np.float32), rng.uniform(0, np.pi, n).astype(np.float32))
    half_length = rng.uniform(0, 6, (n, 1)).astype(np.float32) * (rng.random((n, 1)) < 0.6)
    radius = rng.uniform(0.5, largest, (n, 1)).astype(np.float32)
    color = PALETTE[rng.integers(len(PALETTE), size=n)]
    return color[:, :, None], _cover(capsule(u, v, half_length, radius))
