"""Longformer: a window around every token, and a few global tokens with projections of their own.

    i not in G   softmax over {j : |i - j| <= w} and G   of q_i . k_j / sqrt(D),     values v_j
    i in G       softmax over all j                      of q'_i . k'_j / sqrt(D),   values v'_j

w = W/2 with W = ``window`` as the paper and Hugging Face's ``attention_window`` count it: half of
it to each side, the token itself besides. A head of ``dilation`` b reads j with (i - j) mod b = 0,
up to w b away (b = 1: no gap; the paper's table counts from 0). A global key inside the window
counts once. G is ``mask.global_tokens``, row by row; where the mask has none, ``global_tokens``,
and a text classifier marks the token that it reads. q', k', v' are of ``project_global``.

Causal, for language models: the window before the token, j <= i; the paper's have no G. That
G may be used there too, its keys j <= i for all and its queries over all j <= i, is ours.

Cost: O(L (W + |G|)). State: the keys and values of the last w b tokens and of G, and, until the
last of G has come, those of ``project_global``.

Source: Beltagy et al. 2020, arXiv 2004.05150, section 3. Longformers start from short models, whose
projections are copied into the global ones (`copy_projections`; again after a training in which no
token was global, since they had no gradient). Its language models are trained in stages of longer
texts and wider windows: ``--training.stages 430 50 50 35 5`` (`everyformer.training.schedule`).
"""

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from everyformer.core.bounds import Bounds, Count, Even, Whole
from everyformer.core.dispatch import take
from everyformer.core.errors import GeneError, UnsupportedError
from everyformer.core.leaving import leaves_torch
from everyformer.core.state import State, state
from everyformer.core.trace import record, tracing
from everyformer.core.trials import LENGTH, Trials, are_attention
from everyformer.engines.projections import HeadProjections
from everyformer.engines.softmax.cache import KeyValueState
from everyformer.engines.sparse.attention import choose
from everyformer.engines.sparse.patterns import GlobalKeys, GlobalQueries, Near, Pattern
from everyformer.engines.sparse.plan import SparsePlan
from everyformer.genes.mixers import MIXERS
from everyformer.genes.mixers.base import Rows
from everyformer.genes.mixers.patterned import Heads, PatternAttention, PatternOptions, Weigh


@dataclass(frozen=True)
class LongformerOptions(PatternOptions):
    window: Even | tuple[Even, ...] = 512
    """W, even: W/2 tokens are seen on each side of a token (causal: before it); 0: itself alone;
    one number or one a head"""
    dilation: Count | tuple[Count, ...] = 1
    """step between the tokens of a window (1: none is left out; the paper dilates 2 heads of its
    upper layers); one number or one a head"""
    global_tokens: Annotated[int, Bounds(0, 65536)] | tuple[Whole, ...] = 0
    """the first so many tokens of a text, or those at these positions, are global where the mask
    names none"""
    global_projections: bool | None = None
    """queries, keys and values of global tokens have matrices of their own, as in section 3.1
    (default: unless causal and without global tokens)"""


@state
class LongformerState(State):
    """Keys and values that later tokens see, and those that a later global token does."""

    num_tokens: Tensor
    local: KeyValueState
    whole: KeyValueState
    """by the global projections, of the tokens up to the last global one"""


LIMITS: dict[str, dict[str, Any]] = {
    "window >= 2 L": {"window": 2 * LENGTH, "global_projections": True},
    "window >= 2 L with global tokens": {"window": 2 * LENGTH, "global_tokens": (0, 3)},
    "all tokens global": {"window": 0, "global_tokens": LENGTH},
}
TRIALS = Trials(
    variants=(
        {},
        {"window": 4, "global_tokens": 2, "bias": ("query", "key", "value", "output")},
        {"window": (0, 2, 6), "global_tokens": (1, 4), "dilation": (1, 3, 2), "backend": "blocked"},
        {"window": 6, "global_tokens": (2, 0, 7), "global_projections": False, "position": "rope"},
        {"window": 6, "dilation": 2, "global_tokens": 1, "position": "alibi"},
        {"window": 4, "global_tokens": (0, 3), "position": "t5-relative"},
    ),
    limits=are_attention("longformer", LIMITS, lambda mixer: mixer.copy_projections()),
)


