"""Differences between members: which are surely there, and the smallest that could have been seen.

Trainings of one seed share the order of data and the held-out items, so that members are compared
by their differences seed for seed (Student's paired test). All pairs are one family of tests: the
probabilities are corrected (Holm 1979), so that in 95% of comparisons of equal members no pair is
told apart. One training each says nothing of training's luck: then no pair is.
"""

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from string import ascii_lowercase

from everyformer.comparison.metrics import METRICS
from everyformer.comparison.results import Contrast, Metric, TableRow
from everyformer.comparison.student import mean_interval, p_value, quantile

ERROR = 0.05
"""share of comparisons of equal members in which some pair may be told apart"""
MOST_SEEDS = 200


def contrasts(rows: Sequence[TableRow], metric: Metric, error: float = ERROR) -> list[Contrast]:
    """All pairs of ``rows`` (best first), the better named first, with corrected probabilities.

    [] where there is one training each.
    """
    if len(rows) < 2 or min(len(row["values"]) for row in rows) < 2:
        return []
    sign = METRICS[metric].sign
    pairs = list(itertools.combinations(rows, 2))
    by_seed = [_differences(a, b, sign) for a, b in pairs]
    corrected = holm([p_value(each) for each in by_seed])
    level = 1 - error / len(pairs)
    return [
        {
            "better": a["member"],
            "worse": b["member"],
            "difference": statistics.mean(each),
            "interval": mean_interval(each, level),
            "probability": p,
            "apart": p < error,
        }
        for (a, b), each, p in zip(pairs, by_seed, corrected, strict=True)
    ]


def _differences(better: TableRow, worse: TableRow, sign: int) -> list[float]:
    """By how much one is better than another, seed for seed."""
    pairs = zip(better["values"], worse["values"], strict=False)
    return [sign * (b - a) for a, b in pairs]


def holm(probabilities: Sequence[float]) -> list[float]:
    """Probabilities of a family of tests, each corrected for all that are no smaller."""
    corrected, largest = [1.0] * len(probabilities), 0.0
    for rank, n in enumerate(sorted(range(len(probabilities)), key=probabilities.__getitem__)):
        largest = max(largest, (len(probabilities) - rank) * probabilities[n])
        corrected[n] = min(1.0, largest)
    return corrected


def smallest_seen(
    rows: Sequence[TableRow], metric: Metric, seeds: int | None = None
) -> float | None:
    """The smallest difference that tells two of ``rows`` apart with so many ``seeds`` (default:
    those that there are), at the scatter of their differences; None with one training each."""
    if len(rows) < 2 or min(len(row["values"]) for row in rows) < 2:
        return None
    sign, pairs = METRICS[metric].sign, list(itertools.combinations(rows, 2))
    variances = [statistics.variance(_differences(a, b, sign)) for a, b in pairs]
    count = seeds or min(len(row["values"]) for row in rows)
    scatter = math.sqrt(statistics.mean(variances) / count)
    return quantile(count - 1, 1 - ERROR / len(pairs)) * scatter


def seeds_for(rows: Sequence[TableRow], metric: Metric, difference: float) -> int | None:
    """Seeds with which a ``difference`` would show; None: more than `MOST_SEEDS`, or unknown."""
    for seeds in range(2, MOST_SEEDS + 1):
        seen = smallest_seen(rows, metric, seeds)
        if seen is None:
            return None
        if seen <= difference:
            return seeds
    return None


def letters(rows: Sequence[TableRow], told: Sequence[Contrast]) -> list[list[str]]:
    """The tiers of each of ``rows`` (best first): those with a letter in common are not told apart.

    Every letter stands for one largest set of rows of which no two are apart (inserted and
    absorbed as by Piepho 2004), lettered best first; so rows without a common one are apart.
    """
    order = {row["member"]: n for n, row in enumerate(rows)}
    sets = [set(order.values())]
    for one in told:
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
