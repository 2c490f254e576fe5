"""`Wiring`: how sub-layers join the stream that goes from layer to layer; `Pass`: the loop.

    stream' = join(stream, f(read(stream)))              for each sub-layer f of each layer

What a sub-layer reads and how its output is joined is all that wirings differ in. A wiring has no
state and no weights of its own: one serves all layers of a stack. What a layer has around each of
its sub-layers, a norm and, where the wiring makes one, a gate, is handed to it. The one loop over
layers is `Pass.run`: who computes layers in another way (kept, computed again, recorded for a
backward pass by hand) changes how one layer is called, `Pass.through`, not the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, final

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from everyformer.core.choices import recomputed
from everyformer.core.chosen import Chosen
from everyformer.core.gene import NoOptions
from everyformer.core.mask import Mask
from everyformer.core.outputs import LayerOutput, Losses, add_losses
from everyformer.core.panels import Recorded
from everyformer.core.state import StackState, State
from everyformer.core.taps import Tap
from everyformer.core.trials import Trials

Part = Literal["mixer", "cross", "feedforward"]
Norm = Callable[[Tensor], Tensor]
Gate = Callable[[Tensor, Tensor], Tensor]
"""(stream, output) to the next stream, (B, L, width) each"""
Stream = Any
"""what goes from layer to layer: (B, L, width), or what a wiring makes of it"""


class Around(NamedTuple):
    """What a layer has around one of its sub-layers."""

    norm: Norm
    gate: Gate | None
    """as `Wiring.make_gate` made it"""


class Layer(Protocol):
    """What a pass asks of a layer (`everyformer.blocks.block.Block`)."""

    wiring: Wiring

    @property
    def parts(self) -> list[Part]:
        """Its sub-layers, in order."""

    def __call__(self, stream: Stream, **given: Any) -> LayerOutput:
        """The stream through all sub-layers."""

    def branch(self, part: Part, x: Tensor, **given: Any) -> LayerOutput:
        """One sub-layer without its norm."""

    def around(self, part: Part) -> Around:
        """The norm and the gate of one."""

    def weights_of(self, part: Part) -> dict[str, nn.Parameter]:
        """The weights of all three."""

    def extend(self, stream: Stream, **given: Any) -> State:
        """The state behind the stream, without the layer's output."""


class Wiring:
    """Base of all wirings."""

    name: ClassVar[str]
    Options: ClassVar[type] = NoOptions
    trials: ClassVar[Trials] = Trials()
    """what the laws try it on"""
    recorded: ClassVar[Recorded] = {}
    """how what its gates record as they run is drawn"""
    last_norm: bool = True
    """whether the stack norms what comes out of the last layer"""
    reads_stream: ClassVar[bool] = False
    """whether sub-layers read the stream as it is"""
    recomputes: ClassVar[bool] = False
    """whether activations are made again anyway, so that checkpoints would save nothing"""

    def __init__(self, options: Any = None) -> None:
        self.options = self.Options() if options is None else options

    def out_width(self, width: int) -> int:
        """Channels of what comes out of a stack of so many."""
        raise NotImplementedError

    def make_gate(self, width: int) -> nn.Module | None:
        """What joins the output of one sub-layer of one layer by weights; None: nothing does."""
        return None

    def open(self, x: Tensor) -> Stream:
        """The stream that begins with ``x``."""
        raise NotImplementedError

    def close(self, stream: Stream) -> Tensor:
        """What of a stream is given out: (B, L, out_width)."""
        raise NotImplementedError

    def shift(self, stream: Stream, added: Tensor) -> Stream:
        """The stream with ``added`` (B or 1, L, width) on it, before a layer."""
        raise NotImplementedError

    def read(self, stream: Stream, around: Around) -> Tensor:
        """What a sub-layer with this ``around`` it reads."""
        raise NotImplementedError

    def join(self, stream: Stream, y: Tensor, around: Around) -> Stream:
        """The stream with a sub-layer's output in it."""
        raise NotImplementedError

    def pick(self, stream: Stream, chosen: Chosen) -> Stream:
        """The stream of the tokens ``chosen`` alone, (R, n, ...)."""
        raise NotImplementedError

    def run(self, blocks: Sequence[Layer], x: Tensor, given: Pass) -> Stream:
        """The stream that begins with ``x``, behind all layers."""
        raise NotImplementedError

    @final
    def step(
        self,
        stream: Stream,
        around: Around,
        f: Callable[[Tensor], LayerOutput],
        chosen: Chosen | None = None,
    ) -> tuple[Stream, LayerOutput]:
        """One sub-layer; with ``chosen`` tokens ``f`` reads all and answers for these."""
        out = f(self.read(stream, around))
        stream = stream if chosen is None else self.pick(stream, chosen)
        return self.join(stream, out.y, around), out


