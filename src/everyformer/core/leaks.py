"""Leaks: what outputs of a causal model take from later tokens, so that its loss measures nothing.

Mixers of this library say what leaks in them, and a law holds them to it. Those of others are
tried, and stacks with other parts of theirs: one that looks ahead would win every comparison.
"""

from collections.abc import Callable
from itertools import chain
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from everyformer.core.mixer import Mixer
from sequence_laws.foreign import FAILURES, source
from sequence_laws.inputs import LENGTH, cuts

TOKENS = 2048
"""of all rows that are computed at once, where one has not more by itself"""
TOLERANCE = 1e-3
"""share of the largest output by which roundings may differ, with later tokens 50 times as large"""


def leak_of(model: nn.Module, length: int = LENGTH) -> str | None:
    """Reason of the first mixer of ``model`` that leaks, or else what a part that looks for leaks
    itself finds; None where evaluation is honest.

    Args:
        length: of the texts that it is trained and measured on.
    """
    parts = [*model.modules()]
    mixers = (
        part.non_causal_reason or _tried(part, length) for part in parts if isinstance(part, Mixer)
    )
    others = (part.found_leak(length) for part in parts if isinstance(part, Searched))
    return next(filter(None, chain(mixers, others)), None)


@runtime_checkable
class Searched(Protocol):
    """A part of a model that looks for leaks itself."""

    def found_leak(self, length: int) -> str | None:
        """Where it sees the future, in short texts and those of a ``length``; None: nowhere."""


@runtime_checkable
class Whole(Searched, Protocol):
    """A third-party model, as part of one of this library."""

    max_length: int | None
    """tokens that it reads at most, where that is known"""


def of_others(part: object) -> bool:
    """True if a part is not of this library, whose laws hold it to what it says."""
    return not type(part).__module__.startswith("everyformer.")


def _tried(mixer: Mixer, longest: int) -> str | None:
    """Reason why a third-party causal mixer leaks; None where it does not, and of all others."""
    if not of_others(mixer) or not mixer.causal:
        return None
    most = min(longest, mixer.max_length or longest)
    what = f"the mixer '{mixer.name}' ({source(type(mixer))})"
    return tried(mixer, lambda x: mixer(x).y, mixer.width, most, what)


def tried(
    part: nn.Module, run: Callable[[Tensor], Tensor], width: int, most: int, what: str
) -> str | None:
    """Reason of a causal part that changes an output with a later token, as it is now.

    One that fails, or answers the same rows in two ways, is taken at its word.

    Args:
        run: outputs (B, L, ...) of inputs (B, L, ``width``).
        most: the longest text. what: the part in words.
    """
    weight, was = next(part.parameters(), None), part.training
    if weight is None:
        return None
    part.eval()
    try:
        for length in sorted({min(LENGTH, most), most}):
            # some rows at a time, which all tokens of a long text keep small
            for kept in torch.tensor(cuts(length)).split(max(1, TOKENS // length)):
                if (found := _early(run, width, length, kept, weight)) is not None:
                    first, token = found
                    return (
                        f"output {token} of {what} changes with tokens from {first} on, which come "
                        "later"
                    )
    except FAILURES:
        return None
    finally:
        part.train(was)
    return None


def _early(
    run: Callable[[Tensor], Tensor], width: int, length: int, kept: Tensor, weight: Tensor
) -> tuple[int, int] | None:
    """One of ``kept`` (rows,), and the first output before it that changes with the tokens behind.

    None where there is none, or where equal rows are not answered alike.
    """
    draws = torch.randn(2, length, width, generator=torch.Generator().manual_seed(0))
    text, other = draws.to(weight)
    # the last two rows keep all
    kept = torch.cat([kept, kept.new_full((2,), length)]).to(weight.device)
    own = torch.arange(length, device=weight.device) < kept[:, None]
    with torch.no_grad():
        y = run(torch.where(own[..., None], text, 50 * other))
    off = (y - y[-1]).abs().amax(2) > TOLERANCE * y[-1].abs().max()
    leaks = (off & own).nonzero().tolist()
    if not leaks or bool(off[-2].any()):
        return None
    row, token = leaks[0]
    return int(kept[row]), token
