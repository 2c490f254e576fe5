"""Attention mask of a softmax call: one tensor of all parts, or none if causality is all."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from everyformer.core.devices import autocasts
from everyformer.core.mask import Mask, runs_after, runs_of
from everyformer.core.shared import shared
from everyformer.core.subset import TokenSubset
from everyformer.engines.ranges import HALF

_told: ContextVar[tuple[Tensor, int] | None] = ContextVar("told", default=None)
ROW = 16
"""numbers to a multiple of which rows of masks are made longer"""
TILE = 128
"""keys of a tile of cuDNN's kernels"""


@dataclass(frozen=True)
class Visibility:
    """Attention mask in the form that a softmax call takes: the keys that each query may see."""

    causal: bool = False
    """query i sees keys up to i + (S - L) and nothing else is hidden; then ``mask`` is None"""
    mask: Tensor | None = None
    """bool (True = may be seen) or additive float, broadcastable to (B, H, L, S)"""


def visibility(
    mask: Mask | None,
    q_positions: Tensor,
    k_positions: Tensor,
    *,
    causal: bool,
    windows: tuple[int | None, ...] = (None,),
    padding_mask: Tensor | None = None,
    bias: Tensor | None = None,
    regular: bool = False,
) -> Visibility:
    """Attention mask of everything that hides keys from queries; none where causality is all.

    Args:
        mask: the caller's mask (its own ``padding_mask`` hides no keys: pass their flags apart).
        q_positions, k_positions: (B or 1, L), (B or 1, S) absolute positions.
        causal: keys later than the query are hidden.
        windows: one entry for all heads or one a head: W shows distances 0 <= i-j < W when causal,
            |i-j| < W when not; None shows all.
        keep: (B, S) bool, which keys are real.
        bias: float scores to add, broadcastable to (B, H, L, S).
        regular: positions of both count up by one and the last query stands where the last key does
    """
    bare = mask is None or not {"attention_mask", "bias", "documents"} & set(mask.parts())
    if regular and causal and bare and padding_mask is None and bias is None:
        source = k_positions.shape[-1]
        if all(w is None or source <= w for w in windows):
            return Visibility(causal=True)
    attention_mask: Tensor | None = None
    if causal:
        attention_mask = (k_positions[:, None, :] <= q_positions[:, :, None])[:, None]
    if any(w is not None for w in windows):
        distance = (q_positions[:, :, None] - k_positions[:, None, :]).abs()[:, None]
        widths = [math.inf if w is None else w for w in windows]
        limit = torch.tensor(widths, device=distance.device).view(1, -1, 1, 1)
        attention_mask = _both(attention_mask, distance < limit)
    if padding_mask is not None:
        attention_mask = _both(attention_mask, padding_mask[:, None, None, :])
    if mask is not None:
        if mask.attention_mask is not None:
            attention_mask = _both(attention_mask, mask.attention_mask)
        if mask.documents is not None:
            runs = runs_of(mask.documents, mask.padding_mask)
            same = runs[:, :, None] == runs[:, None, :]
            attention_mask = _both(attention_mask, same[:, None])
        if mask.bias is not None:
            bias = mask.bias if bias is None else bias + mask.bias
    if bias is None:
        return Visibility(mask=attention_mask)
    return Visibility(
        mask=bias if attention_mask is None else bias.masked_fill(~attention_mask, -math.inf)
    )


def causal_mask(queries: int, keys: int, device: torch.device) -> Tensor:
    """Causal mask (L, S) bool: query i may see keys up to i + (S - L)."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def in_even_rows(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Keys, values and mask as a GPU takes them: hidden keys added, to a multiple of `_multiple`,
    and the mask in numbers."""
    if mask is None or (multiple := _multiple(q, k.shape[2])) == 1:
        return k, v, mask
    size = k.shape[2]
    more = (size + multiple - 1) // multiple * multiple - size
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, -math.inf)
    mask = F.pad(mask.expand(*mask.shape[:-1], size), (0, more), value=-math.inf)
    return F.pad(k, (0, 0, 0, more)), F.pad(v, (0, 0, 0, more)), mask


def _multiple(q: Tensor, keys: int) -> int:
    """The number to a multiple of which keys under a mask are made more, on a GPU.

    Kernels of CUDA read rows of a multiple of `ROW` alone. Of a mask that has them not, torch asks
    how long they are, and a graph would serve the lengths alone that give the same answer; outside
    of one it may ask. In half precision cuDNN's gradients of queries are NaN on Hopper where half a
    tile of keys is left over and scores are low (torch 2.11 to 2.13, its issue 196678), so that
    there is none.
    """
    if q.device.type == "cpu":
        return 1
    half = q.dtype in HALF or autocasts(q.device.type)
    broken = half and torch.is_grad_enabled()
    if torch.compiler.is_compiling():
        return TILE if broken else ROW
    return TILE if broken and keys % TILE == TILE // 2 else 1


