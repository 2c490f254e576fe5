"""Bounds: the numbers that an option takes, given once, in the type of its field.

    width: Count = 128        # at least 1
    decay: Rate = 0.99        # from 0 to below 1

An option that only one form of its part reads says so with its type, with `When` or `Unless`;
one that means nothing to learned weights, with `Affects`.
`everyformer.core.config` checks them wherever a value comes from (Python, flags, files), refusals
and `--help` quote them. NaN and infinity are within no bounds.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from everyformer.core.errors import ConfigError


@dataclass(frozen=True)
class Bounds:
    """An interval of numbers, of which `beyond` and `below` leave an end out."""

    low: float = -math.inf
    """the smallest number that is taken"""
    high: float = math.inf
    """the largest number that is taken"""
    beyond: bool = False
    """whether ``low`` itself is not taken"""
    below: bool = False
    """whether ``high`` itself is not taken"""
    parity: Literal["odd", "even"] | None = None
    """of whole numbers"""

    def admit(self, value: float) -> bool:
        """True if ``value`` is a finite number within these bounds, of 64 bits if whole."""
        if not abs(value) < (2**63 if isinstance(value, int) else math.inf):
            return False
        if self.parity is not None and value % 2 != (self.parity == "odd"):
            return False
        above = value > self.low if self.beyond else value >= self.low
        return above and (value < self.high if self.below else value <= self.high)

    def __str__(self) -> str:
        """Values taken, in words: 'at least 1', 'above 0 and below 1', 'odd and at least 1'."""
        low = None if self.low == -math.inf else f"{'above' if self.beyond else 'at least'} "
        high = None if self.high == math.inf else f"{'below' if self.below else 'at most'} "
        ends = [
            None if low is None else low + _plain(self.low),
            None if high is None else high + _plain(self.high),
        ]
        return " and ".join(part for part in (self.parity, *ends) if part) or "finite"


@dataclass(frozen=True, init=False)
class Condition:
    """Beside a type: whether the option is read depends on another one, ``name``."""

    name: str
    values: tuple[Any, ...]

    def __init__(self, name: str, *values: Any) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "values", values)

    def reads(self, value: Any) -> bool:
        """True if the option is read where the other one has ``value``."""
        raise NotImplementedError


class When(Condition):
    """Beside a type: the option is read only where another one, ``name``, has one of ``values``."""

    def reads(self, value: Any) -> bool:
        return value in self.values

    def __str__(self) -> str:
        """In words: "form='etc'", "update='ema' or 'gradient'"."""
        return f"{self.name}={' or '.join(map(repr, self.values))}"


class Unless(Condition):
    """Beside a type: the option is read only where another one has none of ``values``."""

    def reads(self, value: Any) -> bool:
        return value not in self.values

    def __str__(self) -> str:
        return f"another {self.name} than {' or '.join(map(repr, self.values))}"


@dataclass(frozen=True)
class Affects:
    """With a type: what another value of the option would change (default: the weights)."""

    what: Literal["weights", "results", "speed", "nothing"]
    """what learned weights mean; what a model computes with them; how fast it does and in how much
    memory; or nothing of a finished model, only how it is trained"""


def bounds_of(kind: Any) -> Bounds | None:
    """The bounds in a type: of a number, or the first within a union or a tuple."""
    if get_origin(kind) is Annotated:
        inner, *marks = get_args(kind)
        return next((mark for mark in marks if isinstance(mark, Bounds)), bounds_of(inner))
    return next(filter(None, map(bounds_of, get_args(kind))), None)


def _plain(number: float) -> str:
    return f"{int(number):,}" if number == int(number) else f"{number:g}"


Count = Annotated[int, Bounds(1)]
"""how many there are, of what there is at least one"""
Layers = Annotated[int, Bounds(1, 1024)]
"""how many blocks are on one another"""
Threads = Annotated[int, Bounds(1, 1024)]
"""how many run at once on one machine"""
Repeats = Annotated[int, Bounds(1, 1000)]
"""how often something is done again, to know how much it varies"""
Whole = Annotated[int, Bounds(0)]
"""how many there are, of what there may be none"""
Several = Annotated[int, Bounds(2)]
"""a count of what must differ or have an order"""
Odd = Annotated[int, Bounds(1, parity="odd")]
"""a count with a middle"""
Even = Annotated[int, Bounds(0, parity="even")]
"""a length of two halves"""
Index = Annotated[int, Bounds()]
"""a position, which from the end is negative"""
Seed = Annotated[int, Bounds(0, 2**63 - 1)]
"""of a generator of random numbers"""
Real = Annotated[float, Bounds()]
"""any finite number"""
Positive = Annotated[float, Bounds(0, beyond=True)]
"""a factor, a scale, a budget"""
Times = Annotated[float, Bounds(1)]
"""how many times longer something becomes"""
Amount = Annotated[float, Bounds(0)]
"""a weight, a spread: nothing or more"""
Share = Annotated[float, Bounds(0, 1)]
"""a part of a whole"""
Part = Annotated[float, Bounds(0, 1, beyond=True)]
"""a part that is not nothing"""
Rate = Annotated[float, Bounds(0, 1, below=True)]
"""how much is dropped, of which something must be left"""
Dropout = Annotated[Rate, Affects("nothing")]
"""how much is dropped in training"""
Between = Annotated[float, Bounds(0, 1, beyond=True, below=True)]
"""a decay: neither nothing nor all"""


def rounded_share(width: int, ratio: float, option: str) -> int:
    """Channels that are ``ratio`` times ``width``, at least one.

    Raises:
        ConfigError: nothing is left; names ``option``, whose value the ratio is.
    """
    if (channels := round(width * ratio)) < 1:
        raise ConfigError(
            f"`{option}={ratio:g}` of `width={width}` leaves no channel: give at least "
            f"{1 / width:g}"
        )
    return channels
