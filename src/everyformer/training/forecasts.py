"""Errors of forecasts, beside those of forecasts that need no model, on the same held-out steps.

Of truth y, the median p and quantiles at levels q, over all B x H values that are known:

    MAE  = mean |y - p|                     RMSE = sqrt(mean (y - p)^2)
    MASE = mean over forecasts of mean |y - p| / s
    WQL  = sum over values, mean over q of 2 max(q (y - p_q), (q - 1) (y - p_q)), over sum |y|

s is the mean change over a season before the forecast: Hyndman and Koehler 2006. A forecast whose
series never changed has no MASE, and is left out of it. WQL is that of the M5 and of most papers on
neural forecasting; of a single median it is the sum of errors over that of values.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from everyformer.core.student import quantile
from everyformer.data.batch import Batch
from everyformer.data.dated.simple import NAMES
from everyformer.data.dated.windows import ForecastDataset
from everyformer.training.measures import ratio

OURS = ""
"""stands for the model among the names of forecasts"""
PER = 7
"""sums of each kind of forecast"""


class ForecastErrors:
    """Sums over forecasts from which the measures follow, so that processes can add theirs."""

    def __init__(self, dataset: ForecastDataset, levels: tuple[float, ...]) -> None:
        self.dataset, self.levels = dataset, levels
        self.kinds = (OURS, *NAMES)
        self.sums = torch.zeros(len(self.kinds) * PER + 10, dtype=torch.float64)

    def add(self, logits: Tensor, batch: Batch) -> None:
        """Take in rows: logits (B, L, H, Q), whose last step is the origin."""
        assert batch.origins is not None
        origins = batch.origins.cpu().numpy()
        z = logits[:, -1].detach().cpu().double().numpy()
        truth, data = self.dataset.truth(origins), self.dataset
        made = {OURS: data.in_units(z, origins)}
        scale, simple = simple_forecasts(data, origins, self.levels)
        made |= simple
        known = ~np.isnan(truth)
        y = np.where(known, truth, 0.0)
        count = known.sum(1)
        total = np.abs(y).sum(1)
        sums = []
        for kind in self.kinds:
            error = np.where(known, truth - made[kind][..., self.levels.index(0.5)], 0.0)
            losses = np.where(known, _losses(made[kind], y, self.levels), 0.0).sum(1)
            absolute = np.abs(error).sum(1)
            scaled = absolute / count / scale
            sums += [
                *(absolute.sum(), (error**2).sum(), np.nansum(scaled), np.nansum(scaled**2)),
                *(losses.sum(), (losses**2).sum(), (losses * total).sum()),
            ]
        # what the model is trained on, and how often truth lies within its outermost quantiles
        goals = batch.targets[:, -1].cpu().double().numpy()
        own = np.where(known, _losses(z, np.nan_to_num(goals), self.levels), 0.0).sum(1)
        inside = (made[OURS][..., 0] <= truth) & (truth <= made[OURS][..., -1])
        sums += [
            *(len(origins), (~np.isnan(scale)).sum(), count.sum(), (count**2).sum()),
            *(total.sum(), (total**2).sum(), own.sum(), (own**2).sum(), (own * count).sum()),
            inside.sum(),
        ]
        self.sums += torch.tensor(np.array(sums, dtype=np.float64))

    def summary(self) -> dict[str, Any]:
        """``loss`` (the model's own), ``wql``, ``mase``, ``mae``, ``rmse`` and the same of naive,
        seasonal naive and drift (``naive_wql`` ...), ``simple_wql``, the best of theirs, intervals
        over forecasts, ``coverage`` of the outermost quantiles and what it should be."""
        rows, scaled, n, nn_, y, yy, own, own2, own_n, inside = self.sums[-10:].tolist()
        loss, interval = ratio(rows, n, nn_, own, own2, own_n)
        result: dict[str, Any] = {"loss": loss, "loss_interval": interval}
        for number, kind in enumerate(self.kinds):
            name = f"{kind}_" if kind else ""
            absolute, square, mase, mase2, losses, losses2, products = self.sums[
                number * PER : (number + 1) * PER
            ].tolist()
            if y > 0:
                wql, around = ratio(rows, y, yy, losses, losses2, products)
                result[f"{name}wql"] = wql
                if not kind:
                    result["wql_interval"] = around
            if scaled > 0:
                mean = mase / scaled
                result[f"{name}mase"] = mean
                if not kind and scaled > 1:
                    spread = max(0.0, mase2 / scaled - mean**2)
                    half = quantile(int(scaled) - 1) * np.sqrt(spread / (scaled - 1))
                    result["mase_interval"] = [mean - half, mean + half]
            result |= {f"{name}mae": absolute / n, f"{name}rmse": float(np.sqrt(square / n))}
        for measure in ("wql", "mase"):
            if measure in result:
                result[f"simple_{measure}"] = min(result[f"{kind}_{measure}"] for kind in NAMES)
        if rows > scaled:
            result["without_mase"] = int(rows - scaled)
        stated = self.levels[-1] - self.levels[0]
        result |= {"coverage": inside / n, "stated_coverage": stated}
        return result | {"scored": int(n), "sequences": int(rows)}


def simple_forecasts(
    dataset: ForecastDataset, origins: np.ndarray, levels: tuple[float, ...]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Scales of MASE (B,), NaN where there is none, and quantiles (B, H, Q) without a model."""
    scale = np.full(len(origins), np.nan)
    made = {name: np.empty((len(origins), dataset.horizon, len(levels))) for name in NAMES}
    owner = dataset.owner(origins)
    for number in np.unique(owner):
        rows = owner == number
        series = dataset.simple(int(number))
        at = origins[rows] - dataset.series.bounds[number]
        scale[rows] = series.scale(at)
        for name, forecast in series.at(at, dataset.horizon).items():
            made[name][rows] = forecast.quantiles(levels)
    return scale, made


def _losses(quantiles: np.ndarray, truth: np.ndarray, levels: tuple[float, ...]) -> np.ndarray:
    """(B, H) mean over levels of 2 max(q e, (q - 1) e)."""
    error, q = truth[..., None] - quantiles, np.array(levels)
    return (2 * np.maximum(q * error, (q - 1) * error)).mean(-1)
