"""Attention over the pairs that a plan shows: three executors of one description.

``dense`` computes all pairs under the plan's mask and is what the others are tested against;
``blocked`` computes the plan's units, by fused kernels on a CPU where nothing but the pattern
changes the scores, else by torch's operations; ``flex`` is torch's FlexAttention on a GPU.
``auto`` takes the last on a GPU and otherwise what makes fewer scores.

Rows are compact here: real tokens first, ``lengths`` of them. Padding between or on the left and
packed documents are taken out before (`everyformer.engines.rows`), so position = index.
"""

import copy
import math
from functools import lru_cache
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from everyformer.core.dispatch import Against, dispatch, take
from everyformer.core.errors import ConfigError, ShapeError, UnsupportedError
from everyformer.core.leaving import leaves_torch
from everyformer.engines.ranges import HALF
from everyformer.engines.softmax.kernels import for_kernels
from everyformer.engines.softmax.pairs import Pairs
from everyformer.engines.softmax.scored import Scores
from everyformer.engines.softmax.slopes import with_slopes_in
from everyformer.engines.softmax.visibility import Visibility
from everyformer.engines.sparse.branches import fused
from everyformer.engines.sparse.by_torch import by_parts
from everyformer.engines.sparse.layouts import Tables
from everyformer.engines.sparse.opaque import opaque_parts
from everyformer.engines.sparse.plan import SparsePlan

Backend = Literal["auto", "dense", "blocked", "flex"]
BACKENDS: tuple[str, ...] = get_args(Backend)

WORTH = 0.6
"""share of the square that units may compute at most to be worth it: between windows of 256 at
1,024 tokens (0.33 of the pairs, 0.7 of the time) and of 512 to both sides (1.0, 1.1)"""
SHORT = 256
"""tokens up to which all pairs are computed: there calls cost more than scores"""
LEAST = 16
"""channels of a head that FlexAttention takes at least"""
SQUARE = 128
"""queries and keys of a block of FlexAttention's"""
EXPORTED = "an exported program serves texts of any length"


def sparse_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    plan: SparsePlan,
    *,
    lengths: Tensor | None = None,
    scores: Scores | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """Heads' outputs (B, H, L, D) of ``q``, ``k``, ``v`` (B, H, L, D) under a plan.

    Args:
        v: may have another number of channels than q and k.
        lengths: (B,) int64, how many tokens of each row are real, the first ones; default: all.
            Outputs of the others mean nothing.
        scores: scale, position and dropout; nothing else is supported.
        backend: the executor.

    Returns:
        In v's dtype; zero where a query sees nothing.

    Raises:
        ShapeError: other shapes, or a plan for another number of heads.
        UnsupportedError: an executor that cannot run here, scores with a softcap or a sink.
    """
    scores = scores or Scores()
    if scores.softcap is not None or scores.sink is not None:
        raise UnsupportedError("a plan's scores have no softcap and no sink")
    if q.dim() != 4 or q.shape != k.shape or q.shape[:-1] != v.shape[:-1]:
        raise ShapeError(
            "a plan is over one sequence: q, k and v must be (batch, heads, length, size) alike, "
            f"not {tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}"
        )
    plan.check_heads(q.shape[1])
    scale, executor = scores.factor(q), choose(plan, q, scores, backend)
    if executor == "dense":
        visible, pairs = _all_pairs(q, plan, lengths)
        return scores.attend(q, k, v, visible, pairs)
    if executor == "flex":
        return by_flex(q, k, v, plan, lengths, scale)
    slopes, size = _slopes(plan, q, scores), v.shape[-1]
    plain = (scores.position is None or slopes is not None) and not scores.dropout
    if plain and q.device.type == "cpu":
        if slopes is not None:
            q, k, v = with_slopes_in(q, k, v, slopes / scale)
        o = fused(*_rows(*for_kernels(q, k, v)), lengths, plan, scale)
        return o[..., :size].transpose(1, 2)
    if torch.compiler.is_compiling():
        return opaque_parts(*_rows(q, k, v), lengths, plan, scores).transpose(1, 2)
    return by_parts(*_rows(q, k, v), lengths, plan, scores)[0].transpose(1, 2)


