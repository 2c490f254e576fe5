"""Worth of an evaluation: beside that of an answer that reads nothing of the input."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from everyformer.core.tasks import TASKS
from everyformer.core.wording import few


class Baseline(NamedTuple):
    """An answer that needs no model."""

    value: float
    """its measure on the same held-out data"""
    words: str
    """a description, for a sentence"""
    metric: str
    """the measure: see `comparison.metrics`"""


NOT_BETTER = "not surely better than"
"""begins the sentence of an evaluation that is worth nothing"""
_KNOWN = {
    "accuracy": ("majority_accuracy", "always giving the commonest class", 1),
    "scaled_rmse": ("mean_scaled_rmse", "always giving the mean", -1),
    "rmse": ("mean_rmse", "always giving the mean", -1),
    "mae": ("mean_mae", "always giving the mean", -1),
    "r2": ("mean_r2", "always giving the mean", 1),
    "bits_per_byte": ("counting_bits_per_byte", "counting tokens", -1),
    "bits_per_dim": ("counting_bits_per_dim", "counting intensities", -1),
    "loss": ("counting_loss", "counting tokens", -1),
    "action_loss": ("counting_action_loss", "always giving the commonest action, or the mean", -1),
}
"""measure -> where an evaluation has that of the baseline, in words, and the sign of better"""


def baseline(task: str, evaluation: Mapping[str, Any]) -> Baseline | None:
    """The baseline in the measure that the task is ranked by; None where there is none.

    Of classes the better of two constants: where others are held out than were trained on, the
    commonest of training is beaten by any other.
    """
    metric = next((name for name in TASKS[task].metrics if name in evaluation), "")
    name, words, _ = _KNOWN.get(metric, ("", "", 0))
    if "always" in evaluation:
        words = f"always answering '{evaluation['always']}'"
    if "by_number" in evaluation:
        words += f" for each of {len(evaluation['by_number'])} numbers"
    if name not in evaluation:
        return None
    value = float(evaluation[name])
    best = evaluation.get(f"held_out_{name}", value)
    if best > value:
        words = (
            f"always answering '{evaluation['held_out_always']}', the commonest class of the "
            f"held-out part, where training's '{evaluation['always']}' is right for {value:.1%}"
        )
    return Baseline(best, words, metric)


def is_better(evaluation: Mapping[str, Any], base: Baseline) -> bool:
    """True if an evaluation surely beats the baseline: its whole 95% interval does, where known; of
    one row nothing is sure, and of several numbers each must beat its own."""
    if "by_number" in evaluation:
        return not _short(evaluation)
    sign, value = _KNOWN[base.metric][2], evaluation[base.metric]
    around = evaluation.get(f"{base.metric}_interval")
    if around is None and evaluation.get("sequences") == 1:
        return False
    worst = around[sign < 0] if around else value
    return bool(sign * (worst - base.value) > 0)


def worth(task: str, evaluation: Mapping[str, Any]) -> str | None:
    """A sentence on whether an evaluation beats the baseline; None where there is none."""
    base = baseline(task, evaluation)
    if base is None:
        return None
    short, count = _short(evaluation), len(evaluation.get("by_number", ()))
    if short:
        always = _KNOWN[base.metric][1]
        if len(short) == count:
            return f"{NOT_BETTER} {always} for any of {count} numbers"
        return (
            f"better than {always} for {count - len(short)} of {count} numbers; not surely for "
            f"number{'s' * (len(short) > 1)} {few(short)}"
        )
    than = "better than" if is_better(evaluation, base) else NOT_BETTER
    return f"{than} {base.words} ({base.metric.replace('_', ' ')} {base.value:.4g})"


def _short(evaluation: Mapping[str, Any]) -> list[str]:
    """Of several numbers those that are not surely better than their mean."""
    rows = evaluation.get("sequences")
    return [
        str(one["number"])
        for one in evaluation.get("by_number", ())
        if not is_better({"sequences": rows, **one}, Baseline(one["mean_rmse"], "", "rmse"))
    ]
