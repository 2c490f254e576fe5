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

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyformer.core.bounds import Count, Dropout, Whole
from everyformer.core.config import Options
from everyformer.core.dispatch import take
from everyformer.core.errors import GeneError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.core.mixer import Mixer, heads_divide
from everyformer.core.outputs import MixerOutput
from everyformer.core.panels import Panel, Panels, Pictures
from everyformer.core.state import State
from everyformer.core.trace import record, trace, tracing
from everyformer.core.trials import LONGEST, Make, Pair, Trials, output
from everyformer.engines.ranges import widened
from everyformer.engines.softmax.pairs import Pairs
from everyformer.engines.sparse.layouts import Windows
from everyformer.engines.sparse.panels import SHADES
from everyformer.genes.mixers import MIXERS
from everyformer.genes.mixers.base import BuiltMixer, RowMixer, Rows
from everyformer.genes.mixers.etc.kinds import (
    Kind,
    Labels,
    Side,
    both,
    in_units,
    kinds_of,
    labelled,
    merged,
    own_of,
    pairs_in_units,
    pairs_of,
    seen_in_units,
    seen_of,
)

SENTENCES, WORDS, RADIUS = 4, 12, 3
"""of pictures"""
UNIT = 64
"""long queries that read their neighbourhood in one go; more would read more in vain"""


@dataclass(frozen=True)
class ETCOptions(Options):
    radius: Whole = 84
    """r, long tokens seen to each side"""
    clip: Count = 12
    """k, distances that have labels of their own"""
    ordered: bool = True
    """whether global tokens have distances; without, all others have one label: contexts that stand
    in no order"""
    sharing: Literal["all", "sides", "none"] = "all"
    """projections: one set for all; one for long and one for global queries, which project all they
    read; or keys and values also apart for long and global ones"""
    hard_g2l: bool = True
    """a global token reads long tokens of its own sentence alone"""
    bias: tuple[Literal["query", "key", "value", "output"], ...] = ()
    """which projections have a bias"""
    attention_dropout: Dropout = 0.0
    """dropout on the weights in training"""
    gone: ClassVar[dict[str, Any]] = {"share_output": False, "hard_l2g": False, "direction": True}


def _limits(make: Make) -> list[Pair]:
    """Without labels, and with a radius of the whole text, it is attention."""
    plain = make("attention")
    wide = make("etc", radius=LONGEST)
    own = plain.state_dict()
    rows = own.pop("project.weights.0").chunk(3)
    names = ("long.query.weight", "long.key.any.weight", "long.value.any.weight")
    wide.load_state_dict({**own, **dict(zip(names, rows, strict=True))}, strict=False)
    for labels in (wide.long_labels, wide.summary_labels):
        labels.vectors.data.zero_()
        labels.numbers.data.zero_()
    return [("without labels it is attention", output(wide), output(plain))]


TRIALS = Trials(
    variants=(
        {},
        {"radius": 3, "clip": 2, "sharing": "sides"},
        {"radius": 2, "clip": 5, "sharing": "none", "bias": ("query", "key", "value", "output")},
        {"radius": 0, "clip": 1},
        {"radius": 4, "ordered": False, "hard_g2l": False},
    ),
    limits=_limits,
    small={
        "mlm": {"radius": 3, "summaries": {"every": 4, "cpc": 0.25, "cpc_share": 0.5}},
        "classify-text": {"radius": 3, "summaries": {"every": 4}},
    },
)


