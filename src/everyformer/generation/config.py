"""How the next token is drawn: plain options, read by the command line without torch."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from everyformer.core.errors import ConfigError, nearest


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn from the logits."""

    temperature: float = 1.0
    """divides the logits; 0 takes the likeliest token"""
    top_k: int | None = None
    """draw among this many likeliest tokens only"""
    top_p: float | None = None
    """draw among the fewest tokens that hold this much probability"""
    repetition_penalty: float = 1.0
    """scores of tokens that the text has already are divided by this; those below 0 multiplied"""
    stop: tuple[str, ...] = ()
    """end a text as soon as what was made holds one of these"""
    end_token: int | None = None
    """end a text with this token (0 is what ends a document of bytes)"""
    min_tokens: int = 0
    """make so many tokens before a text may end"""
    seed: int = 0
    """of the draws"""

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ConfigError(f"'temperature' must be 0 or more, not {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"'top_k' must be at least 1, not {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ConfigError(f"'top_p' must be above 0 and at most 1, not {self.top_p}")
        if not 0 < self.repetition_penalty < float("inf"):
            raise ConfigError(
                f"'repetition_penalty' must be above 0, not {self.repetition_penalty}"
            )
        if "" in self.stop:
            raise ConfigError("'stop' holds an empty text, which every text holds: leave it out")
        for name in ("end_token", "min_tokens"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ConfigError(f"'{name}' must be 0 or more, not {value}")


@dataclass(frozen=True)
class BeamConfig:
    """How a target is searched."""

    beam: int = 4
    """hypotheses that are followed at a time; 1 is greedy decoding"""
    alpha: float = 0.6
    """exponent of the length penalty; 0 ranks by probability alone, more favours longer targets"""
    penalty: Literal["gnmt", "length"] = "gnmt"
    """log P is divided by ((5 + n) / 6)^alpha, or by n^alpha; n tokens, the end token included"""
    extra: int = 50
    """a target has at most so many tokens more than its source"""
    early: bool = False
    """end a sentence with its first ``beam`` finished hypotheses, though a better one may follow"""

    def __post_init__(self) -> None:
        if self.beam < 1:
            raise ConfigError(f"'beam' must be at least 1, not {self.beam}")
        if self.extra < 0:
            raise ConfigError(f"'extra' must be 0 or more tokens, not {self.extra}")
        if self.penalty not in ("gnmt", "length"):
            raise ConfigError(
                f"'penalty' must be gnmt or length, not {self.penalty!r}; "
                f"{nearest(self.penalty, ('gnmt', 'length'))}"
            )

    @property
    def search(self) -> BeamConfig:
        """These options alone, of a class that has more (a verb's)."""
        return BeamConfig(**{f.name: getattr(self, f.name) for f in fields(BeamConfig)})

    def normaliser(self, count: int) -> float:
        """What the log-probability of ``count`` tokens is divided by."""
        base = (5 + count) / 6 if self.penalty == "gnmt" else count
        return base**self.alpha
