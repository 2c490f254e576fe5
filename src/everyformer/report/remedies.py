"""Remedies beside the doubts of a comparison: what to run so that the answer can be trusted."""

import math
from collections.abc import Callable
from typing import Any

from everyformer.comparison.results import Results, finished
from everyformer.comparison.verdict import FEWEST_STEPS
from everyformer.report.headline import doubts
from everyformer.training.config import BUDGETS


def remedies(results: Results) -> list[tuple[str, str]]:
    """Each doubt with its remedy, the one of a single seed last; a doubt that brings its own advice
    behind a semicolon is parted there."""
    pairs = []
    for doubt in doubts(results):
        said, _, advice = doubt.partition("; ")
        known = next((remedy for words, remedy in _REMEDIES.items() if words in said), None)
        pairs.append((said, advice or ("" if known is None else known(results))))
    rows = finished(results)
    if len(rows) > 1 and rows[0]["interval_of"] != "seeds":
        pairs.append(("every member was trained once, with one seed", "repeat with --seeds 3"))
    return pairs


def _quiet(results: Results) -> str:
    tokens = max(row["tokens"] for row in finished(results))
    return (
        f"repeat while nothing else runs, or with --budget-tokens {tokens:.0f}, on which a busy "
        "machine has no influence"
    )


def _longer(results: Results) -> str:
    """A budget that is worth twice the fewest steps to the slowest."""
    fewest = min(row["steps"] for row in finished(results))
    times = math.ceil(2 * FEWEST_STEPS / max(fewest, 1.0))
    training: dict[str, Any] = results["config"]["training"]
    for kind in BUDGETS:
        if (budget := training[f"budget_{kind}"]) is not None:
            return f"give {times} times the budget: --budget-{kind} {times * budget:g}"
    return f"give more steps: --steps {times * training['steps']}"


_REMEDIES: dict[str, Callable[[Results], str]] = {
    "the machine had other work": _quiet,
    "speeds scattered": _quiet,
    "could not be measured beforehand": _quiet,
    "steps were made": _longer,
    "no member is surely better": lambda results: "train for longer, or larger models",
    "the loss of": lambda results: "compare it apart, since it does not write",
}
"""remedies by words of the doubt (`comparison.verdict`, `report.headline`)"""
