"""The learning rate as a pure function of progress, so that a resumed run continues it exactly."""

from __future__ import annotations

import math


def schedule_factor(kind: str, progress: float, *, warmup: float, floor: float) -> float:
    """What the peak learning rate is multiplied by; always between ``floor`` and 1.

    It rises linearly from ``floor`` to 1 over the warm-up, then falls: ``cosine`` and ``linear``
    reach ``floor`` at the end, ``noam`` falls as ``sqrt(warmup / progress)`` (the schedule of
    "Attention is all you need", its peak scaled to 1), ``constant`` stays at 1.

    Args:
        kind: cosine, linear, noam or constant.
        progress: share of the budget spent before this step, from 0 to 1.
        warmup: share of the budget that the rise takes.
        floor: lowest factor.
    """
    if progress < warmup:
        return floor + (1 - floor) * progress / warmup
    if kind == "constant":
        return 1.0
    if kind == "noam":
        return max(floor, math.sqrt(warmup / progress)) if progress > 0 else 1.0
    remaining = (1 - progress) / (1 - warmup) if warmup < 1 else 0.0
    if kind == "linear":
        return floor + (1 - floor) * remaining
    assert kind == "cosine", kind
    return floor + (1 - floor) * (1 + math.cos(math.pi * (1 - remaining))) / 2
