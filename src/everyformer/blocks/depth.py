"""`Depth`: how often, and for which tokens, the blocks of a stack are applied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from torch import Tensor, nn

from everyformer.core.chosen import Chosen
from everyformer.core.gene import NoOptions
from everyformer.core.mask import Mask
from everyformer.core.outputs import Losses
from everyformer.core.panels import Recorded
from everyformer.core.state import StackState, State
from everyformer.core.trials import Trials


@dataclass(eq=False)
class Exiting:
    """What a depth whose tokens leave early is asked in one pass, and what it says."""

    norm: Callable[[Tensor, int], Tensor]
    """the stream (..., width) behind layer n, counted from 1, as that layer predicts from it"""
    head: Callable[[Tensor, int], Tensor]
    """what layer n predicts from that: (..., vocabulary)"""
    full: bool = False
    """whether all tokens go through all layers"""
    at: Tensor | None = None
    """(B, L) the layers at which tokens leave, where that is prescribed"""
    weights: Tensor | None = None
    """(N,) of the layers' losses, in training"""
    streams: list[Tensor] | None = None
    """where the streams (B, L, width) behind all layers are put, in a pass through all"""
    left: Tensor | None = None
    """said: (B, L) the layers at which tokens left, 0 of padding"""
    stream: Tensor | None = None
    """said: (B, L, width) as they left"""


class Run(Protocol):
    """What a depth that drives asks of a pass (`everyformer.blocks.wiring.Pass`)."""

    mask: Mask | None
    carried: StackState | None
    """the state of the stack before these tokens"""
    state: list[State] | None
    """of each step's mixer"""
    states: list[State]
    """the same after this pass, step by step"""
    pending: State | None
    """what the state of the stack holds after it beside them"""
    front: int
    """learned tokens in front of the text"""
    losses: Losses
    exiting: Exiting | None
    """what is asked of early exits"""
    context: Sequence[State] | None
    """of a decoder, what each block's reader, and then the depth, made of the encoder's output"""
    taps: Any
    """what is wanted of the inside"""

    def step(
        self, blocks: Any, n: int, layer: int, stream: Tensor, chosen: Chosen | None = None
    ) -> Tensor:
        """The stream behind block ``n`` at the step ``layer``, of all tokens or those chosen."""

    def entering(self, blocks: Any, n: int, stream: Tensor) -> Tensor:
        """The stream as it enters block ``n``."""

    def extend(self, blocks: Any, n: int, layer: int, stream: Tensor, mask: Mask | None) -> None:
        """Take a stream into the state of a step without giving outputs."""

    def collect(self, layer: int, inside: dict[str, Any]) -> None:
        """Keep what is wanted of the inside of a layer, counted from 1."""


class Depth(nn.Module):
    """Base of all depths; one serves a whole stack, which registers its weights.

    Args:
        options: an instance of `Options`.
        width: channels of the stream; None: no weights are made.
        layers: blocks of the stack.
        adds_positions: whether it adds positions at every step, of depths that may.
    """

    name: ClassVar[str]
    Options: ClassVar[type] = NoOptions
    trials: ClassVar[Trials] = Trials()
    """what the laws try it on"""
    recorded: ClassVar[Recorded] = {}
    """how what it records as it runs is drawn"""
    learned_as: ClassVar[str | None] = None
    """the depth under which the blocks' weights mean the same; None: its own alone"""
    places: ClassVar[bool] = False
    """whether it may add positions at every step"""
    drives: ClassVar[bool] = False
    """whether it runs the blocks itself (`run`); else each is applied once at its place in `order`,
    as the wiring says"""

    def __init__(
        self,
        options: Any = None,
        *,
        width: int | None = None,
        layers: int = 1,
        adds_positions: bool = False,
    ) -> None:
        super().__init__()
        self.options = self.Options() if options is None else options
        self.adds_positions = adds_positions
        if width is not None:
            self.build(width, layers)

    def build(self, width: int, layers: int) -> None:
        """Make the weights."""

    def order(self, blocks: int) -> Sequence[int]:
        """Which of so many blocks is applied at each step, counted from 0.

        States, wanted outputs and losses are counted by step; weights, positions and what is read
        of an encoder belong to the block.
        """
        raise NotImplementedError

    def run(self, blocks: Any, x: Tensor, given: Run) -> Tensor:
        """What comes of the stream that begins with ``x`` (B, L, width): as many channels.

        Of depths that drive. The stream is one tensor, and so is not the reversible wiring's.
        """
        raise NotImplementedError

    def begin(self, batch: int, width: int, **like: Any) -> State | None:
        """What the state of a stack holds beside the steps' before the first token, where mixers
        can take tokens in alone; None: nothing. ``like``: device and dtype."""
        return None

    def read_context(self, encoded: Tensor, mask: Mask | None) -> State | None:
        """What it makes of an encoder's output (B, S, width), once for a text; None: nothing."""
        return None
