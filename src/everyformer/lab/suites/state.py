"""State tracking: the product of all elements of a group that were read, at every place.

    y_t = x_1 x_2 ... x_t

of the integers mod m (parity is m = 2: how many ones were read), or of all permutations of 3 or 5
things (S3, S5), numbered in lexicographic order; xy does y first. Rows are of different lengths:
short ones are trained, longer ones scored. A model of finite depth that adds what it reads cannot
do S5 at any length; one that keeps a state can.

Sources: Grazzi et al. 2024, arXiv 2411.12537; Merrill et al. 2024, arXiv 2404.08819.
"""

import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from everyformer.core.bounds import Count, Several
from everyformer.lab.suites.probe import Probe, ProbeOptions, Rows, asked

READ = 10**5
"""training rows that are read, about"""


@dataclass(frozen=True)
class StateOptions(ProbeOptions):
    """Options of `StateTracking`."""

    shortest: Count = 3
    """tokens in a training row, at least"""
    length: Count = 40
    """tokens in a training row, at most"""
    longest: Count = 40
    """tokens in a held-out row, at most"""
    from_length: Count = 3
    """tokens in a held-out row, at least"""


@dataclass(frozen=True)
class ModularOptions(StateOptions):
    """Options of `Modular`."""

    modulus: Several = 5
    """m"""


class StateTracking(Probe):
    """Products of a group's elements."""

    options: StateOptions
    Options: ClassVar[type[ProbeOptions]] = StateOptions

    def check(self) -> None:
        o = self.options
        self.require(o.shortest <= o.length, f"shortest={o.shortest} is above length={o.length}")
        self.require(
            o.from_length <= o.longest,
            f"from_length={o.from_length} is above longest={o.longest}",
        )

    @property
    def products(self) -> np.ndarray:
        """(n, n): the number of x y."""
        raise NotImplementedError

    @property
    def vocabulary(self) -> int:
        return len(self.products)

    @property
    def length(self) -> int:
        return max(self.options.length, self.options.longest)

    @property
    def answers(self) -> int:
        return self.vocabulary

    @property
    def shortcut(self) -> float:
        """The first element is its own product, of all others chance."""
        o = self.options
        lengths = np.arange(o.from_length, o.longest + 1)
        firsts = len(lengths) / lengths.sum()
        return float(firsts + (1 - firsts) * self.chance)

    @property
    def overlap(self) -> str:
        known = int(math.log(READ) / math.log(self.vocabulary))
        if self.options.from_length > known or self.options.shortest > known:
            return ""
        return f"; those of up to {known} tokens are few, and are trained on, too"

    def make(self, random: np.random.Generator, count: int, held_out: bool) -> Rows:
        o = self.options
        low, high = (o.from_length, o.longest) if held_out else (o.shortest, o.length)
        lengths = random.integers(low, high + 1, (count, 1))
        inputs = random.integers(0, self.vocabulary, (count, high))
        targets, product = asked(inputs.shape), inputs[:, 0]
        for place in range(high):
            product = self.products[product, inputs[:, place]] if place else product
            targets[:, place] = product
        real = np.arange(high) < lengths
        # a model that reads from the left sees nothing of what follows a row's end
        return Rows(np.where(real, inputs, 0), np.where(real, targets, asked(targets.shape)))


class Modular(StateTracking):
    """Sums of integers."""

    name = "state:sum"
    about = "integers below m: their sum mod m so far"
    Options = ModularOptions
    options: ModularOptions

    @cached_property
    def products(self) -> np.ndarray:
        numbers = np.arange(self.options.modulus)
        return (numbers[:, None] + numbers) % self.options.modulus


class Parity(StateTracking):
    """Sums of bits."""

    name = "state:parity"
    about = "bits: whether the number of ones so far is odd"
    products = np.array([[0, 1], [1, 0]])


class Permutations(StateTracking):
    """Products of permutations."""

    things: int

    @cached_property
    def products(self) -> np.ndarray:
        all_of_them = [*itertools.permutations(range(self.things))]
        number = {each: n for n, each in enumerate(all_of_them)}
        return np.array([
            [number[tuple(x[place] for place in y)] for y in all_of_them] for x in all_of_them
        ])  # fmt: skip


class S3(Permutations):
    """All permutations of three things."""

    name = "state:s3"
    about = "permutations of 3 things: their product so far"
    things = 3


class S5(Permutations):
    """All permutations of five things."""

    name = "state:s5"
    about = "permutations of 5 things: their product so far"
    things = 5
