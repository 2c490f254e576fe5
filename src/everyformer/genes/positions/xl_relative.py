"""Transformer-XL's relative positions: scores see distances through waves and two learned queries.

    A_ij = ((q_i + u) k_j + (q_i + v) R_d) / sqrt(D),   R_d = W_R r_d,   d = i - j

r_d in R^width holds the waves of distance d, sines in one half and cosines in the other; u and v
are vectors of a head, so the four terms are (a) content q k, (b) distance by content q R, (c) the
key's own weight u k, and (d) the distance's own weight v R. All four share the factor 1/sqrt(D).
W_R, u and v belong to a layer.

``distances="learned"`` replaces W_R r_d by a learned vector and v R_d by a learned number for every
distance up to ``reach``, farther ones sharing the last:

    A_ij = ((q_i + u) k_j + q_i R_d + b_d) / sqrt(D)

Source: Dai et al. 2019, arXiv 1901.02860, section 3.3 and appendix B; layout of the waves, their
clamp and the learned form (``attn_type=1``) as in the authors' code, where u and v start at
N(0, 0.02^2). Bidirectional as in XLNet (Yang et al. 2019, 1906.08237), which
sees the distances of both sides. W_R starts as attention's own projections do. Cost: O(L S D)
besides attention's own for the distances, and W_R r once a call for the S of them, kept between
calls without gradients. The paper's memory of segments is no part of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyformer.core.bounds import Affects, Amount, Count, When, Whole
from everyformer.core.config import Options
from everyformer.core.errors import GeneError
from everyformer.core.panels import Panel, Panels, Recorded, layer_title
from everyformer.core.position import Sizes
from everyformer.core.trace import record, tracing
from everyformer.core.trials import Make, Pair, Trials
from everyformer.engines.projections import applied
from everyformer.engines.softmax.distances import Distances
from everyformer.engines.softmax.pairs import Pairs
from everyformer.engines.softmax.positions import Cap, Parts, ScorePosition
from everyformer.engines.softmax.remembered import Remembered, falling
from everyformer.genes.positions import POSITIONS
from everyformer.genes.positions.base import at_zero
from everyformer.genes.positions.sinusoidal import sinusoid

TERMS = ("a: content", "b: distance by content", "c: the key's own", "d: the distance's own")
"""of Transformer-XL's scores, in the order in which they are recorded"""


@dataclass(frozen=True)
class XlRelativeOptions(Options):
    """Options of `XlRelative`."""

    clamp: Annotated[Whole | None, When("distances", "waves")] = None
    """waves of farther distances are those of this one (default: of each its own)"""
    distances: Literal["waves", "learned"] = "waves"
    """what a distance is known by: waves through W_R, or a vector and a number learned for each"""
    reach: Annotated[Count | None, When("distances", "learned")] = None
    """of learned distances: the largest with an entry of its own (default: max_length - 1)"""
    start_std: Annotated[Amount, Affects("nothing")] = 0.02
    """standard deviation of u and v, and of learned distances, at the start"""
    gone: ClassVar[dict[str, Any]] = {"untie": True, "wave_dropout": 0.0}


def _limits(make: Make) -> list[Pair]:
    """W_R = u = v = 0 is attention by content alone; so are learned distances of zero."""
    return [
        at_zero(make, "xl-relative", 0.0),
        at_zero(make, "xl-relative", 0.0, distances="learned"),
    ]


