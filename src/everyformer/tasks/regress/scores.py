"""Measures of predicted numbers with 95% intervals, and those of a constant answer.

Over the targets y of the rows that are read and predictions p, compared with answering every row
with the mean of the training data:

    MAE = mean |p - y|          RMSE = sqrt(mean (p - y)^2)
    R^2 = 1 - sum (p - y)^2 / sum (y - mean y)^2

With several numbers a row each has these of its own, since units may differ. Over all of them, R^2
is the mean of each one's own, and with s the standard deviation of each number in training

    scaled RMSE = sqrt(mean ((p - y) / s)^2)
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from everyformer.core.outputs import ModelOutput
from everyformer.core.student import quantile
from everyformer.data.batch import Batch
from everyformer.data.dataset import Dataset
from everyformer.tasks.scores import TokenScores


class NumberErrors:
    """Sums over rows from which the measures of numbers follow.

    Args:
        mean: of each number over the training data. std: their standard deviations.
    """

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        self.mean = torch.tensor(mean, dtype=torch.float64)
        self.std = torch.tensor(std, dtype=torch.float64)
        self.sums = torch.zeros(9, len(mean), dtype=torch.float64)

    def add(self, predicted: Tensor, targets: Tensor) -> None:
        """Take in rows: both (B, N), or targets (B,)."""
        p = predicted.detach().cpu().double()
        y = targets.detach().cpu().double().reshape(p.shape)
        error, off, centred = p - y, self.mean - y, y - self.mean
        # of a row's loss, a mean over its numbers, the square is kept beside the first of them
        loss = torch.zeros_like(p)
        loss[:, 0] = (error / self.std).square().mean(1).square()
        parts = (
            *(torch.ones_like(p), error.abs(), error.square(), error.square().square()),
            *(off.abs(), off.square(), centred, centred.square(), loss),
        )
        self.sums += torch.stack([part.sum(0) for part in parts])

    def summary(self) -> dict[str, Any]:
        """The measures and the loss, in squared standard deviations; 95% intervals.

        R^2 is left out where all targets are the same number. Several numbers have measures of
        their own in ``by_number``, and no MAE and RMSE of all, which the largest unit would decide.
        """
        square, off_square, loss = self.sums[2], self.sums[5], self.sums[8]
        rows, every, variance = float(self.sums[0, 0]), square.numel(), self.std.square()
        mean_loss = float((square / variance).sum()) / (rows * every)
        result: dict[str, Any] = {"loss": mean_loss, "loss_interval": None}
        if rows > 1:
            half = _half(mean_loss, float(loss.sum()) / rows, rows)
            result["loss_interval"] = [mean_loss - half, mean_loss + half]
        each = [_measures(*column) for column in self.sums[:8].T.tolist()]
        if every == 1:
            result |= each[0]
        else:
            result["scaled_rmse"] = math.sqrt(mean_loss)
            if rows > 1:
                ends = result["loss_interval"]
                result["scaled_rmse_interval"] = [math.sqrt(max(0.0, end)) for end in ends]
            constant = float((off_square / variance).sum()) / (rows * every)
            result["mean_scaled_rmse"] = math.sqrt(constant)
            if all("r2" in one for one in each):
                result |= {n: sum(one[n] for one in each) / every for n in ("r2", "mean_r2")}
            result["by_number"] = [{"number": n, **one} for n, one in enumerate(each, 1)]
        return result | {"scored": int(rows), "sequences": int(rows)}


def _measures(
    rows: float,
    absolute: float,
    square: float,
    fourth: float,
    off: float,
    off_square: float,
    centred: float,
    centred_square: float,
) -> dict[str, Any]:
    """Measures of one number in its own unit, from its sums."""
    mae, mse = absolute / rows, square / rows
    result: dict[str, Any] = {"mae": mae, "rmse": math.sqrt(mse)}
    if rows > 1:
        half = _half(mae, mse, rows)
        result["mae_interval"] = [max(0.0, mae - half), mae + half]
        half = _half(mse, fourth / rows, rows)
        result["rmse_interval"] = [math.sqrt(max(0.0, mse - half)), math.sqrt(mse + half)]
    spread = centred_square - centred * centred / rows
    if spread > 0:
        result |= {"r2": 1 - square / spread, "mean_r2": 1 - off_square / spread}
    return result | {"mean_mae": off / rows, "mean_rmse": math.sqrt(off_square / rows)}


def _half(mean: float, mean_square: float, rows: float) -> float:
    """Half of Student's interval of a mean over rows, from the second moment."""
    return quantile(int(rows) - 1) * math.sqrt(max(0.0, mean_square - mean * mean) / (rows - 1))


class NumberScores(TokenScores):
    """`NumberErrors` of a model that knows the ``mean`` and the deviation of each number."""

    def __init__(self, dataset: Dataset, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__(dataset)
        self.errors = NumberErrors(mean, std)

    def add(self, out: ModelOutput, batch: Batch) -> None:
        super().add(out, batch)
        self.errors.add(out.logits, batch.targets)

    def share(self, total: Callable[[Tensor], Tensor]) -> None:
        super().share(total)
        self.errors.sums = total(self.errors.sums)

    def summary(self) -> dict[str, Any]:
        super().summary()  # raises where nothing was scored
        return self.errors.summary()
