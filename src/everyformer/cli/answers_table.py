"""Tables of `train` and `eval` for runs that answer: measures beside a baseline, and classes."""

import math
from collections.abc import Sequence
from typing import Any

from everyformer.cli.console import table

MEASURES = {
    "loss": "loss",
    "accuracy": "accuracy",
    "top5": "accuracy of the first five",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro F1",
    "calibration_error": "calibration error (15 bins)",
    "mae": "MAE",
    "rmse": "RMSE",
    "scaled_rmse": "RMSE in standard deviations",
    "r2": "R^2",
    "mean_depth": "steps a token takes",
    "mean_span": "tokens a head looks back",
}
"""measure -> what it is called"""
MOST = 20
"""classes or numbers that have a row of their own, at most"""
DRAWN = 8
"""classes up to which the confusion matrix is printed"""


def answers_table(evaluation: dict[str, Any], classes: Sequence[str]) -> str:
    """An evaluation as tables: measures with intervals beside the baseline's, then each class or
    each of several numbers.

    Of more than 20 those with the lowest F1 or R^2.
    """
    rows = []
    for name, called in MEASURES.items():
        if name not in evaluation:
            continue
        around = evaluation.get(f"{name}_interval")
        span = "-" if around is None else f"{around[0]:.4g} to {around[1]:.4g}"
        least = evaluation.get(f"majority_{name}", evaluation.get(f"mean_{name}"))
        without = "-" if least is None else f"{least:.4g}"
        rows.append([called, f"{evaluation[name]:.4g}", span, without])
    always = "always the mean"
    if "majority_accuracy" in evaluation:
        # a training does not count each class by itself
        index = evaluation.get("majority")
        always = (
            "always training's commonest" if index is None else f"always '{_name(classes, index)}'"
        )
    parts = [table(["measure", "value", "95% interval", always], rows)]
    parts.append(f"over {evaluation['sequences']:,} rows")
    if "by_class" in evaluation:
        parts += _classes(evaluation, classes)
    if "by_number" in evaluation:
        parts += _numbers(evaluation["by_number"])
    return "\n\n".join(parts)


def _numbers(chosen: list[dict[str, Any]]) -> list[str]:
    """A row a number, in its own unit, beside its mean of training."""
    parts, names = [], ("mae", "rmse", "r2")
    if len(chosen) > MOST:
        parts.append(f"the {MOST} numbers of {len(chosen):,} with the lowest R^2 (--json has all):")
        chosen = sorted(chosen, key=lambda row: row.get("r2", -math.inf))[:MOST]
    values = [
        [row["number"]]
        + [f"{row[n]:.4g}" if n in row else "-" for name in names for n in (name, f"mean_{name}")]
        for row in chosen
    ]
    head = [f"{MEASURES[name]}{of}" for name in names for of in ("", " of the mean")]
    return [*parts, table(["number", *head], values)]


def _classes(evaluation: dict[str, Any], classes: Sequence[str]) -> list[str]:
    """A row a class, and of few what was answered to each."""
    chosen = [row for row in evaluation["by_class"] if row["rows"] or row["answers"]]
    parts = []
    if len(chosen) > MOST:
        parts.append(f"the {MOST} classes of {len(chosen):,} with the lowest F1 (--json has all):")
        chosen = sorted(chosen, key=lambda row: row["f1"])[:MOST]
    values = [
        [_name(classes, row["class"]), row["rows"], row["answers"]]
        + ["-" if row[n] is None else f"{row[n]:.3f}" for n in ("precision", "recall", "f1")]
        for row in chosen
    ]
    parts.append(table(["class", "rows", "answers", "precision", "recall", "F1"], values))
    confusion = evaluation.get("confusion")
    if confusion is not None and len(confusion) <= DRAWN:
        names = [_name(classes, index) for index in range(len(confusion))]
        lines = [[name, *row] for name, row in zip(names, confusion, strict=True)]
        parts.append(table(["true, and answered:", *names], lines))
    return parts


def _name(classes: Sequence[str], index: int) -> str:
    return classes[index] if index < len(classes) else str(index)
