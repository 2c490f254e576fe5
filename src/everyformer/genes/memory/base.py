"""`Memory`: past inputs, or keys and values, that an attention layer carries between segments.

The rows that a memory holds come before the segment, oldest first: inputs of the layer, which
become keys and values there by its own projections, so that these learn from the past while the
past itself gets no gradient; or keys and values as they were. A memory may also have a store of its
own (`Memory.look_up`), whose result is merged with softmax's.

A layer's call, segment by segment (`everyformer.genes.mixers.attention`):

    recall     the state's rows, as further keys and values of softmax
    look_up    the store's result for the segment's queries; Lookup.merge joins it to the output
    remember   the state after the segment, and the memory's own losses
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol, final

import torch
from torch import Tensor

from everyformer.core.config import Choice
from everyformer.core.errors import ShapeError
from everyformer.core.mask import Mask, begins_of, positions_of, runs_of
from everyformer.core.modules import Remembering
from everyformer.core.outputs import Losses
from everyformer.core.panels import Recorded
from everyformer.core.state import State
from everyformer.core.trials import Trials
from everyformer.engines.projections import HeadProjections
from everyformer.engines.softmax.attention import softmax_attention
from everyformer.engines.softmax.cache import KeyValueState
from everyformer.engines.softmax.visibility import Visibility, surely

Heads = tuple[Tensor, Tensor, Tensor]
"""queries (B, H, L, D), keys (B, H_kv, L, D) and values (B, H_kv, L, Dv) of tokens"""


class Recalled(NamedTuple):
    """Past keys and values, or inputs to make them of, that are read with a segment."""

    rows: KeyValueState
    """inputs (B, 1, m, width) as keys, with values of no channels; or keys and values"""
    farthest: int | None = None
    """largest distance of a query to a row, where rows stand for more than one token each; None:
    rows are one apart"""


class Tokens(NamedTuple):
    """Queries, keys and values of a segment, before rotations, and their positions."""

    queries: Tensor
    """(B, H, L, D), scaled: a product with a key is a score"""
    keys: Tensor
    """(B, H_kv, L, D)"""
    values: Tensor
    """(B, H_kv, L, Dv)"""
    order: Tensor
    """(B or 1, L) int64, how many real tokens of the row came before, in all its documents"""
    begin: Tensor
    """(B or 1, L) int64, that of the first token of its document"""
    padding_mask: Tensor | None
    """(B, L) bool, which are real"""


class Lookup(Protocol):
    """Attention over stored keys and values, found for the queries of a segment."""

    def merge(self, y: Tensor, log_sums: Callable[[], Tensor]) -> Tensor:
        """Heads' outputs (B, H, L, Dv): those of softmax, ``y``, merged with the result.

        ``log_sums`` gives the logarithms (B, H, L) of softmax's denominators.
        """


class Segment(NamedTuple):
    """A segment of tokens, with its cache of keys and values, that a memory may take in."""

    x: Tensor
    """(B, L, width) the layer's inputs"""
    positions: Tensor
    """(B or 1, L)"""
    padding_mask: Tensor | None
    """(B, L) bool, which tokens are real"""
    memory_mask: Tensor | None
    """(B, m + L) bool, rows of the past and tokens that later segments may see; None: all"""
    attend: Callable[[Tensor, Tensor], Tensor] | None = None
    """heads' outputs (B, H, L, Dv) of these tokens over rows (B, n, width), flagged (B, n) bool, in
    place of the past: by contents alone, with no gradient to the tokens or the projections; None:
    the mixer reads none but `Memory.tokens_alone`"""
    usage: Callable[[], Tensor] | None = None
    """(B, m + L) attention that each row of the past and each token got, over heads and queries
    that are real; None as above"""
    cache: KeyValueState | None = None
    """keys and values of the past and the segment, as softmax read them"""
    lookup: Any = None
    """the result of `Memory.look_up`"""

    def live(self) -> Tensor | None:
        """(B, L) bool, which tokens are real and may be seen by later segments; None: all."""
        if self.memory_mask is None:
            return self.padding_mask
        memory_mask = self.memory_mask[:, -self.x.shape[1] :]
        return memory_mask if self.padding_mask is None else memory_mask & self.padding_mask


