"""Generated tasks: copying, reversing, sorting, nested list operations, noisy waves.

Rows are generated when they are read, from (the data's seed, the run's seed, the step). Held-out
rows come from a stream of seeds that training never draws from, and are always the same.
"""

import statistics
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch

from everyformer.core.errors import ConfigError, DataError
from everyformer.core.tasks import Task
from everyformer.data.batch import IGNORED, WHOLE, Batch, Portion
from everyformer.data.cache import digest
from everyformer.data.config import DataConfig
from everyformer.data.counting import counted_loss
from everyformer.data.dataset import Dataset, Spread
from everyformer.data.selection import spread

VERSION = 1
"""Raised when a generator changes, so that fingerprints tell old rows from new."""
HELD_OUT = 1000
"""Validation sequences of a generated task."""
COUNTED = 256
"""Rows of either part whose tokens are counted."""
TRAINING_STREAM, VALIDATION_STREAM = 0, 1

LONGEST_ROW = 20
"""Symbols in a row that is copied, reversed or sorted, at most; at least half as many."""

MOST_ARGUMENTS = 10
LEAF_ABOVE = 0.25
"""A draw above this makes a digit, so an operator has probability 0.25 (as the Long Range Arena's
generator does, whatever the name of its constant says)."""
OPERATORS: tuple[Callable[[list[int]], int], ...] = (
    min,
    max,
    lambda arguments: int(statistics.median(arguments)),
    lambda arguments: sum(arguments) % 10,
)
"""MIN, MAX, MED and SM, in the order of their tokens."""
SHORTEST = 4
"""Expressions have between length / 4 and length tokens, the arena's ratio of 500 to 2,000."""
ATTEMPTS = 10_000
"""Expressions tried for one row before length and depth are taken to contradict each other."""

WAVES = ("sine", "square", "sawtooth")
FEWEST, MOST = 1.0, 4.0
"""periods in a series, a uniform draw"""
NOISE = 0.3
"""standard deviation of what is added to shapes between -1 and 1"""


@dataclass(frozen=True, kw_only=True, eq=False)
class GeneratedDataset(Dataset):
    """Rows generated as they are read, by `_rows`."""

    seed: int
    """The data's seed."""

    @abstractmethod
    def _rows(self, random: np.random.Generator, count: int) -> Batch:
        """``count`` fresh rows."""

    def train_batch(self, step: int, size: int, seed: int, portion: Portion = WHOLE) -> Batch:
        key = (self.seed, TRAINING_STREAM, seed, step)
        # rows come one after the other out of one stream, so those of others are drawn too
        return self._rows(np.random.default_rng(key), size).rows(*portion.of(size))

    def validation_batches(self, size: int, limit: int | None = None) -> Iterator[Batch]:
        chosen = spread(HELD_OUT, limit)
        for first in range(0, len(chosen), size):
            rows = chosen[first : first + size].tolist()
            streams = [np.random.default_rng((self.seed, VALIDATION_STREAM, row)) for row in rows]
            yield Batch.joined([self._rows(stream, 1) for stream in streams])

    @cached_property
    def counting(self) -> float | None:
        """Of scored tokens of some rows; None where rows are answered."""
        if self.does.answers:
            return None
        batches = self.train_batch(0, COUNTED, 0), *self.validation_batches(COUNTED, COUNTED)
        train, held_out = ([batch.targets[batch.counted].numpy()] for batch in batches)
        return counted_loss(train, held_out, self.vocabulary, grams=1)


@dataclass(frozen=True, kw_only=True, eq=False)
class CopyDataset(GeneratedDataset):
    """n random tokens, the separator 0, the same n tokens; the second half is scored.

    A model that remembers nothing is right at 1 of ``symbols`` positions.
    """

    def _rows(self, random: np.random.Generator, count: int) -> Batch:
        half = self.length // 2
        content = random.integers(1, self.vocabulary, (count, half))
        rows = np.concatenate([content, np.zeros((count, 1), dtype=np.int64), content], axis=1)
        targets = rows[:, 1:].copy()
        targets[:, :half] = IGNORED
        return Batch(torch.from_numpy(rows[:, :-1].copy()), torch.from_numpy(targets))


