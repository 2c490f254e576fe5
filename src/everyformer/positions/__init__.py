"""Positions: how order enters. `POSITIONS` finds them by name, one file each."""

from everyformer.core.registry import Registry
from everyformer.positions.base import Position

POSITIONS: Registry[type[Position]] = Registry("position", __name__)
