"""`Memory`: what one attention layer carries from segment to segment, as inputs of that layer.

The rows that a memory holds stand before the segment, oldest first, and become keys and values
there by the layer's own projections. So the projections learn from the past while the past itself
gets no gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from everyformer.core.outputs import Losses
from everyformer.core.state import State
from everyformer.core.trials import Trials
from everyformer.engines.softmax.cache import KeyValueState
from everyformer.engines.softmax.visibility import Sight


class Recalled(NamedTuple):
    """What is read beside a segment."""

    rows: KeyValueState
    """inputs (B, 1, m, width) in the place of keys, values of no channels"""
    farthest: int | None = None
    """largest distance of a query to a row, where rows stand for more than one token each; None:
    rows are one apart"""


class Segment(NamedTuple):
    """What a memory may take in after a segment."""

    x: Tensor
    """(B, L, width) the layer's inputs"""
    positions: Tensor
    """(B or 1, L)"""
    keep: Tensor | None
    """(B, L) bool, which tokens are real"""
    shown: Tensor | None
    """(B, m + L) bool, rows of the past and tokens that later segments may see; None: all"""
    look: Callable[[Tensor, Tensor], Tensor]
    """heads' outputs (B, H, L, Dv) of these tokens over rows (B, n, width), flagged (B, n) bool, in
    place of the past: by contents alone, with no gradient to the tokens or the projections"""
    received: Callable[[], Tensor]
    """(B, m + L) attention that each row of the past and each token got, over heads and queries
    that are real"""

    def live(self) -> Tensor | None:
        """(B, L) bool, which tokens are real and may be seen by later segments; None: all."""
        if self.shown is None:
            return self.keep
        shown = self.shown[:, -self.x.shape[1] :]
        return shown if self.keep is None else shown & self.keep


class Memory(nn.Module):
    """Base of all memories.

    Constructor of every concrete memory, keyword-only: ``width`` (of the model), ``options`` (its
    own frozen dataclass).
    """

    name: ClassVar[str]
    trials: ClassVar[Trials] = Trials()
    """what the laws try it on"""
    holds: ClassVar[type[State]]
    """the kind of state that it carries"""
    slots: int
    """rows of the past that a layer keeps; may be changed for evaluation"""

    @property
    def reach(self) -> int:
        """How many tokens back a layer reads."""
        return self.slots

    def sight(self, sight: Sight) -> Sight:
        """What queries see, given what the attention itself lets them see."""
        return sight

    def ring(self) -> int | None:
        """How many keys and values stand for this memory where nothing is learned; None: none do.

        Read in evaluation mode (see `nn.Module.train`).
        """
        return None

    def init_state(self, batch_size: int, width: int, **like: Any) -> State:
        """Nothing remembered yet; ``like``: device and dtype."""
        raise NotImplementedError

    def rows_of(self, state: Any) -> KeyValueState:
        """The rows in a state that stand for one token each."""
        rows: KeyValueState = state.rows
        return rows

    def recall(self, state: Any, length: int) -> Recalled:
        """The rows that stand before the next segment, of ``length`` tokens."""
        raise NotImplementedError

    def remember(self, state: Any, segment: Segment) -> tuple[State, Losses]:
        """The state after a segment, cut from the graph, and the memory's own losses."""
        raise NotImplementedError


def no_rows(batch_size: int, width: int, **like: Any) -> KeyValueState:
    """A memory without rows."""
    return KeyValueState.empty((batch_size, 1), width, 0, **like)


def with_segment(rows: KeyValueState, segment: Segment) -> KeyValueState:
    """``rows`` and the inputs of a segment behind them, cut from the graph."""
    x = segment.x.detach()[:, None]
    rows = rows.detach().append(x, x[..., :0], segment.positions, segment.keep)
    return rows if segment.shown is None else rows.only(segment.shown)


def memories_of(model: nn.Module) -> list[Memory]:
    """The memories of a model's layers, first layer first; none of most models."""
    return [module for module in model.modules() if isinstance(module, Memory)]
