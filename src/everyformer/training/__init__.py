"""Training: the loop, its config, checkpoints, evaluation. Torch is imported when it is needed."""

from typing import TYPE_CHECKING

from everyformer.system.lazy import late_names

if TYPE_CHECKING:
    from everyformer.training.config import TrainingConfig as TrainingConfig
    from everyformer.training.loop import train as train
    from everyformer.training.result import TrainResult as TrainResult
    from everyformer.training.run import RunDirectory as RunDirectory

_HOMES = {
    "RunDirectory": "run",
    "TrainResult": "result",
    "TrainingConfig": "config",
    "train": "loop",
}
__all__ = list(_HOMES)
__getattr__ = late_names(__name__, _HOMES)