class Memory(Remembering):
    """Base of all memories of an attention layer: past keys and values, or inputs for them.

    Constructor of every concrete memory, keyword-only: ``width`` (of the model), ``options`` (its
    own frozen dataclass).
    """

    name: ClassVar[str]
    recorded: ClassVar[Recorded] = {}
    """how what it records as it runs is drawn, where that is no kind that all know"""
    merges: ClassVar[str] = "as further keys and values"
    """how past and segment become one output, in words: by further rows of the same softmax, unless
    a memory has a store and a gate between the two"""
    learned_without: ClassVar[Mapping[str, Any]] = {}
    """options with which it leaves a model that was trained without it as it is"""
    trials: ClassVar[Trials] = Trials()
    """cases and limits for the laws"""
    holds: ClassVar[type[State]]
    """the kind of state that it carries"""
    projected: ClassVar[bool] = False
    """whether the rows in it are keys and values, not inputs"""
    looks_up: ClassVar[bool] = False
    """whether it has a store that `look_up` reads"""
    tokens_alone: ClassVar[bool] = False
    """whether its rows are the last tokens, one apart, and it needs nothing but those and has no
    losses, so that mixers other than attention can read it at distances of their own"""
    drops_position: bool = False
    """whether the layer's own position is left out"""

    @classmethod
    def in_layer(cls, choice: Choice, layer: int, layers: int) -> Choice:
        """The memory of layer ``layer``, counted from 0, of ``layers``."""
        return choice

    def fit(self, heads: tuple[int, int], dims: tuple[int, int]) -> None:
        """Sizes of the attention that it serves, set once: query and key-value heads, and channels
        of a key and of a value of one head."""

    def heads(self, q: Tensor, k: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """Queries (B, H, L, D) and keys (B, H_kv, L, D) of tokens, normed as this memory does;
        ``scale`` is the factor of their products."""
        return q, k

    def look_up(self, state: Any, tokens: Tokens) -> Lookup | None:
        """Result of a look-up, to merge with softmax's; None: there is none to merge."""
        return None

    def begin(self, state: Any) -> Tensor | None:
        """(B,) first position of the document that a state is in, if `look_up` needs it."""
        return None

    @final
    def lookup(
        self, heads: Heads, scale: float, mask: Mask | None, runs: Tensor | None, state: Any
    ) -> Lookup | None:
        """`look_up` for a segment, of a memory that has a store; arguments as in `tokens`."""
        tokens = self.tokens(heads, scale, mask, runs, state) if self.looks_up else None
        return None if tokens is None else self.look_up(state, tokens)

    @final
    def tokens(
        self, heads: Heads, scale: float, mask: Mask | None, runs: Tensor | None, state: Any
    ) -> Tokens:
        """Tokens of a segment as `look_up` takes them.

        Args:
            scale: of the products. mask: of the segment.
            runs: (B, past + L) the number of each slot's document, where there is a state; None:
                as the mask says, or one document.

        Raises:
            UnsupportedError: pairs are hidden or weighed, which no store knows of.
        """
        q, k, v = heads
        batch, length = q.shape[0], q.shape[2]
        if mask is not None:
            mask.require(f"memory '{self.name}'", frozenset({"padding_mask", "documents"}))
        padding_mask = None if mask is None else mask.padding_mask
        real = None if padding_mask is None else Mask(padding_mask=padding_mask)
        num_tokens = None if state is None else state.num_tokens
        order = positions_of(batch, length, real, num_tokens, q.device)
        of_state = None if state is None else self.begin(state)
        begin = torch.zeros_like(order[:, :1]) if of_state is None else of_state[:, None]
        if runs is None and mask is not None and mask.documents is not None:
            runs = runs_of(mask.documents, padding_mask)
        if runs is not None:
            begin = begins_of(runs[:, -length:], order, begin)
        order, begin = torch.broadcast_tensors(order, begin)
        return Tokens(q * scale, k, v, order, begin, padding_mask)

    def reference(self, y: Tensor, tokens: Tokens, log_sums: Callable[[], Tensor]) -> Tensor:
        """Outputs of `look_up` and `Lookup.merge` without a state, by the literal equation."""
        return y

    @property
    def reach(self) -> int:
        """Number of tokens back that a layer reads."""
        return self.slots

    @property
    def ahead(self) -> int:
        return self.reach

    def windows(self, own: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """Windows of the heads (see `visibility`), of an attention whose windows are ``own``."""
        return own

    def ring(self) -> int | None:
        """Number of keys and values that replace rows where nothing is learned; None: none do.

        Read in evaluation mode (see `nn.Module.train`).
        """
        return None

    def init_state(self, batch_size: int, width: int, **like: Any) -> State:
        """The state before the first segment; ``like``: device and dtype."""
        raise NotImplementedError

    def rows_of(self, state: Any) -> KeyValueState:
        """The rows in a state that stand for one token each."""
        rows: KeyValueState = state.rows
        return rows

    def recall(self, state: Any, length: int) -> Recalled:
        """The rows before the next segment, of ``length`` tokens."""
        raise NotImplementedError

    def remember(self, state: Any, segment: Segment) -> tuple[State, Losses]:
        """The state after a segment, cut from the graph, and the memory's own losses."""
        raise NotImplementedError

    def check_state(self, state: State, batch_size: int, width: int, key_dim: int) -> None:
        """Refuse the state of another model, or of another number of rows."""
        if not isinstance(state, KeyValueState | self.holds):
            raise ShapeError(
                f"a layer with memory '{self.name}' continues a state that its own init_state "
                f"began, not {type(state).__name__} (the state of another model?)"
            )
        projected = self.projected or isinstance(state, KeyValueState)
        rows = state if isinstance(state, KeyValueState) else self.rows_of(state)
        channels, expected = rows.keys.shape[-1], key_dim if projected else width
        if channels != expected:
            raise ShapeError(
                f"the state holds rows of {channels} channels, but this layer's have {expected}: "
                "it is the state of another model"
            )
        if state.num_tokens.shape[0] != batch_size:
            raise ShapeError(
                f"the state holds {len(state.num_tokens)} rows, but x has {batch_size}: begin a "
                "state of that batch size, or pick rows with state.reorder(index)"
            )


def by_contents(
    project: HeadProjections, scale: float, x: Tensor, rows: Tensor, real: Tensor
) -> Tensor:
    """Heads' outputs of ``x`` over ``rows`` by contents alone; no gradient to the projections."""
    frozen = {name: p.detach() for name, p in project.named_parameters()}
    q, _, _ = torch.func.functional_call(project, frozen, (x,))
    _, k, v = torch.func.functional_call(project, frozen, (rows,))
    visible = Visibility(mask=None if surely(real) else real[:, None, None, :])
    return softmax_attention(q, k, v, visible, scale=scale)


def no_rows(batch_size: int, width: int, **like: Any) -> KeyValueState:
    """An empty cache of inputs."""
    return KeyValueState.empty((batch_size, 1), width, 0, **like)


def with_segment(rows: KeyValueState, segment: Segment) -> KeyValueState:
    """``rows`` and the inputs of a segment after them, cut from the graph."""
    x = segment.x.detach()[:, None]
    rows = rows.detach().append(x, x[..., :0], segment.positions, segment.padding_mask)
    return rows if segment.memory_mask is None else rows.only(segment.memory_mask)
