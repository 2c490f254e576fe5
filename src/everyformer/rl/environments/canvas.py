"""`Canvas`: small pictures of boxes, discs and lines, with smooth edges and no package for them."""

from __future__ import annotations

import numpy as np

Colour = tuple[int, int, int]
PAPER, WALL, FLOOR, FAINT = (255, 255, 255), (66, 70, 78), (238, 239, 242), (196, 200, 207)
AGENT, GOOD, BAD, CUE = (38, 99, 196), (46, 139, 87), (200, 70, 60), (236, 165, 30)


class Canvas:
    """A white picture of ``height`` x ``width`` pixels; (0, 0) is its upper left corner."""

    def __init__(self, height: int, width: int) -> None:
        self._pixels = np.full((height, width, 3), PAPER, dtype=np.float64)
        self._y, self._x = np.mgrid[0:height, 0:width] + 0.5

    def pixels(self) -> np.ndarray:
        """The picture as (height, width, 3) bytes."""
        return self._pixels.round().astype(np.uint8)

    def box(self, y: float, x: float, height: float, width: float, colour: Colour) -> None:
        """Fill a box whose upper left corner is at (y, x)."""
        beyond_y = np.abs(self._y - (y + height / 2)) - height / 2
        beyond_x = np.abs(self._x - (x + width / 2)) - width / 2
        self._fill(np.maximum(beyond_y, beyond_x), colour)

    def disc(self, y: float, x: float, radius: float, colour: Colour) -> None:
        """Fill a disc around (y, x)."""
        self._fill(np.hypot(self._y - y, self._x - x) - radius, colour)

    def line(
        self, start: tuple[float, float], end: tuple[float, float], width: float, colour: Colour
    ) -> None:
        """Draw a line from one point (y, x) to another, with round ends."""
        (y, x), (to_y, to_x) = start, end
        dy, dx = to_y - y, to_x - x
        along = ((self._y - y) * dy + (self._x - x) * dx) / max(dy * dy + dx * dx, 1e-9)
        along = along.clip(0, 1)
        apart = np.hypot(self._y - y - along * dy, self._x - x - along * dx)
        self._fill(apart - width / 2, colour)

    def _fill(self, outside: np.ndarray, colour: Colour) -> None:
        """Cover pixels by how far they are outside of an edge, from -0.5 (all) to 0.5 (nothing)."""
        cover = (0.5 - outside).clip(0, 1)[:, :, None]
        self._pixels += cover * (np.asarray(colour) - self._pixels)
