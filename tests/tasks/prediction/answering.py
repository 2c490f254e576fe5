"""Models of every task that answers rows, small and with weights that matter."""

from typing import Any

import numpy as np

from everyformer.data.tokenizers.plain import ByteTokenizer
from everyformer.tasks.prediction.predictor import Predictor
from helpers import build_model, shifted

SIZES: dict[str, Any] = {"width": 8, "heads": 2, "layers": 1}
TEXTS = ["a warm day", "b", "the cold and the rain of it", "ü", "no more"]
OPTIONS: dict[str, dict[str, Any]] = {
    "classify-text": {"classes": 3, "vocabulary": 256},
    "regress-text": {"vocabulary": 256, "target_mean": (5.0,), "target_std": (2.0,)},
    "lm": {"vocabulary": 256, "head_bias": True},
    "mlm": {"vocabulary": 257, "head_bias": True},
    "classify-image": {"classes": 3, "image": (3, 6, 6), "patch": 2},
    "classify-series": {"classes": 3, "series": 2},
    "regress-series": {"series": 2, "target_mean": (0.0, 9.0), "target_std": (1.0, 4.0)},
}


def reader(task: str, length: int = 32, member: str = "attention", **known: Any) -> Predictor:
    """A predictor in double precision; of texts by their bytes."""
    options = OPTIONS[task] | ({} if "image" in task else {"max_length": length})
    model = shifted(build_model(member, task, **SIZES, **options))
    text = "text" in task or task.endswith("lm")
    return Predictor.of(model, tokenizer=ByteTokenizer() if text else None, **known)


def given(task: str) -> list[Any]:
    """Some rows of different lengths that a model of the task reads."""
    random = np.random.default_rng(0)
    if "image" in task:
        return [random.integers(0, 256, (3, 6, 6)).astype(np.uint8) for _ in range(5)]
    if "series" in task:
        return [random.normal(size=(n, 2)).astype(np.float32) for n in (3, 1, 9, 4, 9)]
    return [f"{text} ___" if task == "mlm" else text for text in TEXTS]
