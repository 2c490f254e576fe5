"""`Canvas`: small pictures of boxes, discs and lines, with smooth edges and no package for them."""

from __future__ import annotations

import numpy as np

Colour = tuple[int, int, int]
Point = tuple[float, float]
PAPER, WALL, FLOOR, FAINT = (255, 255, 255), (66, 70, 78), (238, 239, 242), (196, 200, 207)
AGENT, GOOD, BAD, CUE = (38, 99, 196), (46, 139, 87), (200, 70, 60), (236, 165, 30)


class Canvas:
    """A white picture of ``height`` x ``width`` pixels; (0, 0) is its upper left corner."""

    def __init__(self, height: int, width: int) -> None:
        self._pixels = np.full((height, width, 3), PAPER, dtype=np.float64)

    def pixels(self) -> np.ndarray:
        """The picture as (height, width, 3) bytes."""
        return self._pixels.round().astype(np.uint8)

    def box(self, y: float, x: float, height: float, width: float, colour: Colour) -> None:
        """Fill a box whose upper left corner is at (y, x)."""
        part, ys, xs = self._around((y, x), (y + height, x + width))
        beyond_y = np.abs(ys - (y + height / 2)) - height / 2
        beyond_x = np.abs(xs - (x + width / 2)) - width / 2
        _fill(part, np.maximum(beyond_y, beyond_x), colour)

    def disc(self, y: float, x: float, radius: float, colour: Colour) -> None:
        """Fill a disc around (y, x)."""
        part, ys, xs = self._around((y - radius, x - radius), (y + radius, x + radius))
        _fill(part, np.hypot(ys - y, xs - x) - radius, colour)

    def line(self, start: Point, end: Point, width: float, colour: Colour) -> None:
        """Draw a line from one point (y, x) to another, with round ends."""
        (y, x), (to_y, to_x) = start, end
        half, dy, dx = width / 2, to_y - y, to_x - x
        part, ys, xs = self._around(
            (min(y, to_y) - half, min(x, to_x) - half), (max(y, to_y) + half, max(x, to_x) + half)
        )
        along = ((ys - y) * dy + (xs - x) * dx) / max(dy * dy + dx * dx, 1e-9)
        along = along.clip(0, 1)
        _fill(part, np.hypot(ys - y - along * dy, xs - x - along * dx) - half, colour)

    def _around(self, low: Point, high: Point) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The pixels that a shape between two corners may touch, and where their centres are."""
        (top, bottom), (left, right) = (
            (max(int(from_) - 1, 0), max(int(to) + 2, 0))
            for from_, to in zip(low, high, strict=True)
        )
        part = self._pixels[top:bottom, left:right]
        height, width, _ = part.shape
        ys, xs = np.arange(height)[:, None] + top + 0.5, np.arange(width) + left + 0.5
        return part, ys, xs


def _fill(part: np.ndarray, outside: np.ndarray, colour: Colour) -> None:
    """Cover pixels by how far they are outside of an edge, from -0.5 (all) to 0.5 (nothing)."""
    cover = (0.5 - outside).clip(0, 1)[:, :, None]
    part += cover * (np.asarray(colour) - part)
