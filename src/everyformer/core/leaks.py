"""Leaks: what outputs of a causal model take from later tokens, so that its loss measures nothing.

Mixers of this library say what leaks in them, and a law holds them to it. Those of others are
tried: one that looks ahead would win every comparison.
"""

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from everyformer.core.foreign import FAILURES, source
from everyformer.core.mixer import Mixer

LENGTH = 32
"""tokens that a mixer of others is tried with"""
TOLERANCE = 1e-3
"""share of the largest output by which roundings may differ, with later tokens 50 times as large"""


def leak_of(model: nn.Module) -> str | None:
    """Reason of the first mixer of ``model`` that leaks, or what a part that looks for leaks itself
    finds; None where evaluation is honest."""
    found = (
        part.leaks or _tried(part) if isinstance(part, Mixer) else part.found_leak()
        for part in model.modules()
        if isinstance(part, Mixer | Whole)
    )
    return next(filter(None, found), None)


@runtime_checkable
class Whole(Protocol):
    """A whole model of someone else, as part of one of this library."""

    max_length: int | None
    """tokens that it reads at most, where it says so"""

    def found_leak(self) -> str | None:
        """Where it sees the future; None: nowhere."""


def _tried(mixer: Mixer) -> str | None:
    """Reason of a causal mixer of others that changes an output with a later token, as it is now.

    One that fails, or answers the same rows in two ways, is taken at its word.
    """
    weight = next(mixer.parameters(), None)
    if type(mixer).__module__.startswith("everyformer.") or not mixer.causal or weight is None:
        return None
    length, was = min(LENGTH, mixer.max_length or LENGTH), mixer.training
    draws = torch.randn(2, length, mixer.width, generator=torch.Generator().manual_seed(0))
    text, other = draws.to(weight)
    # row r keeps the first r tokens; the last two keep all
    kept = torch.ones(length + 2, length, dtype=torch.bool, device=weight.device).tril(-1)
    try:
        with torch.no_grad():
            y: Tensor = mixer.eval()(torch.where(kept[..., None], text, 50 * other)).y
    except FAILURES:
        return None
    finally:
        mixer.train(was)
    off = (y - y[-1]).abs().amax(2) > TOLERANCE * y[-1].abs().max()
    leaks = (off & kept).nonzero().tolist()
    if not leaks or bool(off[-2].any()):
        return None
    first, token = leaks[0]
    return (
        f"output {token} of the mixer '{mixer.name}' ({source(type(mixer))}) changes with tokens "
        f"from {first} on, which come later"
    )
