"""Adaptive attention span: each head learns how far back it looks, and pays for no more.

    s_ij = q_i . (k_j + p_(i-j)) / sqrt(D),      m_z(u) = clip((R + z - u) / R, 0, 1)
    a_ij = m_z(u_ij) e^(s_ij) / sum_j' m_z(u_ij') e^(s_ij'),      y_i = sum_j a_ij v_j

j = i - S .. i - 1 (S = ``window``; the token itself is not seen), u = i - j - 1 as in the authors'
code (the paper's formula has i - j, one key less): at z = 0 the R nearest keys have weights 1,
(R - 1)/R .. 1/R. z_h = S z^_h of a head is a parameter z^ in [0, 1], set back into it after every
step of a training; its loss ``span`` is lambda times the mean z of the heads, added up over layers.
Dynamic spans are z_hi = S sigma(v_h . x_i + b_h) of the layer's input; b starts at -4 as in the
paper, which makes z about 0.02 S. p is a learned vector for each distance, one table for all heads
and all layers.

Bidirectional (our extension): both sides, the token itself included, |i - j| < S and u = |i - j|; p
tells the sides apart. Nothing tells where a text begins; `--position sinusoidal` does, where that
matters.

Keys with m = 0 have no weight, so leaving them out is exact: heads are sorted by span into bands
and each band computes its longest span alone (`everyformer.engines.softmax.spans`); compiled graphs
compute the whole window, with the same results. State: the keys and values of the longest span.

As published, training goes on from segment to segment with the inputs of the last S tokens, which
get no gradient: `--memory segment --memory.slots S`. Rows that no span of the layer reaches are not
projected. With M < S slots spans end at M tokens where the memory shows the last M alone.

Source: Sukhbaatar et al. 2019, arXiv 1905.07799; equations by the authors' code.
Cost: O(L (R + max z) d) time, O(L d) memory.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from everyformer.core.bounds import Affects, Amount, Count, Dropout, Positive, Share, When
from everyformer.core.config import Options
from everyformer.core.devices import readable
from everyformer.core.dispatch import take
from everyformer.core.errors import GeneError, UnsupportedError
from everyformer.core.leaving import leaves_torch
from everyformer.core.mask import Mask
from everyformer.core.mixer import Mixer
from everyformer.core.outputs import Losses, MixerOutput
from everyformer.core.panels import Recorded
from everyformer.core.position import normal_table
from everyformer.core.state import State
from everyformer.core.tally import tally
from everyformer.core.trace import record, tracing
from everyformer.engines.softmax.cache import KeyValueState
from everyformer.engines.softmax.spans import Reach, one_soft_window, soft_windows
from everyformer.genes.memory import MEMORIES
from everyformer.genes.memory.base import Memory, Segment
from everyformer.genes.mixers import MIXERS
from everyformer.genes.mixers.adaptive_span.learned import Spans, spans
from everyformer.genes.mixers.adaptive_span.reference import soft_weights
from everyformer.genes.mixers.adaptive_span.trials import TRIALS
from everyformer.genes.mixers.base import HeadMixer, Rows
from everyformer.system.fingerprint import unchanged


@dataclass(frozen=True)
class AdaptiveSpanOptions(Options):
    """Options of `AdaptiveSpan`."""

    window: Count = 1024
    """S, keys that a head sees at most"""
    ramp: Count = 32
    """R, keys over which a span fades out, at most S"""
    start: Annotated[Share, Affects("nothing"), When("dynamic", False)] = 0.0
    """z / S at the start: 0 sees R keys, 1 the whole window"""
    dynamic: bool = False
    """whether every token has spans of its own, made of what the layer reads there"""
    penalty: Annotated[Amount, Affects("nothing")] = 2e-6
    """lambda, weight of the mean z of the heads, added up over layers"""
    span_lr: Annotated[Positive, Affects("nothing")] = 1.0
    """learning rate of what makes z, times that of the other weights"""
    attention_dropout: Dropout = 0.0
    """dropout on the weights in training"""
    gone: ClassVar[dict[str, Any]] = {
        "dynamic_bias": -4.0, "per": "head", "ramp_origin": "nearest", "persistent": 0
    }  # fmt: skip


ENGINE = "soft windows"


@MIXERS.register("adaptive-span")
class AdaptiveSpan(HeadMixer):
    """Adaptive attention span over (B, L, width), with the projections.

    Raises:
        GeneError: options that do not go together or with the direction.
    """

    name = "adaptive-span"
    trials = TRIALS
    recorded: ClassVar[Recorded] = {"spans": spans}
    accepts_memory = True
    positionless = "has a table of distances of its own"
    states: tuple[type[State], ...] = (KeyValueState,)
    Options = AdaptiveSpanOptions
    options: AdaptiveSpanOptions

    def build(self, max_length: int | None) -> None:
        super().build(max_length)
        o = self.options
        if o.ramp > o.window:
            raise GeneError(
                f"`ramp={o.ramp}` is wider than `window={o.window}`: a span fades out inside the "
                f"window; give a ramp of at most {o.window}"
            )
        self.whole = Reach(o.window, both=not self.causal)
        if self.memory is not None:
            self._check_memory(self.memory)
            self.packs_with_state, self.states = True, (KeyValueState, self.memory.holds)
        self.add_projections(())
        self.table = normal_table(self.whole.columns, self.head_dim, std=1.0)
        self.spans: nn.Parameter | None = None
        self.spans_of: nn.Linear | None = None
        if o.dynamic:
            self.counts_tokens = True
            self.spans_of = nn.Linear(self.width, self.heads)
            nn.init.constant_(self.spans_of.bias, -4.0)
        else:
            self.spans = nn.Parameter(torch.full((self.heads,), o.start))
        for part in (self.spans, *(self.spans_of.parameters() if self.spans_of else ())):
            if part is not None:
                part.no_decay, part.lr_scale = True, o.span_lr
        self._known: tuple[Tensor, Spans] | None = None

    def _check_memory(self, memory: Memory) -> None:
        if not self.causal:
            raise GeneError(
                f"memory '{memory.name}' carries the past of causal texts, but this adaptive-span "
                "reads both ways: leave the memory out"
            )
        if not memory.tokens_alone:
            able = ", ".join(name for name in MEMORIES.names() if MEMORIES.get(name).tokens_alone)
            raise GeneError(
                f"memory '{memory.name}' is more than the last tokens, which is all that mixer "
                f"'adaptive-span' reads at its distances: use memory '{able}'"
            )

    @property
    def reach(self) -> Reach:
        """Keys that queries may read: the window, or its part in a memory (`Memory.windows`)."""
        if self.memory is None:
            return self.whole
        [limit] = self.memory.windows((None,))
        window = self.whole.window if limit is None else min(limit, self.whole.window)
        return self.whole._replace(window=window)

    @property
    def vectors(self) -> Tensor:
        """p of the distances that queries may read."""
        return self.whole.part(self.table, self.reach.farthest)

    def join(self, first: Mixer) -> None:
        assert isinstance(first, AdaptiveSpan)
        if first.table.shape != self.table.shape:
            raise GeneError(
                "mixer 'adaptive-span' has one table of distances for all layers, but their "
                f"windows differ, {first.options.window} and {self.options.window}: use one window "
                "(spans are learned inside it, layer by layer)"
            )
        self.table = first.table

    @torch.no_grad()
    def end_step(self) -> None:
        if self.spans is not None:
            self.spans.data.clamp_(0, 1)

    def forward_rows(self, rows: Rows, state: State | None) -> MixerOutput:
        compiled = torch.compiler.is_compiling()
        if self.training and torch.is_grad_enabled() and not compiled:
            self.end_step()  # not every loop says that its step is over
        if self.spans_of is not None and leaves_torch():
            raise UnsupportedError(
                "dynamic spans of 'adaptive-span' cannot be exported, since how much is computed "
                "depends on the tokens: train it with `dynamic=False`"
            )
        spans = self._spans(rows.x)
        if readable(spans.z):
            take(ENGINE, "bands of heads")
        else:
            take(ENGINE, "whole windows", "no number says how long spans are")
        q, k, v = self.project(rows.x)
        first = last = after = None
        if state is not None:
            past = self._past(state, max(spans.farthest))
            holes = past.padding_mask is not None or rows.padding_mask is not None
            positions = rows.positions(state.num_tokens) if holes else None
            if past.padding_mask is not None:
                first = past.keys.shape[2] - past.padding_mask.sum(1)
            after = past.append(k, v, positions, rows.padding_mask)
            k, v = after.keys, after.values
        elif not self.causal and rows.padding_mask is not None:
            last = rows.lengths
        y = self._attend(q, k, v, spans, first, last)
        if state is not None:
            assert after is not None
            state = self._carried(rows, state, after, spans.farthest)
        self._show(rows, q, k, spans.z)
        return MixerOutput(self.merge(y), state, self._losses(spans, rows.padding_mask))

    def _past(self, state: State, farthest: int) -> KeyValueState:
        """Keys and values from before the tokens, side by side; of a memory's rows, as the
        projections make them now, those up to a distance."""
        if self.memory is not None:
            self.memory.check_state(state, len(state.num_tokens), self.width, self.head_dim)
        if self.memory is None or isinstance(state, KeyValueState):
            assert isinstance(state, KeyValueState)
            return state.side_by_side()
        rows = self.memory.rows_of(state).last(farthest).side_by_side()
        inputs = rows.keys[:, 0]
        k, v = self.project.one(inputs, "key"), self.project.one(inputs, "value")
        return KeyValueState(rows.num_tokens, k, v, rows.padding_mask, rows.positions)

    def _carried(
        self, rows: Rows, before: State, after: KeyValueState, farthest: list[int]
    ) -> State:
        """The state after the tokens: keys that later ones can see, or rows of a memory."""
        if self.memory is None:
            return after.last_in_room(self._reach_of(farthest))
        if isinstance(before, KeyValueState):
            # in training a span may be longer at the next segment
            seen = self.memory.slots if self.training else self._reach_of(farthest)
            return after.last(min(seen, self.memory.slots))
        segment = Segment(rows.x, rows.positions(before.num_tokens), rows.padding_mask, None)
        return self.memory.remember(before, segment)[0]

    def take_in(self, x: Tensor, mask: Mask | None, state: State) -> State:
        """Keys and values alone, without a memory."""
        if self.memory is not None:
            after = self(x, mask=mask, state=state).state
            assert after is not None
            return after
        self.check_input(x, None, mask, state)
        assert isinstance(state, KeyValueState)
        padding_mask = None if mask is None else mask.padding_mask
        positions = Rows(x, padding_mask).positions(state.num_tokens)
        k, v = self.project.one(x, "key"), self.project.one(x, "value")
        reach = self._reach_of(self._spans(x[:, :1]).farthest)
        return state.append(k, v, positions, padding_mask).last_in_room(reach)

    def _spans(self, x: Tensor) -> Spans:
        """Spans of the tokens of ``x``; those of weights are remembered from step to step."""
        o, fixed = self.options, self.spans
        if fixed is None or torch.is_grad_enabled() or torch.compiler.is_compiling():
            return Spans.of(self._z(x), self.reach, o.ramp)
        # weights may be changed behind autograd's back, so they are compared number by number
        before, known = self._known or (None, None)
        of = torch.promote_types(x.dtype, torch.float32), self.reach
        if known is None or (known.z.dtype, known.reach) != of or not unchanged(before, fixed):
            known = Spans.of(self._z(x), self.reach, o.ramp)
            self._known = fixed.detach().clone(), known
        return known

    def _z(self, x: Tensor) -> Tensor:
        """z (1, H, 1), or (B, H, L) of the tokens of ``x``, in float32 or wider."""
        wide = torch.promote_types(x.dtype, torch.float32)
        if self.spans is not None:
            inside = self.spans.clamp(0, 1)
            # as if it had been set back already: the bounds take no gradient away
            inside = self.spans + (inside - self.spans).detach()
            share = inside.to(wide)[None, :, None]
        else:
            assert self.spans_of is not None
            share = self.spans_of(x).to(wide).sigmoid().transpose(1, 2)
        return self.options.window * share

    def _reach_of(self, farthest: list[int]) -> int:
        """Tokens that later ones can see: with dynamic spans any in the window."""
        return self.reach.farthest if self.spans_of is not None else max(farthest)

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, spans: Spans, first: Tensor | None,
        last: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """Heads' outputs (B, H, L, D)."""
        scale = self.head_dim**-0.5
        plain = self.causal and q.shape[2] == 1 and first is None
        working = self.training or torch.is_grad_enabled() or torch.compiler.is_compiling()
        if plain and not working:
            assert spans.fade is not None
            return one_soft_window(q, k, v, self.vectors, spans.fade, scale)
        return soft_windows(
            q, k, v, self.vectors, spans.ends, reach=self.reach, ramp=self.options.ramp,
            farthest=spans.farthest, first=first, last=last, scale=scale, dropout=self.dropout,
        )  # fmt: skip

    def _losses(self, spans: Spans, padding_mask: Tensor | None) -> Losses:
        """lambda times the mean z, over heads and, of dynamic spans, over real tokens."""
        weight = self.options.penalty
        if not weight:
            return {}
        if padding_mask is None or spans.z.shape[2] == 1:
            return {"span": weight * spans.z.mean()}
        mean = spans.z.mean(1)
        return {"span": weight * (mean * padding_mask).sum() / padding_mask.sum().clamp(min=1)}

    def _show(self, rows: Rows, q: Tensor, k: Tensor, z: Tensor) -> None:
        """Offer spans, and the weights of texts from their beginning."""
        o = self.options

        def spans() -> Tensor:
            return (z + o.ramp).clamp(max=o.window)

        def sums() -> tuple[Tensor, Tensor]:
            each = spans().mean(1).expand(rows.x.shape[:2])
            real = (
                torch.ones_like(each) if rows.padding_mask is None else rows.padding_mask.to(each)
            )
            return (each * real).sum(), real.sum()

        tally("span", sums)
        record(self, "spans", lambda: spans()[0, :, 0] if z.shape[2] == 1 else spans()[0])
        if tracing() and q.shape[2] == k.shape[2]:
            record(self, "weights", lambda: self._weights(q, k, z, rows.padding_mask))

    def _weights(
        self, q: Tensor, k: Tensor, z: Tensor, padding_mask: Tensor | None = None
    ) -> Tensor:
        ramp = self.options.ramp
        return soft_weights(
            q, k, self.vectors, z + ramp, reach=self.reach, ramp=ramp, padding_mask=padding_mask
        )

    def text_reference(self, text: Rows) -> Tensor:
        q, k, v = self.project(text.x)
        weights = self._weights(q, k, self._z(text.x), text.padding_mask)
        return self.merge(weights.to(v.dtype) @ v)

    def empty_state(self, batch: int, **like: Any) -> State:
        if self.memory is not None and self.memory.ring() is None:
            return self.memory.init_state(batch, self.width, **like)
        return KeyValueState.empty((batch, self.heads), self.head_dim, self.head_dim, **like)