@MIXERS.register("etc")
class ETC(BuiltMixer, RowMixer):
    """Global-local attention over (B, L, width), with its projections; it has no causal form."""

    name = "etc"
    trials = TRIALS
    drawn_for = "mlm"
    supported_masks = frozenset({"padding_mask", "documents", "global_tokens", "sentences"})
    global_rows = True
    output_layers = ("out", "summary_out")
    Options = ETCOptions
    options: ETCOptions

    def build(self, max_length: int | None) -> None:
        o, width, heads = self.options, self.width, self.heads
        if self.causal:
            raise GeneError(
                "etc has no causal form: a global token, which all read, would show later tokens "
                "to earlier ones; use it for tasks mlm and classify-text"
            )
        self.head_dim = heads_divide(width, heads, self.name)
        self.distances = 2 * o.clip + 1
        apart = o.sharing == "none"
        self.long = Side(width, o.bias, apart)
        self.summary = self.long if o.sharing == "all" else Side(width, o.bias, apart)
        self.long_labels = Labels(self.distances + 2, heads, self.head_dim)
        self.summary_labels = Labels(self.distances + 2 + (not o.ordered), heads, self.head_dim)
        self.out = nn.Linear(width, width, bias="output" in o.bias)
        self.summary_out = nn.Linear(width, width, bias="output" in o.bias)
        for out in (self.out, self.summary_out):
            if out.bias is not None:
                nn.init.zeros_(out.bias)

    def pictures(self, length: int | None, layers: Sequence[Mixer]) -> Pictures:
        return {"masks": self._masks}

    def _masks(self) -> Panels:
        """A column for open and one for hard g2l; the model is one or the other."""
        sentence = torch.arange(SENTENCES)
        sentences = torch.cat((sentence, sentence.repeat_interleave(WORDS)))
        chosen = torch.arange(len(sentences)) < SENTENCES
        mask = Mask(global_tokens=chosen[None], sentences=sentences[None])
        panels = []
        for title, hard in (("open g2l", False), ("hard g2l", True)):
            small = ETC(width=8, options=replace(self.options, radius=RADIUS, hard_g2l=hard))
            with torch.no_grad(), trace(small) as traced:
                small(torch.zeros(1, len(sentences), 8), mask=mask)
            seen = traced[""]["weights"][0][0, 0] > 0
            shades = torch.where(chosen | chosen[:, None], SHADES[1], SHADES[0]) * seen
            shades.fill_diagonal_(1.0)
            panels.append(Panel(title, shades.numpy(), ("is read", "reads")))
        caption = (
            f"Who may read whom: {SENTENCES} global tokens, one a sentence, in front of {WORDS} "
            f"long ones of each. This model is the {'second' if self.options.hard_g2l else 'first'}"
            f", drawn with radius {RADIUS}."
        )
        return Panels([panels], caption, None)

    def forward_rows(self, rows: Rows, state: State | None) -> MixerOutput:
        self._check(rows)
        if tracing():
            record(self, "weights", lambda: self._weights(rows))
        marked = rows.global_tokens is not None
        if torch.compiler.is_compiling() and marked and rows.prefix is None:
            take(self.name, "dense", "a graph knows no numbers of global tokens", True)
            return MixerOutput(self._reference(rows), None, {})
        long, summary = kinds_of(rows)
        out = (summary, self._all(summary, long)), (long, self._local(long, summary))
        return MixerOutput(merged(rows.x, *out), None, {})

    def text_reference(self, text: Rows) -> Tensor:
        """Outputs by all pairs at once: scores by label, one softmax a query."""
        self._check(text)
        return self._reference(text)

    def _check(self, rows: Rows) -> None:
        o = self.options
        if rows.global_tokens is None or rows.sentences is not None:
            return
        if o.hard_g2l:
            raise UnsupportedError(
                "etc: which global token may read which long ones (hard_g2l) is given by "
                "sentences: give mask.sentences with mask.global_tokens, or set both options to "
                "False"
            )

    def _facts(self, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """Flags of global tokens, flags of real ones, and sentences: (B, L) each."""
        yes = torch.ones(rows.x.shape[:2], dtype=torch.bool, device=rows.x.device)
        return (
            ~yes if rows.global_tokens is None else rows.global_tokens,
            yes if rows.padding_mask is None else rows.padding_mask,
            yes.long() - 2 if rows.sentences is None else rows.sentences,
        )

    def _heads(self, t: Tensor) -> Tensor:
        return t.unflatten(-1, (self.heads, self.head_dim))

    def _queries(self, side: Side, x: Tensor) -> Tensor:
        """Scaled queries (B, N, H, D)."""
        return widened(self._heads(side.query(x))) / math.sqrt(self.head_dim)

    def _local(self, long: Kind, summary: Kind) -> Tensor | None:
        """Outputs (B, N, width) of long tokens: a band of long keys beside all global ones."""
        length, size, radius = long.x.shape[1], UNIT, self.options.radius
        if not torch.compiler.is_compiling():
            if length == 0:
                return None
            if length <= size + 2 * radius:
                # units would hold no less; a compiler wants sizes that serve every length
                size, radius = length, 0
        queries, keys = Windows(size), Windows(size, radius, radius)
        pairs = pairs_of(size, radius, long.x.device)
        q = self._queries(self.long, long.x)
        near, across = (
            in_units(queries, self.long_labels(q, of))
            for of in (self._near(q.device), self._across)
        )
        q_units = in_units(queries, q)
        k, v = (in_units(keys, self._heads(t)) for t in self.long.read(long.x, "long"))
        other, more = (self._heads(t).transpose(1, 2) for t in self.long.read(summary.x, "global"))
        own, seen = (pairs_in_units(queries, t) for t in (own_of(long, summary), seen_of(summary)))
        close = pairs.distances().abs() <= self.options.radius
        products = (q_units.flatten(2, 3) @ widened(other).mT).unflatten(2, (-1, size))
        weights = self._softmax(
            (q_units @ widened(k).mT).add_(self._by_distance(near, pairs)),
            products.add_(self._by_sentence(across, own, False)),
            (seen_in_units(long, keys) & close, seen),
        )
        near_weights, far_weights = (part.to(v.dtype) for part in weights)
        o = near_weights @ v + (far_weights.flatten(2, 3) @ more).unflatten(2, (-1, size))
        return self.out(queries.put(o.movedim(1, 3), length).flatten(2))

    def _all(self, summary: Kind, long: Kind) -> Tensor | None:
        """Outputs (B, G, width) of global tokens: all global keys beside long ones."""
        count, hard = summary.x.shape[1], self.options.hard_g2l
        if count == 0:
            return None
        q = self._queries(self.summary, summary.x)
        q_units = q.transpose(1, 2)
        (k, v), (other, more) = (
            [self._heads(t).transpose(1, 2) for t in self.summary.read(row.x, kind)]
            for row, kind in ((summary, "global"), (long, "long"))
        )
        pairs = pairs_of(count, 0, q.device)
        if self.options.ordered:
            near = self.summary_labels(q, self._near(q.device)).transpose(1, 2)
            among = self._by_distance(near, pairs)
        else:
            ends = torch.tensor((0, self.distances + 2), device=q.device)
            itself, others = self.summary_labels(q, ends).transpose(1, 2).split(1, -1)
            among = torch.where(pairs.distances() == 0, itself, others)
        across = self.summary_labels(q, self._across).transpose(1, 2)
        own, seen = own_of(summary, long), seen_of(long)
        weights = self._softmax(
            (q_units @ widened(k).mT).add_(among),
            (q_units @ widened(other).mT).add_(self._by_sentence(across, own, hard)),
            (seen_of(summary), both(seen, own) if hard else seen),
        )
        near_weights, far_weights = (part.to(v.dtype) for part in weights)
        return self.summary_out((near_weights @ v + far_weights @ more).transpose(1, 2).flatten(2))

    def _softmax(
        self, near: Tensor, across: Tensor, visible: tuple[Tensor | None, Tensor | None]
    ) -> tuple[Tensor, ...]:
        """One softmax over keys of a query's kind and the other kind, whose scores it overwrites.

        Real queries see themselves at least; rows of others are thrown away, and shall be numbers.
        """
        # what is hidden gets a weight and a gradient of zero, so autograd need not know of it
        with torch.no_grad():
            for scores, seen in zip((near, across), visible, strict=True):
                if seen is not None:
                    scores.masked_fill_(~seen, torch.finfo(scores.dtype).min)
        # where there are no tokens of the other kind nothing is copied
        scores = torch.cat((near, across), -1) if across.shape[-1] else near
        weights = scores.softmax(-1)
        weights = F.dropout(weights, self.options.attention_dropout, self.training)
        return weights.split((near.shape[-1], across.shape[-1]), -1)

    def _by_distance(self, near: Tensor, pairs: Pairs) -> Tensor:
        """Numbers of pairs of one kind (..., R, S) from those of distances -k .. k."""
        k = self.options.clip
        if pairs.regular:
            return pairs.lay(pairs.widen(near, k))
        entries = k - pairs.distances()[0].clamp(-k, k)
        return near.gather(-1, entries.expand(*near.shape[:-1], -1))

    def _by_sentence(self, across: Tensor, own: Tensor | None, hard: bool) -> Tensor:
        """Numbers of pairs of two kinds: of another sentence or the same one (..., R, 2)."""
        other, same = across.split(1, -1)
        if hard or own is None:
            return same if hard else other
        return torch.addcmul(other, own.to(other), same - other)

    def _near(self, device: torch.device) -> Tensor:
        """Labels of distances, from the farthest left to the farthest right."""
        k = self.options.clip
        return self._distance(torch.arange(-k, k + 1, device=device))

    @property
    def _across(self) -> slice:
        """Labels of a long and a global token: of another sentence, of the same."""
        return slice(self.distances, self.distances + 2)

    def _distance(self, apart: Tensor) -> Tensor:
        """Labels of keys that are ``apart`` (key minus query) to the right."""
        k, away = self.options.clip, apart.abs().clamp(max=self.options.clip)
        return torch.where(apart < 0, away + k, away)

    def _between_globals(self, apart: Tensor) -> Tensor:
        """Labels of global keys of global queries."""
        if self.options.ordered:
            return self._distance(apart)
        return torch.where(apart == 0, 0, self.distances + 2)

    def _reference(self, rows: Rows) -> Tensor:
        chosen, x = self._facts(rows)[0], rows.x
        weights = self._weights(rows)
        y = torch.zeros_like(x)
        for kind, side, merge in self._sides():
            parts = []
            for other in ("long", "global"):
                _, v = side.read(x, other)
                there = chosen if other == "global" else ~chosen
                part = weights * there[:, None, None].to(weights)
                parts.append(part @ widened(self._heads(v).transpose(1, 2)))
            out = merge((parts[0] + parts[1]).to(x.dtype).transpose(1, 2).flatten(2))
            here = chosen if kind == "global" else ~chosen
            y = torch.where(here[..., None], out, y)
        return y

    def _weights(self, rows: Rows) -> Tensor:
        """The matrix of weights (B, H, L, L), in the order of the tokens."""
        o, x = self.options, rows.x
        chosen, padding_mask, sentences = self._facts(rows)
        seen = padding_mask[:, None]
        own = (sentences[:, :, None] == sentences[:, None]) & (sentences >= 0)[:, None]
        # a token's place among its kind
        index = torch.where(
            chosen,
            (chosen & padding_mask).long().cumsum(1),
            (~chosen & padding_mask).long().cumsum(1),
        )
        apart = index[:, None] - index[:, :, None]
        alike = chosen[:, :, None] == chosen[:, None]
        across = self.distances + own.long()
        near = apart.abs() <= o.radius
        parts = {
            "long": seen & torch.where(alike, near, seen),
            "global": seen & (alike | own if o.hard_g2l else seen),
        }
        distance = {"long": self._distance(apart), "global": self._between_globals(apart)}
        total = widened(x).new_zeros(x.shape[0], self.heads, x.shape[1], x.shape[1])
        for kind, side, _ in self._sides():
            labels = self.long_labels if kind == "long" else self.summary_labels
            q = self._queries(side, x)
            by_label = labels(q).transpose(1, 2)
            products = []
            for other in ("long", "global"):
                k, _ = side.read(x, other)
                there = chosen if other == "global" else ~chosen
                product = q.transpose(1, 2) @ widened(self._heads(k)).transpose(1, 2).mT
                products.append(product * there[:, None, None].to(product))
            here = chosen if kind == "global" else ~chosen
            label = torch.where(alike, distance[kind], across)[:, None]
            scores = products[0] + products[1] + labelled(by_label, label)
            weights = self._softmax(scores, scores[..., :0], (parts[kind][:, None], None))[0]
            total = torch.where((here & padding_mask)[:, None, :, None], weights, total)
        return total

    def _sides(self) -> tuple[tuple[str, Side, nn.Module], ...]:
        return ("long", self.long, self.out), ("global", self.summary, self.summary_out)
