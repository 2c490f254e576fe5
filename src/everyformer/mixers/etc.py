"""ETC: long tokens read their neighbourhood and all global tokens; global tokens read everything.

    long i      softmax over { long j : |i - j| <= r } and all globals
    global s    softmax over all globals and { long j }, hard g2l: of its own sentence alone
    score(x -> y, label t) = (q . k + q . a_t + b_t) / sqrt(D)

r = ``radius``. Label t of two long or two global tokens is their distance, clipped to k = ``clip``:
0 the token itself, 1 .. k to the right, k + 1 .. 2k to the left. Between a long and a global token
it is 2k + 1, or 2k + 2 if the long one is in the sentence that the global one stands for; without
``ordered`` it is 2k + 3 between any two global tokens. Each side of queries has its own a and b.
One softmax goes over both kinds of keys: two would be another model (and not equal to plain
attention anywhere).

Which tokens are global is ``mask.global_tokens``, their sentences are ``mask.sentences``; without
globals this is local attention with relative labels. `everyformer.models.summaries` puts a global
token in front for every sentence, or every so many tokens. Order enters through labels alone.

Cost: O(L (r + g) d), g globals. No causal form: a global token would show later text to earlier.

Source: Ainslie et al. 2020, arXiv 2004.08483, section 2; released code for what the text leaves
open (fused softmax, b inside the scale, hard g2l in all released models).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyformer.core.errors import GeneError, ShapeError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.core.mixer import Context, Mixer, heads_divide, set_options
from everyformer.core.outputs import MixerOutput
from everyformer.core.state import State
from everyformer.core.trace import record, tracing
from everyformer.engines.layouts import Windows
from everyformer.engines.patterns import unit_size
from everyformer.engines.rows import gather_rows, order_of_real
from everyformer.engines.sparse_parts import laid
from everyformer.mixers import MIXERS
from everyformer.mixers._global_local import (
    Labels,
    Row,
    Side,
    labelled,
    same_in_units,
    seen_of,
    wide,
)


@dataclass(frozen=True)
class ETCOptions:
    radius: int = 84
    """r, long tokens seen to each side"""
    clip: int = 12
    """k, distances that have labels of their own"""
    direction: bool = True
    """whether left and right have different labels"""
    ordered: bool = True
    """whether global tokens have distances; without, all others have one label: contexts that stand
    in no order"""
    sharing: Literal["all", "sides", "none"] = "all"
    """projections: one set for all; one for long and one for global queries, which project all they
    read; or keys and values also apart for long and global ones"""
    share_output: bool = False
    """whether long and global tokens share the output layer"""
    hard_g2l: bool = True
    """a global token reads long tokens of its own sentence alone"""
    hard_l2g: bool = False
    """a long token reads the global token of its own sentence alone"""
    bias: tuple[Literal["query", "key", "value", "output"], ...] = ()
    """which projections have a bias"""
    attention_dropout: float = 0.0
    """dropout on the weights in training"""


@MIXERS.register("etc")
class ETC(Mixer):
    """Global-local attention over (B, L, width), with its projections.

    Args:
        width: channels of x.
        heads: H.
        causal: refused: there is no causal form.
        max_length: not needed.
        options: `ETCOptions` or a dictionary.

    Raises:
        GeneError: a causal form, a radius or clip that cannot be.
    """

    name = "etc"
    honours = frozenset({"keep", "documents", "global_tokens", "sentences"})
    Options = ETCOptions

    def __init__(
        self, *, width: int, heads: int = 1, causal: bool = False, max_length: int | None = None,
        options: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        o: ETCOptions = set_options(ETCOptions, self.name, options)
        if causal:
            raise GeneError(
                "etc has no causal form: a global token, which all read, would show later tokens "
                "to earlier ones; use it for tasks mlm and classify-text"
            )
        if o.radius < 0 or o.clip < 1 or not 0 <= o.attention_dropout < 1:
            raise GeneError(
                f"etc: radius={o.radius} must be at least 0, clip={o.clip} at least 1 and "
                f"attention_dropout={o.attention_dropout} below 1"
            )
        self.width, self.heads, self.causal, self.options = width, heads, False, o
        self.size = heads_divide(width, heads, self.name)
        self.distances = 2 * o.clip + 1 if o.direction else o.clip + 1
        apart = o.sharing == "none"
        self.long = Side(width, o.bias, apart)
        self.summary = self.long if o.sharing == "all" else Side(width, o.bias, apart)
        self.long_labels = Labels(self.distances + 2, heads, self.size)
        self.summary_labels = Labels(self.distances + 2 + (not o.ordered), heads, self.size)
        self.out = nn.Linear(width, width, bias="output" in o.bias)
        self.summary_out = self.out
        if not o.share_output:
            self.summary_out = nn.Linear(width, width, bias="output" in o.bias)
        for out in (self.out, self.summary_out):
            if out.bias is not None:
                nn.init.zeros_(out.bias)

    def outputs(self) -> list[nn.Module]:
        return [self.out] if self.options.share_output else [self.out, self.summary_out]

    def forward(
        self,
        x: Tensor,
        *,
        context: Context | None = None,
        mask: Mask | None = None,
        state: State | None = None,
    ) -> MixerOutput:
        self.check_input(x, context, mask, state)
        if state is not None:
            raise UnsupportedError("etc reads both sides: it takes no state")
        self._check(x, mask)
        if tracing():
            record(self, "weights", lambda: self._weights(x, mask))
        given = mask is not None and mask.global_tokens is not None
        if torch.compiler.is_compiling() and mask is not None and given and mask.front is None:
            # how many tokens are global is known only when they are looked at
            return MixerOutput(self._literal(x, mask), None, {})
        long, summary = self._rows(x, mask)
        y = torch.zeros_like(x)
        for row, made in ((long, self._local(long, summary)), (summary, self._all(summary, long))):
            if made is not None:
                made = made * row.keep[..., None].to(made)
                y = y.scatter_add(1, row.order[..., None].expand_as(made), made.to(y.dtype))
        return MixerOutput(y, None, {})

    def reference(
        self, x: Tensor, *, context: Context | None = None, mask: Mask | None = None
    ) -> Tensor:
        """All pairs at once: scores by label, one softmax a query."""
        self._check(x, mask)
        return self._literal(x, mask)

    def _check(self, x: Tensor, mask: Mask | None) -> None:
        for name in ("keep", "documents", "global_tokens", "sentences"):
            part = None if mask is None else getattr(mask, name)
            if part is not None and part.shape != x.shape[:2]:
                raise ShapeError(
                    f"mask.{name} has shape {tuple(part.shape)}, but the tokens are "
                    f"{tuple(x.shape[:2])}: give one entry per token"
                )
        o = self.options
        if mask is None or mask.global_tokens is None or mask.sentences is not None:
            return
        if o.hard_g2l or o.hard_l2g:
            raise UnsupportedError(
                "etc: which global token may read which long ones (hard_g2l, hard_l2g) is told by "
                "sentences: give mask.sentences with mask.global_tokens, or set both options to "
                "False"
            )

    def _facts(self, x: Tensor, mask: Mask | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Which tokens are global, which real, their sentences and documents: (B, L) each."""
        shape = x.shape[:2]
        yes = torch.ones(shape, dtype=torch.bool, device=x.device)
        known = Mask() if mask is None else mask
        return (
            ~yes if known.global_tokens is None else known.global_tokens,
            yes if known.keep is None else known.keep,
            yes.long() - 2 if known.sentences is None else known.sentences,
            yes.long() if known.documents is None else known.documents,
        )

    def _rows(self, x: Tensor, mask: Mask | None) -> tuple[Row, Row]:
        """Long and global tokens, each kind by itself."""
        chosen, keep, sentences, documents = self._facts(x, mask)
        length = x.shape[1]
        front, counted = 0, False
        if mask is not None and mask.global_tokens is not None:
            front, counted = mask.front or 0, mask.front is None
        rows: list[Row] = []
        for flags, first, stop in (
            (~chosen & keep, front, length),
            (chosen & keep, 0, length if counted else front),
        ):
            order = first + order_of_real(flags[:, first:stop])
            if counted:
                order = order[:, : int(flags.sum(1).max())]
            parts = (flags, sentences, documents)
            real, *facts = (part.gather(1, order) for part in parts)
            tokens = gather_rows(x, order).masked_fill(~real[..., None], 0.0)
            rows.append(Row(tokens, order, real, *facts))
        return rows[0], rows[1]

    def _heads(self, t: Tensor) -> Tensor:
        return t.unflatten(-1, (self.heads, self.size))

    def _local(self, long: Row, summary: Row) -> Tensor | None:
        """Outputs (B, N, width) of long tokens: a band of long keys beside all global ones."""
        length, r = long.x.shape[1], self.options.radius
        size = unit_size(2 * r + 1)
        if not torch.compiler.is_compiling():
            if length == 0:
                return None
            # short texts need no more; a compiler wants sizes that serve every length
            r, size = min(r, length - 1), min(size, length)
        queries, keys = Windows(size), Windows(size, r, r)
        q = self._heads(self.long.query(long.x))
        k, v = (self._heads(t) for t in self.long.read(long.x, "long"))
        asked, by_label = (
            laid(queries, t).transpose(2, 3) for t in (wide(q), self.long_labels(wide(q)))
        )
        read, held = (laid(keys, t).transpose(2, 3) for t in (k, v))
        at = torch.arange(size, device=q.device)[:, None], torch.arange(size + 2 * r) - r
        apart = at[1].to(q.device) - at[0]
        scores = [asked @ wide(read).mT + labelled(by_label, self._distance(apart))]
        shown = [(apart.abs() <= r) & same_in_units(long, long, queries, keys)]
        if summary.x.shape[1]:
            other, more = (
                self._heads(t).transpose(1, 2) for t in self.long.read(summary.x, "global")
            )
            own, there = self._own(long, summary), seen_of(long, summary)
            if self.options.hard_l2g:
                there = there & own
            label = laid(queries, self.distances + own.long()[:, :, None]).transpose(2, 3)
            scores.append(asked @ wide(other)[:, None].mT + labelled(by_label, label))
            shown.append(laid(queries, there[:, :, None]).transpose(2, 3))
        weights = self._softmax(scores, shown).to(v.dtype)
        o = weights[..., : apart.shape[1]] @ held
        if summary.x.shape[1]:
            o = o + weights[..., apart.shape[1] :] @ more[:, None]
        return self.out(queries.put(o.transpose(2, 3), length).flatten(2))

    def _all(self, summary: Row, long: Row) -> Tensor | None:
        """Outputs (B, G, width) of global tokens: all global keys beside long ones."""
        count = summary.x.shape[1]
        if count == 0:
            return None
        q = self._heads(self.summary.query(summary.x)).transpose(1, 2)
        of = [self.summary.read(row.x, kind) for row, kind in ((summary, "global"), (long, "long"))]
        k, v = (self._heads(torch.cat(parts, 1)).transpose(1, 2) for parts in zip(*of, strict=True))
        place = torch.arange(count, device=q.device)
        near = self._between_globals(place - place[:, None]).expand(len(q), 1, -1, -1)
        own = self._own(summary, long)
        label = torch.cat([near, self.distances + own.long()[:, None]], -1)
        seen = seen_of(summary, long)
        shown = torch.cat(
            [seen_of(summary, summary), seen & own if self.options.hard_g2l else seen], -1
        )
        by_label = self.summary_labels(wide(q).transpose(1, 2)).transpose(1, 2)
        scores = wide(q) @ wide(k).mT + labelled(by_label, label)
        weights = self._softmax([scores], [shown[:, None]]).to(v.dtype)
        return self.summary_out((weights @ v).transpose(1, 2).flatten(2))

    def _softmax(self, scores: list[Tensor], shown: list[Tensor]) -> Tensor:
        """One softmax over keys of several kinds."""
        masks = [s.expand(t.shape) for s, t in zip(shown, scores, strict=True)]
        every, seen = torch.cat(scores, -1) / math.sqrt(self.size), torch.cat(masks, -1)
        empty = ~seen.any(-1, keepdim=True)
        weights = every.masked_fill(~seen & ~empty, -math.inf).softmax(-1).masked_fill(empty, 0.0)
        return F.dropout(weights, self.options.attention_dropout, self.training)

    def _distance(self, apart: Tensor) -> Tensor:
        """Labels of keys that are ``apart`` (key minus query) to the right."""
        k, away = self.options.clip, apart.abs().clamp(max=self.options.clip)
        return torch.where(apart < 0, away + k, away) if self.options.direction else away

    def _between_globals(self, apart: Tensor) -> Tensor:
        """Labels of global keys of global queries."""
        if self.options.ordered:
            return self._distance(apart)
        return torch.where(apart == 0, 0, self.distances + 2)

    @staticmethod
    def _own(queries: Row, keys: Row) -> Tensor:
        """(B, L, S) bool: of the same sentence, and known to be."""
        same = queries.sentences[:, :, None] == keys.sentences[:, None]
        return same & (queries.sentences >= 0)[:, :, None]

    def _literal(self, x: Tensor, mask: Mask | None) -> Tensor:
        chosen, _, _, _ = self._facts(x, mask)
        weights = self._weights(x, mask)
        y = torch.zeros_like(x)
        for kind, side, out in self._sides():
            parts = []
            for other in ("long", "global"):
                _, v = side.read(x, other)
                there = chosen if other == "global" else ~chosen
                part = weights * there[:, None, None].to(weights)
                parts.append(part @ wide(self._heads(v).transpose(1, 2)))
            made = out((parts[0] + parts[1]).to(x.dtype).transpose(1, 2).flatten(2))
            here = chosen if kind == "global" else ~chosen
            y = torch.where(here[..., None], made, y)
        return y * self._facts(x, mask)[1][..., None].to(y)

    def _weights(self, x: Tensor, mask: Mask | None) -> Tensor:
        """The matrix of weights (B, H, L, L), in the order of the tokens."""
        o = self.options
        chosen, keep, sentences, documents = self._facts(x, mask)
        whole = Row(x, chosen.long(), keep, sentences, documents)
        # a token's place among its kind
        place = torch.where(
            chosen, (chosen & keep).long().cumsum(1), (~chosen & keep).long().cumsum(1)
        )
        apart = place[:, None] - place[:, :, None]
        alike = chosen[:, :, None] == chosen[:, None]
        own, seen = self._own(whole, whole), seen_of(whole, whole)
        across = self.distances + own.long()
        near = apart.abs() <= o.radius
        parts = {
            "long": seen & torch.where(alike, near, own if o.hard_l2g else seen),
            "global": seen & (alike | own if o.hard_g2l else seen),
        }
        distance = {"long": self._distance(apart), "global": self._between_globals(apart)}
        total = wide(x).new_zeros(x.shape[0], self.heads, x.shape[1], x.shape[1])
        for kind, side, _ in self._sides():
            labels = self.long_labels if kind == "long" else self.summary_labels
            q = wide(self._heads(side.query(x)))
            by_label = labels(q).transpose(1, 2)
            products = []
            for other in ("long", "global"):
                k, _ = side.read(x, other)
                there = chosen if other == "global" else ~chosen
                product = q.transpose(1, 2) @ wide(self._heads(k)).transpose(1, 2).mT
                products.append(product * there[:, None, None].to(product))
            here = chosen if kind == "global" else ~chosen
            label = torch.where(alike, distance[kind], across)[:, None]
            scores = products[0] + products[1] + labelled(by_label, label)
            found = self._softmax([scores], [parts[kind][:, None]])
            total = torch.where(here[:, None, :, None], found, total)
        return total

    def _sides(self) -> tuple[tuple[str, Side, nn.Module], ...]:
        return ("long", self.long, self.out), ("global", self.summary, self.summary_out)
