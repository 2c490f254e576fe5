"""Softmax over the visible pairs of a plan, branch by branch, exactly.

    o_i = sum_b e^(l_ib - l_i) o_ib,   l_i = log sum_b e^(l_ib)

over branches b that share no pair: o_ib is plain attention inside the branch's units and l_ib the
log-sum of its exponentials. The gradients of a branch are those of plain attention whose output and
log-sum are the merged ones, since P_ij = e^(s_ij - l_i) wherever pair (i, j) is computed. So every
branch runs in fused kernels forward and backward, nothing of size L x L exists, and a union of
patterns is one softmax. Units are views of the tokens where a layout allows it, and windows are
worked through some at a time, so that gradients of keys, which stand in several of them, are
summed up while they are in the cache.

Source of the merge: Milakov & Gimelshein 2018, arXiv 1805.02867 (online normaliser); Dao et al.
2022, arXiv 2205.14135 (backward from the log-sum).
"""

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from everyformer.core.devices import Constant
from everyformer.engines.operators import operator
from everyformer.engines.softmax import kernels
from everyformer.engines.sparse.layouts import Tables, Windows
from everyformer.engines.sparse.plan import Branch, SparsePlan

ROOM = 1 << 19
"""numbers of the keys of units that each thread works on at a time, two megabytes: a layer of
longformer takes 181 MiB for 389 at 16,384 tokens, one of bigbird 229 for 433"""
LARGEST_SAVED = 1 << 22
"""entries of a mask that stays for the next call, 16 MB in float32"""


def fused(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, plan: SparsePlan, scale: float
) -> Tensor:
    """Outputs (B, L, H, D) of ``q``, ``k``, ``v`` (B, L, H, D) on a CPU.

    ``lengths`` (B,) int64 says how many tokens of a row are real; later ones are not read.
    """
    o, _ = _sparse_softmax(q, k, v, lengths, plan.text, scale)
    return o


class _Task(NamedTuple):
    """One branch of some heads in one row of the batch."""

    row: slice
    heads: slice | Tensor
    branch: Branch
    mask: Tensor | None
    """additive (U or 1, H or 1, R or 1, S)"""
    empty: Tensor | None
    """(U or 1, H or 1, R or 1) bool, queries that see nothing here"""
    alone: bool
    """whether it is all that there is for the row, so that nothing is merged or summed"""


def _tasks(q: Tensor, lengths: Tensor | None, text: str) -> Iterator[_Task]:
    batch, length, heads, _ = q.shape
    plan = SparsePlan.from_text(text)
    groups = plan.groups(length, heads)
    for g, group in enumerate(groups):
        chosen: slice | Tensor = slice(None)
        if len(group.heads) < heads:
            chosen = torch.tensor(group.heads)
        alone = len(groups) == len(group.branches) == 1 and group.branches[0].queries.rows is None
        for n, branch in enumerate(group.branches):
            if lengths is not None:
                masks = [_masked(branch, length, int(real), q.dtype) for real in lengths]
            elif branch.mask is not None and branch.mask.numbers.numel() > LARGEST_SAVED:
                masks = [_masked(branch, length, None, q.dtype)] * batch
            else:
                masks = [_saved_mask(text, length, heads, g, n, q.dtype)] * batch
            for part in _parts(branch, q.shape, chosen):
                for b in range(batch):
                    mask, empty = (_of_part(t, part) for t in masks[b])
                    yield _Task(slice(b, b + 1), part.heads, part.branch, mask, empty, alone)


class _Part(NamedTuple):
    """A part of a branch that is worked on at once."""

    branch: Branch
    heads: slice | Tensor
    units: slice = slice(None)


def _parts(branch: Branch, shape: tuple[int, ...], chosen: slice | Tensor) -> Iterator[_Part]:
    """A branch in parts: windows some at a time, tables a head at a time; whole where only some
    heads are ``chosen``, since gradients of these are put among the others' as a whole text."""
    queries, keys = branch.queries, branch.keys
    _, length, heads, channels = shape
    room = ROOM * torch.get_num_threads() // (heads * channels)
    if isinstance(chosen, Tensor) or not isinstance(queries, Windows):
        yield _Part(branch, chosen)
    elif isinstance(keys, Windows) and room < (units := queries.units(length)) * keys.wide:
        step = max(1, room // keys.wide)
        for first in range(0, units, step):
            stop = min(first + step, units)
            some = branch._replace(queries=queries.part(first, stop), keys=keys.part(first, stop))
            yield _Part(some, chosen, slice(first, stop))
    elif isinstance(keys, Tables) and room < keys.entries:
        for head in range(heads):
            yield _Part(branch._replace(keys=keys.of_head(head)), slice(head, head + 1))
    else:
        yield _Part(branch, chosen)


def _of_part(t: Tensor | None, part: _Part) -> Tensor | None:
    """The share of a part in ``t`` (U or 1, H or 1, ...), which has the chosen heads alone."""
    if t is None:
        return None
    t = t if len(t) == 1 else t[part.units]
    return t if t.shape[1] == 1 or isinstance(part.heads, Tensor) else t[:, part.heads]


@lru_cache(maxsize=16)
def _saved_mask(
    text: str, length: int, heads: int, group: int, branch: int, dtype: torch.dtype
) -> tuple[Tensor | None, Tensor | None]:
    """`_masked` of rows without padding, which the next call will need again."""
    groups = SparsePlan.from_text(text).groups(length, heads)
    return _masked(groups[group].branches[branch], length, None, dtype)


def _masked(
    branch: Branch, length: int, real: int | None, dtype: torch.dtype
) -> tuple[Tensor | None, Tensor | None]:
    """A branch's mask for a kernel, and the queries that see nothing in it."""
    visible = None if branch.mask is None else branch.mask.numbers
    # a triangle by itself hides what comes after a real query
    if real is not None and real < length and not branch.triangle:
        known = (branch.keys.positions(length) < real)[:, :, None]
        visible = known if visible is None else visible & known
    if visible is None:
        return None, None
    empty = ~visible.any(-1)
    mask = torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, -math.inf)
    return mask, empty if bool(empty.any()) else None


