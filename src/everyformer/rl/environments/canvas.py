"""`Canvas`: small pictures of boxes, discs and lines, drawn by pygame."""

import numpy as np

from everyformer.system.extras import extra_module

Colour = tuple[int, int, int]
Point = tuple[float, float]
PAPER, WALL, FLOOR, FAINT = (255, 255, 255), (66, 70, 78), (238, 239, 242), (196, 200, 207)
AGENT, GOOD, BAD, CUE = (38, 99, 196), (46, 139, 87), (200, 70, 60), (236, 165, 30)


class Canvas:
    """A white picture of ``height`` x ``width`` pixels; (0, 0) is its upper left corner."""

    def __init__(self, height: int, width: int) -> None:
        self._pygame = extra_module("pygame", "rl", "a picture")
        self._surface = self._pygame.Surface((width, height))
        self._surface.fill(PAPER)

    def pixels(self) -> np.ndarray:
        """The picture as (height, width, 3) bytes."""
        columns: np.ndarray = self._pygame.surfarray.array3d(self._surface)
        return columns.swapaxes(0, 1).copy()

    def box(self, y: float, x: float, height: float, width: float, colour: Colour) -> None:
        """Fill a box whose upper left corner is at (y, x)."""
        self._pygame.draw.rect(self._surface, colour, (x, y, width, height))

    def disc(self, y: float, x: float, radius: float, colour: Colour) -> None:
        """Fill a disc around (y, x)."""
        self._pygame.draw.circle(self._surface, colour, (x, y), radius)

    def line(self, start: Point, end: Point, width: int, colour: Colour) -> None:
        """Draw a line from one point (y, x) to another."""
        self._pygame.draw.line(self._surface, colour, start[::-1], end[::-1], width)
