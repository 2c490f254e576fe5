"""Probes of MAD, the tasks by which mechanistic design chooses layers.

    recall      k v k v ...: keys of the first half of V, values of the second, one map a row; every
                next token is trained, values of keys that were seen before are scored
    noisy       the same, of V less the ``noise`` tokens; a pair is two of these with a probability
    fuzzy       the same with keys and values of 1 to 3 tokens; one pair is asked for at the end
    copying     content among blanks, a token that says copy, blanks: the content in its order
    compress    random tokens and a sign: the tokens again, from one vector of the row
    memorize    key, a token that says insert, key, ...: its value, by one map for all rows

Sources: Poli et al. 2024, arXiv 2403.17844, and its program. Deviations: content stands anywhere
among blanks (``last_before`` is the program's: never a blank after it); accuracy is of tokens,
where the program averages over classes.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from everyformer.core.bounds import Count, Rate, Several, Whole
from everyformer.data.batch import IGNORED
from everyformer.lab.suites.compress import COMPRESS
from everyformer.lab.suites.probe import NextOptions, Probe, ProbeOptions, Rows, asked, distinct

MEASURED = 2048
"""rows by which the level of a rule is measured"""


@dataclass(frozen=True)
class PairOptions(NextOptions):
    """Options of keys and values by turns."""

    length: Several = 128
    """L; a row has one token less, since its last one is asked for"""
    symbols: Several = 16
    """V, the vocabulary"""


@dataclass(frozen=True)
class RecallOptions(PairOptions):
    """Options of `Recall`."""

    noise: Whole = 0
    """tokens of V that are noise"""
    share: Rate = 0.0
    """probability that a pair is noise"""


@dataclass(frozen=True)
class NoisyOptions(RecallOptions):
    """Options of `NoisyRecall`."""

    symbols: Several = 32
    """V, the vocabulary, noise included"""
    noise: Whole = 16
    """tokens of V that are noise"""
    share: Rate = 0.2
    """probability that a pair is noise"""


class Pairs(Probe):
    """Keys of one half of the tokens, values of the other."""

    both_ways = False
    Options: ClassVar[type[ProbeOptions]] = PairOptions
    options: PairOptions

    @property
    def length(self) -> int:
        return self.options.length - 1


class Recall(Pairs):
    """In-context recall."""

    name = "mad:recall"
    about = "keys and values by turns: values of keys that were seen before"
    Options = RecallOptions
    options: RecallOptions

    def check(self) -> None:
        o = self.options
        self.require(
            o.length % 2 == 0 and o.length >= 6, f"length={o.length} is no even one from 6"
        )
        self.require(not o.share or o.noise > 0, f"share={o.share} needs tokens of noise")

    @property
    def answers(self) -> int:
        return (self.options.symbols - self.options.noise) // 2

    @cached_property
    def shortcut(self) -> float:
        """The value that was most frequent so far."""
        rows = self.make(np.random.default_rng(0), MEASURED, held_out=True)
        value = (rows.inputs >= self.answers) & (rows.inputs < 2 * self.answers)
        seen = np.zeros((MEASURED, self.answers))
        hits = scored = 0
        for place in range(rows.inputs.shape[1]):
            want = rows.targets[:, place]
            hits += int(((seen.argmax(1) + self.answers == want) & (want != IGNORED)).sum())
            scored += int((want != IGNORED).sum())
            found = np.nonzero(value[:, place])[0]
            seen[found, rows.inputs[found, place] - self.answers] += 1
        return hits / scored

    def make(self, random: np.random.Generator, count: int, held_out: bool) -> Rows:
        pairs, half = self.options.length // 2, self.answers
        keys = random.integers(0, half, (count, pairs))
        real = random.random((count, pairs)) >= self.options.share
        real[:, -1] = True
        real[np.arange(count), random.integers(0, pairs - 1, count)] = True
        # the last pair asks for a key that was seen
        score = np.where(real[:, :-1], random.random((count, pairs - 1)), -1.0)
        keys[:, -1] = np.take_along_axis(keys, score.argmax(1)[:, None], 1)[:, 0]
        values = half + random.integers(0, half, (count, half))
        both = np.stack([keys, np.take_along_axis(values, keys, 1)], 2)
        noise = random.integers(2 * half, max(self.vocabulary, 2 * half + 1), both.shape)
        tokens = np.where(real[..., None], both, noise).reshape(count, -1)
        if not held_out and self.options.trained == "all":
            return Rows(tokens[:, :-1], tokens[:, 1:])
        earlier = (keys[:, :, None] == keys[:, None, :]) & real[:, None, :]
        earlier &= np.tri(pairs, k=-1, dtype=bool)
        targets = asked((count, 2 * pairs - 1))
        targets[:, ::2] = np.where(real & earlier.any(2), tokens[:, 1::2], IGNORED)
        return Rows(tokens[:, :-1], targets)


class NoisyRecall(Recall):
    """In-context recall among noise."""

    name = "mad:noisy"
    about = "keys and values by turns among pairs of noise: values of keys that were seen before"
    Options = NoisyOptions
    options: NoisyOptions


class FuzzyRecall(Pairs):
    """Recall by keys of several tokens."""

    name = "mad:fuzzy"
    about = "keys and values of one to three tokens: the value of one key at the end"

    LONGEST = 3

    def check(self) -> None:
        least = 4 * self.LONGEST
        self.require(self.options.length >= least, f"length={self.options.length} is below {least}")
        # keys and values of different tokens, and the pad
        self.require(self.answers > self.LONGEST, f"symbols={self.options.symbols} are too few")

    @property
    def answers(self) -> int:
        return (self.options.symbols - 1) // 2

    def make(self, random: np.random.Generator, count: int, held_out: bool) -> Rows:
        length, pad = self.options.length, self.options.symbols - 1
        tokens = np.full((count, length), pad, dtype=np.int64)
        targets = asked((count, length - 1))
        for row in range(count):
            text, value = self._row(random, held_out)
            tokens[row, length - len(text) :] = text
            targets[row, -len(value) :] = value
        every = not held_out and self.options.trained == "all"
        return Rows(tokens[:, :-1], tokens[:, 1:] if every else targets)

    def _row(self, random: np.random.Generator, held_out: bool) -> tuple[list[int], list[int]]:
        """Pairs that fit, and at their end one of them again; its value."""
        most, left = self.options.length // 2, self.options.length
        sizes = random.integers(1, self.LONGEST + 1, (most, 2))
        sizes[:, 0] = self.LONGEST if held_out else sizes[:, 0]
        drawn = [distinct(random, most, self.answers, self.LONGEST).tolist() for _ in range(2)]
        pairs: dict[tuple[int, ...], list[int]] = {}
        shown: list[tuple[int, ...]] = []
        for keys, values, (size, count) in zip(*drawn, sizes.tolist(), strict=True):
            key = tuple(keys[:size])
            value = pairs.get(key, [self.answers + n for n in values[:count]])
            # room for the longest pair at the end
            if len(key) + len(value) > left - 2 * self.LONGEST:
                break
            pairs[key] = value
            shown.append(key)
            left -= len(key) + len(value)
        last = shown[int(random.integers(len(shown)))]
        text = [token for key in [*shown, last] for token in (*key, *pairs[key])]
        return text, pairs[last]


@dataclass(frozen=True)
class CopyingOptions(ProbeOptions):
    """Options of `SelectiveCopying`."""

    length: Several = 256
    """tokens in a row"""
    symbols: Several = 16
    """V: content, the blank V - 2 and the sign to copy V - 1"""
    content: Count = 16
    """tokens to copy"""
    last_before: bool = False
    """whether no blank stands between the content and the sign"""


class SelectiveCopying(Probe):
    """Selective copying."""

    name, signs = "mad:copying", 2
    about = "content among blanks, then a sign: the content in its order"
    Options = CopyingOptions
    options: CopyingOptions

    def check(self) -> None:
        o, least = self.options, 2 * self.options.content + 1
        self.require(o.length >= least, f"content={o.content} needs a length of {least} or more")

    def make(self, random: np.random.Generator, count: int, held_out: bool) -> Rows:
        o = self.options
        area = o.length - o.content - 1
        content = random.integers(0, o.symbols - 2, (count, o.content))
        inputs = np.full((count, o.length), o.symbols - 2, dtype=np.int64)
        inputs[:, area] = o.symbols - 1
        free = o.last_before
        places = np.sort(distinct(random, count, area - free, o.content - free), 1)
        if o.last_before:
            places = np.concatenate([places, np.full((count, 1), area - 1)], 1)
        np.put_along_axis(inputs, places, content, 1)
        targets = asked(inputs.shape)
        targets[:, area + 1 :] = content
        return Rows(inputs, targets)


@dataclass(frozen=True)
class MemoryOptions(ProbeOptions):
    """Options of `Memorization`."""

    length: Several = 32
    """tokens in a row"""
    symbols: Several = 256
    """V: keys, values, and the sign V - 1"""


class Memorization(Probe):
    """Memory of facts: what is learnt stands in no row."""

    name = "mad:memorization"
    about = "keys, each followed by a sign: its value by a table that all rows share"
    Options = MemoryOptions
    options: MemoryOptions

    @property
    def answers(self) -> int:
        return (self.options.symbols - 1) // 2

    @cached_property
    def table(self) -> np.ndarray:
        """The value of each key, by the data's seed."""
        return self.answers + np.random.default_rng((VALUES, self.seed)).permutation(self.answers)

    @property
    def length(self) -> int:
        return self.options.length // 2 * 2

    def make(self, random: np.random.Generator, count: int, held_out: bool) -> Rows:
        keys = random.integers(0, self.answers, (count, self.length // 2))
        inputs = np.full((count, self.length), self.options.symbols - 1, dtype=np.int64)
        inputs[:, ::2] = keys
        targets = asked(inputs.shape)
        targets[:, 1::2] = self.table[keys]
        return Rows(inputs, targets)


@dataclass(frozen=True)
class CompressionOptions(ProbeOptions):
    """Options of `Compression`."""

    length: Several = 32
    """tokens in a row"""
    symbols: Several = 16
    """V, the sign V - 1 included"""


class Compression(Probe):
    """A row through one vector."""

    name, signs = "mad:compression", 1
    about = "random tokens and a sign: the tokens again, from one vector of the row"
    task = COMPRESS
    Options = CompressionOptions
    options: CompressionOptions

    def make(self, random: np.random.Generator, count: int, held_out: bool) -> Rows:
        o = self.options
        rows = random.integers(0, o.symbols - 1, (count, o.length))
        rows[:, -1] = o.symbols - 1
        targets = rows.copy()
        targets[:, -1] = IGNORED
        return Rows(rows, targets)


VALUES = 7
"""of the seed of a table, which no stream has"""
