"""`Depth`: how often, and for which tokens, the blocks of a stack are applied."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from everyformer.blocks.passing import LayerSchedule, StackRun, Steps
from everyformer.core.config import NoOptions
from everyformer.core.mask import Mask
from everyformer.core.panels import Recorded
from everyformer.core.state import State
from everyformer.core.trials import Trials


@dataclass(eq=False)
class Exiting:
    """Request of one pass to a depth whose tokens leave early, and its answer."""

    norm: Callable[[Tensor, int], Tensor]
    """the stream (..., width) after layer n, counted from 1, as that layer predicts from it"""
    head: Callable[[Tensor, int], Tensor]
    """what layer n predicts from that: (..., vocabulary)"""
    full: bool = False
    """whether all tokens go through all layers"""
    at: Tensor | None = None
    """(B, L) the layers at which tokens leave, where that is prescribed"""
    weights: Tensor | None = None
    """(N,) of the layers' losses, in training"""
    streams: list[Tensor] | None = None
    """list for the streams (B, L, width) after all layers, in a pass through all"""
    left: Tensor | None = None
    """answer: (B, L) the layers at which tokens left, 0 of padding"""
    stream: Tensor | None = None
    """answer: (B, L, width) as they left"""


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
    """the depth under which the blocks' weights mean the same; None: no other"""
    places: ClassVar[bool] = False
    """whether it may add positions at every step"""
    drives: ClassVar[bool] = False
    """whether it changes the stream of single tokens between steps"""

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

    def steps(self, blocks: int) -> Steps:
        """Blocks that each step applies, of so many, counted from 0.

        States, taps and losses are counted by layers, over all steps; weights, positions and what
        is read of an encoder belong to the block.
        """
        raise NotImplementedError

    def schedule(self, run: StackRun, x: Tensor) -> LayerSchedule:
        """LayerSchedule of a pass that begins with ``x`` (B, L, width).

        The stream of a depth that `drives` is one tensor, and so is not that of reversible layers.
        """
        raise NotImplementedError

    def begin(self, batch: int, width: int, **like: Any) -> State | None:
        """State of a stack before the first token, other than the steps', where mixers
        can take tokens in alone; None: nothing. ``like``: device and dtype."""
        return None

    def read_context(self, encoded: Tensor, mask: Mask | None) -> State | None:
        """Context from an encoder's output (B, S, width), made once for a text, or None."""
        return None