class Residual(Wiring):
    """Base of wirings whose stream is one tensor, (B, L, width)."""

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
    def pick(self, stream: Tensor, chosen: Chosen) -> Tensor:
        return chosen.pick(stream)

    @final
    def run(self, blocks: Sequence[Layer], x: Tensor, given: Pass) -> Tensor:
        stream: Tensor = given.run(blocks, x)
        return stream


@dataclass(eq=False)
class Pass:
    """What goes through the layers beside the stream."""

    added: Sequence[Tensor] | None = None
    """(B or 1, L, width) for each block, put on the stream before it"""
    context: Sequence[State] | None = None
    """of a decoder, what each block's reader made of the encoder's output"""
    mask: Mask | None = None
    state: list[State] | None = None
    """of each layer's mixer"""
    order: Sequence[int] | None = None
    """which block is applied at each step (default: each once); layers below are steps"""
    taps: Collection[Tap] = ()
    """what is wanted of the inside"""
    carried: StackState | None = None
    """the state of the whole stack, of a depth that drives"""
    exiting: Any = None
    """what is asked of a depth whose tokens leave early (`everyformer.blocks.depth.Exiting`)"""
    front: int = 0
    """learned tokens in front of the text"""
    pending: State | None = field(default=None, init=False)
    """what the stack's state holds of tokens that layers have still to take in"""
    losses: Losses = field(default_factory=dict, init=False)
    """the layers' terms, summed by name"""
    states: list[State] = field(default_factory=list, init=False)
    """of the mixers, after this pass"""
    found: dict[Tap, Any] = field(default_factory=dict, init=False)
    """it: streams, and tensors (B, L, width) from inside the layers"""

    def run(self, blocks: Sequence[Layer], stream: Stream) -> Stream:
        """The stream behind all ``blocks``."""
        self.collect(0, {"block-output": stream})
        for layer, n in enumerate(range(len(blocks)) if self.order is None else self.order):
            stream = self.step(blocks, n, layer, stream)
        return stream

    def step(
        self,
        blocks: Sequence[Layer],
        n: int,
        layer: int,
        stream: Stream,
        chosen: Chosen | None = None,
    ) -> Stream:
        """The stream behind block ``n`` at the step ``layer``.

        With ``chosen`` it is that of these tokens alone, (R, n, ...): all are read, the others cost
        what a mixer does for its keys.
        """
        out = self.through(blocks[n], n, layer, self.entering(blocks, n, stream), chosen)
        if out.state is not None:
            self.states.append(out.state)
        add_losses(self.losses, out.losses)
        self.collect(layer + 1, {"block-output": out.y, **out.taps})
        return out.y

    def extend(
        self, blocks: Sequence[Layer], n: int, layer: int, stream: Stream, mask: Mask | None
    ) -> None:
        """Take a stream into the state of block ``n`` at the step ``layer``, without outputs."""
        assert self.state is not None
        block = blocks[n]
        given = self.given(n, layer) | {"mask": mask}
        self.state[layer] = block.extend(self.entering(blocks, n, stream), **given)

    def entering(self, blocks: Sequence[Layer], n: int, stream: Stream) -> Stream:
        """The stream as it enters block ``n``."""
        return stream if self.added is None else blocks[n].wiring.shift(stream, self.added[n])

    def collect(self, layer: int, inside: dict[str, Any]) -> None:
        """Keep what is wanted of the ``inside`` of a layer, counted from 1."""
        named = {Tap(name, layer): value for name, value in inside.items()}
        self.found |= {tap: value for tap, value in named.items() if tap in self.taps}

    def through(
        self, block: Layer, n: int, layer: int, stream: Stream, chosen: Chosen | None = None
    ) -> LayerOutput:
        """One layer: block ``n`` at the step ``layer``, for all tokens or those ``chosen``."""
        raise NotImplementedError

    def given(self, n: int, layer: int) -> dict[str, Any]:
        """What one layer reads beside the stream."""
        context = None if self.context is None else self.context[n]
        state = None if self.state is None else self.state[layer]
        return {"context": context, "mask": self.mask, "state": state}

    def inside(self, layer: int | None = None) -> list[str]:
        """Names of what is wanted from inside a layer, counted from 1 (default: of any)."""
        taps = (t for t in self.taps if t.name != "block-output")
        return [t.name for t in taps if layer in (None, t.layer)]


@dataclass(eq=False)
class Forward(Pass):
    """A pass whose gradients are autograd's."""

    checkpointing: bool = False
    """whether of a layer its input alone is kept for the backward pass"""

    def through(
        self, block: Layer, n: int, layer: int, stream: Stream, chosen: Chosen | None = None
    ) -> LayerOutput:
        given = self.given(n, layer)
        given["taps"] = self.inside(layer + 1)
        if chosen is not None:
            given["chosen"] = chosen
        if not self.checkpointing:
            out: LayerOutput = block(stream, **given)
            return out
        # the compiler repeats by itself and takes no such contexts
        if not torch.compiler.is_compiling():
            given["context_fn"] = recomputed
        again: LayerOutput = checkpoint(block, stream, use_reentrant=False, **given)
        return again