def sparse_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, plan: SparsePlan, *, scale: float | None = None
) -> Tensor:
    """`sparse_attention` under the plan's mask, one query and head at a time."""
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    mask = plan.mask(q.shape[2], q.shape[1]).to(q.device).expand(q.shape[1], -1, -1)
    o = torch.zeros_like(v)
    for h in range(q.shape[1]):
        for i in range(q.shape[2]):
            keys = mask[h, i].nonzero().squeeze(1)
            if len(keys):
                scores = scale * (k[:, h, keys] @ q[:, h, i, :, None]).squeeze(-1)
                weights = scores.softmax(-1)
                o[:, h, i] = (weights[:, None] @ v[:, h, keys]).squeeze(1)
    return o


def _rows(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(B, L, H, D) each, as the projections made them."""
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def choose(plan: SparsePlan, q: Tensor, scores: Scores, backend: str) -> str:
    """The executor of a call, by name."""
    if backend not in BACKENDS:
        raise ConfigError(f"`backend='{backend}'` is none of {', '.join(BACKENDS)}")
    against = {"flex": _against_flex, "blocked": _against_units}
    if backend == "auto":
        graph = leaves_torch()
        short = not graph and q.shape[2] <= SHORT
        ways: tuple[tuple[str, Against], ...] = (
            ("flex", lambda: "texts are short" if short else _against_flex(plan, q, scores)),
            ("dense", lambda: None if short or _as_many(plan, q) else "few pairs are visible"),
            ("blocked", lambda: EXPORTED if graph else _against_units(plan, q, scores)),
        )
        return dispatch("sparse attention", ways, last="dense")
    if backend in against and (why := against[backend](plan, q, scores)) is not None:
        raise UnsupportedError(f"backend '{backend}' cannot run here, since {why}: use 'auto'")
    take("sparse attention", backend)
    return backend


def _against_flex(plan: SparsePlan, q: Tensor, scores: Scores) -> str | None:
    if scores.position is not None or scores.dropout:
        return "a position or dropout changes the scores"
    if q.device.type != "cuda" or q.dtype == torch.float64:
        return f"FlexAttention is for GPUs, not {q.device.type} in {q.dtype}"
    if q.shape[-1] < LEAST:
        return f"FlexAttention wants heads of {LEAST} channels or more"
    if torch.compiler.is_compiling():
        return EXPORTED if leaves_torch() else None
    return None if _get_current_dispatch_mode() is None else "operations are looked at one by one"


def _against_units(plan: SparsePlan, q: Tensor, scores: Scores) -> str | None:
    position, (heads, length) = scores.position, q.shape[1:3]
    if torch.compiler.is_compiling():
        if position is None or position.additive or _slopes(plan, q, scores) is not None:
            return None
        return "a compiler cannot follow units where a position does more than add by distance"
    if position is not None and not position.additive and _has_tables(plan, length, heads):
        return "the position changes scores by more than distance, and heads read different blocks"
    return None


def _as_many(plan: SparsePlan, q: Tensor) -> bool:
    """True where units would compute as many scores as all pairs, or nearly."""
    heads, length = q.shape[1:3]
    if torch.compiler.is_compiling():
        return plan.complete
    return plan.pairs(length, heads) >= WORTH * heads * length**2


def _slopes(plan: SparsePlan, q: Tensor, scores: Scores) -> Tensor | None:
    """m of a bias -m (i - j), if that is all that a position does and channels may hold it."""
    if scores.position is None or not plan.causal or q.dtype not in HALF:
        return None
    return scores.position.slopes_of(torch.promote_types(q.dtype, torch.float32), q.device)


def _has_tables(plan: SparsePlan, length: int, heads: int) -> bool:
    branches = (b for group in plan.groups(length, heads) for b in group.branches)
    return any(isinstance(branch.keys, Tables) for branch in branches)


def by_flex(
    q: Tensor, k: Tensor, v: Tensor, plan: SparsePlan, lengths: Tensor | None, scale: float
) -> Tensor:
    """Outputs (B, H, L, D) of ``q``, ``k``, ``v`` (B, H, L, D) by torch's FlexAttention.

    On a CPU it has no gradients and its uncompiled form makes L x L scores, so that it serves there
    as one more check of the masks alone (torch issue 148752).
    """
    from torch.nn.attention.flex_attention import flex_attention

    blocks = _blocks(plan, q, lengths)
    attend: Any = _compiled() if q.is_cuda else flex_attention
    o: Tensor = attend(q, k, v, block_mask=blocks, scale=scale)
    return o


def _blocks(plan: SparsePlan, q: Tensor, lengths: Tensor | None) -> Any:
    """FlexAttention's blocks of pairs: those of a plan are kept, also where rows have lengths of
    their own, which it then asks for pair by pair."""
    heads, length = q.shape[1:3]
    if torch.compiler.is_compiling():
        from torch.nn.attention.flex_attention import create_block_mask

        of = None if lengths is None else len(q), heads if len(plan.heads) > 1 else None
        return create_block_mask(_visible(plan, lengths), *of, length, length, device=q.device)
    blocks = _kept_blocks(plan.text, heads, length, q.device, lengths is not None)
    if lengths is not None:
        blocks = copy.copy(blocks)
        blocks.mask_mod = _visible(SparsePlan.from_text(plan.text), lengths)
    return blocks


@lru_cache(maxsize=64)
def _kept_blocks(text: str, heads: int, length: int, device: torch.device, ask: bool) -> Any:
    """Blocks of a plan, looked at a row of them at a time, so that no L x L is made.

    Args:
        ask: pairs are asked for also in blocks of which the plan shows all.
    """
    from torch.nn.attention.flex_attention import BlockMask

    plan, count = SparsePlan.from_text(text), -(-length // SQUARE)
    with torch.inference_mode(False), torch.no_grad():
        j = torch.arange(count * SQUARE, device=device)
        found = []
        for i in j.split(SQUARE):
            seen = plan.visible(i, j, heads) & (j < length) & (i < length)[:, None]
            squares = seen.unflatten(-1, (count, SQUARE))
            found.append((squares.any(-1).any(-2), squares.all(-1).all(-2)))
        some, every = (torch.stack(flags, 1)[None] for flags in zip(*found, strict=True))
        full: tuple[Tensor | None, Tensor | None] = (None, None) if ask else _listed(every)
        return BlockMask.from_kv_blocks(
            *_listed(some if ask else some & ~every), *full, BLOCK_SIZE=SQUARE,
            mask_mod=_visible(plan, None), seq_lengths=(length, length),
        )  # fmt: skip


def _listed(flags: Tensor) -> tuple[Tensor, Tensor]:
    """The count of flags in the last dimension, and the places of all, flagged ones first."""
    return flags.sum(-1).int(), flags.byte().argsort(dim=-1, descending=True, stable=True).int()


def _visible(plan: SparsePlan, lengths: Tensor | None) -> Any:
    def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        mask = torch.zeros_like(i, dtype=torch.bool)
        for n, union in enumerate(plan.heads):
            one = torch.zeros_like(mask)
            for pattern in union:
                one = one | pattern.visible(i, j, h)
            mask = mask | (one if len(plan.heads) == 1 else one & (h == n))
        return mask if lengths is None else mask & (j < lengths[b])

    return visible


@lru_cache(maxsize=1)
def _compiled() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


def _all_pairs(q: Tensor, plan: SparsePlan, lengths: Tensor | None) -> tuple[Visibility, Pairs]:
    index = torch.arange(q.shape[2], device=q.device)
    pairs = Pairs.of(index[None], index[None], regular=True, causal=plan.causal)
    # padding comes after what is real, so that no real causal query sees it
    if plan.complete and (plan.causal or lengths is None):
        return Visibility(causal=plan.causal), pairs
    visible = plan.visible(index, index, q.shape[1])[None]
    if lengths is not None:
        visible = visible & (index < lengths[:, None])[:, None, None]
    return Visibility(mask=visible), pairs


def dense_weights(
    q: Tensor, k: Tensor, plan: SparsePlan, lengths: Tensor | None, scores: Scores
) -> Tensor:
    """The matrix of weights itself (B, H, L, L), to be looked at."""
    return scores.weights(q, k, *_all_pairs(q, plan, lengths))
