"""`Scores`: what an evaluation counts of each batch, and the measures that follow from it."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from everyformer.core.errors import DataError
from everyformer.core.outputs import ModelOutput
from everyformer.core.student import quantile
from everyformer.data.batch import Batch
from everyformer.data.dataset import Dataset


class Scores(ABC):
    """Sums over sequences, of losses of targets and of guesses that are right.

    Args:
        dataset: of which bytes a token and the loss of counting are read.
    """

    unit = "bits_per_byte"
    """the loss in bits"""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset, self.sums = dataset, torch.zeros(10, dtype=torch.float64)
        self.guesses = self.top5 = True

    def add(self, out: ModelOutput, batch: Batch) -> None:
        """Take in a batch: of each sequence n scored targets, s loss, c hits, and top 5."""
        targets = batch.targets
        self.guesses = self.guesses and out.each is None
        self.top5 = self.top5 and self.guesses and out.logits.shape[-1] > 5
        if out.each is not None:
            n, s = (each.cpu().double().sum(1) for each in (batch.counted, out.each))
            c = five = torch.zeros_like(n)
        elif targets.is_floating_point() or out.logits.shape[:-1] != targets.shape:
            # the model's loss is not one over classes: a batch is the smallest unit known
            n = torch.tensor([float(batch.scored)], dtype=torch.float64)
            s = out.losses["task"].cpu().double() * n
            c = five = torch.zeros_like(n)
        else:
            logits = out.logits.flatten(0, -2)
            logits = logits if logits.dtype == torch.float64 else logits.float()
            flat = targets.flatten().long()
            losses = F.cross_entropy(logits, flat, reduction="none")
            best = logits.topk(min(5, logits.shape[-1]), dim=-1).indices == flat[:, None]
            parts = (flat != -100, losses, best[:, 0], best.any(1))
            n, s, c, five = (part.view(len(targets), -1).cpu().double().sum(1) for part in parts)
        products = ((n > 0).double(), n, n * n, s, s * s, s * n, c, c * c, c * n, five)
        self.sums += torch.stack([product.sum() for product in products])

    def share(self, total: Callable[[Tensor], Tensor]) -> None:
        """Make each sum the ``total`` over all processes."""
        self.sums = total(self.sums)

    def summary(self) -> dict[str, Any]:
        """The measures that follow.

        Raises:
            DataError: no target was scored.
        """
        dataset = self.dataset
        rows, n, nn_, s, ss, sn, *hits, five = self.sums.tolist()
        if n == 0:
            raise DataError(
                f"the validation part of {dataset.name} has no scored target: give more data"
            )
        loss, interval = ratio(rows, n, nn_, s, ss, sn)
        result: dict[str, Any] = {"loss": loss, "loss_interval": interval}
        result |= self.of_loss(loss, interval) | self.accuracy(rows, n, nn_, *hits)
        if self.top5:
            result["top5"] = five / n
        size = self.bytes_per_target
        if size is not None:
            scale = 1 / (math.log(2) * size)
            result[self.unit] = loss * scale
            result[f"{self.unit}_interval"] = interval and [bound * scale for bound in interval]
        if dataset.counting is not None:
            result["counting_loss"] = dataset.counting
            if size is not None:
                result[f"counting_{self.unit}"] = dataset.counting * scale
        result |= {"scored": int(n), "sequences": int(rows)}
        return result if self.guesses else {k: v for k, v in result.items() if "accuracy" not in k}

    @property
    def bytes_per_target(self) -> float | None:
        """Mean bytes of a target; None where bits have no meaning."""
        return self.dataset.bytes_per_token

    @abstractmethod
    def of_loss(self, loss: float, interval: list[float] | None) -> dict[str, Any]:
        """The measures that follow from the loss alone."""

    @abstractmethod
    def accuracy(
        self, rows: float, n: float, nn_: float, c: float, cc: float, cn: float
    ) -> dict[str, Any]:
        """The share of targets that are guessed, with its interval."""


class TokenScores(Scores):
    """Losses of tokens; of answers the share that is right, of all, in the mean of their classes,
    and of rows that have all of theirs."""

    def __init__(self, dataset: Dataset) -> None:
        super().__init__(dataset)
        classes = 0 if dataset.shortcut is None else dataset.vocabulary
        self.answers = torch.zeros(classes + 1, 2, dtype=torch.float64)
        """(vocabulary + 1, 2) answers and those that are right, by class; the last of whole rows"""

    def add(self, out: ModelOutput, batch: Batch) -> None:
        super().add(out, batch)
        if self.dataset.shortcut is None or out.each is not None:
            return
        asked = batch.counted
        right = (out.logits.argmax(-1) == batch.targets) & asked
        for column, those in enumerate((asked, right)):
            counts = batch.targets[those].bincount(minlength=self.dataset.vocabulary)
            self.answers[:-1, column] += counts.cpu()
        whole = asked.any(1), (right == asked).all(1) & asked.any(1)
        self.answers[-1] += torch.stack([rows.sum() for rows in whole]).cpu()

    def share(self, total: Callable[[Tensor], Tensor]) -> None:
        super().share(total)
        self.answers = total(self.answers)

    def summary(self) -> dict[str, Any]:
        result = super().summary()
        if self.dataset.shortcut is not None and "accuracy" in result:
            there = self.answers[self.answers[:, 0] > 0]
            shares = there[:, 1] / there[:, 0]
            result |= {
                "answers": result["accuracy"],
                "answers_interval": result["accuracy_interval"],
                "shortcut_answers": self.dataset.shortcut,
                "macro_answers": float(shares[:-1].mean()),
                "whole_rows": float(shares[-1]),
            }
        return result

    def of_loss(self, loss: float, interval: list[float] | None) -> dict[str, Any]:
        return {"perplexity": perplexity(loss)}

    def accuracy(self, *sums: float) -> dict[str, Any]:
        return guessed(*sums)


def guessed(rows: float, n: float, nn_: float, c: float, cc: float, cn: float) -> dict[str, Any]:
    """The share of targets that are guessed, with its interval over sequences."""
    share, around = ratio(rows, n, nn_, c, cc, cn)
    clipped = around and [max(0.0, around[0]), min(1.0, around[1])]
    return {"accuracy": share, "accuracy_interval": clipped}


def perplexity(loss: float) -> float:
    """e^loss; infinite where that is no longer a floating-point number."""
    return math.inf if loss >= 709 else math.exp(loss)


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


class PixelScores(TokenScores):
    """Losses of intensities: each is one dimension."""

    unit = "bits_per_dim"
    bytes_per_target = 1.0


class ActionScores(Scores):
    """Losses of actions, and those of a constant one."""

    def of_loss(self, loss: float, interval: list[float] | None) -> dict[str, Any]:
        result = {"action_loss": loss, "action_loss_interval": interval}
        counting = self.dataset.counting
        return result if counting is None else result | {"counting_action_loss": counting}

    def accuracy(self, *sums: float) -> dict[str, Any]:
        return guessed(*sums)
