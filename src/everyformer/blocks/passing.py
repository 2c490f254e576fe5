"""`StackRun`: one text on its way through a stack, and the one loop over the stack's steps.

    for each step:   stream = leave(layers(enter(stream)))    `LayerSchedule`: who takes the step

A step is one layer or several. Which tokens take it, and what comes of those that do not, is set
by a `LayerSchedule`, which a depth makes for each pass. Who computes layers in another way (again
in the backward pass, recorded for one by hand) changes how one layer is called,
`StackRun.through`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from everyformer.blocks.block import Block
from everyformer.blocks.residual import Residual, Stream
from everyformer.core.choices import recomputed
from everyformer.core.mask import Mask
from everyformer.core.outputs import LayerOutput, Losses, add_losses
from everyformer.core.state import StackState, State
from everyformer.core.subset import TokenSubset
from everyformer.core.taps import Tap

Steps = Sequence[Sequence[int]]
"""the blocks of each step, in order; layers are counted over all steps"""


class LayerSchedule:
    """Tokens of one pass: which of them take each step, and what comes out of all steps."""

    def __init__(self, run: StackRun) -> None:
        self.run = run

    def over(self) -> bool:
        """True if no token takes a further step."""
        return False

    def enter(self, t: int, stream: Stream) -> Stream:
        """The stream as it enters the layers of the step ``t``, counted from 0."""
        return stream

    def apply(self, n: int, layer: int, stream: Stream) -> Stream:
        """The stream after block ``n``, which is the layer ``layer`` of all steps."""
        raise NotImplementedError

    def leave(self, t: int, stream: Stream) -> Stream:
        """The stream after the step ``t``, as the next step is given it."""
        return stream

    def close(self, stream: Stream) -> Stream:
        """The stack's output, of the stream after the last step."""
        return stream


class AllTokens(LayerSchedule):
    """A schedule on which all tokens take every step."""

    def apply(self, n: int, layer: int, stream: Stream) -> Stream:
        return self.run.step(n, layer, stream)


@dataclass(eq=False)
class StackRun:
    """One pass through a stack: what its layers read with the stream, and what they leave."""

    blocks: Sequence[Block]
    residual: Residual
    steps: Steps
    added: Sequence[Tensor] | None = None
    """(B or 1, L, width) for each block, put on the stream before it"""
    context: Sequence[State] | None = None
    """of a decoder, the encoder's output as each block's reader, and then the depth, took it in"""
    mask: Mask | None = None
    carried: StackState | None = None
    """the state of the stack before these tokens"""
    taps: Collection[Tap] = ()
    """places inside the stack whose tensors are returned"""
    exiting: Any = None
    """the request to a depth whose tokens leave early (`everyformer.blocks.depth.Exiting`)"""
    checkpointing: bool = False
    """whether of a layer only its input is saved for the backward pass"""
    prefix: int = 0
    """learned tokens in front of the text"""
    state: list[State] | None = field(init=False)
    """the layers' states before these tokens, one a layer"""
    states: list[State] = field(default_factory=list, init=False)
    """the same after them"""
    pending: State | None = field(default=None, init=False)
    """tokens that layers have still to take in, of the stack's state"""
    losses: Losses = field(default_factory=dict, init=False)
    """the layers' terms, summed by name"""
    tapped: dict[Tap, Any] = field(default_factory=dict, init=False)
    """streams, and tensors (B, L, width) from inside the layers"""

    def __post_init__(self) -> None:
        self.state = None if self.carried is None else list(self.carried.layers)

    def forward(self, x: Tensor, schedule: LayerSchedule) -> Stream:
        """The stream after all steps, of ``x`` (B, L, width)."""
        return self.loop(self.residual.open(x), schedule)

    @final
    def loop(self, stream: Stream, schedule: LayerSchedule) -> Stream:
        """The stream after all steps."""
        self.collect(0, {"block-output": stream})
        layer = 0
        for t, blocks in enumerate(self.steps):
            if schedule.over():
                break
            stream = schedule.enter(t, stream)
            for n in blocks:
                stream = schedule.apply(n, layer, stream)
                layer += 1
            stream = schedule.leave(t, stream)
        return schedule.close(stream)

    def step(self, n: int, layer: int, stream: Stream, chosen: TokenSubset | None = None) -> Stream:
        """The stream after block ``n``, which is the layer ``layer``.

        With ``chosen`` it is that of these tokens alone, (R, n, ...): all are read, the others cost
        what a mixer does for its keys.
        """
        out = self.through(self.blocks[n], n, layer, self.entering(n, stream), chosen)
        if out.state is not None:
            self.states.append(out.state)
        add_losses(self.losses, out.losses)
        self.collect(layer + 1, {"block-output": out.y, **out.taps})
        return out.y

    def through(
        self, block: Block, n: int, layer: int, stream: Stream, chosen: TokenSubset | None = None
    ) -> LayerOutput:
        """One layer, for all tokens or those ``chosen``."""
        inputs = self.inputs(n, layer)
        inputs["taps"] = self.inside(layer + 1)
        if chosen is not None:
            inputs["chosen"] = chosen
        if not self.checkpointing:
            out: LayerOutput = block(stream, **inputs)
            return out
        # the compiler repeats by itself and takes no such contexts
        if not torch.compiler.is_compiling():
            inputs["context_fn"] = recomputed
            # what a norm made the stream of would be kept with it
            getattr(stream, "__dict__", {}).pop("made_of", None)
        again: LayerOutput = checkpoint(block, stream, use_reentrant=False, **inputs)
        return again

    def append(self, n: int, layer: int, stream: Stream, mask: Mask | None) -> None:
        """Take a stream into the state of a layer, without outputs."""
        assert self.state is not None
        inputs = self.inputs(n, layer) | {"mask": mask}
        self.state[layer] = self.blocks[n].append(self.entering(n, stream), **inputs)

    def entering(self, n: int, stream: Stream) -> Stream:
        """The stream as it enters block ``n``."""
        return stream if self.added is None else self.residual.shift(stream, self.added[n])

    def collect(self, layer: int, tensors: dict[str, Any]) -> None:
        """Keep what is tapped of the ``tensors`` inside a layer, counted from 1."""
        named = {Tap(name, layer): value for name, value in tensors.items()}
        self.tapped |= {tap: value for tap, value in named.items() if tap in self.taps}

    def inputs(self, n: int, layer: int) -> dict[str, Any]:
        """Context, mask and state that a layer reads with the stream."""
        context = None if self.context is None else self.context[n]
        state = None if self.state is None else self.state[layer]
        return {"context": context, "mask": self.mask, "state": state}

    def inside(self, layer: int | None = None) -> list[str]:
        """Names of the taps inside a layer, counted from 1 (default: inside any)."""
        taps = (t for t in self.taps if t.name != "block-output")
        return [t.name for t in taps if layer in (None, t.layer)]
