"""Rows of text, pictures or series -> a number, or several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from everyformer.core.measures import NOT_BETTER
from everyformer.core.tasks import IMAGE_NUMBER, SERIES_NUMBER, TEXT_NUMBER, Task
from everyformer.core.wording import join_first
from everyformer.tasks.base import RowTask

if TYPE_CHECKING:
    from torch import nn

    from everyformer.core.measures import Baseline
    from everyformer.data.dataset import Dataset
    from everyformer.tasks.prediction.predictor import Predictor
    from everyformer.tasks.scores import Scores


class Regress(RowTask):
    """Numbers of a row."""

    predicts = "number"
    metrics = ("scaled_rmse", "rmse")
    loss_unit = "squared standard deviations"

    def scores(self, model: nn.Module, dataset: Dataset, details: bool = False) -> Scores:
        from everyformer.tasks.regress.scores import NumberScores
        from everyformer.tasks.scores import TokenScores

        config: Any = getattr(getattr(model, "module", model), "config", None)
        if config is None:
            return TokenScores(dataset)
        return NumberScores(dataset, config.target_mean, config.target_std)

    def baseline(self, evaluation: Mapping[str, Any]) -> Baseline | None:
        base, several = super().baseline(evaluation), evaluation.get("by_number")
        if base is None or several is None:
            return base
        return base._replace(words=f"{base.words} for each of {len(several)} numbers")

    def beats(self, evaluation: Mapping[str, Any], base: Baseline) -> bool:
        """Of several numbers each must beat its own mean."""
        if "by_number" in evaluation:
            return not self._missed(evaluation)
        return super().beats(evaluation, base)

    def against_baseline(self, evaluation: Mapping[str, Any]) -> str | None:
        base, missed = super().baseline(evaluation), self._missed(evaluation)
        if base is None or not missed:
            return super().against_baseline(evaluation)
        count = len(evaluation["by_number"])
        if len(missed) == count:
            return f"{NOT_BETTER} {base.words} for any of {count} numbers"
        return (
            f"better than {base.words} for {count - len(missed)} of {count} numbers; not surely "
            f"for number{'s' * (len(missed) > 1)} {join_first(missed)}"
        )

    def _missed(self, evaluation: Mapping[str, Any]) -> list[str]:
        """Of several numbers those that are not surely better than their mean."""
        rows = evaluation.get("sequences")
        each = [{"sequences": rows, **one} for one in evaluation.get("by_number", ())]
        bases = [(one, Task.baseline(self, one)) for one in each]
        lost = (one for one, base in bases if base and not Task.beats(self, one, base))
        return [str(one["number"]) for one in lost]

    def table(self, evaluation: Mapping[str, Any], dataset: Dataset) -> str:
        from everyformer.tasks.tables import numbers_table

        return numbers_table(evaluation)

    def predictor(self, name: str) -> type[Predictor]:
        from everyformer.tasks.regress.predictor import NumberPredictor

        return NumberPredictor


class RegressText(Regress):
    """Sentences and longer texts."""

    name, about, reads = TEXT_NUMBER, "tokens -> a number", "labelled text"
    train, use = "--data reviews.csv --task regress", "predict {run} 'your text'"


class RegressImage(Regress):
    """Pictures in patches."""

    name, about, reads = IMAGE_NUMBER, "a picture -> a number", "pictures"
    train, use = "--data myimages.npz --task regress", "predict {run} mypicture.png"


class RegressSeries(Regress):
    """Some numbers at each step."""

    name, about, reads = SERIES_NUMBER, "a series of numbers -> a number", "series"
    train, use = "--data myseries.npz --task regress", "predict {run} myseries.npz"