@MIXERS.register("longformer")
class Longformer(PatternAttention):
    """Windows and global tokens over (B, L, width), with the projections."""

    name = "longformer"
    trials = TRIALS
    drawn_for = "mlm"
    states = (KeyValueState, LongformerState)
    supported_masks = frozenset({"padding_mask", "documents", "global_tokens"})
    Options = LongformerOptions
    options: LongformerOptions
    examples = (
        ("window 8", {"window": 8}),
        ("dilated by 2", {"window": 8, "dilation": 2}),
        ("and global tokens", {"window": 8, "global_tokens": (0, 21, 42)}),
    )

    def prepare(self, longest: int | None) -> None:
        o, heads, causal = self.options, self.heads, self.causal
        windows = _by_head("window", o.window, heads)
        dilations = _by_head("dilation", o.dilation, heads)
        self._halves = tuple((w // 2, b) for w, b in zip(windows, dilations, strict=True))
        self.tokens = _positions(o.global_tokens, longest)
        separate = o.global_projections
        if separate is None:
            separate = not causal or bool(self.tokens)
        self.project_global: HeadProjections | None = None
        if separate:
            sizes = (heads, heads), (self.head_dim, self.head_dim)
            self.project_global = HeadProjections((self.width,) * 3, *sizes, o.bias)
        self.scale_window(1)

    def scale_window(self, by: int) -> None:
        self._near = tuple(
            Near(before=side, after=side, dilation=dilation, causal=self.causal)
            for side, dilation in ((max(w // by, min(w, 1)), b) for w, b in self._halves)
        )
        self._plan, self._windows = self._of(self.tokens), self._of(())
        self._local = self._of(self.tokens, queries=self.project_global is None)

    @torch.no_grad()
    def copy_projections(self) -> None:
        """Global projections that start as those of the other tokens, a copy of them.

        Raises:
            UnsupportedError: this one was built without global projections.
        """
        if self.project_global is None:
            raise UnsupportedError(
                "this longformer has one set of projections for all tokens, so there is nothing to "
                "copy: build it with `global_projections=True`"
            )
        self.project_global.load_state_dict(self.project.state_dict())

    def plan(self, length: int) -> SparsePlan:
        """Visible pairs of each head where the mask names no global tokens."""
        return self._plan

    def _of(self, tokens: tuple[int, ...], queries: bool = True) -> SparsePlan:
        """The plan with these global tokens; without their ``queries``, which see all."""
        whole: tuple[Pattern, ...] = ()
        if tokens:
            whole = (GlobalKeys(tokens=tokens, causal=self.causal),)
        if tokens and queries:
            whole = (*whole, GlobalQueries(tokens=tokens, causal=self.causal))
        near = self._near[:1] if len(set(self._near)) == 1 else self._near
        return SparsePlan(tuple((one, *whole) for one in near))

    def heads_of(self, rows: Rows, state: State | None) -> tuple[Tensor, State | None]:
        x, padding_mask, marked = rows[:3]
        if state is not None:
            if marked is not None:
                raise UnsupportedError(
                    "mask.global_tokens and a state cannot be combined: a token that turns out "
                    "global reads all earlier ones, which a state does not hold. Name the global "
                    "tokens of every text by the option global_tokens"
                )
            return self._streamed(rows, state)
        heads = self._project(rows, None)[0]
        if tracing():
            record(self, "weights", lambda: self._pairs(rows, heads, self._weights))
        if marked is None and not self.tokens:
            return self._local_heads(heads, padding_mask, self._local), None
        graph = torch.compiler.is_compiling()
        by_pairs = marked is not None and (graph or self._dense(heads[0]))
        if by_pairs or leaves_torch():
            if graph:
                take(self.name, "dense", "a graph knows no numbers of global tokens", True)
            return self._pairs(rows, heads, self._outputs), None
        if marked is None:
            return self._with_tokens(rows, heads, self.tokens), None
        outputs = []
        sets = _sets(marked if padding_mask is None else marked & padding_mask)
        for tokens, numbers in sets.items():
            at = torch.tensor(numbers, device=x.device)
            texts, *of = (t.index_select(0, at) for t in (x, *heads))
            real = None if padding_mask is None else padding_mask.index_select(0, at)
            outputs.append(self._with_tokens(Rows(texts, real), (of[0], of[1], of[2]), tokens))
        order = torch.tensor([row for same in sets.values() for row in same], device=x.device)
        return torch.cat(outputs).index_select(0, order.argsort()), None

    def _dense(self, q: Tensor) -> bool:
        """True where all pairs are computed anyway."""
        return choose(self._local, q, self.scores, self.options.backend) == "dense"

    def _flags(self, positions: Tensor) -> Tensor:
        """Flags of the positions (B or 1, L) that are global where the mask names none."""
        tokens = torch.tensor(self.tokens, dtype=torch.long, device=positions.device)
        return (positions[..., None] == tokens).any(-1)

    def _with_tokens(self, rows: Rows, heads: Heads, tokens: tuple[int, ...]) -> Tensor:
        """Heads' outputs (B, H, L, D) of rows with the same global tokens."""
        x, padding_mask = rows.x, rows.padding_mask
        shared, length = self.project_global is None, x.shape[1]
        plan = self._local if tokens == self.tokens else self._of(tokens, queries=shared)
        out = self._local_heads(heads, padding_mask, plan)
        tokens = tuple(token for token in tokens if token < length)
        if shared or not tokens:
            return out
        at, lengths = torch.tensor(tokens, device=x.device), rows.lengths[:, None]
        # causal: none of them sees anything after the last one
        read = x[:, : max(tokens) + 1] if self.causal else x
        j = torch.arange(read.shape[1], device=x.device)[None]
        mask = self._visible(
            at[None], j, None if padding_mask is None else padding_mask[:, : read.shape[1]]
        )
        q = self._global_queries(x.index_select(1, at), at[None], lengths)
        keys = self._global_keys(read, j, lengths)
        own = self._outputs(q, *keys, mask, at[None], j)
        return out.index_copy(2, at, own.to(out.dtype))

    def _local_heads(self, heads: Heads, padding_mask: Tensor | None, plan: SparsePlan) -> Tensor:
        return self.attend(*heads, plan, None if padding_mask is None else padding_mask.sum(1))

    def _pairs(self, rows: Rows, heads: Heads, weigh: Weigh) -> Tensor:
        """All pairs, global tokens by flags: for graphs, short texts and pictures."""
        x, padding_mask, flags = rows[:3]
        positions = torch.arange(x.shape[1], device=x.device)[None]
        flags = self._flags(positions) if flags is None else flags
        flags = flags if padding_mask is None else flags & padding_mask
        possible = self._visible(positions, positions, padding_mask)
        windows = self._windows.visible(positions[0], positions[0], self.heads)[None]
        mask = windows | flags[:, None, None]
        if self.project_global is None:
            return weigh(*heads, possible & (mask | flags[:, None, :, None]), positions, positions)
        out = weigh(*heads, possible & mask, positions, positions)
        lengths = rows.lengths[:, None]
        q = self._global_queries(x, positions, lengths)
        keys = self._global_keys(x, positions, lengths)
        whole = weigh(q, *keys, possible, positions, positions)
        return torch.where(flags[:, None, :, None], whole, out)

    def _streamed(self, rows: Rows, state: State) -> tuple[Tensor, State]:
        """Outputs of tokens after those of a state, and the state after them."""
        if not isinstance(state, LongformerState):
            heads, local = self._by_plan(rows, state)
            assert local is not None
            return heads, local
        heads, local = self._by_plan(rows, state.local)
        x, padding_mask = rows.x, rows.padding_mask
        assert isinstance(local, KeyValueState)
        positions = state.num_tokens[:, None] + torch.arange(x.shape[1], device=x.device)
        last = self.tokens[-1]
        early, count = positions <= last, x.shape[1]
        if not torch.compiler.is_compiling():
            # only these tokens can be global, or be read by one that is
            count = int(early.any(0).sum())
        if not count:
            return heads, LongformerState(local.num_tokens, local, state.whole)
        x, positions = x[:, :count], positions[:, :count]
        padding_mask = None if padding_mask is None else padding_mask[:, :count]
        holes = padding_mask is not None or state.whole.padding_mask is not None
        k, v = self._global_keys(x, positions)
        whole = state.whole.append(k, v, positions if holes else None, padding_mask)
        real, j = whole.slots()
        mask = self._visible(positions, j, real)
        own = self._weighed(
            self._global_queries(x, positions), whole.keys, whole.values, mask, positions, j
        )
        flags = self._flags(positions)[:, None, :, None]
        heads = torch.cat((torch.where(flags, own, heads[:, :, :count]), heads[:, :, count:]), 2)
        return heads, LongformerState(local.num_tokens, local, whole.last(last + 1))

    def empty_state(self, batch: int, **like: Any) -> State:
        local = super().empty_state(batch, **like)
        if self.project_global is None or not self.tokens:
            return local
        assert isinstance(local, KeyValueState)
        return LongformerState(local.num_tokens, local, local)

    def reference_heads(self, text: Rows) -> Tensor:
        (x, _, marked), tokens = text[:3], self.tokens
        length = x.shape[1]
        if marked is not None:
            tokens = tuple(marked[0].nonzero().squeeze(1).tolist())
        mask = self._of(tokens, queries=True).mask(length, self.heads)
        out = self._by_definition(self.project(x), mask)
        if self.project_global is None:
            return out
        whole = torch.ones(1, length, length, dtype=torch.bool)
        whole = whole.tril() if self.causal else whole
        rows = self._by_definition(self.project_global(x), whole)
        flags = torch.isin(torch.arange(length), torch.tensor(tokens, dtype=torch.long))
        return torch.where(flags[:, None].to(out.device), rows, out)

    def _global_queries(
        self, x: Tensor, positions: Tensor, lengths: Tensor | None = None
    ) -> Tensor:
        assert self.project_global is not None
        return self.rotate(self.project_global.one(x, "query"), positions, lengths)

    def _global_keys(
        self, x: Tensor, positions: Tensor, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        assert self.project_global is not None
        k, v = self.project_global.one(x, "key"), self.project_global.one(x, "value")
        return self.rotate(k, positions, lengths), v

    def _visible(self, i: Tensor, j: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Flags (B or 1, 1, L, S) of real keys at ``j``; causal: of none after the query ``i``."""
        mask = torch.ones_like(j, dtype=torch.bool) if padding_mask is None else padding_mask
        mask = mask[:, None, None]
        return mask & (j[:, None, None] <= i[:, None, :, None]) if self.causal else mask


def _by_head(name: str, value: int | tuple[int, ...], heads: int) -> tuple[int, ...]:
    """One number a head."""
    values = value if isinstance(value, tuple) else (value,) * heads
    if len(values) != heads:
        raise GeneError(
            f"`{name}={value}` has {len(values)} numbers, but `heads={heads}`: give one number, or "
            "one for each head"
        )
    return values


def _positions(chosen: int | tuple[int, ...], longest: int | None) -> tuple[int, ...]:
    """Positions of global tokens, ascending."""
    if isinstance(chosen, int):
        return tuple(range(chosen))
    if outside := [at for at in chosen if longest is not None and at >= longest]:
        raise GeneError(
            f"`global_tokens={chosen}` names position {outside[0]}: give positions from 0 on below "
            f"`max_length={longest}`"
        )
    return tuple(sorted(set(chosen)))


def _sets(flags: Tensor) -> dict[tuple[int, ...], list[int]]:
    """The rows of a batch by their global tokens (B, L)."""
    sets: dict[tuple[int, ...], list[int]] = {}
    for row, own in enumerate(flags):
        sets.setdefault(tuple(own.nonzero().squeeze(1).tolist()), []).append(row)
    return sets
