"""Blocks that a block of queries may read at random: drawn once, held in a buffer.

An order (H, n, C) lists for every head and block of queries candidates among n blocks, the first
ones first; -1 is none. `random_edges` takes of them the first r that a text has and that are
neither in the window nor global. So a text of any length has r random blocks while there are as
many, all rows of a batch may have other lengths, and longer texts change nothing for causal rows.

- ``uniform_order``: all blocks in random order, so that the r are drawn evenly without replacement
  from what remains, whatever the length; less those that no length ever takes (`shortlist`), which
  leaves C = O(r log n) of n.
- ``released_order``: the tables of the released code of BigBird (C = r), for one length.

Source: Zaheer et al. 2020, arXiv 2007.14062, appendix D; google-research/bigbird and transformers,
whose numbers come from NumPy's ``RandomState``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

PUBLISHED = (1024, 3072, 4096)
"""lengths whose tables the release draws from their first tokens alone"""
DRAWN_FROM = 1024
"""these first tokens"""


def uniform_order(heads: int, blocks: int, seed: int) -> Tensor:
    """(H, n, n) int32: for every head and row all blocks in random order."""
    generator = torch.Generator("cpu").manual_seed(seed)
    drawn = torch.rand(heads, blocks, blocks, generator=generator, device="cpu")
    return drawn.argsort(-1).to(torch.int32)


def shortlist(order: Tensor, count: int, rules: Rules) -> Tensor:
    """Candidates (H, n, C) that `random_edges` can take of an order (H, n, n), for any length.

    A text of m blocks takes the first ``count`` below m, but for the window and the global blocks.
    So a block after as many smaller ones is never taken. There are about r (1 + ln n / r) others,
    with r = ``count`` and one more for each block that is global by its distance from the end; C is
    eight standard deviations above.
    """
    _, n, _ = order.shape
    most = count + sum(block < 0 for block in rules.always)
    mean = most * (1 + math.log(max(1.0, n / most)))
    size = min(n, math.ceil(mean + 8 * math.sqrt(mean)))
    if size == n:
        return order
    near, always = fixed_edges(replace(rules, always=tuple(b for b in rules.always if b >= 0)), n,
                               torch.tensor([n], device=order.device))  # fmt: skip
    never = (near[0] | always[0]).expand_as(order).gather(-1, order.long())
    # rank by rank, what is never taken above all others
    ranks = order.masked_fill(never, n).permute(2, 0, 1).contiguous()
    smallest = order.new_full((most, *order.shape[:2]), n)
    smaller = []
    for rank in ranks:
        smaller.append(rank < smallest[-1])
        # put among the smallest so far, which stand in ascending order
        before = torch.cat((smallest.new_full((1, *rank.shape), -1), smallest[:-1]))
        smallest = torch.minimum(smallest, torch.maximum(before, rank))
    taken = torch.stack(smaller, -1)
    first = torch.argsort((~taken).to(torch.uint8), dim=-1, stable=True)[..., :size]
    listed = order.gather(-1, first).masked_fill(~taken.gather(-1, first), -1)
    return listed.contiguous()


def released_order(heads: int, length: int, size: int, count: int, seed: int) -> Tensor:
    """(H, n, count) int32 of a text of ``length`` tokens, a multiple of ``size``."""
    generator = np.random.RandomState(seed)
    blocks = length // size
    order = np.full((heads, blocks, count), -1, dtype=np.int32)
    if length in PUBLISHED:
        for head in range(heads):
            for row in range(1, blocks - 1):
                chosen = generator.permutation(_from_prefix(row, blocks, size))[:count]
                order[head, row, : len(chosen)] = chosen
    else:
        _by_plan(order, generator)
    order[:, [0, -1]] = -1
    return torch.from_numpy(order)


def _from_prefix(row: int, blocks: int, size: int) -> np.ndarray:
    """Candidates of a row for the published lengths: inner blocks before ``last``."""
    inner = np.arange(1, blocks - 1, dtype=np.int32)
    last = DRAWN_FROM // size - 1 if 2 * size < DRAWN_FROM else blocks - 1
    if row > 2 and (row >= blocks - 3 or row - 2 > last):
        return inner[:last]
    return np.concatenate((inner[: max(row - 2, 0)], inner[row + 1 : last]))


def _by_plan(order: np.ndarray, generator: np.random.RandomState) -> None:
    """Other lengths: all from a prefix of 2 r + 5 blocks, or half of them if there are not more."""
    _, blocks, count = order.shape
    filled = np.zeros(order.shape[:2], dtype=np.int64)

    def draw(rows: range, first: int, last: int, most: int) -> None:
        for row in rows if most else ():
            for head in range(len(order)):
                legal = [b for b in generator.permutation(np.arange(first, last, dtype=np.int32))
                         if _legal(int(b), row, last)][:most]  # fmt: skip
                at = filled[head, row]
                order[head, row, at : at + len(legal)] = legal
                filled[head, row] += len(legal)

    if 2 * count + 5 < blocks:
        draw(range(1, blocks), 0, 2 * count + 5, count)
    elif count + 5 < blocks:
        early, half = count + 5, count // 2
        draw(range(1, early), 0, early, half)
        draw(range(1, early), early, blocks, count - half)
        draw(range(early, blocks), 0, early, half)
        draw(range(early, blocks), early, blocks, count - half)
    else:
        draw(range(1, blocks), 0, blocks, count)


def _legal(block: int, row: int, last: int) -> bool:
    """True where a row may draw a block: neither near, nor at either end of those up to last."""
    if abs(block - row) <= 1 or block in (0, last - 1):
        return False
    return not (row == 1 and block == last - 2) and not (row == last - 2 and block == 1)


@dataclass(frozen=True)
class Rules:
    """Rules of which blocks see which without chance."""

    half: int
    """blocks of the window to each side"""
    always: tuple[int, ...]
    """blocks that see all and are seen by all; negative ones count from a text's end"""
    causal: bool


def fixed_edges(rules: Rules, most: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
    """The window, and which blocks are global, of texts of ``blocks`` (B,) blocks, n at most.

    Returns:
        (1, n, n) bool and (B, n) bool.
    """
    at = torch.arange(most, device=blocks.device)
    apart = at[:, None] - at
    near = (apart <= rules.half) & (apart >= (0 if rules.causal else -rules.half))
    always = torch.zeros(blocks.shape[0], most, dtype=torch.bool, device=blocks.device)
    for block in rules.always:
        always = always | (at == (block if block >= 0 else blocks[:, None] + block))
    return near[None], always & (at < blocks[:, None])


def random_edges(order: Tensor, count: int, rules: Rules, most: int, blocks: Tensor) -> Tensor:
    """(B, H, n, n) bool: the random blocks of texts of ``blocks`` (B,) blocks."""
    near, always = fixed_edges(rules, most, blocks)
    at = torch.arange(most, device=blocks.device)
    real = at < blocks[:, None]
    able = ~near & ~always[:, None] & ~always[:, :, None] & real[:, None] & real[:, :, None]
    if rules.causal:
        able = able & (at[:, None] > at)
    listed = order[:, :most].long()
    within = listed.clamp(0, most - 1)[None].expand(blocks.shape[0], -1, -1, -1)
    able = able[:, None].expand(-1, len(order), -1, -1).gather(3, within)
    able = able & (listed >= 0) & (listed < most)
    taken = able & (able.long().cumsum(3) <= count)
    edges = torch.zeros(*taken.shape[:3], most + 1, dtype=torch.bool, device=blocks.device)
    # what is not taken goes to a place of its own, which is cut off
    return edges.scatter(3, torch.where(taken, within, most), True)[..., :most]
