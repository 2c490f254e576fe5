"""Measures of predicted classes with 95% intervals, and those of a constant answer.

The constant is the commonest class of the training data, and of accuracy also that of what is read,
which no constant answer exceeds:

    balanced accuracy   the mean of each class's recall, over the classes that occur, between the
                        ends whose distances are those of Wilson's intervals of the recalls, as
                        independent errors add up
    F1 of a class       2 hits / (rows of the class + answers of the class)
    macro F1            its mean over the classes that occur or are answered
    calibration error   sum over bins of n_b / n |accuracy_b - confidence_b|

The confidence of an answer is its probability. The bins are 15 of equal width, ((b - 1) / 15,
b / 15], and count by their rows: the expected calibration error of Guo et al. 2017, arXiv
1706.04599, eq. 3.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from everyformer.core.outputs import ModelOutput
from everyformer.data.batch import Batch
from everyformer.data.dataset import Dataset
from everyformer.tasks.scores import Scores

Z = 1.959963984540054
"""half-width of a 95% interval in standard errors"""


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
    """Sums over rows from which the measures of classes follow.

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


class ClassScores(Scores):
    """Losses and `ClassErrors`.

    Args:
        classes: of the model, where it has more than the data. details: see `ClassErrors`.
    """

    def __init__(self, dataset: Dataset, classes: int = 0, details: bool = False) -> None:
        super().__init__(dataset)
        known = max(len(dataset.classes), classes)
        self.errors = ClassErrors(known, dataset.commonest, details)

    def add(self, out: ModelOutput, batch: Batch) -> None:
        super().add(out, batch)
        self.errors.add(out.logits, batch.targets)

    def share(self, total: Callable[[Tensor], Tensor]) -> None:
        super().share(total)
        self.errors.sums = total(self.errors.sums)

    def of_loss(self, loss: float, interval: list[float] | None) -> dict[str, Any]:
        return {}

    def accuracy(
        self, rows: float, n: float, nn_: float, c: float, cc: float, cn: float
    ) -> dict[str, Any]:
        return {"accuracy": c / n, "accuracy_interval": wilson(c, n)}

    def summary(self) -> dict[str, Any]:
        result = super().summary() | self.errors.summary()
        commonest, classes = self.dataset.commonest, self.dataset.classes
        if commonest is not None:
            result["always"] = classes[commonest]
            result["held_out_always"] = classes[self.errors.commonest]
        return result
