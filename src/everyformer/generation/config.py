"""How the next token is drawn: plain options, read by the command line without torch."""

from __future__ import annotations

from dataclasses import dataclass

from everyformer.core.errors import ConfigError


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn from the logits."""

    temperature: float = 1.0
    """divides the logits; 0 takes the likeliest token"""
    top_k: int | None = None
    """draw among this many likeliest tokens only"""
    top_p: float | None = None
    """draw among the fewest tokens that hold this much probability"""
    seed: int = 0
    """of the draws"""

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ConfigError(f"'temperature' must be 0 or more, not {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"'top_k' must be at least 1, not {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ConfigError(f"'top_p' must be above 0 and at most 1, not {self.top_p}")
