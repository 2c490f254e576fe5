"""Pictures of early exits: what a calibration has found (risk by threshold, risk by depth, what
promises came to), and what a search of thresholds has."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from everyformer.exits.learn_then_test import Guarantee
from everyformer.exits.resplits import Realised, resplit
from everyformer.exits.search import Tried
from everyformer.report.style import WIDE, new_figure, save_figure, styled

DELTAS = (0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3)
"""risks that are asked for in the last picture"""


@styled
def draw_certificate(record: dict[str, Any], threshold: float | None, path: Path) -> Path:
    """Three pictures, one below the other.

    Args:
        record: what `everyformer calibrate` kept: losses and depths by threshold, and the promise.
        threshold: what passed. path: .png, .pdf or .svg; written whole.
    """
    losses = {float(key): values for key, values in record["losses"].items()}
    tried = sorted(losses, reverse=True)
    risks = [float(np.mean(losses[key])) for key in tried]
    depths = [record["depths"][f"{key}"] for key in tried]
    figure = Figure(figsize=(WIDE, 2.2 * 3), layout="constrained")
    first, second, third = figure.subplots(3, 1)
    first.plot(tried, risks, marker="o", markersize=3)
    first.axhline(record["delta"], color="grey", linestyle=":")
    if threshold is not None:
        first.axvline(threshold, color="C1", linestyle="--")
    first.invert_xaxis()
    first.set(xlabel="threshold", ylabel=f"risk ({record['metric']})")
    second.plot(depths, risks, marker="o", markersize=3)
    second.axhline(record["delta"], color="grey", linestyle=":")
    second.set(xlabel=f"layers a token, of {record['costs']['layers']}", ylabel="risk")
    result = realised(record)
    if result:
        _draw_realised(third, result)
    else:
        third.text(0.5, 0.5, "too few prompts\nto split", ha="center", va="center")
        third.set_axis_off()
    return save_figure(figure, path)


@styled
def draw_search(tried: Sequence[Tried], front: Sequence[Tried], path: Path) -> Path:
    """Loss by layers of all settings, and a line through those on the front."""
    figure, axes = new_figure()
    axes.plot([t.depth for t in tried], [t.loss for t in tried], "o", markersize=3, alpha=0.5)
    axes.plot([t.depth for t in front], [t.loss for t in front], marker="o", markersize=3)
    axes.set(xlabel="layers a token on average", ylabel="loss (nats a token)")
    return save_figure(figure, path)


def realised(record: dict[str, Any]) -> list[Realised]:
    """Risks that 100 splits of the prompts realise of several promises."""
    losses = {float(key): values for key, values in record["losses"].items()}
    guarantees = [Guarantee(delta, record["epsilon"], record["p_value"]) for delta in DELTAS]
    return [
        one for one in (resplit(losses, guarantee) for guarantee in guarantees) if one is not None
    ]


def _draw_realised(axes: Any, results: list[Realised]) -> None:
    deltas = [one.delta for one in results]
    low, middle, high = (
        [float(np.quantile(one.risks, q)) for one in results] for q in (0.05, 0.5, 0.95)
    )
    axes.plot(deltas, deltas, color="grey", linestyle=":")
    axes.plot(deltas, middle, marker="o", markersize=3)
    axes.fill_between(deltas, low, high, alpha=0.2)
    axes.set(xlabel="risk that is allowed", ylabel="risk on other prompts (5% to 95%)")