@dataclass(frozen=True, kw_only=True, eq=False)
class RewriteDataset(GeneratedDataset):
    """n random symbols from 1 on, and the same ones copied, reversed or sorted as a target.

    n is drawn from half to all of ``length`` - 1. Both sides end with 0, then padding.
    """

    def _rows(self, random: np.random.Generator, count: int) -> Batch:
        longest = self.length - 1
        lengths = random.integers((longest + 1) // 2, longest + 1, (count, 1))
        positions = np.arange(self.length)
        real = positions < lengths
        content = random.integers(1, self.vocabulary, (count, self.length))
        inputs = np.where(real, content, 0)
        if self.name == "reverse":
            result = np.take_along_axis(inputs, np.abs(lengths - 1 - positions), axis=1)
        elif self.name == "sort":
            result = np.sort(np.where(real, content, self.vocabulary), axis=1)
        else:
            result = inputs
        padding_mask = positions <= lengths
        targets = np.where(padding_mask, np.where(real, result, 0), IGNORED)
        source, target = torch.from_numpy(inputs), torch.from_numpy(targets)
        return Batch(source, target, torch.from_numpy(padding_mask), separate=True)


@dataclass(frozen=True, kw_only=True, eq=False)
class ListOpsDataset(GeneratedDataset):
    """Nested MIN, MAX, MED (median, rounded down) and SM (sum modulo 10); the value is the class.

    Tokens: 0 padding, 1 to 10 the digits, 11 to 14 an operator with its bracket, 15 the closing
    bracket.
    """

    depth: int
    """Deepest nesting."""

    def _rows(self, random: np.random.Generator, count: int) -> Batch:
        inputs = np.zeros((count, self.length), dtype=np.int64)
        padding_mask = np.zeros((count, self.length), dtype=bool)
        values = np.empty(count, dtype=np.int64)
        draws = _draws(random)
        for row in range(count):
            tokens, values[row] = self._expression(draws)
            inputs[row, : len(tokens)] = tokens
            padding_mask[row, : len(tokens)] = True
        answers = torch.from_numpy(values)
        if self.does.measures:
            answers = answers[:, None].float()
        return Batch(torch.from_numpy(inputs), answers, torch.from_numpy(padding_mask))

    def _expression(self, draws: Iterator[float]) -> tuple[list[int], int]:
        """One of fitting length; those that grow too long are dropped as soon as they do."""
        for _ in range(ATTEMPTS):
            tokens: list[int] = []
            value = self._grow(tokens, 1, draws)
            if value is not None and len(tokens) >= self.length // SHORTEST:
                return tokens, value
        raise DataError(
            f"no listops expression of {self.length // SHORTEST} to {self.length} tokens came up "
            f"with `data.depth={self.depth}`; take a shorter `data.length` or a greater depth"
        )

    def _grow(self, tokens: list[int], level: int, draws: Iterator[float]) -> int | None:
        """Append an operator with its arguments; its value, or None beyond the length."""
        operator = int(next(draws) * len(OPERATORS))
        tokens.append(11 + operator)
        arguments: list[int] = []
        for _ in range(2 + int(next(draws) * (MOST_ARGUMENTS - 1))):
            if level >= self.depth or next(draws) > LEAF_ABOVE:
                value: int | None = int(next(draws) * 10)
                tokens.append(1 + int(value or 0))
            else:
                value = self._grow(tokens, level + 1, draws)
            if value is None or len(tokens) >= self.length:
                return None
            arguments.append(value)
        tokens.append(15)
        return OPERATORS[operator](arguments)


def _draws(random: np.random.Generator) -> Iterator[float]:
    """Uniform numbers one by one; drawn in blocks, since single draws are slow."""
    while True:
        yield from random.random(4096).tolist()


@dataclass(frozen=True, kw_only=True, eq=False)
class WavesDataset(GeneratedDataset):
    """Series (length, 1) of a random shape, frequency and phase, with normal noise."""

    def _rows(self, random: np.random.Generator, count: int) -> Batch:
        shapes = random.integers(0, len(WAVES), count)
        periods = random.uniform(FEWEST, MOST, count)
        phase = random.uniform(0, 1, count)
        turns = phase[:, None] + periods[:, None] * np.arange(self.length) / self.length
        within = turns % 1
        forms = np.stack((np.sin(2 * np.pi * turns), np.where(within < 0.5, 1, -1), 2 * within - 1))
        series = forms[shapes, np.arange(count)] + NOISE * random.standard_normal(turns.shape)
        inputs = torch.from_numpy(series[..., None].astype(np.float32))
        if self.does.measures:
            return Batch(inputs, torch.from_numpy(periods[:, None].astype(np.float32)))
        return Batch(inputs, torch.from_numpy(shapes))


def load_generated(config: DataConfig, task: Task) -> GeneratedDataset:
    """The generated rows that ``config.source`` names, for ``task``."""
    source, measures = config.source, task.measures
    options: dict[str, Any] = {"length": config.length, "seed": config.seed}
    facts: dict[str, Any] = {"kind": "text"}
    parts: list[Any] = [options]
    kind: type[GeneratedDataset]
    if source == "waves":
        kind, classes, values = WavesDataset, WAVES, np.linspace(FEWEST, MOST, 1001)
        facts = {"kind": "series", "vocabulary": 256, "features": Spread((0.0,), (1.0,))}
        parts = [*options.values()]
    elif source == "listops":
        # a value is nearly as likely as any other
        kind, classes, values = ListOpsDataset, (*"0123456789",), np.arange(10.0)
        if config.length < 4:
            raise ConfigError(f"listops needs a `data.length` of at least 4, not {config.length}")
        options |= {"vocabulary": 16, "depth": config.depth}
    elif task.translates:
        kind, longest = RewriteDataset, min(config.length, LONGEST_ROW)
        options |= {"length": longest + 1, "vocabulary": config.symbols + 1}
    else:
        kind = CopyDataset
        options |= {"length": config.length // 2 * 2, "vocabulary": config.symbols + 1}
    if task.answers:
        facts |= {"numbers": Spread.of(values[:, None])} if measures else {"classes": classes}
    if task.translates or measures or source == "waves":
        parts.append(task.name)
    what = "series" if source == "waves" else "sequences"
    dataset = kind(
        name=source,
        task=task.name,
        split=f"generated without end; {HELD_OUT:,} validation {what} from other seeds",
        fingerprint=digest(VERSION, source, *parts),
        **facts,
        **options,
    )
    if kind is ListOpsDataset:
        # lengths that no expression can have are refused at once, not in training
        dataset.train_batch(0, 1, 0)
    return dataset
