"""`Mask`: the attention mask in parts, materialised only when an engine asks.

Booleans mean True = is real / may be seen, everywhere in this library; adapters convert foreign
conventions at the border. A mixer that cannot honour a part that is set raises (`Mask.require`);
a part is never dropped. Rows with nothing to see give zeros.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from everyformer.core.devices import readable
from everyformer.core.errors import ShapeError, UnsupportedError
from everyformer.core.shared import shared


@dataclass(frozen=True)
class Mask:
    """An attention mask in parts; every part is optional and they combine by *and*.

    B batch, H heads, L queries, S keys. Without a ``context`` the queries are the keys and S = L
    counts the tokens of this call alone, with a state too: nobody outside knows how many slots
    of the past it holds. `Mixer.check_input` holds every part against these shapes.
    """

    padding_mask: Tensor | None = None
    """(B, S) bool: which source tokens are real. Padding may be left, right or between."""
    attention_mask: Tensor | None = None
    """bool, broadcastable to (B, H, L, S): which pairs may see each other. What a state holds of
    the past is seen by all."""
    bias: Tensor | None = None
    """float, broadcastable to (B, H, L, S): added to the scores (-inf hides). Nothing is added to
    those of what a state holds."""
    documents: Tensor | None = None
    """(B, L) int: packed rows; every run of equal ids is a document, also where an id
    comes again (`runs_of`): tokens see only tokens of their run, positions restart. Ids of padding
    are not read. With the state of a memory, a first run of id 0 continues the document that the
    state is in."""
    global_tokens: Tensor | None = None
    """(B, L) bool: tokens that see all and are seen by all (sparse patterns)."""
    sentences: Tensor | None = None
    """(B, L) int: the sentence that a token is in, or that a global token stands for."""
    grid: tuple[int, int] | None = None
    """(rows, columns): the tokens are a picture in raster order."""
    prefix: int | None = None
    """how many, where ``global_tokens`` are known to be exactly the first so many, for
    a compiler, which cannot look at flags; it hides nothing, so that any mixer may ignore it."""

    @classmethod
    def from_lengths(cls, lengths: Tensor, size: int) -> Self:
        """Right-padded rows: row b has ``lengths[b]`` real tokens out of ``size``."""
        if lengths.dim() != 1 or lengths.is_floating_point():
            raise ShapeError(f"lengths must be (batch,) integers, not {tuple(lengths.shape)}")
        if readable(lengths) and bool(((lengths < 0) | (lengths > size)).any()):
            raise ShapeError(f"lengths must lie from 0 to {size}, not {lengths.tolist()}")
        return cls(padding_mask=torch.arange(size, device=lengths.device) < lengths[:, None])

    def parts(self) -> list[str]:
        """Names of the parts that are set."""
        parts = (f.name for f in fields(self) if getattr(self, f.name) is not None)
        return [name for name in parts if name != "prefix"]

    def require(self, member: str, honoured: frozenset[str]) -> None:
        """Raise unless every part is among ``honoured``."""
        refused = [name for name in self.parts() if name not in honoured]
        if refused:
            raise UnsupportedError(
                f"{member} cannot honour the mask part(s) {', '.join(refused)}; it honours "
                f"{', '.join(sorted(honoured)) or 'none'}. Use a member that does "
                "(attention honours all but global_tokens), or leave the part out yourself."
            )

    def check(self, batch: int, queries: int, keys: int | None, heads: int | None = None) -> None:
        """Raise unless every part fits so many rows, queries and keys (None: not known).

        Raises:
            ShapeError: another shape or dtype; sizes of 1 mean any in pairs alone.
        """
        tokens = {
            "padding_mask": (
                keys,
                torch.bool,
                "flag per token of this call, True where it is real",
            ),
            "global_tokens": (queries, torch.bool, "flag per token of this call"),
            "documents": (queries, None, "whole number per token of this call"),
            "sentences": (queries, None, "whole number per token of this call"),
        }
        for name, (length, dtype, what) in tokens.items():
            part: Tensor | None = getattr(self, name)
            if part is None or length is None:
                continue
            right = not part.is_floating_point() if dtype is None else part.dtype == dtype
            if part.shape != (batch, length) or not right:
                raise ShapeError(
                    f"mask.{name} is {_described(part)}, but the tokens are ({batch}, {length}): "
                    f"give one {what}"
                )
        full = batch, heads, queries, keys
        for name, pairs in (("attention_mask", self.attention_mask), ("bias", self.bias)):
            if pairs is None:
                continue
            sizes = zip(reversed(pairs.shape), reversed(full), strict=False)
            fits = pairs.dim() <= 4 and all(n == 1 or m in (None, n) for n, m in sizes)
            if not fits or (pairs.dtype == torch.bool) != (name == "attention_mask"):
                kind = (
                    "True where a pair may see each other" if name == "attention_mask" else "floats"
                )
                raise ShapeError(
                    f"mask.{name} is {_described(pairs)}, but (batch, heads, queries, keys) are "
                    f"({', '.join('any' if m is None else str(m) for m in full)}): give {kind}, "
                    "each size that one or 1. Keys are those of this call; a state's are not among "
                    "them"
                )

    def without(self, *names: str) -> Mask:
        """The same mask less the named parts (their work has been done elsewhere)."""
        return replace(self, **dict.fromkeys(names))


def _described(part: Tensor) -> str:
    return f"{tuple(part.shape)} {str(part.dtype).removeprefix('torch.')}"


def runs_of(documents: Tensor, padding_mask: Tensor | None = None) -> Tensor:
    """Number of the packed document that each token is in, from 0 in every row: (B, L) int64.

    A run of equal ids is a document. Padding belongs to that of the real token before it (or of the
    first one), whatever its id.
    """
    if padding_mask is not None:
        index = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
        last = torch.where(padding_mask, index, -1).cummax(1).values
        first = padding_mask.long().argmax(1, keepdim=True)
        documents = documents.gather(1, torch.where(last < 0, first, last))
    return F.pad((documents[:, 1:] != documents[:, :-1]).long().cumsum(1), (1, 0))


def runs_after(documents: Tensor, padding_mask: Tensor | None = None) -> Tensor:
    """`runs_of` after a state, whose document is number 0: a first run of id 0 continues it,
    any other starts over, as number 1."""
    runs = runs_of(documents, padding_mask)
    real = torch.ones_like(runs, dtype=torch.bool) if padding_mask is None else padding_mask
    first = documents.gather(1, real.long().argmax(1, keepdim=True))
    return runs + ((first != 0) & real.any(1, keepdim=True)).long()


def require_mask(mask: Mask | None) -> None:
    """Refuse a mask that is no `Mask`, a tensor of flags above all."""
    if mask is not None and not isinstance(mask, Mask):
        raise ShapeError(
            f"a mask is a Mask, not a {type(mask).__name__}: Mask(padding_mask=flags) marks which "
            "tokens are real, Mask(attention_mask=flags) who may see whom"
        )


def positions_of(
    batch: int, length: int, mask: Mask | None, num_tokens: Tensor | None, device: torch.device
) -> Tensor:
    """Absolute positions (B or 1, L) of this call's tokens: how many *real* tokens came before.

    Left-padded rows get the positions of the unpadded ones; with packed documents each document
    starts at 0; ``num_tokens`` (B,) of a state is added. Padding has the position of the next real
    token, or of the last one: so each sequence has one position 0 that begins it (`lengths_of`).
    """
    if mask is not None and mask.documents is not None:
        if num_tokens is not None:
            raise packed_with_state()
        return document_positions(mask.documents, mask.padding_mask)
    if mask is not None and mask.padding_mask is not None:
        Mask(padding_mask=mask.padding_mask).check(batch, length, length)
        count = mask.padding_mask.long().cumsum(1)
        before = count - mask.padding_mask.long()
        positions = torch.minimum(before, count[:, -1:] - 1).clamp(min=0)
        return positions if num_tokens is None else positions + num_tokens[:, None]
    if num_tokens is None:
        return shared(counted, length, device)
    return shared(_counted_after, num_tokens, length)


def counted(count: int, device: torch.device) -> Tensor:
    """Positions 0, 1 ... of ``count`` tokens: (1, ``count``) int64."""
    return torch.arange(count, device=device)[None]


def _counted_after(num_tokens: Tensor, length: int) -> Tensor:
    first = num_tokens[:, None]
    return first if length == 1 else counted(length, num_tokens.device) + first


def packed_with_state() -> UnsupportedError:
    """Error about packed documents together with a state."""
    return UnsupportedError(
        "packed documents and a state cannot be combined: a state continues one document per row. "
        "Pass the documents as rows, or reset the state where one starts."
    )


def document_positions(documents: Tensor, padding_mask: Tensor | None = None) -> Tensor:
    """Positions (B, L) that restart at 0 in every document; padding as in `positions_of`."""
    runs = runs_of(documents, padding_mask)
    real = torch.ones_like(runs) if padding_mask is None else padding_mask.long()
    count = real.cumsum(1)
    total = torch.zeros_like(runs).scatter_add(1, runs, real)
    first = (total.cumsum(1) - total).gather(1, runs)
    last = total.gather(1, runs) - 1
    return torch.minimum(count - real - first, last).clamp(min=0)


def begins_of(runs: Tensor, index: Tensor, begin: Tensor) -> Tensor:
    """The index (B, L) at which the document of every token begins.

    Args:
        runs: (B, L) as `runs_of` gives them; 0 is a document that began before.
        index: (B or 1, L) of the tokens, counted through all documents. begin: (B or 1, 1) of
            that document.
    """
    starts = runs != F.pad(runs[:, :-1], (1, 0))
    return torch.where(starts, index, begin).cummax(1).values


def lengths_of(positions: Tensor) -> Tensor:
    """Length of the sequence that every token is in: (B or 1, L) as ``positions``.

    A sequence begins at position 0 (a packed document may have one token alone), or where positions
    fall back.
    """
    starts = torch.zeros_like(positions)
    begins = (positions[:, 1:] == 0) | (positions[:, 1:] < positions[:, :-1])
    starts[:, 1:] = begins.long()
    document = starts.cumsum(1)
    last = torch.zeros_like(positions).scatter_reduce(1, document, positions, "amax")
    return last.gather(1, document) + 1
