"""Rows with their numbers."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from everyformer.tasks.prediction.predictor import RowPredictor


class NumberPredictor(RowPredictor):
    """The number of a row, or several."""

    def answer(self, rows: Sequence[np.ndarray], top: int) -> Iterator[dict[str, Any]]:
        for values in self.logits(rows):
            yield {"value": _one_or_all(values)}

    def columns(self, top: int | None = None, target: bool = False) -> list[str]:
        count = self.config.outputs
        ends = [f"_{number}" for number in range(1, count + 1)] if count > 1 else [""]
        names = ["target", "value"] if target else ["value"]
        return [name + end for name in names for end in ends]

    def truth(self, target: Tensor, read: np.ndarray) -> float | tuple[float, ...]:
        return _one_or_all(target)


def _one_or_all(values: Tensor) -> float | tuple[float, ...]:
    each: list[float] = values.flatten().tolist()
    return each[0] if len(each) == 1 else (*each,)
