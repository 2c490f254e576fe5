"""Points of a benchmark: what is requested, what was measured, and where two curves cross."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from everyformer.core.bounds import Amount, Count, Threads
from everyformer.core.config import Options

BASELINE = "attention"


@dataclass(frozen=True)
class Setting(Options):
    """Settings that every point of a benchmark shares."""

    width: Count = 256
    """channels of x"""
    heads: Count = 4
    """heads of each mixer that has heads"""
    batch: Count = 1
    """rows"""
    causal: bool = True
    """whether the future is hidden (members that cannot hide it are measured as they are)"""
    backward: bool = True
    """forward and backward, or forward alone"""
    precision: Literal["float32", "bfloat16"] = "float32"
    """dtype of weights and inputs"""
    device: str = "cpu"
    """where it is measured; auto: an accelerator if there is one"""
    seconds: Amount = 0.4
    """least time spent on the repetitions of a point; where they scatter, up to five times that"""
    threads: Threads | None = None
    """CPU threads (default: torch's own choice)"""


@dataclass(frozen=True)
class Point:
    """One implementation at one length."""

    member: str
    length: int
    source: str = "everyformer"
    """this library, or the peer package"""
    work: Literal["pass", "decode", "write", "share"] = "pass"
    """a whole call at this length, one token after this many, a text of so many that a whole model
    writes, or what adaptive computation leaves of a work of this length
    (`everyformer.lab.bench.spared`)"""
    share: float = 1.0
    """of all steps, spans or layers (share)"""
    status: Literal["ok", "out of memory", "refused", "failed"] = "ok"
    detail: str = ""
    """why there is no number, or what was measured (share, write)"""
    seconds: float | None = None
    """median"""
    quartiles: tuple[float, float] | None = None
    """of the seconds"""
    samples: int | None = None
    """how many times were measured, each over one or more calls"""
    stable: bool = True
    """whether the quartiles of the seconds, and all peaks, are within 10% of the median"""
    peak_bytes: int | None = None
    """memory beyond weights and inputs, at the worst moment; median of five calls"""
    peak_range: tuple[int, int] | None = None
    """the smallest and the largest of those peaks"""
    flops: int | None = None
    """as torch counts them"""
    state_bytes: int | None = None
    """of the streaming state (decode)"""
    operations: int | None = None
    """that a token takes, but for views (decode)"""
    bytes_read: int | None = None
    """by those operations (decode)"""
    limit: float | None = None
    """seconds that they would take at least (decode; `everyformer.lab.bench.limits`)"""


def crossover(points: Iterable[Point], member: str, what: str = "seconds") -> int | None:
    """The shortest measured length from which ``member`` surely needs less than the baseline, and
    stays so: where their ranges (quartiles of times, all peaks) share a value, it does not.

    ``what``: the field of `Point` that is compared.
    """
    start = None
    for length, (member_range, base_range) in _shared(points, member, what):
        if member_range[1] >= base_range[0]:
            break
        start = length
    return start


def is_settled(points: Iterable[Point], member: str) -> bool | None:
    """True if the seconds of ``member`` and of the baseline differ clearly at the longest length
    at which both are measured: their ranges have no value in common. None: there is no such."""
    for _, (one, other) in _shared(points, member, "seconds"):
        return one[1] < other[0] or other[1] < one[0]
    return None


Range = tuple[float, float]


def _shared(
    points: Iterable[Point], member: str, what: str
) -> list[tuple[int, tuple[Range, Range]]]:
    """The ranges of a member and of the baseline, the longest length at which both are measured
    first."""
    passes = [p for p in points if p.source == "everyformer" and p.work == "pass"]
    known = [(p, ends) for p in passes if (ends := _range(p, what)) is not None]
    names = (member, BASELINE)
    one, other = ({p.length: ends for p, ends in known if p.member == name} for name in names)
    lengths = sorted(one.keys() & other.keys(), reverse=True)
    return [(length, (one[length], other[length])) for length in lengths]


def _range(point: Point, what: str) -> Range | None:
    """Between which numbers repeated measurements lay; a single one is both; None: no number."""
    value = getattr(point, what)
    around = {"seconds": point.quartiles, "peak_bytes": point.peak_range}[what]
    return None if value is None else around or (value, value)
