"""`Mask`: who may see whom, in parts, materialised only when an engine asks.

Booleans mean True = is real / may be seen, everywhere in this library; adapters convert foreign
conventions at the border. A mixer that cannot honour a part that is given raises (`Mask.require`);
a part is never dropped. Rows with nothing to see give zeros.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor

from everyformer.core.errors import ShapeError, UnsupportedError


@dataclass(frozen=True)
class Mask:
    """The parts of a mask; every part is optional and they combine by *and*.

    B batch, H heads, L queries, S keys. Without a ``context`` the queries are the keys and S = L
    counts the tokens of this call alone (a state knows the earlier ones).
    """

    keep: Tensor | None = None
    """(B, S) bool: which source tokens are real. Padding may stand left, right or between."""
    allowed: Tensor | None = None
    """bool, broadcastable to (B, H, L, S): which pairs may see each other."""
    bias: Tensor | None = None
    """float, broadcastable to (B, H, L, S): added to the scores (-inf hides)."""
    documents: Tensor | None = None
    """(B, L) int: packed rows; tokens see only tokens of the same id, positions restart. With the
    state of a memory, id 0 goes on with the document that the state is in."""
    global_tokens: Tensor | None = None
    """(B, L) bool: tokens that see all and are seen by all (sparse patterns)."""
    sentences: Tensor | None = None
    """(B, L) int: the sentence that a token is in, or that a global token stands for."""
    grid: tuple[int, int] | None = None
    """(rows, columns): the tokens are a picture in raster order."""
    front: int | None = None
    """where it is known that ``global_tokens`` are exactly the first so many, it is told here for
    a compiler, which cannot look at flags; it hides nothing, so that any mixer may ignore it."""

    @classmethod
    def from_lengths(cls, lengths: Tensor, size: int) -> Self:
        """Right-padded rows: row b has ``lengths[b]`` real tokens out of ``size``."""
        if lengths.dim() != 1 or lengths.is_floating_point():
            raise ShapeError(f"lengths must be (batch,) integers, not {tuple(lengths.shape)}")
        return cls(keep=torch.arange(size, device=lengths.device) < lengths[:, None])

    def parts(self) -> list[str]:
        """Names of the parts that are given."""
        held = (f.name for f in fields(self) if getattr(self, f.name) is not None)
        return [name for name in held if name != "front"]

    def require(self, member: str, honoured: frozenset[str]) -> None:
        """Raise unless every given part is among ``honoured``."""
        refused = [name for name in self.parts() if name not in honoured]
        if refused:
            raise UnsupportedError(
                f"{member} cannot honour the mask part(s) {', '.join(refused)}; it honours "
                f"{', '.join(sorted(honoured)) or 'none'}. Use a member that does "
                "(attention honours all but global_tokens), or leave the part out yourself."
            )

    def without(self, *names: str) -> Mask:
        """The same mask less the named parts (their work has been done elsewhere)."""
        return replace(self, **dict.fromkeys(names))


def positions_of(
    batch: int, length: int, mask: Mask | None, seen: Tensor | None, device: torch.device
) -> Tensor:
    """Absolute positions (B or 1, L) of this call's tokens: how many *real* tokens came before.

    With padding, row b counts ``cumsum(keep) - 1``, so left-padded rows get the positions of the
    unpadded ones; with packed documents each document starts at 0; ``seen`` (B,) from a state is
    added. Positions of padding are meaningless but valid (>= 0).
    """
    if mask is not None and mask.documents is not None:
        if seen is not None:
            raise UnsupportedError(
                "packed documents and a state cannot be combined: a state continues one document "
                "per row. Pass the documents as rows, or reset the state where one starts."
            )
        return document_positions(mask.documents, mask.keep)
    if mask is not None and mask.keep is not None:
        if mask.keep.shape != (batch, length):
            raise ShapeError(
                f"mask.keep has shape {tuple(mask.keep.shape)}, but the tokens are "
                f"({batch}, {length}): give one flag per token of this call"
            )
        positions = (mask.keep.long().cumsum(1) - 1).clamp(min=0)
    else:
        positions = torch.arange(length, device=device)[None]
    return positions if seen is None else positions + seen[:, None]


def document_positions(documents: Tensor, keep: Tensor | None = None) -> Tensor:
    """Positions (B, L) that restart at 0 at every change of ``documents``; padding not counted."""
    real = torch.ones_like(documents, dtype=torch.bool) if keep is None else keep
    starts = torch.ones_like(documents, dtype=torch.bool)
    starts[:, 1:] = documents[:, 1:] != documents[:, :-1]
    count = real.long().cumsum(1)
    before = count - real.long()
    at_start = torch.where(starts, before, torch.zeros_like(before)).cummax(1).values
    return (count - 1 - at_start).clamp(min=0)


def lengths_of(positions: Tensor) -> Tensor:
    """How many tokens the sequence of every token has: (B or 1, L) as ``positions``.

    A sequence ends where positions fall back: there the next packed document begins.
    """
    starts = torch.zeros_like(positions)
    starts[:, 1:] = (positions[:, 1:] < positions[:, :-1]).long()
    document = starts.cumsum(1)
    last = torch.zeros_like(positions).scatter_reduce(1, document, positions, "amax")
    return last.gather(1, document) + 1
