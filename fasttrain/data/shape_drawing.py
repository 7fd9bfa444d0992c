"""One picture of the ``shapes`` set: a textured shape on a cluttered background.

A class is an outline and a texture. Everything else (place, size, angle, colours, background, clutter) is
drawn at random and tells nothing about the class, so colours, average pictures and near neighbours do not
give it away, while a small convolutional network learns it in a minute or two.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

OUTLINES = ("cross", "disc", "star", "triangle")
TEXTURES = ("checked", "dotted", "plain", "striped")
CLASSES = tuple(f"{outline}_{texture}" for outline in OUTLINES for texture in TEXTURES)

RADIUS = (0.28, 0.42)  # of the shape's outer circle, in sides of the image
PERIOD = (0.07, 0.11)  # of a texture, in sides of the image: at least 3.4 pixels in a picture of 48
CONTRAST = 0.35  # least difference, in R, G or B of 0..1, of colours that must be told apart
PIECES_BEHIND = (6, 10)  # clutter that the shape may cover
PIECES_BEFORE = (1, 3)  # clutter that may cover a little of the shape
TEXTURED_FRAC = 0.4  # share of the clutter whose texture is drawn like that of a shape
NOISE = 0.02  # standard deviation over pixels of 0..1

Array = NDArray[np.floating[Any]]


def draw_shape(label: int, rng: np.random.Generator, px: int) -> NDArray[np.uint8]:
    """Draw one image of a class.

    Args:
        label: Index in ``CLASSES``.
        rng: Source of everything but the class; the picture depends on its state and the label alone.
        px: Side of the square image, pixels.

    Returns:
        ``[px, px, 3]`` RGB.
    """
    outline, texture = CLASSES[label].split("_")
    canvas = _background(rng, px)
    for _ in range(rng.integers(*PIECES_BEHIND, endpoint=True)):
        _add_clutter(canvas, rng, radius=rng.uniform(0.05, 0.16))
    radius = rng.uniform(*RADIUS)
    x, y = rng.uniform(radius * 0.85, 1 - radius * 0.85, size=2)  # the border cuts off little
    behind = canvas[int(y * px), int(x * px)]
    first = _colour_unlike(rng, [behind])
    second = _colour_unlike(rng, [behind, first])
    _paint(canvas, rng, outline, texture, centre=(x, y), radius=radius, colours=(first, second))
    for _ in range(rng.integers(*PIECES_BEFORE, endpoint=True)):
        _add_clutter(canvas, rng, radius=rng.uniform(0.02, 0.07))
    canvas += rng.standard_normal(canvas.shape, dtype=np.float32) * np.float32(NOISE)
    return (np.clip(canvas, 0, 1) * 255 + 0.5).astype(np.uint8)


def _background(rng: np.random.Generator, px: int) -> Array:
    """Soft patches around one colour, ``[px, px, 3]``: a coarse random grid, interpolated linearly."""
    cells = int(rng.integers(2, 6))
    grid = rng.uniform(0.15, 0.85, size=3) + rng.uniform(-0.2, 0.2, size=(cells + 1, cells + 1, 3))
    grid = grid.astype(np.float32)
    at = np.linspace(0, cells, px, endpoint=False, dtype=np.float32)
    low = at.astype(np.int64)
    frac = at - low.astype(np.float32)
    rows = grid[low] * (1 - frac)[:, None, None] + grid[low + 1] * frac[:, None, None]
    return rows[:, low] * (1 - frac)[None, :, None] + rows[:, low + 1] * frac[None, :, None]


def _add_clutter(canvas: Array, rng: np.random.Generator, radius: float) -> None:
    """Paint a long box or ellipse, plain or textured, anywhere on the canvas."""
    outline = ("box", "ellipse")[rng.integers(2)]
    texture = TEXTURES[rng.integers(len(TEXTURES))] if rng.uniform() < TEXTURED_FRAC else "plain"
    first = rng.uniform(0, 1, size=3).astype(np.float32)
    second = _colour_unlike(rng, [first])
    x, y = rng.uniform(0, 1, size=2)
    _paint(canvas, rng, outline, texture, centre=(x, y), radius=radius, colours=(first, second))


def _colour_unlike(rng: np.random.Generator, others: list[Array]) -> Array:
    """A random RGB colour that differs from each of ``others`` by ``CONTRAST`` or more."""
    while True:
        colour = rng.uniform(0, 1, size=3).astype(np.float32)
        if all(np.abs(colour - other).max() >= CONTRAST for other in others):
            return colour


def _paint(
    canvas: Array,
    rng: np.random.Generator,
    outline: str,
    texture: str,
    *,
    centre: tuple[float, float],
    radius: float,
    colours: tuple[Array, Array],
) -> None:
    """Blend one textured figure into ``canvas``, at a random angle and with smooth edges.

    ``centre`` and ``radius`` are those of its outer circle, in sides of the image; it may reach over the
    border. ``colours`` are those of its ground and of its pattern.
    """
    px = canvas.shape[0]
    left, top = (max(0, int((at - radius) * px) - 1) for at in centre)
    right, bottom = (min(px, int((at + radius) * px) + 2) for at in centre)
    x = (np.arange(left, right, dtype=np.float32) + 0.5)[None, :] / px - float(centre[0])
    y = (np.arange(top, bottom, dtype=np.float32) + 0.5)[:, None] / px - float(centre[1])
    angle = rng.uniform(0, 2 * math.pi)
    cos, sin = math.cos(angle) / radius, math.sin(angle) / radius
    distance = _distance(outline, cos * x + sin * y, cos * y - sin * x, proportion=rng.uniform(0.2, 0.7))
    inside = np.clip(0.5 - distance * (radius * px), 0, 1)[..., None]
    pattern = _pattern(texture, rng, x, y, px)[..., None]
    window = canvas[top:bottom, left:right]
    window += inside * (colours[0] + pattern * (colours[1] - colours[0]) - window)


def _distance(outline: str, u: Array, v: Array, proportion: float) -> Array:
    """Distance to an outline inside the unit circle, about true near it, negative inside, ``[H, W]``.

    ``u`` and ``v`` are coordinates in radii of that circle. ``proportion`` is the short over the long side
    of a box or an ellipse; the others have one form.
    """
    if outline == "disc":
        return np.hypot(u, v) - 1
    if outline == "ellipse":
        return (np.hypot(u, v / proportion) - 1) * proportion
    if outline == "box":
        return np.maximum(np.abs(u) - 0.9, np.abs(v) - 0.9 * proportion)
    if outline == "cross":
        a, b = np.abs(u), np.abs(v)
        return np.minimum(np.maximum(a - 0.93, b - 0.33), np.maximum(b - 0.93, a - 0.33))
    if outline == "triangle":
        return np.maximum(-v, np.abs(u) * math.sqrt(0.75) + v / 2) - 0.5
    if outline == "star":
        return _star_distance(u, v)
    raise ValueError(f"no outline named {outline!r}")


def _star_distance(u: Array, v: Array, points: int = 5, inner: float = 0.42) -> Array:
    """Distance to a star with its tips at radius 1 and the notches between them at radius ``inner``."""
    half = math.pi / points
    folded = np.abs(np.mod(np.arctan2(v, u) + half, 2 * half) - half)  # angle to the nearest tip
    along, across = np.hypot(u, v) * np.cos(folded), np.hypot(u, v) * np.sin(folded)
    edge_along, edge_across = inner * math.cos(half) - 1, inner * math.sin(half)  # from a tip to a notch
    return ((along - 1) * edge_across - across * edge_along) / math.hypot(edge_along, edge_across)


def _pattern(texture: str, rng: np.random.Generator, x: Array, y: Array, px: int) -> Array:
    """How much of the second colour each pixel has, 0..1, ``[H, W]``.

    ``x`` and ``y`` are coordinates in sides of an image of ``px`` pixels; edges are about one pixel wide.
    """
    angle, shift_a, shift_b = rng.uniform(0, 2 * math.pi, size=3).tolist()
    period = rng.uniform(*PERIOD)
    turn = 2 * math.pi / period
    cos, sin = math.cos(angle) * turn, math.sin(angle) * turn
    wave_a, wave_b = np.sin(cos * x + sin * y + shift_a), np.sin(cos * y - sin * x + shift_b)
    if texture == "striped":
        wave = wave_a
    elif texture == "checked":
        wave = wave_a * wave_b
    elif texture == "dotted":
        wave = (wave_a + wave_b) / 2 - 0.45
    elif texture == "plain":
        return np.zeros_like(wave_a)
    else:
        raise ValueError(f"no texture named {texture!r}")
    return np.clip(wave * (px / turn) + 0.5, 0, 1)
