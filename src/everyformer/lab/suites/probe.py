"""`Probe`: a generated task with a known answer, and how often cheap rules find it.

A row is a pure function of (`VERSION`, options, the data's seed, stream, its number): rows are made
in blocks of `BLOCK`, each by a generator of its own, whatever batches read them. There are three
streams, of training, validation and test. With ``rows`` the training part is that many rows, read
in epochs; without, every row is fresh.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from everyformer.core.bounds import Count
from everyformer.core.config import Options
from everyformer.core.errors import ConfigError
from everyformer.core.tasks import LM, MLM
from everyformer.data.batch import IGNORED

VERSION = 1
"""raised when a generator changes, so that fingerprints tell old rows from new"""
BLOCK = 64
Stream = Literal["training", "validation", "test"]
STREAMS: tuple[Stream, ...] = ("training", "validation", "test")


class Rows(NamedTuple):
    """Tokens of some rows, and what they are asked."""

    inputs: np.ndarray
    """(N, L) int64"""
    targets: np.ndarray
    """(N, L) int64: the answer at the place where it is asked for, `IGNORED` elsewhere"""


@dataclass(frozen=True)
class ProbeOptions(Options):
    """Options of every probe."""

    rows: Count | None = None
    """training rows, read in epochs; none: every row is fresh"""
    held_out: Literal["validation", "test"] = "validation"
    """stream of the rows that are held out"""


@dataclass(frozen=True)
class NextOptions(ProbeOptions):
    """Options of a probe in which every token but the first may be a target."""

    trained: Literal["all", "answers"] = "all"
    """targets of training: every next token, as in the papers' programs, or those that are
    scored"""


class Probe(ABC):
    """A generated task; its file begins with the layout of a row."""

    name: ClassVar[str]
    about: ClassVar[str]
    both_ways: ClassVar[bool] = True
    """whether a model that sees both sides is asked something, too: no input is an answer"""
    task: ClassVar[str | None] = None
    """the only task that asks it; None: the next tokens, or those that are hidden"""
    signs: ClassVar[int] = 0
    """symbols that are never an answer"""
    Options: ClassVar[type[ProbeOptions]] = ProbeOptions
    options: Any

    def __init__(self, options: Any, seed: int = 0) -> None:
        """``seed``: the data's, on which a table depends that all rows share.

        Raises:
            ConfigError: there are no such rows; says which options do not go together.
        """
        self.options, self.seed = options, seed
        self.check()
        self.require(self.answers >= 2, "so few symbols leave fewer than two answers")

    @classmethod
    def tasks(cls) -> tuple[str, ...]:
        """Tasks of models that can be asked, the first the usual one."""
        if cls.task is not None:
            return (cls.task,)
        return (LM, MLM) if cls.both_ways else (LM,)

    def check(self) -> None:  # noqa: B027 (some take all that their options can be)
        """Refuse options that do not go together."""

    def require(self, holds: bool, words: str) -> None:
        """Refuse what does not hold."""
        if not holds:
            raise ConfigError(f"{self.name}: {words}")

    @property
    def vocabulary(self) -> int:
        """Number of different tokens."""
        return self.options.symbols

    @property
    def length(self) -> int:
        """Tokens of the longest row, held-out ones included."""
        return self.options.length

    @property
    def answers(self) -> int:
        """Different tokens that may be one."""
        return int(self.options.symbols) - self.signs

    @property
    def chance(self) -> float:
        """Accuracy of a uniform draw among the answers."""
        return 1 / self.answers

    @property
    def shortcut(self) -> float:
        """Accuracy of the best cheap rule that is known."""
        return self.chance

    @property
    def overlap(self) -> str:
        """A remark on held-out rows that are short enough to be trained on, too."""
        return ""

    @abstractmethod
    def make(self, random: np.random.Generator, count: int, held_out: bool) -> Rows:
        """``count`` rows of the training stream, or of one that is held out."""


def asked(shape: tuple[int, ...]) -> np.ndarray:
    """Targets that ask nothing yet."""
    return np.full(shape, IGNORED, dtype=np.int64)


def distinct(random: np.random.Generator, rows: int, below: int, count: int) -> np.ndarray:
    """(rows, count) different numbers from 0 to ``below`` - 1, in random order."""
    return random.random((rows, below)).argsort(1)[:, :count]
