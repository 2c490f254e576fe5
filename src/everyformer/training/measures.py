"""Measures of predicted classes and numbers with 95% intervals, beside those of a constant answer.

Of classes, beside always giving the commonest one of the training data, and of accuracy also that
of what is read, which no constant answer exceeds:

    balanced accuracy   the mean of each class's recall, over the classes that occur, between the
                        ends whose distances are those of Wilson's intervals of the recalls, as
                        independent errors add up
    F1 of a class       2 hits / (rows of the class + answers of the class)
    macro F1            its mean over the classes that occur or are answered
    calibration error   sum over bins of n_b / n |accuracy_b - confidence_b|

The confidence of an answer is its probability. The bins are 15 of equal width, ((b - 1) / 15,
b / 15], and count by their rows: the expected calibration error of Guo et al. 2017, arXiv
1706.04599, eq. 3.

Of numbers, over the targets y of the rows that are read and predictions p, beside answering every
row with the mean of the training data:

    MAE = mean |p - y|          RMSE = sqrt(mean (p - y)^2)
    R^2 = 1 - sum (p - y)^2 / sum (y - mean y)^2

With several numbers a row each has these of its own, since units may differ. Over all of them, R^2
is the mean of each one's own, and with s the standard deviation of each number in training

    scaled RMSE = sqrt(mean ((p - y) / s)^2)
"""

import math
from typing import Any

import torch
from torch import Tensor

from everyformer.core.student import quantile

Z = 1.959963984540054
"""half-width of a 95% interval in standard errors"""


def ratio(
    rows: float, n: float, nn_: float, s: float, ss: float, sn: float
) -> tuple[float, list[float] | None]:
    """sum s / sum n with Student's interval: the linearised variance of a ratio over rows.

    One row has no interval, nor has a sum that is not finite.
    """
    mean = s / n
    if rows < 2 or not math.isfinite(s):
        return mean, None
    spread = max(0.0, ss - 2 * mean * sn + mean * mean * nn_) * rows / (rows - 1)
    half = quantile(int(rows) - 1) * math.sqrt(spread) / n
    return mean, [mean - half, mean + half]


def perplexity(loss: float) -> float:
    """e^loss; infinite where that is no longer a floating-point number."""
    return math.inf if loss >= 709 else math.exp(loss)


def wilson(hits: float, n: float) -> list[float]:
    """Wilson's interval of a share of ``n`` independent trials."""
    share, square = hits / n, Z * Z / n
    centre = (share + square / 2) / (1 + square)
    half = Z / (1 + square) * math.sqrt(share * (1 - share) / n + square / (4 * n))
    return [centre - half, centre + half]


BINS = 15
MOST = 1000
"""classes up to which the confusion matrix is counted"""


class ClassErrors:
    """Sums over rows from which the measures follow, so that processes can add theirs.

    Args:
        classes: how many there are.
        majority: id of the class that the baseline always gives; None takes the commonest of what
            is read.
        details: whether the measures by class, the confusion matrix (of at most 1,000 classes) and
            the bins come with the others.
    """

    def __init__(self, classes: int, majority: int | None = None, details: bool = False) -> None:
        self.classes, self.majority, self.details = classes, majority, details
        cells = classes * classes if details and classes <= MOST else 0
        self.sums = torch.zeros(3 * classes + 3 * BINS + cells, dtype=torch.float64)

    def add(self, logits: Tensor, targets: Tensor) -> None:
        """Take in rows: logits (B, C) and class ids (B,)."""
        y = targets.detach().cpu().long()
        confidence, p = logits.detach().cpu().double().softmax(-1).max(-1)
        hit = (p == y).double()
        one = torch.ones_like(hit)
        # the upper end belongs to a bin, and rounding must not carry 1 beyond the last
        bins = (confidence * BINS).ceil().long().clamp(1, BINS) - 1
        counts, binned, confusion = self._parts()
        counts.index_put_((torch.tensor(0), y), one, accumulate=True)
        counts.index_put_((torch.tensor(1), p), one, accumulate=True)
        counts.index_put_((torch.tensor(2), y), hit, accumulate=True)
        binned.index_add_(1, bins, torch.stack((one, confidence, hit)))
        if confusion is not None:
            confusion.index_put_((y, p), one, accumulate=True)

    def summary(self) -> dict[str, Any]:
        """The measures: of each class those that are known, None for what has no rows."""
        (rows, answers, hits), binned, confusion = self._parts()
        n = float(rows.sum())
        majority = self.commonest if self.majority is None else self.majority
        occur, known = rows > 0, rows + answers > 0
        recall, f1 = hits / rows, 2 * hits / (rows + answers)
        common = float(rows[majority])
        balanced, classes = float(recall[occur].mean()), int(occur.sum())
        ends = torch.tensor(
            [wilson(*both) for both in torch.stack((hits, rows), 1)[occur].tolist()]
        )
        below, above = (ends - recall[occur, None]).square().sum(0).sqrt() / classes
        # always giving one class answers one that may not occur
        least = float(occur.logical_or(torch.arange(self.classes) == majority).sum())
        count, confidence, right = binned
        result: dict[str, Any] = {
            "majority_accuracy": common / n,
            "held_out_majority_accuracy": float(rows.max()) / n,
            "balanced_accuracy": balanced,
            "balanced_accuracy_interval": [balanced - float(below), balanced + float(above)],
            "majority_balanced_accuracy": (1 / classes) if common else 0.0,
            "macro_f1": float(f1[known].mean()),
            "majority_macro_f1": 2 * common / (n + common) / least,
            "calibration_error": float((confidence - right).abs().sum()) / n,
        }
        if not self.details:
            return result
        result["majority"] = majority
        columns = {"precision": hits / answers, "recall": recall, "f1": f1}
        result["by_class"] = [
            {"class": index, "rows": int(rows[index]), "answers": int(answers[index])}
            | {name: _or_none(float(values[index])) for name, values in columns.items()}
            for index in range(self.classes)
        ]
        if confusion is not None:
            result["confusion"] = confusion.long().tolist()
        means = (confidence / count, right / count)
        result["calibration"] = [
            {"from": b / BINS, "to": (b + 1) / BINS, "rows": int(count[b])}
            | {"confidence": _or_none(float(means[0][b])), "accuracy": _or_none(float(means[1][b]))}
            for b in range(BINS)
        ]
        return result

    @property
    def commonest(self) -> int:
        """Id of the class that most of the rows have."""
        return int(self._parts()[0][0].argmax())

    def _parts(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Views of the sums: (3, C) rows, answers and hits of each class, (3, bins) rows,
        confidences and hits, and (C, C) answers to each class, if they are counted."""
        first, second = 3 * self.classes, 3 * (self.classes + BINS)
        cells = self.sums[second:]
        confusion = cells.view(self.classes, self.classes) if len(cells) else None
        return self.sums[:first].view(3, -1), self.sums[first:second].view(3, -1), confusion


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


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
