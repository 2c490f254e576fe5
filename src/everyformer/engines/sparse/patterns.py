"""Sparse patterns: which keys each query may see, and how such pairs lie in dense units.

``visible`` is the definition, for any integer positions; ``parts`` only says where the pairs that
it shows are to be found, so that an executor need not look at all of them. The mask of every unit
is made from ``visible``: a layout that holds too many pairs costs time, one that holds too few is
an error that the tests of every pattern find.

Positions count from 0. A query is i, a key is j, d = i - j.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from everyformer.core.devices import Constant
from everyformer.core.errors import GeneError
from everyformer.engines.sparse.layouts import (
    Folds,
    Indexed,
    KeyLayout,
    Layout,
    Tables,
    Windows,
    whole,
)

Part = tuple[Layout, KeyLayout]
"""how queries and how the keys they may see are laid out, unit by unit"""


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """Base of all patterns; ``causal`` hides j > i."""

    kind: ClassVar[str]
    causal: bool = True

    def visible(self, i: Tensor, j: Tensor, head: Tensor) -> Tensor:
        """bool, of positions (and heads) that broadcast."""
        sees = self._sees(i, j, head)
        return sees & (j <= i) if self.causal else sees

    def parts(self, length: int) -> Iterator[Part]:
        """Parts that hold its pairs, in a row of ``length`` tokens."""
        raise NotImplementedError

    @property
    def span(self) -> int | None:
        """Largest distance back to a visible key; None: as far as the text is long."""
        return None

    @property
    def heads(self) -> int:
        """Heads that it tells apart; 1 where all see alike."""
        return 1

    def needed(self, j: Tensor, now: Tensor) -> Tensor:
        """Flags of the keys j < ``now`` that some query i >= ``now`` may still see."""
        raise NotImplementedError

    def _sees(self, i: Tensor, j: Tensor, head: Tensor) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Near(Pattern):
    """Keys 0 <= d <= ``before`` and, unless causal, 0 <= -d <= ``after``; None: all.

    With a ``dilation`` b only those with d divisible by b, up to ``before`` b away.
    """

    kind = "near"
    before: int | None = None
    after: int | None = None
    dilation: int = 1

    def __post_init__(self) -> None:
        if (self.before or 0) < 0 or (self.after or 0) < 0 or self.dilation < 1:
            raise GeneError(
                f"a window sees a number of keys before and after, not {self.before} and "
                f"{self.after}, and its dilation is at least 1, not {self.dilation}"
            )

    def _sees(self, i: Tensor, j: Tensor, head: Tensor) -> Tensor:
        apart = i - j
        near = apart % self.dilation == 0
        if self.before is not None:
            near = near & (apart <= self.before * self.dilation)
        if self.causal or self.after is None:
            return near
        return near & (apart >= -self.after * self.dilation)

    def parts(self, length: int) -> Iterator[Part]:
        each = -(-length // self.dilation)
        before = each - 1 if self.before is None else min(self.before, each - 1)
        after = each - 1 if self.after is None else min(self.after, each - 1)
        after = 0 if self.causal else after
        size = unit_size(before + after + 1)
        if size + before + after >= each:
            queries = keys = whole(each)
        else:
            # kernels read masks of a multiple of 16 columns faster
            spare = -(size + before + after) % 16
            queries, keys = Windows(size), Windows(size, before + spare, after)
        if self.dilation == 1:
            yield queries, keys
        elif queries == keys:
            yield Folds(self.dilation), Folds(self.dilation)
        else:
            yield Folds(self.dilation, queries), Folds(self.dilation, keys)

    @property
    def span(self) -> int | None:
        return None if self.before is None else self.before * self.dilation

    def needed(self, j: Tensor, now: Tensor) -> Tensor:
        if self.before is None:
            return torch.ones_like(j, dtype=torch.bool)
        return j >= now - self.before * self.dilation


@dataclass(frozen=True, kw_only=True)
class Blocks(Pattern):
    """Keys of the query's own block of ``size``, ``before`` in front of it and ``after`` after it.

    All tokens of a block see the same stretch (up to themselves if causal): Image Transformer 1-D
    (l_q = size, l_m = before), and with neither the first set of the fixed Sparse Transformer.
    """

    kind = "blocks"
    size: int
    before: int = 0
    after: int = 0
    skip: int = 0
    """tokens in front that lie in no block"""

    def __post_init__(self) -> None:
        if self.size < 1 or self.before < 0 or self.after < 0 or self.skip < 0:
            raise GeneError(
                f"blocks have at least 1 token, not {self.size}, and see a number of others before "
                f"and after, not {self.before} and {self.after}"
            )

    def _sees(self, i: Tensor, j: Tensor, head: Tensor) -> Tensor:
        first = (i - self.skip) // self.size * self.size + self.skip
        inside = j >= first - self.before
        if self.skip:
            inside = inside & (i >= self.skip) & (j >= self.skip)
        return inside if self.causal else inside & (j < first + self.size + self.after)

    def parts(self, length: int) -> Iterator[Part]:
        rest = length - self.skip
        if self.size >= length:
            yield whole(length), whole(length)
        elif rest > 0:
            after = 0 if self.causal else min(self.after, rest)
            yield (
                Windows(self.size, skip=self.skip),
                Windows(self.size, min(self.before, rest), after, self.skip),
            )

    @property
    def span(self) -> int | None:
        return self.size - 1 + self.before

    def needed(self, j: Tensor, now: Tensor) -> Tensor:
        return j >= (now - self.skip) // self.size * self.size + self.skip - self.before


@dataclass(frozen=True, kw_only=True)
class Columns(Pattern):
    """Keys with ``first`` <= j mod ``period`` < ``last``: the summaries of the fixed pattern."""

    kind = "columns"
    period: int
    first: int
    last: int

    def __post_init__(self) -> None:
        if not 0 <= self.first < self.last <= self.period:
            raise GeneError(
                f"columns {self.first} to {self.last} do not lie in a period of {self.period}"
            )

    def _sees(self, i: Tensor, j: Tensor, head: Tensor) -> Tensor:
        return self._among(j) | torch.zeros_like(i, dtype=torch.bool)

    def parts(self, length: int) -> Iterator[Part]:
        tokens = torch.arange(length)
        summaries = tokens[self._among(tokens)]
        # causal rows come in stretches, each with the columns that its last row sees
        step = max(512, self.period) if self.causal else length
        for begin in range(0, length, step):
            rows = tokens[begin : begin + step]
            keys = summaries[summaries <= int(rows[-1])] if self.causal else summaries
            if len(keys):
                yield Indexed(rows[None]), Indexed(keys[None])

    def needed(self, j: Tensor, now: Tensor) -> Tensor:
        return self._among(j)

    def _among(self, j: Tensor) -> Tensor:
        column = j % self.period
        return (column >= self.first) & (column < self.last)


@dataclass(frozen=True, kw_only=True)
class _OfTokens(Pattern):
    tokens: tuple[int, ...]
    runs: tuple[tuple[int, int], ...] = field(init=False, repr=False, compare=False)
    """first and last of tokens that stand side by side: compilers of kernels take no tensor here"""

    def __post_init__(self) -> None:
        if any(token < 0 for token in self.tokens):
            raise GeneError(f"global tokens are positions from 0 on, not {self.tokens}")
        every = set(self.tokens)
        firsts = sorted(token for token in every if token - 1 not in every)
        lasts = sorted(token for token in every if token + 1 not in every)
        object.__setattr__(self, "runs", tuple(zip(firsts, lasts, strict=True)))

    def _among(self, at: Tensor) -> Tensor:
        among = torch.zeros_like(at, dtype=torch.bool)
        for first, last in self.runs:
            among = among | ((at >= first) & (at <= last))
        return among

    def _within(self, length: int) -> Indexed | None:
        real = [token for token in sorted(set(self.tokens)) if token < length]
        return Indexed(torch.tensor([real])) if real else None


@dataclass(frozen=True, kw_only=True)
class GlobalKeys(_OfTokens):
    """Keys that every query sees."""

    kind = "global-keys"

    def _sees(self, i: Tensor, j: Tensor, head: Tensor) -> Tensor:
        return self._among(j) | torch.zeros_like(i, dtype=torch.bool)

    def parts(self, length: int) -> Iterator[Part]:
        chosen = self._within(length)
        if chosen is not None:
            yield whole(length), chosen

    def needed(self, j: Tensor, now: Tensor) -> Tensor:
        return self._among(j)


@dataclass(frozen=True, kw_only=True)
class GlobalQueries(_OfTokens):
    """Queries that see every key."""

    kind = "global-queries"

    def _sees(self, i: Tensor, j: Tensor, head: Tensor) -> Tensor:
        return self._among(i) | torch.zeros_like(j, dtype=torch.bool)

    def parts(self, length: int) -> Iterator[Part]:
        chosen = self._within(length)
        if chosen is not None:
            yield chosen, whole(length)

    def needed(self, j: Tensor, now: Tensor) -> Tensor:
        return (now <= max(self.tokens, default=-1)) | torch.zeros_like(j, dtype=torch.bool)


@dataclass(frozen=True, kw_only=True)
class BlockTable(Pattern):
    """Whole blocks of ``size``: block a sees the blocks ``table[head][a]`` (ascending).

    One entry of ``table`` serves all heads. Blocks without a row see none.
    """

    kind = "block-table"
    size: int
    table: tuple[tuple[tuple[int, ...], ...], ...] = field(repr=False)
    skip: int = 0
    """tokens in front that lie in no block"""
    seen: Constant = field(init=False, repr=False, compare=False)
    """(H or 1, blocks, blocks) bool: the table"""

    def __post_init__(self) -> None:
        blocks = [block for rows in self.table for row in rows for block in row]
        if min(blocks, default=0) < 0:
            raise GeneError(f"blocks of a table count from 0, so none of them is {min(blocks)}")
        count = max(max(len(rows) for rows in self.table), max(blocks, default=-1) + 1)
        # numbers, wherever weights are made
        with torch.device("cpu"):
            entries = self._entries(count)
            seen = torch.zeros(*entries.shape[:2], count + 1, dtype=torch.bool)
            # what is none goes to a column that is cut off
            at = torch.where(entries < 0, count, entries)
            seen = seen.scatter(2, at, True)[..., :count].contiguous()
        object.__setattr__(self, "seen", Constant(seen))

    @property
    def heads(self) -> int:
        return len(self.table)

    def _sees(self, i: Tensor, j: Tensor, head: Tensor) -> Tensor:
        seen = self.seen.on(i.device)
        last = seen.shape[-1] - 1
        a, b = (i - self.skip) // self.size, (j - self.skip) // self.size
        known = (a <= last) & (b <= last) & (a >= 0) & (b >= 0)
        return seen[head % len(seen), a.clamp(0, last), b.clamp(0, last)] & known

    def parts(self, length: int) -> Iterator[Part]:
        table = self._entries(max(0, -(-(length - self.skip) // self.size)))
        if table.numel():
            yield (
                Windows(self.size, skip=self.skip), Tables(self.size, table, self.skip)
            )  # fmt: skip

    def needed(self, j: Tensor, now: Tensor) -> Tensor:
        blocks = self.seen.numbers.shape[-1]
        # the last block that sees each of them
        users = self.seen.numbers.any(0) * torch.arange(1, blocks + 1)[:, None]
        last = users.amax(0).to(j.device) - 1
        b = (j - self.skip) // self.size
        known = (b >= 0) & (b < blocks)
        return known & (last[b.clamp(0, blocks - 1)] >= (now - self.skip) // self.size)

    def _entries(self, blocks: int) -> Tensor:
        """The table of the first ``blocks`` (H or 1, blocks, most), -1 for none."""
        rows = [[[b for b in row if b < blocks] for row in head[:blocks]] for head in self.table]
        most = max((len(row) for head in rows for row in head), default=0)
        filled = [[row + [-1] * (most - len(row)) for row in head] for head in rows]
        filled = [head + [[-1] * most] * (blocks - len(head)) for head in filled]
        return torch.tensor(filled, dtype=torch.long).view(len(rows), blocks, most)


@dataclass(frozen=True, kw_only=True)
class PastBlocks(Pattern):
    """The block of ``size`` keys that lies ``shift`` blocks before the query's.

    Where there is none: the query's own block. Causal Blockwise.
    """

    kind = "past-blocks"
    size: int
    shift: int = 0

    def __post_init__(self) -> None:
        if self.size < 1 or self.shift < 0:
            raise GeneError(
                f"a block has at least 1 token, not {self.size}, and lies at least 0 blocks back, "
                f"not {self.shift}"
            )

    def _sees(self, i: Tensor, j: Tensor, head: Tensor) -> Tensor:
        block = i // self.size
        read = block - self.shift
        return j // self.size == torch.where(read < 0, block, read)

    def parts(self, length: int) -> Iterator[Part]:
        back = self.shift * self.size
        yield Windows(self.size), Windows(self.size, back, -back)
        if self.shift:
            first = torch.arange(min(self.shift, -(-length // self.size)) * self.size)
            own = torch.where(first < length, first, -1).unflatten(0, (-1, self.size))
            yield Indexed(own), Indexed(own)

    @property
    def span(self) -> int | None:
        return (self.shift + 1) * self.size - 1

    def needed(self, j: Tensor, now: Tensor) -> Tensor:
        return torch.ones_like(j, dtype=torch.bool)


def unit_size(width: int) -> int:
    """Queries of a unit for windows of ``width`` keys: a quarter or an eighth, from 64 to 256.

    A unit of R queries reads R + width - 1 keys, of which R - 1 in vain, but with more queries keys
    stand in fewer units. Measured on two cores at model width 256 (forward and backward, fastest of
    25): 257 keys at 4,096 tokens 89 ms with 64 rows, 94 with 128; 1,025 keys at 8,192 tokens 472 ms
    with 64 rows, 440 with 128, 423 with 256.
    """
    return min(256, max(64, (1 << width.bit_length()) // 8))
