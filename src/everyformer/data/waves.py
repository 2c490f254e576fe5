"""Waves: noisy series of one of three shapes, to classify, or to say how often it repeats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import torch

from everyformer.core.tasks import TASKS, TaskName
from everyformer.data.batch import Batch
from everyformer.data.cache import digest
from everyformer.data.config import DataConfig
from everyformer.data.dataset import Spread
from everyformer.data.synthetic import HELD_OUT, VERSION, GeneratedDataset

SHAPES = ("sine", "square", "sawtooth")
FEWEST, MOST = 1.0, 4.0
"""periods in a series, a uniform draw"""
NOISE = 0.3
"""standard deviation of what is added to shapes between -1 and 1"""


@dataclass(frozen=True, kw_only=True, eq=False)
class WavesDataset(GeneratedDataset):
    """Series (length, 1) of a random shape, frequency and phase, with normal noise."""

    def _rows(self, random: np.random.Generator, count: int) -> Batch:
        shapes = random.integers(0, len(SHAPES), count)
        periods = random.uniform(FEWEST, MOST, count)
        phase = random.uniform(0, 1, count)
        turns = phase[:, None] + periods[:, None] * np.arange(self.length) / self.length
        within = turns % 1
        forms = np.stack((np.sin(2 * np.pi * turns), np.where(within < 0.5, 1, -1), 2 * within - 1))
        series = forms[shapes, np.arange(count)] + NOISE * random.standard_normal(turns.shape)
        inputs = torch.from_numpy(series[..., None].astype(np.float32))
        if TASKS[self.task].measures:
            return Batch(inputs, torch.from_numpy(periods[:, None].astype(np.float32)))
        return Batch(inputs, torch.from_numpy(shapes))


def load_waves(config: DataConfig, task: str) -> WavesDataset:
    """Waves of ``config.length`` steps, to classify by their shape or to count their periods."""
    drawn = np.linspace(FEWEST, MOST, 1001)[:, None]
    measures = TASKS[task].measures
    return WavesDataset(
        name="waves",
        task=cast(TaskName, task),
        kind="series",
        vocabulary=256,
        classes=() if measures else SHAPES,
        features=Spread((0.0,), (1.0,)),
        numbers=Spread.of(drawn) if measures else None,
        split=f"generated without end; {HELD_OUT:,} validation series from other seeds",
        fingerprint=digest(VERSION, "waves", config.length, config.seed, task),
        length=config.length,
        seed=config.seed,
    )
