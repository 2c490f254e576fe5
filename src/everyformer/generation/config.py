"""`Sampling`, `BeamConfig`: how tokens are drawn or searched.

Plain options, no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from everyformer.core.bounds import Amount, Count, Part, Positive, Real, Seed, Whole
from everyformer.core.config import Options, part_of
from everyformer.core.errors import ConfigError


@dataclass(frozen=True)
class Sampling(Options):
    """Options by which the next token is drawn from the logits."""

    temperature: Amount = 1.0
    """divides the logits; 0 takes the likeliest token"""
    top_k: Count | None = None
    """draw among this many likeliest tokens only"""
    top_p: Part | None = None
    """draw among the fewest tokens that hold this much probability"""
    repetition_penalty: Positive = 1.0
    """scores of tokens that the text has already are divided by this; those below 0 multiplied"""
    stop: tuple[str, ...] = ()
    """end a text as soon as what was made holds one of these"""
    end_token: Whole | None = None
    """end a text with this token (0 is what ends a document of bytes)"""
    min_tokens: Whole = 0
    """make so many tokens before a text may end"""
    seed: Seed = 0
    """of the draws"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if "" in self.stop:
            raise ConfigError("`stop` holds an empty text, which every text holds: leave it out")


@dataclass(frozen=True)
class BeamConfig(Options):
    """Options by which a target is searched."""

    beam: Count = 4
    """hypotheses that are followed at a time; 1 is greedy decoding"""
    alpha: Real = 0.6
    """exponent of the length penalty; 0 ranks by probability alone, more favours longer targets"""
    penalty: Literal["gnmt", "length"] = "gnmt"
    """log P is divided by ((5 + n) / 6)^alpha, or by n^alpha; n tokens, the end token included"""
    extra: Whole = 50
    """a target has at most so many tokens more than its source"""
    early: bool = False
    """end a sentence with its first ``beam`` finished hypotheses, though a better one may follow"""

    @property
    def search(self) -> BeamConfig:
        """These options alone, of a class that has more (a verb's)."""
        return part_of(BeamConfig, self)

    def normaliser(self, count: int) -> float:
        """The divisor of the log-probability of ``count`` tokens."""
        base = (5 + count) / 6 if self.penalty == "gnmt" else count
        return base**self.alpha
