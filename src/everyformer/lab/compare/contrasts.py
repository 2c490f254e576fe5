"""Differences between members: which are surely there, and the smallest that could have been seen.

Trainings of one seed share the order of data and the held-out items, so that members are compared
by their differences seed for seed (Student's paired test). All pairs are one family of tests:
probabilities and intervals are corrected alike (Bonferroni: by the number of pairs), so that in 95%
of comparisons no equal pair is told apart, and a pair is exactly where its interval excludes 0. One
training each says nothing of training's luck: then no pair is.

Where seeds are added until a comparison is settled, it is judged at several looks that were planned
before. Each may err by its part of the 5% (Bonferroni over looks), so that whichever is the last,
and whichever pairs go on after a look, all of them together tell equal members apart in 5% at most.
"""

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from string import ascii_lowercase

from everyformer.core.measures import METRICS
from everyformer.core.student import mean_interval, p_value, power, quantile
from everyformer.lab.compare.results import Contrast, Metric, TableRow

ERROR = 0.05
"""share of comparisons of equal members in which some pair may be told apart"""
POWER = 0.8
"""of comparisons in which a difference is seen that one has seeds enough for"""
MOST_SEEDS = 200
SEEDS = range(2, MOST_SEEDS + 1)


def contrasts(
    rows: Sequence[TableRow], metric: Metric, looks: Sequence[int] = ()
) -> list[Contrast]:
    """All pairs of ``rows`` (best first), the better named first, with corrected probabilities.

    [] where there is one training each.

    Args:
        looks: seeds of each planned look; a pair that was told apart at one of them stays so
            (default: all seeds are judged once).
    """
    if not _repeated(rows):
        return []
    most, found = max(len(row["values"]) for row in rows), list[Contrast]()
    for seeds in [n for n in looks if n <= most] or [most]:
        now = _judged(rows, metric, seeds, max(1, len(looks)))
        found = [old if old["apart"] else new for old, new in zip(found or now, now, strict=True)]
    return found


def _judged(rows: Sequence[TableRow], metric: Metric, seeds: int, looks: int) -> list[Contrast]:
    """All pairs by their first ``seeds``, at one of so many ``looks``."""
    sign, pairs = METRICS[metric].sign, list(itertools.combinations(rows, 2))
    by_seed = [_differences(a, b, sign)[:seeds] for a, b in pairs]
    found: list[Contrast] = []
    for (a, b), each in zip(pairs, by_seed, strict=True):
        # where one has more seeds than another, the means of the rows are not of the same seeds
        if statistics.mean(each) < 0:
            a, b, each = b, a, [-d for d in each]
        interval = mean_interval(each, level_of(rows, looks))
        found.append({
            "better": a["member"],
            "worse": b["member"],
            "difference": statistics.mean(each),
            "interval": interval,
            "probability": min(1.0, len(pairs) * looks * p_value(each)),
            "apart": interval[0] > 0,
        })  # fmt: skip
    return found


def level_of(rows: Sequence[TableRow], looks: int = 1) -> float:
    """The level of an interval of a pair, so that those of all pairs at all looks hold together."""
    return 1 - ERROR / (math.comb(len(rows), 2) * max(1, looks))


def _repeated(rows: Sequence[TableRow]) -> bool:
    """True if there are differences, and of each at least two."""
    return len(rows) > 1 and min(len(row["values"]) for row in rows) > 1


def _differences(better: TableRow, worse: TableRow, sign: int) -> list[float]:
    """By how much one is better than another, seed for seed."""
    pairs = zip(better["values"], worse["values"], strict=False)
    return [sign * (b - a) for a, b in pairs]


def within_margin(
    rows: Sequence[TableRow], among: Sequence[str], metric: Metric, margin: float, looks: int = 1
) -> bool:
    """True if all members ``among`` those of ``rows`` are shown to differ by less than ``margin``.

    Each pair by two one-sided tests (Schuirmann 1987), which is that its interval lies within the
    margin. Wrong in 5% of comparisons at most, whichever members are looked at.
    """
    # each side may err as much as two sides do elsewhere
    sign, level = METRICS[metric].sign, 2 * level_of(rows, looks) - 1
    pairs = itertools.combinations([row for row in rows if row["member"] in among], 2)
    ends = [mean_interval(_differences(a, b, sign), level) for a, b in pairs if _repeated((a, b))]
    return bool(ends) and all(-margin < low and high < margin for low, high in ends)


def scatter(rows: Sequence[TableRow], metric: Metric) -> float | None:
    """The standard deviation of a seed's differences, the usual of all pairs of ``rows``; None with
    one training each."""
    if not _repeated(rows):
        return None
    sign, pairs = METRICS[metric].sign, itertools.combinations(rows, 2)
    variances = [statistics.variance(_differences(a, b, sign)) for a, b in pairs]
    return math.sqrt(statistics.mean(variances))


def smallest_seen(
    rows: Sequence[TableRow], metric: Metric, seeds: int | None = None, looks: int = 1
) -> float | None:
    """The smallest difference that tells two of ``rows`` apart with so many ``seeds`` (default:
    the most that there are), at their `scatter`; None with one training each."""
    spread = scatter(rows, metric)
    if spread is None:
        return None
    count = seeds or max(len(row["values"]) for row in rows)
    return quantile(count - 1, level_of(rows, looks)) * spread / math.sqrt(count)


def seeds_for(
    rows: Sequence[TableRow], metric: Metric, difference: float, looks: int = 1
) -> int | None:
    """Seeds with which a ``difference`` would show; None: more than `MOST_SEEDS`, or unknown."""
    if scatter(rows, metric) is None:
        return None
    enough = (n for n in SEEDS if (smallest_seen(rows, metric, n, looks) or 0.0) <= difference)
    return next(enough, None)


def seeds_to_see(
    rows: Sequence[TableRow], metric: Metric, difference: float, looks: int = 1
) -> int | None:
    """Seeds with which members that differ by ``difference`` are told apart in `POWER` of
    comparisons, at their `scatter`; None: more than `MOST_SEEDS`, or unknown."""
    spread = scatter(rows, metric)
    if not spread:
        return None if spread is None else SEEDS[0]
    shift, level = difference / spread, level_of(rows, looks)
    return next((seeds for seeds in SEEDS if power(shift, seeds, level) >= POWER), None)


def letters(rows: Sequence[TableRow], found: Sequence[Contrast]) -> list[list[str]]:
    """The tiers of each of ``rows`` (best first): those with a letter in common are not told apart.

    Every letter stands for one largest set of rows of which no two are apart (inserted and
    absorbed as by Piepho 2004), lettered best first; so rows without a common one are apart.
    """
    order = {row["member"]: n for n, row in enumerate(rows)}
    sets = [set(order.values())]
    for one in found:
        if one["apart"]:
            sets = list(_split(sets, order[one["better"]], order[one["worse"]]))
    tiers = sorted(sorted(each) for each in sets)
    return [[_letter(i) for i, tier in enumerate(tiers) if n in tier] for n in range(len(rows))]


def _split(sets: list[set[int]], a: int, b: int) -> Iterator[set[int]]:
    """Sets of which none holds both, without those that another holds."""
    parts: list[set[int]] = []
    for each in sets:
        parts += [each - {a}, each - {b}] if {a, b} <= each else [each]
    for n, each in enumerate(parts):
        if not any(each < other or (each == other and m < n) for m, other in enumerate(parts)):
            yield each


def _letter(index: int) -> str:
    """a, b ... z, a1, b1 ..."""
    rounds, within = divmod(index, len(ascii_lowercase))
    return ascii_lowercase[within] + (str(rounds) if rounds else "")