def with_past(mask: Mask | None, length: int, past: int) -> tuple[Mask | None, Tensor | None]:
    """A mask over ``length`` keys, widened by ``past`` keys of a cache in front of them.

    Documents become pairs: the past is number 0 and so is a first run of id 0, which continues
    it. The second result is then (B, past + L) int64, the number of each slot's document.
    """
    if mask is None:
        return None, None

    def wide(pairs: Tensor | None, visible: float) -> Tensor | None:
        if pairs is None or past == 0:
            return pairs
        pairs = pairs.expand(*pairs.shape[:-1], length) if pairs.dim() else pairs.expand(length)
        return F.pad(pairs, (past, 0), value=visible)

    attention_mask, bias = wide(mask.attention_mask, True), wide(mask.bias, 0.0)
    if mask.documents is None:
        return replace(mask, attention_mask=attention_mask, bias=bias), None
    ids = runs_after(mask.documents, mask.padding_mask)
    whole = F.pad(ids, (past, 0))
    same = (ids[:, :, None] == whole[:, None, :])[:, None]
    attention_mask = same if attention_mask is None else same & attention_mask
    return replace(mask, documents=None, attention_mask=attention_mask, bias=bias), whole


def of_queries(mask: Mask | None, chosen: TokenSubset) -> Mask | None:
    """A mask for the ``chosen`` queries of their rows alone, with all keys.

    Pairs are (rows, heads or 1, n, keys) then, and documents are among them.
    """
    if mask is None:
        return None

    def rows(pairs: Tensor | None) -> Tensor | None:
        if pairs is None or pairs.dim() < 2:
            return pairs
        wide = pairs.reshape(*[1] * (4 - pairs.dim()), *pairs.shape)
        wide = wide if len(wide) == 1 else chosen.row(wide)
        if wide.shape[2] == 1:
            return wide
        index = chosen.at[:, None, :, None].expand(-1, wide.shape[1], -1, wide.shape[3])
        return wide.expand(len(index), -1, -1, -1).gather(2, index)

    attention_mask = rows(mask.attention_mask)
    if mask.documents is not None:
        runs = runs_of(mask.documents, mask.padding_mask)
        same = (chosen.pick(runs)[:, :, None] == chosen.row(runs)[:, None, :])[:, None]
        attention_mask = same if attention_mask is None else attention_mask & same
    padding_mask = None if mask.padding_mask is None else chosen.row(mask.padding_mask)
    return replace(
        mask,
        padding_mask=padding_mask,
        documents=None,
        attention_mask=attention_mask,
        bias=rows(mask.bias),
    )


def counts_up(padding_mask: Tensor | None) -> bool:
    """True where real tokens of every row are side by side, so that indices tell distances.

    False where the flags would have to be read at a cost.
    """
    if padding_mask is None:
        return True
    if not _may_ask(padding_mask):
        return False
    if real_last(padding_mask):
        return True
    begins = padding_mask[:, 1:] & ~padding_mask[:, :-1]
    return bool((begins.sum(1) + padding_mask[:, 0] <= 1).all())


def real_last(padding_mask: Tensor) -> bool:
    """True where no padding comes after a real token of any row; False where that costs
    something to know."""
    return surely(padding_mask[:, 1:] >= padding_mask[:, :-1])


def surely(flags: Tensor) -> bool:
    """True where all ``flags`` are; False where it costs something to know."""
    return _may_ask(flags) and bool(flags.all())


def all_read(num_tokens: Tensor, count: int) -> bool:
    """True where all ``num_tokens`` (B,) are known to be ``count``."""
    known = _told.get() if torch.compiler.is_exporting() else None
    if known is not None and known[0] is num_tokens:
        return known[1] == count
    return common(num_tokens) == count


@contextmanager
def told(num_tokens: Tensor, count: int) -> Iterator[None]:
    """Within it `all_read` knows that all ``num_tokens`` are ``count``, as in a graph, which cannot
    ask."""
    token = _told.set((num_tokens, count))
    try:
        yield
    finally:
        _told.reset(token)


def common(num_tokens: Tensor) -> int | None:
    """The one number that all ``num_tokens`` (B,) are; None if there is none, or it costs something
    to know."""
    return shared(_common, num_tokens)


def _common(num_tokens: Tensor) -> int | None:
    if not _may_ask(num_tokens):
        return None
    # rows are few, and reading them is no operation
    first, *others = set(num_tokens.tolist())
    return None if others else int(first)


def _may_ask(flags: Tensor) -> bool:
    """True where reading numbers stops neither a device nor a compiler."""
    return flags.device.type == "cpu" and not torch.compiler.is_compiling()


def _both(a: Tensor | None, b: Tensor) -> Tensor:
    return b if a is None else a & b