def terms_of_scores(recorded: Mapping[str, Tensor], causal: bool) -> Panels:
    """The four terms of Transformer-XL's scores (B, 4, H, L, S), a row a layer."""
    rows, shares = [], []
    for path, terms in recorded.items():
        each = terms[0].float().cpu()
        seen = torch.ones(each.shape[-2:], dtype=torch.bool)
        seen = seen.tril() if causal else seen
        spread = each[..., seen].std(-1)
        head = int(spread[1].argmax())
        shares.append(f"{float(spread[1:].square().sum() / spread.square().sum()):.0%}")
        visible = each[:, head].masked_fill(~seen, float("nan")).numpy()
        names = (f"{layer_title(path, f'head {head + 1}')}\n{TERMS[0]}", *TERMS[1:])
        rows.append([Panel(name, term) for name, term in zip(names, visible, strict=True)])
    caption = (
        "The four terms of a score, of the head of each layer that leans most on (b): the token of "
        "the row reads that of the column. Part of the variance of all heads that is not due to "
        f"content alone, layer by layer: {', '.join(shares)}."
    )
    return Panels(rows, caption, "score", signed=True)


@POSITIONS.register("xl-relative")
class XlRelative(ScorePosition):
    """Transformer-XL's relative positions: scores of distances added to those of contents.

    For softmax attention; any length, any stream.

    Raises:
        GeneError: options that do not go together, or learned distances without a ``reach``.
    """

    name = "xl-relative"
    trials = Trials(
        inside=({"clamp": 4, "softcap": 2.0}, {"distances": "learned", "reach": 3}), limits=_limits
    )
    recorded: ClassVar[Recorded] = {"terms": terms_of_scores}
    Options = XlRelativeOptions
    options: XlRelativeOptions

    def build(self, sizes: Sizes) -> None:
        self.width, self.heads, self.causal = sizes.width, sizes.heads, sizes.causal
        self.key_dim = sizes.key_dim
        o, shape, max_length = self.options, (self.heads, self.key_dim), sizes.max_length
        if o.distances == "learned" and o.reach is None and not max_length:
            raise GeneError(
                "position 'xl-relative' with `distances='learned'` holds an entry a distance: give "
                "`reach=...`, the largest, or `max_length=...`"
            )
        self.u = nn.Parameter(torch.empty(shape))
        self.v: nn.Parameter | None = None
        self.encode: nn.Linear | None = None
        self.table: nn.Parameter | None = None
        self.numbers: nn.Parameter | None = None
        if o.distances == "waves":
            self.v = nn.Parameter(torch.empty(shape))
            self.encode = nn.Linear(self.width, self.heads * self.key_dim, bias=False)
            nn.init.xavier_uniform_(self.encode.weight)
        else:
            self.reach = o.reach if o.reach is not None else (max_length or 1) - 1
            count = self.reach + 1 if self.causal else 2 * self.reach + 1
            self.table = nn.Parameter(torch.empty(self.heads, count, self.key_dim))
            self.numbers = nn.Parameter(torch.empty(self.heads, count))
        for part in (self.u, self.v, self.table, self.numbers):
            if part is not None:
                nn.init.normal_(part, std=o.start_std)
                part.no_decay = True  # type: ignore[attr-defined]
        self._remembered = Remembered()

    def prepare(self, pairs: Pairs, scale: float, dtype: torch.dtype) -> Parts:
        u = scale * self.u.to(dtype)[:, None]
        if self.table is not None and self.numbers is not None:
            table = pairs.widen(self.table.to(dtype), self.reach, dim=1)
            numbers = pairs.widen(scale * self.numbers.to(dtype), self.reach)
            return u, table, pairs.tile(numbers)
        assert self.v is not None
        seen = pairs.columns - pairs.later
        nearest = pairs.farthest - seen + 1
        known = self._encoded(seen, nearest, dtype)
        # nothing would be a copy of all of them
        known = F.pad(known, (0, 0, 0, pairs.later)) if pairs.later else known
        return u, known, scale * self.v.to(dtype)[:, None]

    def last(self, q: Tensor, pairs: Pairs, scale: float) -> tuple[Tensor, Tensor] | None:
        if self.v is None:
            return None
        u, v = (t.to(q.dtype)[:, None] for t in (self.u, self.v))
        known = self._encoded(pairs.columns, 0, torch.promote_types(q.dtype, torch.float32))
        far = (q + v).to(known.dtype).transpose(0, 1).flatten(1, 2)
        # of beta=0 nothing is read
        bias = torch.baddbmm(far[:, :1, :1], far, known.mT, beta=0, alpha=scale)
        return q + u, bias.transpose(0, 1)[:, :, None]

    def cut(self, parts: Parts, pairs: Pairs) -> Parts:
        u, known, last = parts
        return u, pairs.take(known, 1), last if self.table is None else pairs.cut(last)

    def distances(self, q: Tensor, pairs: Pairs, scale: float) -> Distances:
        wide = torch.promote_types(q.dtype, torch.float32)
        u, known, last = self.prepare(pairs, scale, wide)
        q = q.to(wide) * scale
        if self.numbers is None:
            return Distances(q + u, q + last, known[:, : pairs.seen])
        numbers = pairs.widen(scale * self.numbers.to(wide), self.reach)
        return Distances(q + u, q, known[:, : pairs.seen], numbers[:, : pairs.seen])

    def content(self, q: Tensor, parts: Parts) -> Tensor:
        return q + parts[0]

    def score(self, products: Tensor, q: Tensor, k: Tensor, parts: Parts, pairs: Pairs) -> Tensor:
        u, known, last = parts
        if self.table is None and tracing():
            record(self, "terms", lambda: self._terms(q, k, u, known, last, pairs))
        queries = q if self.table is not None else q + last
        scores = products.add_(pairs.lay(queries @ known.transpose(-1, -2)))
        return scores if self.table is None else scores.add_(pairs.of_cut(last))

    def reference(
        self, q: Tensor, k: Tensor, distance: Tensor, head: int, scale: float, cap: Cap
    ) -> Tensor:
        content = cap(scale * (k * (q + self.u[head].to(q.dtype))[:, None]).sum(-1))
        if self.table is not None and self.numbers is not None:
            rows = self.reach - distance.clamp(0 if self.causal else -self.reach, self.reach)
            known, number = self.table[head][rows].to(q.dtype), self.numbers[head][rows]
            return content + scale * ((known * q[:, None]).sum(-1) + number.to(q.dtype))
        assert self.v is not None
        known = self._project(self._waves(distance, q.dtype))[..., head, :]
        return content + scale * (known * (q + self.v[head].to(q.dtype))[:, None]).sum(-1)

    def _terms(
        self, q: Tensor, k: Tensor, u: Tensor, known: Tensor, v: Tensor, pairs: Pairs
    ) -> Tensor:
        """(a), (b), (c), (d) of a block as (B, 4, H, L, S), for pictures."""
        content = ((one.expand_as(q)) @ k.transpose(-1, -2) for one in (q, u))
        far = (pairs.lay(one.expand_as(q) @ known.transpose(-1, -2)) for one in (q, v))
        (a, c), (b, d) = content, far
        return torch.stack((a, b, c, d), 1)

    def _encoded(self, count: int, nearest: int, dtype: torch.dtype) -> Tensor:
        """W_R r of so many distances, which go down by one to ``nearest``: (H, ``count``, D)."""
        assert self.encode is not None

        def make(distances: Tensor) -> Tensor:
            return self._project(self._waves(distances, dtype)).transpose(0, 1)

        weights = [*self.encode.parameters()]
        if self.training or not weights:
            return make(falling(count, nearest, self.u.device))
        return self._remembered.of(make, weights, count, nearest, dtype)

    def _waves(self, distances: Tensor, dtype: torch.dtype) -> Tensor:
        """r of distances of any shape: (..., width)."""
        clamp = self.options.clamp
        if clamp is not None:
            distances = distances.clamp(-clamp, clamp)
        return sinusoid(distances, self.width, layout="halves", dtype=dtype)

    def _project(self, waves: Tensor) -> Tensor:
        assert self.encode is not None
        return applied(self.encode, waves).unflatten(-1, (-1, self.u.shape[-1]))
