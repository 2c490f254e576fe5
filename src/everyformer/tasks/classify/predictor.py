"""Rows with their classes."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from everyformer.tasks.prediction.predictor import RowPredictor
from everyformer.tasks.prediction.records import Candidate, candidates, share
from everyformer.tasks.prediction.words import best


class ClassPredictor(RowPredictor):
    """The most probable classes of a row."""

    def answer(self, rows: Sequence[np.ndarray], top: int) -> Iterator[dict[str, Any]]:
        for p in self.logits(rows).softmax(-1):
            results = [Candidate(self.classes[id_], value, id_) for value, id_ in best(p, top)]
            yield {
                "label": results[0].text,
                "probability": results[0].probability,
                "top": (*results,),
            }

    def columns(self, top: int | None = None, target: bool = False) -> list[str]:
        return candidates("label", min(top or self.top, self.config.classes), target)

    def shares(self) -> list[str]:
        return [*map(share, self.classes)]

    def truth(self, target: Tensor, read: np.ndarray) -> str:
        return self.classes[int(target)]

    def notes(self) -> list[str]:
        if self.named:
            return super().notes()
        return [
            f"{self.name} does not know the names of its classes: they are numbered",
            *super().notes(),
        ]
