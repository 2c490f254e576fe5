"""Measures of predicted numbers: MAE, RMSE and R^2, beside those of always answering the mean.

    MAE = mean |p - y|          RMSE = sqrt(mean (p - y)^2)
    R^2 = 1 - sum (p - y)^2 / sum (y - mean y)^2

over the targets y of the rows that are read and predictions p. The baseline answers every row with
the mean of the training data. With several numbers a row, the first two are means over all of them
and R^2 is the mean of each one's own.
"""

import math
from typing import Any

import torch
from torch import Tensor

from everyformer.training.intervals import Z


class NumberErrors:
    """Sums over rows from which the measures follow, so that processes can add theirs.

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
        """The measures and the loss, in squared standard deviations; normal 95% intervals.

        R^2 is left out where all targets are the same number.
        """
        count, absolute, square, fourth, off, off_square, centred, centred_square, loss = self.sums
        rows, every = float(count[0]), float(count.sum())
        mae, mse = float(absolute.sum()) / every, float(square.sum()) / every
        mean_loss = float((square / self.std.square()).sum()) / every
        result: dict[str, Any] = {"loss": mean_loss, "loss_interval": None}
        result |= {"mae": mae, "rmse": math.sqrt(mse)}
        if rows > 1:
            half = _half(mean_loss, float(loss.sum()) / rows, rows)
            result["loss_interval"] = [mean_loss - half, mean_loss + half]
            half = _half(mae, mse, rows)
            result["mae_interval"] = [max(0.0, mae - half), mae + half]
            half = _half(mse, float(fourth.sum()) / every, rows)
            result["rmse_interval"] = [math.sqrt(max(0.0, mse - half)), math.sqrt(mse + half)]
        spread = centred_square - centred.square() / count
        if bool((spread > 0).all()):
            result["r2"] = float((1 - square / spread).mean())
            result["mean_r2"] = float((1 - off_square / spread).mean())
        result["mean_mae"] = float(off.sum()) / every
        result["mean_rmse"] = math.sqrt(float(off_square.sum()) / every)
        return result | {"scored": int(rows), "sequences": int(rows)}


def _half(mean: float, mean_square: float, rows: float) -> float:
    """Half of a normal interval of a mean over rows, from the second moment."""
    return Z * math.sqrt(max(0.0, mean_square - mean * mean) / (rows - 1))