def _attend(
    q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None, plan: str, scale: float
) -> tuple[Tensor, Tensor]:
    """o (B, L, H, D) and log-sums (B, L, H); -inf where nothing is seen."""
    wide = torch.promote_types(q.dtype, torch.float32)
    o = torch.zeros(q.shape, dtype=wide)
    logsum = torch.full(q.shape[:3], -math.inf, dtype=wide)
    for task in _tasks(q, lengths, plan):
        queries, keys = task.branch.queries, task.branch.keys
        part, own = kernels.forward(
            _units(queries, q[task.row][:, :, task.heads]),
            *(_units(keys, t[task.row][:, :, task.heads]) for t in (k, v)),
            0.0,
            task.branch.triangle,
            attn_mask=task.mask,
            scale=scale,
        )
        if task.empty is not None:
            own = own.masked_fill(task.empty, -math.inf)
        part, own = (_ordered(queries, t, q.shape[1]) for t in (part, own))
        if task.alone:
            o[_at(task)], logsum[_at(task)] = part.to(wide), own
        else:
            _merge(o, logsum, task, part.to(wide), own)
    return o.to(q.dtype), logsum


def _merge(o: Tensor, logsum: Tensor, task: _Task, part: Tensor, logsum_of_part: Tensor) -> None:
    """Take a branch's outputs (1, L, H, D) and log-sums (1, L, H) of its queries in."""
    at = _at(task)
    before = logsum[at]
    both = torch.logaddexp(before, logsum_of_part)
    share = torch.where(logsum_of_part == -math.inf, 0.0, (logsum_of_part - both).exp())[..., None]
    rest = torch.where(before == -math.inf, 0.0, (before - both).exp())[..., None]
    o[at] = o[at] * rest + part * share
    logsum[at] = both


def _at(task: _Task) -> tuple[Any, ...]:
    """Index of a task's queries in tensors (B, L, H, ...)."""
    known = task.branch.queries.rows
    rows = known.numbers if isinstance(known, Constant) else known or slice(None)
    if isinstance(rows, slice) or isinstance(task.heads, slice):
        return task.row, rows, task.heads
    return task.row, rows[:, None], task.heads[None]


def _gradients(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, logsum: Tensor, grad_o: Tensor,
    lengths: Tensor | None, plan: str, scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    length = q.shape[1]
    # a query that sees nothing has no pair whose weight matters
    logsum = logsum.masked_fill(logsum == -math.inf, 0.0)
    dq, dk, dv = (torch.zeros_like(t, memory_format=torch.contiguous_format) for t in (q, k, v))
    for task in _tasks(q, lengths, plan):
        queries, keys = task.branch.queries, task.branch.keys
        g, q_units, o_units, total = (
            _units(queries, t[task.row][:, :, task.heads])
            for t in (grad_o, q, o, logsum[..., None])
        )
        k_units, v_units = (_units(keys, t[task.row][:, :, task.heads]) for t in (k, v))
        grads = kernels.backward(
            g, q_units, k_units, v_units, o_units, total.squeeze(-1).contiguous(),
            triangle=task.branch.triangle, mask=task.mask, scale=scale,
        )  # fmt: skip
        dq[_at(task)] += _ordered(queries, grads[0], length)
        for total, part in zip((dk, dv), grads[1:], strict=True):
            row, units = total[task.row], part.transpose(1, 2)[None]
            if isinstance(task.heads, slice):
                keys.add(units, row[:, :, task.heads])
            else:
                of_heads = row.new_zeros(1, length, *units.shape[3:])
                keys.add(units, of_heads)
                row[:, :, task.heads] += of_heads
    return dq, dk, dv


def _units(layout: Any, t: Tensor) -> Tensor:
    """One row's tokens (1, L, H, D) as (U, H, R, D), channels side by side as kernels take them."""
    units: Tensor = layout.take(t)[0].transpose(1, 2)
    return units if units.stride(-1) == 1 else units.contiguous()


def _ordered(layout: Any, units: Tensor, length: int) -> Tensor:
    """Units of queries (U, H, R, ...) as a row (1, L, H, ...)."""
    ordered: Tensor = layout.put(units.transpose(1, 2)[None], length)
    return ordered


def _scores(q: Any, plan: str) -> int:
    """Scores computed, times channels."""
    batch, length, heads, size = q
    return batch * size * SparsePlan.from_text(plan).pairs(length, heads)


_sparse_softmax, _ = operator(
    "sparse_softmax",
    _attend,
    _gradients,
    results=("o", "logsum"),
    inputs=("q", "k", "v"),
    shapes=kernels.shapes,
    flops=(lambda q, plan: 4 * _scores(q, plan), lambda q, plan: 10 * _scores(q, plan)),
)
