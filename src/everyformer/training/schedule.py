"""The learning rate, a pure function of progress (so that a resumed run continues it), and stages.

    stage s of S, 0 <= s < S:   length L / 2^(S-1-s),   windows W / 2^(S-1-s),   rate lr / 2^s

In a staged training of a language model what is near is learnt first, where steps are cheap. The
rows of a batch are cut into shorter ones, so every stage reads the same tokens a step. Evaluations,
and a model that is saved in an early stage, read whole texts with whole windows. Windows are those
of mixers that `Mixer.scale_window`.

Source: Beltagy et al. 2020, arXiv 2004.05150, section 4.2 and appendix (5 stages of 430, 50, 50, 35
and 5 thousand steps, from 2,048 to 23,040 tokens).
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn

from everyformer.core.mixer import Mixer
from everyformer.training.config import TrainingConfig


def learning_rate(config: TrainingConfig, progress: float, step: int) -> float:
    """The learning rate of one step.

    Noam's is ``lr min(step / W, sqrt(W / step))``, as "Attention is all you need", equation 3, has
    it with ``lr = 1 / sqrt(width * W)``.

    Args:
        progress: share of the budget spent before the step, from 0 to 1.
        step: number of the step; the first is 1.
    """
    peak = config.lr / 2 ** stage_of(config.stages, progress)
    if config.schedule == "noam":
        warmup = config.noam_steps
        return peak * min(step / warmup, math.sqrt(warmup / step))
    return peak * schedule_factor(
        config.schedule, progress, warmup=config.warmup, floor=config.min_lr_ratio
    )


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


def stage_of(parts: Sequence[float], done: float) -> int:
    """Stage, from 0, of a training that has ``done`` this share of its budget."""
    ends = list(itertools.accumulate(parts))
    return sum(done * ends[-1] >= end for end in ends[:-1])


def pieces_of(parts: Sequence[float], done: float) -> int:
    """The number of pieces that texts and windows are cut into: 2^(S-1-s)."""
    return 2 ** (len(parts) - 1 - stage_of(parts, done)) if parts else 1


@contextmanager
def narrowed(model: nn.Module, by: int) -> Iterator[None]:
    """Windows a ``by``-th as wide while this lasts."""
    modules = model.modules() if by > 1 else ()
    mixers = [module for module in modules if isinstance(module, Mixer)]
    try:
        for mixer in mixers:
            mixer.scale_window(by)
        yield
    finally:
        for mixer in mixers:
            mixer.scale_window(1)
