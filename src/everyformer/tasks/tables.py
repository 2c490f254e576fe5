"""Tables of evaluations of rows: measures with a constant answer's, and classes or numbers."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from everyformer.system.console import table

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


def classes_table(evaluation: Mapping[str, Any], classes: Sequence[str]) -> str:
    """Measures with intervals and a constant answer's, then each class; of more than 20 those
    with the lowest F1."""
    # a training does not count each class by itself
    index = evaluation.get("majority")
    always = "always training's commonest"
    if index is not None:
        always = f"always '{_name(classes, index)}'"
    parts = _measures(evaluation, "majority", always)
    if "by_class" in evaluation:
        parts += _classes(evaluation, classes)
    return "\n\n".join(parts)


def numbers_table(evaluation: Mapping[str, Any]) -> str:
    """Measures with intervals and the mean's, then each of several numbers; of more than 20
    those with the lowest R^2."""
    parts = _measures(evaluation, "mean", "always the mean")
    if "by_number" in evaluation:
        parts += _numbers(evaluation["by_number"])
    return "\n\n".join(parts)


def _measures(evaluation: Mapping[str, Any], constant: str, always: str) -> list[str]:
    """The measures of all rows, and how many rows there are."""
    rows = []
    for name, called in MEASURES.items():
        if name not in evaluation:
            continue
        around, least = evaluation.get(f"{name}_interval"), evaluation.get(f"{constant}_{name}")
        span = "-" if around is None else f"{around[0]:.4g} to {around[1]:.4g}"
        without = "-" if least is None else f"{least:.4g}"
        rows.append([called, f"{evaluation[name]:.4g}", span, without])
    measures = table(["measure", "value", "95% interval", always], rows)
    return [measures, f"over {evaluation['sequences']:,} rows"]


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


def _classes(evaluation: Mapping[str, Any], classes: Sequence[str]) -> list[str]:
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
