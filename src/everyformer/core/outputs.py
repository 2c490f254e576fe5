"""Outputs of mixers, blocks and models; the type never changes with flags."""

from typing import Any, NamedTuple

from torch import Tensor

from everyformer.core.state import StackState, State

Losses = dict[str, Tensor]
"""Scalar terms by name, added to the task's loss with their weights already inside."""


class MixerOutput(NamedTuple):
    """Output of a mixer."""

    y: Tensor
    """(batch, length, width)"""
    state: State | None
    """present only when a state was passed"""
    losses: Losses
    """terms of this mixer: span penalty, commitment, ponder ..."""


class LayerOutput(NamedTuple):
    """Output of a layer, and of one of its sub-layers."""

    y: Any
    """the residual stream, or what is added to it"""
    state: State | None
    """of the layer after it"""
    losses: Losses
    taps: dict[str, Tensor]
    """what lies inside, by the names of `everyformer.core.taps`"""


class StackOutput(NamedTuple):
    """Output of a stack of blocks."""

    y: Tensor
    """(batch, length, width), after the final norm"""
    state: StackState | None
    losses: Losses
    """the layers' terms, summed by name"""
    taps: dict[str, Tensor]
    """(batch, length, channels) by the names in ``taps=`` of the call"""


class ModelOutput(NamedTuple):
    """Output of a model."""

    logits: Tensor
    """(batch, length, vocabulary) or (batch, classes)"""
    loss: Tensor | None
    """task loss plus all ``losses``; None without targets"""
    losses: Losses
    """every term by name; ``task`` is the task's, in nats per target"""
    state: StackState | None
    each: Tensor | None = None
    """(batch, targets) nats of every target, 0 where it is not scored; None where they are the
    cross-entropies of ``logits``"""
    taps: dict[str, Tensor] = {}  # noqa: RUF012 (nobody writes to it)
    """(batch, length, channels) by the names in ``taps=`` of the call"""


def add_losses(into: Losses, more: Losses) -> None:
    """Add the terms of ``more`` to ``into``, by name."""
    for name, value in more.items():
        into[name] = into[name] + value if name in into else value
