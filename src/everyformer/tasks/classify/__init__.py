"""Rows of text, pictures or series -> a class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from everyformer.core.tasks import IMAGE, SERIES, TEXT
from everyformer.tasks.base import RowTask

if TYPE_CHECKING:
    from torch import nn

    from everyformer.core.measures import Baseline
    from everyformer.data.dataset import Dataset
    from everyformer.tasks.prediction.predictor import Predictor
    from everyformer.tasks.scores import Scores


class Classify(RowTask):
    """A class a row."""

    predicts = "class"
    goal = "classifies"
    metrics = ("accuracy",)
    loss_unit = "nats per example"

    def scores(self, model: nn.Module, dataset: Dataset, details: bool = False) -> Scores:
        from everyformer.tasks.classify.scores import ClassScores

        config: Any = getattr(getattr(model, "module", model), "config", None)
        return ClassScores(dataset, getattr(config, "classes", 0), details)

    def baseline(self, evaluation: Mapping[str, Any]) -> Baseline | None:
        """The better of two constants: where others are held out than were trained on, the
        commonest class of training is beaten by any other."""
        base = super().baseline(evaluation)
        if base is None or "always" not in evaluation:
            return base
        value, always = base.value, evaluation["always"]
        best = evaluation.get(f"held_out_majority_{base.metric}", value)
        words = f"always answering '{always}'"
        if best > value:
            words = (
                f"always answering '{evaluation['held_out_always']}', the commonest class of the "
                f"held-out part, where training's '{always}' is right for {value:.1%}"
            )
        return base._replace(value=best, words=words)

    def table(self, evaluation: Mapping[str, Any], dataset: Dataset) -> str:
        from everyformer.tasks.tables import classes_table

        return classes_table(evaluation, dataset.classes)

    def predictor(self, name: str) -> type[Predictor]:
        from everyformer.tasks.classify.predictor import ClassPredictor

        return ClassPredictor


class ClassifyText(Classify):
    """Sentences and longer texts."""

    name, about, reads = TEXT, "tokens -> a class", "labelled text"
    train, use = "--data reviews.csv", "predict {run} 'your text'"


class ClassifyImage(Classify):
    """Pictures in patches."""

    name, about, reads = IMAGE, "a picture -> a class", "pictures"
    train, use = "--data myimages.zip", "predict {run} mypicture.png"


class ClassifySeries(Classify):
    """Some numbers at each step."""

    name, about, reads = SERIES, "a series of numbers -> a class", "series"
    train, use = "--data myseries.npz", "predict {run} myseries.npz"
