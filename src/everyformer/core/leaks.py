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
"""tokens of which every one is changed"""
PARTS = 7
"""places in a longer text where it is tried"""
TOKENS = 2048
"""of all rows that are computed at once, where one has not more by itself"""
TOLERANCE = 1e-3
"""share of the largest output by which roundings may differ, with later tokens 50 times as large"""


def leak_of(model: nn.Module, length: int = LENGTH) -> str | None:
    """Reason of the first mixer of ``model`` that leaks, or what a part that looks for leaks itself
    finds; None where evaluation is honest.

    Args:
        length: of the texts that it is trained and measured on.
    """
    found = (
        part.leaks or _tried(part, length) if isinstance(part, Mixer) else part.found_leak(length)
        for part in model.modules()
        if isinstance(part, Mixer | Whole)
    )
    return next(filter(None, found), None)


@runtime_checkable
class Whole(Protocol):
    """A whole model of someone else, as part of one of this library."""

    max_length: int | None
    """tokens that it reads at most, where it says so"""

    def found_leak(self, length: int) -> str | None:
        """Where it sees the future, in short texts and those of a ``length``; None: nowhere."""


def cuts(length: int) -> list[int]:
    """Places behind which tokens are changed: all in a short text, and some of a long one that
    divide no blocks of one size."""
    if length <= LENGTH:
        return [*range(length)]
    return sorted({length * k // PARTS + 1 for k in range(PARTS)} | {length - 1})


def _tried(mixer: Mixer, longest: int) -> str | None:
    """Reason of a causal mixer of others that changes an output with a later token, as it is now.

    One that fails, or answers the same rows in two ways, is taken at its word.
    """
    weight = next(mixer.parameters(), None)
    if type(mixer).__module__.startswith("everyformer.") or not mixer.causal or weight is None:
        return None
    most, was = min(longest, mixer.max_length or longest), mixer.training
    try:
        for length in sorted({min(LENGTH, most), most}):
            # some rows at a time, which all tokens of a long text keep small
            for part in torch.tensor(cuts(length)).split(max(1, TOKENS // length)):
                if (found := _early(mixer.eval(), length, part, weight)) is not None:
                    first, token = found
                    return (
                        f"output {token} of the mixer '{mixer.name}' ({source(type(mixer))}) "
                        f"changes with tokens from {first} on, which come later"
                    )
    except FAILURES:
        return None
    finally:
        mixer.train(was)
    return None


def _early(mixer: Mixer, length: int, kept: Tensor, weight: Tensor) -> tuple[int, int] | None:
    """One of ``kept`` (rows,), and the first output before it that changes with the tokens behind.

    None where there is none, or where equal rows are not answered alike.
    """
    draws = torch.randn(2, length, mixer.width, generator=torch.Generator().manual_seed(0))
    text, other = draws.to(weight)
    # the last two rows keep all
    kept = torch.cat([kept, kept.new_full((2,), length)]).to(weight.device)
    own = torch.arange(length, device=weight.device) < kept[:, None]
    with torch.no_grad():
        y: Tensor = mixer(torch.where(own[..., None], text, 50 * other)).y
    off = (y - y[-1]).abs().amax(2) > TOLERANCE * y[-1].abs().max()
    leaks = (off & own).nonzero().tolist()
    if not leaks or bool(off[-2].any()):
        return None
    row, token = leaks[0]
    return int(kept[row]), token
