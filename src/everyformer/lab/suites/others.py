"""Short probes: induction, selective copying with distractors, a needle in a haystack.

    induction        n random tokens with the trigger T before one of them; at the end T again:
                     the token that followed it
    selective-copy   marked tokens (a mark M before each) among random ones, a sign, as many blanks:
                     the marked ones in their order
    needle           filler, and in it KEY k v1 .. vn of one key and of others (decoys); at the end
                     KEY k: v1 .. vn

Sources: induction by the program of Dao et al. 2022, arXiv 2212.14052; selective copying by Gu and
Dao 2023, arXiv 2312.00752 (there tokens are not marked but of another kind); the needle by
G. Kamradt 2023.
"""

from dataclasses import dataclass

import numpy as np

from everyformer.core.bounds import Count, Several, Share, Whole
from everyformer.data.batch import IGNORED
from everyformer.lab.suites.probe import NextOptions, Probe, ProbeOptions, Rows, asked, distinct


@dataclass(frozen=True)
class InductionOptions(NextOptions):
    """Options of `Induction`."""

    length: Several = 32
    """tokens in a training row"""
    symbols: Several = 20
    """V, the trigger V - 1 included"""
    times: Count = 1
    """held-out rows are so many times as long"""


class Induction(Probe):
    """What followed the trigger."""

    name, signs = "induction", 1
    about = "random tokens, one of them after a trigger: the one that follows the trigger again"
    both_ways = False
    Options = InductionOptions
    options: InductionOptions

    def check(self) -> None:
        self.require(self.options.length >= 4, f"length={self.options.length} is below 4")

    @property
    def length(self) -> int:
        return self.options.length * self.options.times

    def make(self, random: np.random.Generator, count: int, held_out: bool) -> Rows:
        o = self.options
        length = self.length if held_out else o.length
        tokens = random.integers(0, o.symbols - 1, (count, length + 1))
        places, rows = random.integers(0, length - 2, count), np.arange(count)
        tokens[rows, places] = tokens[:, -2] = o.symbols - 1
        tokens[:, -1] = tokens[rows, places + 1]
        targets = tokens[:, 1:].copy()
        if held_out or o.trained == "answers":
            targets[:, :-1] = IGNORED
        return Rows(tokens[:, :-1], targets)


@dataclass(frozen=True)
class MarkedOptions(ProbeOptions):
    """Options of `MarkedCopying`."""

    length: Several = 64
    """tokens in a row"""
    symbols: Several = 18
    """V: content, the mark V - 3, the sign V - 2 and the blank V - 1"""
    content: Count = 6
    """tokens to copy"""


class MarkedCopying(Probe):
    """Selective copying with distractors."""

    name, signs = "selective-copy", 3
    about = "random tokens, some of them marked, then a sign: the marked ones in their order"
    Options = MarkedOptions
    options: MarkedOptions

    def check(self) -> None:
        o, least = self.options, 3 * self.options.content + 1
        self.require(o.length >= least, f"content={o.content} needs a length of {least} or more")

    def make(self, random: np.random.Generator, count: int, held_out: bool) -> Rows:
        o = self.options
        area, mark = o.length - o.content - 1, o.symbols - 3
        inputs = random.integers(0, mark, (count, o.length))
        # a mark and what follows are one thing among area - content others
        first = np.sort(distinct(random, count, area - o.content, o.content), 1)
        places = first + np.arange(o.content)
        np.put_along_axis(inputs, places, mark, 1)
        inputs[:, area], inputs[:, area + 1 :] = mark + 1, mark + 2
        targets = asked(inputs.shape)
        targets[:, area + 1 :] = np.take_along_axis(inputs, places + 1, 1)
        return Rows(inputs, targets)


@dataclass(frozen=True)
class NeedleOptions(NextOptions):
    """Options of `Needle`."""

    length: Several = 64
    """tokens in a training row"""
    symbols: Several = 26
    """V: filler, ``keys`` of them, and KEY V - 1"""
    keys: Count = 8
    """different keys"""
    decoys: Whole = 3
    """needles of other keys"""
    values: Count = 4
    """tokens of a needle's value"""
    times: Count = 1
    """held-out rows are so many times as long"""
    depth: Share | None = None
    """where the needle is in held-out rows, 0 at the beginning; none: anywhere, as in training"""


class Needle(Probe):
    """A needle in a haystack."""

    name = "needle"
    about = "filler with several keys and their values, then one key again: its value"
    both_ways = False
    Options = NeedleOptions
    options: NeedleOptions

    def check(self) -> None:
        o = self.options
        self.require(o.decoys < o.keys, f"decoys={o.decoys} need as many other keys, of {o.keys}")
        least = (o.decoys + 2) * self.size
        self.require(o.length >= least, f"its needles need a length of {least}, not {o.length}")

    @property
    def size(self) -> int:
        """Tokens of a needle."""
        return 2 + self.options.values

    @property
    def answers(self) -> int:
        """Tokens of filler, which values are of, too."""
        return self.options.symbols - self.options.keys - 1

    @property
    def length(self) -> int:
        # the last token of the value is asked for, and not read
        return self.options.length * self.options.times - 1

    @property
    def shortcut(self) -> float:
        """The value of any needle, which agrees with the right one by chance, too."""
        right = 1 / (self.options.decoys + 1)
        return right + (1 - right) * self.chance

    def make(self, random: np.random.Generator, count: int, held_out: bool) -> Rows:
        o, needles = self.options, self.options.decoys + 1
        length, filler = o.length * (o.times if held_out else 1), self.answers
        area = length - self.size
        tokens = random.integers(0, filler, (count, length))
        keys = filler + distinct(random, count, o.keys, needles)
        values = random.integers(0, filler, (count, needles, o.values))
        # each needle is one thing among the filler outside of needles
        free = area - needles * (self.size - 1)
        at = distinct(random, count, free, needles)
        if held_out and o.depth is not None:
            at = np.where(np.arange(needles), at, round(o.depth * (free - 1)))
            # a decoy gives way to it
            clash = (at[:, 1:] == at[:, :1]).nonzero()
            at[:, 1:][clash] = self._free(at, clash[0], free)
        order = at.argsort(1).argsort(1)
        places = at + order * (self.size - 1)
        each = np.arange(count)[:, None]
        tokens[each, places], tokens[each, places + 1] = o.symbols - 1, keys
        for n in range(o.values):
            tokens[each, places + 2 + n] = values[:, :, n]
        tokens[:, area], tokens[:, area + 1], tokens[:, area + 2 :] = (
            o.symbols - 1, keys[:, 0], values[:, 0],
        )  # fmt: skip
        targets = tokens[:, 1:].copy()
        if held_out or o.trained == "answers":
            targets[:, : -o.values] = IGNORED
        return Rows(tokens[:, :-1], targets)

    def _free(self, at: np.ndarray, rows: np.ndarray, free: int) -> np.ndarray:
        """A place that none has, of each of these rows."""
        return np.array([next(n for n in range(free) if n not in at[row]) for row in rows])
