"""What mixers, blocks and models give back; the type never changes with flags."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from everyformer.core.state import StackState, State

Losses = dict[str, Tensor]
"""Scalar terms by name, added to the task's loss with their own weights already inside."""


class MixerOutput(NamedTuple):
    """Output of a mixer, and of a block."""

    y: Tensor
    """(batch, length, width)"""
    state: State | None
    """given back only when a state was given"""
    losses: Losses
    """this mixer's own terms: span penalty, commitment, ponder ..."""


class StackOutput(NamedTuple):
    """Output of a stack of blocks."""

    y: Tensor
    """(batch, length, width), after the final norm"""
    state: StackState | None
    losses: Losses
    """the layers' terms, summed by name"""
    hidden: tuple[Tensor, ...]
    """outputs of the layers asked for (``hidden=`` of the call), else empty"""


class ModelOutput(NamedTuple):
    """Output of a model."""

    logits: Tensor
    """(batch, length, vocabulary) or (batch, classes)"""
    loss: Tensor | None
    """task loss plus all ``losses``; None without targets"""
    losses: Losses
    """every term by name; ``task`` is the task's own, in nats per target"""
    state: StackState | None
    each: Tensor | None = None
    """(batch, targets) nats of every target, 0 where it is not scored; None where they are the
    cross-entropies of ``logits``"""
    hidden: tuple[Tensor, ...] = ()
    """(batch, length, width) outputs of the layers asked for (``hidden=`` of the call)"""


def add_losses(into: Losses, more: Losses) -> None:
    """Add the terms of ``more`` to ``into``, by name."""
    for name, value in more.items():
        into[name] = into[name] + value if name in into else value
