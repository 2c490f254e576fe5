"""Multi-query associative recall: pairs are shown, then each key is asked once.

    k1 v1 k2 v2 ... kn vn | slots of two tokens, of which n hold a key; its target is the value

Keys are different numbers of 1 .. V/2 - 1, values of V/2 .. V - 1. Slot g is drawn without
replacement with weight g^(power - 1), one for each key in their order, so that earlier keys tend to
nearer slots. Other places hold 0, or any token (``fillers``). Variants: ``updates`` keys are shown
once more with another value, which is the one that counts ("forgetting"); ``grid`` makes a key of
two tokens, each of which alone says nothing: k1 of sqrt(n), k2 of sqrt(n) others, all their pairs
("compositional"), in three parts of the vocabulary; ``stacked`` shows key and value in one step, by
a token for each pair behind the others, so that nothing has to be looked up one place further on.

Source: Arora et al. 2023, arXiv 2312.04927, and its program; the variants are of 2026. Deviation:
rows are in random order of difficulty, where the program trains segment after segment; its stacked
steps are the embeddings of key and value side by side, where here each pair has one of its own.
"""

import math
from dataclasses import dataclass

import numpy as np

from everyformer.core.bounds import Count, Positive, Several, Whole
from everyformer.lab.suites.probe import Probe, ProbeOptions, Rows, asked, distinct


@dataclass(frozen=True)
class MqarOptions(ProbeOptions):
    """Options of `Mqar`."""

    length: Several = 64
    """tokens in a row"""
    symbols: Several = 256
    """V, the vocabulary"""
    pairs: Count = 4
    """n, pairs of key and value"""
    power: Positive = 0.01
    """1 draws slots uniformly, less prefers near ones"""
    fillers: bool = True
    """whether places in between hold any token, else 0"""
    updates: Whole = 0
    """keys that are given another value"""
    grid: bool = False
    """whether a key is two tokens, of a grid"""
    stacked: bool = False
    """whether key and value are shown in one step"""


class Mqar(Probe):
    """Recall of values by keys that were seen once."""

    name = "mqar"
    about = "pairs of key and value, then the keys again: each value is asked for"
    Options = MqarOptions
    options: MqarOptions

    def check(self) -> None:
        o, side = self.options, math.isqrt(self.options.pairs)
        self.require(o.updates <= o.pairs, f"updates={o.updates} is more than pairs={o.pairs}")
        self.require(not (o.grid and o.updates), "grid and updates are two variants: give one")
        self.require(not (o.grid and o.stacked), "grid and stacked are two variants: give one")
        self.require(
            not o.grid or side**2 == o.pairs, f"grid needs a square of pairs, not {o.pairs}"
        )
        least = self.shown + self.slot * o.pairs
        self.require(
            o.length >= least,
            f"pairs={o.pairs} need a length of at least {least}, not {o.length}",
        )
        keys, values = self.slot * (o.pairs + 1), 2 * (o.pairs + (o.updates > 0))
        least = max(keys, values) if not o.grid else 3 * max(side + 1, o.pairs)
        self.require(
            o.symbols >= least,
            f"pairs={o.pairs} need at least {least} symbols, not {o.symbols}",
        )

    @property
    def slot(self) -> int:
        """Tokens of a slot: the key, and the place of its value."""
        return 3 if self.options.grid else 2

    @property
    def shown(self) -> int:
        """Tokens in which pairs are shown."""
        step = 1 if self.options.stacked else self.slot
        return step * (self.options.pairs + self.options.updates)

    @property
    def vocabulary(self) -> int:
        """The symbols, and where pairs are one token, each of these."""
        symbols, (first, end) = self.options.symbols, self.values
        return symbols + first * (end - first) * self.options.stacked

    @property
    def values(self) -> tuple[int, int]:
        """The first value, and the end of them."""
        symbols = self.options.symbols
        return 2 * (symbols // 3) if self.options.grid else symbols // 2, symbols

    @property
    def answers(self) -> int:
        first, end = self.values
        return end - first

    @property
    def shortcut(self) -> float:
        """Any value that was shown."""
        return 1 / self.options.pairs

    def make(self, random: np.random.Generator, count: int, held_out: bool) -> Rows:
        o, (first, end) = self.options, self.values
        keys = self._keys(random, count)
        values = first + distinct(random, count, end - first, o.pairs)
        shown = [*keys, values]
        if o.updates:
            which = distinct(random, count, o.pairs, o.updates)
            old = np.take_along_axis(values, which, 1)
            # any value but the one that it had
            new = random.integers(first, end - 1, (count, o.updates))
            new += new >= old
            again = [np.take_along_axis(key, which, 1) for key in keys]
            shown = [np.concatenate(both, 1) for both in zip(shown, [*again, new], strict=True)]
            values = values.copy()
            np.put_along_axis(values, which, new, 1)
        inputs = np.zeros((count, o.length), dtype=np.int64)
        if o.fillers:
            inputs[:] = random.integers(0, o.symbols, inputs.shape)
        if o.stacked:
            inputs[:, : self.shown] = o.symbols + shown[0] * (end - first) + shown[1] - first
        for n, part in enumerate(() if o.stacked else shown):
            inputs[:, n : self.shown : self.slot] = part
        slots = (o.length - self.shown) // self.slot
        # a draw without replacement by weight is the order of log weights with Gumbel noise
        logs = (o.power - 1) * np.log(np.arange(1, slots + 1))
        order = (-(logs + random.gumbel(size=(count, slots)))).argsort(1)[:, : o.pairs]
        places = self.shown + self.slot * order
        for n, key in enumerate(keys):
            np.put_along_axis(inputs, places + n, key, 1)
        targets = asked(inputs.shape)
        np.put_along_axis(targets, places + len(keys) - 1, values, 1)
        return Rows(inputs, targets)

    def _keys(self, random: np.random.Generator, count: int) -> list[np.ndarray]:
        """The tokens (N, n) of all keys."""
        o = self.options
        if not o.grid:
            return [1 + distinct(random, count, o.symbols // 2 - 1, o.pairs)]
        third, side = o.symbols // 3, math.isqrt(o.pairs)
        rows = 1 + distinct(random, count, third - 1, side)
        columns = third + distinct(random, count, third, side)
        order = distinct(random, count, o.pairs, o.pairs)
        both = np.repeat(rows, side, 1), np.tile(columns, (1, side))
        return [np.take_along_axis(part, order, 1) for part in both]
