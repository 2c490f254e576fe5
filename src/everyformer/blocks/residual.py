"""`Residual`: the connection by which sub-layers join the stream from layer to layer.

    stream' = join(stream, f(read(stream)))              for each sub-layer f of each layer

What a sub-layer reads and how its output is joined is all that residual connections differ in. They
have no state and no weights: one serves all layers of a stack. A norm and, where `make_gate` gives
one, a gate are around each sub-layer of a layer, and are handed to it.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple, final

from torch import Tensor, nn

from everyformer.core.config import NoOptions
from everyformer.core.outputs import LayerOutput
from everyformer.core.panels import Recorded
from everyformer.core.returned import check_joined
from everyformer.core.subset import TokenSubset
from everyformer.core.trials import Trials
from everyformer.engines.remade import remade

Part = Literal["mixer", "cross", "feedforward"]
Norm = Callable[[Tensor], Tensor]
Gate = Callable[[Tensor, Tensor], Tensor]
"""(stream, output) to the next stream, (B, L, width) each"""
Stream = Any
"""what goes from layer to layer: (B, L, width), or what a residual connection makes of it"""


class Around(NamedTuple):
    """Norm, gate and dropout around one of a layer's sub-layers."""

    norm: Norm
    gate: Gate | None
    """as `Residual.make_gate` made it"""


class Residual:
    """Base of all residual connections."""

    name: ClassVar[str]
    Options: ClassVar[type] = NoOptions
    trials: ClassVar[Trials] = Trials()
    """what the laws try it on"""
    recorded: ClassVar[Recorded] = {}
    """how what its gates record as they run is drawn"""
    last_norm: bool = True
    """whether the stack norms what comes out of the last layer"""
    recomputes: ClassVar[bool] = False
    """whether activations are made again anyway, so that checkpoints would save nothing"""
    passes: ClassVar[type[Any] | None] = None
    """kind of `everyformer.blocks.passing.StackRun` for such layers; None: that one"""

    def __init__(self, options: Any = None) -> None:
        self.options = self.Options() if options is None else options

    def out_width(self, width: int) -> int:
        """Channels of what comes out of a stack of so many."""
        raise NotImplementedError

    def make_gate(self, width: int) -> nn.Module | None:
        """Module that joins the output of one sub-layer of one layer by weights, or None."""
        return None

    def open(self, x: Tensor) -> Stream:
        """The stream that begins with ``x``."""
        raise NotImplementedError

    def close(self, stream: Stream) -> Tensor:
        """Output (B, L, out_width) of the last stream."""
        raise NotImplementedError

    def shift(self, stream: Stream, added: Tensor) -> Stream:
        """The stream with ``added`` (B or 1, L, width) on it, before a layer."""
        raise NotImplementedError

    def read(self, stream: Stream, around: Around) -> Tensor:
        """Input of a sub-layer with this ``around`` it."""
        raise NotImplementedError

    def join(self, stream: Stream, y: Tensor, around: Around) -> Stream:
        """The stream with a sub-layer's output in it."""
        raise NotImplementedError

    def pick(self, stream: Stream, chosen: TokenSubset) -> Stream:
        """The stream of the tokens ``chosen`` alone, (R, n, ...)."""
        raise NotImplementedError

    @final
    def step(
        self,
        stream: Stream,
        around: Around,
        f: Callable[[Tensor], LayerOutput],
        chosen: TokenSubset | None = None,
    ) -> tuple[Stream, LayerOutput]:
        """One sub-layer; with ``chosen`` tokens ``f`` reads all and answers for these."""
        x = self.read(stream, around)
        with remade(x):
            out = f(x)
        stream = stream if chosen is None else self.pick(stream, chosen)
        after = self.join(stream, out.y, around)
        check_joined(self, after, stream)
        return after, out


class SingleStream(Residual):
    """Base of residual connections whose stream is one tensor, (B, L, width)."""

    @final
    def out_width(self, width: int) -> int:
        return width

    @final
    def open(self, x: Tensor) -> Tensor:
        return x

    @final
    def close(self, stream: Tensor) -> Tensor:
        return stream

    @final
    def shift(self, stream: Tensor, added: Tensor) -> Tensor:
        return stream + added

    @final
    def pick(self, stream: Tensor, chosen: TokenSubset) -> Tensor:
        return chosen.pick(stream)
