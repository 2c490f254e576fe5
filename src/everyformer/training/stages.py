"""Staged training of language models: short texts and narrow windows come first.

    stage s of S, 0 <= s < S:   length L / 2^(S-1-s),   windows W / 2^(S-1-s),   rate lr / 2^s

What is near is learnt first, where steps are cheap. The rows of a batch are cut into shorter ones,
so every stage reads the same tokens a step. Evaluations, and a model that is saved in an early
stage, read whole texts with whole windows. Windows are those of mixers that `Mixer.narrow`.

Source: Beltagy et al. 2020, arXiv 2004.05150, section 4.2 and appendix (5 stages of 430, 50, 50, 35
and 5 thousand steps, from 2,048 to 23,040 tokens).
"""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn

from everyformer.core.abilities import Narrows
from everyformer.core.errors import ConfigError
from everyformer.core.tasks import TASKS
from everyformer.data.dataset import Dataset
from everyformer.data.text import TextDataset
from everyformer.genes.memory.base import memories_of


def stage_of(parts: Sequence[float], done: float) -> int:
    """Stage, from 0, of a training that has ``done`` this share of its budget."""
    ends = list(itertools.accumulate(parts))
    return sum(done * ends[-1] >= end for end in ends[:-1])


def pieces_of(parts: Sequence[float], done: float) -> int:
    """The number of pieces that texts and windows are cut into: 2^(S-1-s)."""
    return 2 ** (len(parts) - 1 - stage_of(parts, done)) if parts else 1


def check_stages(parts: Sequence[float], model: nn.Module, dataset: Dataset) -> None:
    """Refuse stages that this model and data cannot have.

    Raises:
        ConfigError: says why, and what to change.
    """
    if len(parts) < 2:
        return
    if not isinstance(dataset, TextDataset) or not TASKS[dataset.task].continues:
        raise ConfigError(
            f"'stages' are of language models on running text, not of {dataset.task} on "
            f"{dataset.name}: leave them out"
        )
    if memories_of(model):
        raise ConfigError(
            "'stages' cut rows into pieces, but this model carries a memory from piece to piece: "
            "leave 'stages' or the memory out"
        )
    shortest = 2 ** (len(parts) - 1)
    if dataset.length % shortest:
        raise ConfigError(
            f"{len(parts)} 'stages' begin with texts of a {shortest}th, but length="
            f"{dataset.length} is no multiple of {shortest}: give one that is"
        )


@contextmanager
def narrowed(model: nn.Module, by: int) -> Iterator[None]:
    """Windows a ``by``-th as wide while this lasts."""
    modules = model.modules() if by > 1 else ()
    mixers = [module for module in modules if isinstance(module, Narrows)]
    try:
        for mixer in mixers:
            mixer.narrow(by)
        yield
    finally:
        for mixer in mixers:
            mixer.narrow(1)
