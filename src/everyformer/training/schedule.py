"""The learning rate as a pure function of progress, so that a resumed run continues it exactly."""

import math

from everyformer.training.config import TrainingConfig
from everyformer.training.stages import stage_of


def learning_rate(config: TrainingConfig, progress: float, step: int) -> float:
    """The learning rate of one step.

    Args:
        progress: share of the budget spent before the step, from 0 to 1.
        step: number of the step; the first is 1.
    """
    peak = config.lr / 2 ** stage_of(config.stages, progress)
    if config.schedule == "noam":
        return peak * noam_factor(step, config.noam_steps)
    return peak * schedule_factor(
        config.schedule, progress, warmup=config.warmup, floor=config.min_lr_ratio
    )


def noam_factor(step: int, warmup: int) -> float:
    """``min(step / W, sqrt(W / step))``: "Attention is all you need", equation 3, its peak 1.

    The published rate is this times ``1 / sqrt(width * W)``.
    """
    return min(step / warmup, math.sqrt(warmup / step))


def schedule_factor(kind: str, progress: float, *, warmup: float, floor: float) -> float:
    """The factor of the peak learning rate, always between ``floor`` and 1.

    It rises linearly from ``floor`` to 1 over the warm-up, then falls: ``cosine`` and ``linear``
    reach ``floor`` at the end, ``constant`` stays at 1.

    Args:
        kind: cosine, linear or constant.
        progress: share of the budget spent before this step, from 0 to 1.
        warmup: share of the budget that the rise takes.
        floor: lowest factor.
    """
    if progress < warmup:
        return floor + (1 - floor) * progress / warmup
    if kind == "constant":
        return 1.0
    remaining = (1 - progress) / (1 - warmup) if warmup < 1 else 0.0
    if kind == "linear":
        return floor + (1 - floor) * remaining
    assert kind == "cosine", kind
    return floor + (1 - floor) * (1 + math.cos(math.pi * (1 - remaining))) / 2
