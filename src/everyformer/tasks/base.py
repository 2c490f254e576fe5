"""Tasks that are counted by losses of targets, and those that say one thing of a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from everyformer.core.tasks import Task

if TYPE_CHECKING:
    from torch import nn

    from everyformer.data.dataset import Dataset
    from everyformer.genes.config import ModelConfig
    from everyformer.models.base import Model
    from everyformer.tasks.scores import Scores


class LossTask(Task):
    """A task that is counted by the losses of its targets, and the guesses that are right."""

    def scores(self, model: nn.Module, dataset: Dataset, details: bool = False) -> Scores:
        from everyformer.tasks.scores import TokenScores

        return TokenScores(dataset)


class RowTask(Task):
    """A task that predicts one thing of a whole text, picture or series."""

    def build(self, config: ModelConfig) -> Model:
        from everyformer.models.classifier import ImageClassifier, SeriesClassifier, TextClassifier

        if self.pictures:
            return ImageClassifier(config)
        return SeriesClassifier(config) if self.series else TextClassifier(config)
