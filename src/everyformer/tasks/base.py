"""What most tasks have in common: losses of targets that are classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from everyformer.core.tasks import Task

if TYPE_CHECKING:
    from torch import nn

    from everyformer.data.dataset import Dataset
    from everyformer.tasks.scores import Scores


class LossTask(Task):
    """A task that is counted by the losses of its targets, and the guesses that are right."""

    def scores(self, model: nn.Module, dataset: Dataset, details: bool = False) -> Scores:
        from everyformer.tasks.scores import TokenScores

        return TokenScores(dataset)
