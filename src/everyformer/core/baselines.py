"""Baselines: the measures of answers that read no input, and whether an evaluation beats them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from everyformer.core.measures import METRICS, Metric


class Baseline(NamedTuple):
    """An answer that needs no model."""

    value: float
    """its measure on the same held-out data"""
    words: str
    """a description, for a sentence"""
    metric: Metric


NOT_BETTER = "not surely better than"
"""begins the sentence of an evaluation that does not beat its baseline"""


def constant(metrics: Sequence[Metric], evaluation: Mapping[str, Any]) -> Baseline | None:
    """The baseline in the first of the measures that an evaluation has; None where it has none."""
    metric = next((name for name in metrics if name in evaluation), None)
    if metric is None or METRICS[metric].constant not in evaluation:
        return None
    info = METRICS[metric]
    return Baseline(float(evaluation[info.constant]), info.words, metric)


def beats(evaluation: Mapping[str, Any], base: Baseline) -> bool:
    """True if the whole 95% interval is better, where it is known; of one row nothing is sure."""
    around = evaluation.get(f"{base.metric}_interval")
    if around is None and evaluation.get("sequences") == 1:
        return False
    lower = METRICS[base.metric].better == "lower"
    worst = around[lower] if around else evaluation[base.metric]
    return bool(worst < base.value if lower else worst > base.value)


def sentence(base: Baseline, better: bool) -> str:
    """Whether the baseline is beaten, with its value."""
    than = "better than" if better else NOT_BETTER
    return f"{than} {base.words} ({base.metric.replace('_', ' ')} {base.value:.4g})"
