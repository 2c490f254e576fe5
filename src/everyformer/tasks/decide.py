"""Returns-to-go, states and actions of recorded episodes -> the next action."""

from __future__ import annotations

from typing import TYPE_CHECKING

from everyformer.core.tasks import DECISION, Task

if TYPE_CHECKING:
    from torch import nn

    from everyformer.data.dataset import Dataset
    from everyformer.genes.config import ModelConfig
    from everyformer.models.base import Model
    from everyformer.tasks.scores import Scores


class Decide(Task):
    """The action of every step."""

    name, about = DECISION, "returns-to-go, states and actions -> the next action"
    reads, predicts = "episodes", "action"
    goal = "predicts the actions of"
    metrics = ("action_loss",)
    train = "--data myepisodes"
    shown_by = "acts: everyformer.generation.acting.DecisionPolicy does, step by step"

    def build(self, config: ModelConfig) -> Model:
        from everyformer.models.decision import decision_model

        return decision_model(config)

    def scores(self, model: nn.Module, dataset: Dataset, details: bool = False) -> Scores:
        from everyformer.tasks.scores import ActionScores

        return ActionScores(dataset)
