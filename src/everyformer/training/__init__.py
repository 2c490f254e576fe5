"""Training: the loop, its config, checkpoints, evaluation. Torch is imported when it is needed."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everyformer.training.checkpoint import load_model, save_model
    from everyformer.training.config import TrainingConfig
    from everyformer.training.loop import train
    from everyformer.training.result import TrainResult
    from everyformer.training.run import RunDirectory

_HOMES = {
    "RunDirectory": "run",
    "TrainResult": "result",
    "TrainingConfig": "config",
    "load_model": "checkpoint",
    "save_model": "checkpoint",
    "train": "loop",
}

__all__ = ["RunDirectory", "TrainResult", "TrainingConfig", "load_model", "save_model", "train"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
