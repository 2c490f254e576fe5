"""Pictures of early exits: what a calibration has found (risk by threshold, risk by depth, what
promises came to), and what a search of thresholds has."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from everyformer.lab.exits.learn_then_test import Guarantee
from everyformer.lab.exits.resplits import Realised, resplit
from everyformer.lab.exits.search import Tried
from everyformer.lab.show.style import WIDE, new_figure, save_figure, styled

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
    for axes, x in ((first, tried), (second, depths)):
        axes.plot(x, risks, marker="o", markersize=3)
        axes.axhline(record["delta"], color="grey", linestyle=":")
    if threshold is not None:
        first.axvline(threshold, color="C1", linestyle="--")
    first.invert_xaxis()
    first.set(xlabel="threshold", ylabel=f"risk ({record['metric']})")
    second.set(xlabel=f"layers a token, of {record['costs']['layers']}", ylabel="risk")
    if results := realised(record):
        deltas = [one.delta for one in results]
        low, middle, high = np.quantile([one.risks for one in results], (0.05, 0.5, 0.95), axis=1)
        third.plot(deltas, deltas, color="grey", linestyle=":")
        third.plot(deltas, middle, marker="o", markersize=3)
        third.fill_between(deltas, low, high, alpha=0.2)
        third.set(xlabel="risk that is allowed", ylabel="risk on other prompts (5% to 95%)")
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
    return [one for guarantee in guarantees if (one := resplit(losses, guarantee)) is not None]
