"""A stack of layers: passes states and losses through, and can offer any layer's output.

A reversible one (`everyformer.blocks.reversible`) gives both its halves side by side, twice the
width, or their mean. Mixers may want learned tokens in front (`Mixer.lead`): they go through all
layers with the text, without positions, and are left out of what comes out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from everyformer.blocks.block import Block
from everyformer.blocks.feedforward import make_norm
from everyformer.blocks.options import BlockOptions
from everyformer.blocks.reversible import Halves, run_reversible
from everyformer.core.choices import made_again
from everyformer.core.errors import GeneError
from everyformer.core.mask import Mask, positions_of
from everyformer.core.mixer import Mixer
from everyformer.core.outputs import Losses, MixerOutput, StackOutput, add_losses
from everyformer.core.state import StackState, State
from everyformer.positions.base import Position


class Stack(nn.Module):
    """Layers in order, then a final norm unless they are post-norm.

    ``out_width`` is the number of channels that come out.

    Args:
        cross: of a decoder, the mixers that read the context.
        position: one a layer, whose `embed` is added to its input, to both halves of a
            reversible one.
    """

    def __init__(
        self,
        mixers: Sequence[Mixer],
        width: int,
        options: BlockOptions,
        cross: Sequence[Mixer] | None = None,
        position: Sequence[Position] | None = None,
    ) -> None:
        super().__init__()
        last = max(len(mixers) - 1, 1)
        readers = [None] * len(mixers) if cross is None else cross
        self.blocks = nn.ModuleList(
            Block(mixer, options, options.drop_path * i / last, reader)
            for i, (mixer, reader) in enumerate(zip(mixers, readers, strict=True))
        )
        self.reversible = options.wiring == "reversible"
        self.joined = options.reversible_output
        doubled = self.reversible and self.joined == "concat"
        self.out_width = 2 * width if doubled else width
        bare = options.wiring == "post"
        eps = options.norm_eps if options.final_norm_eps is None else options.final_norm_eps
        last_norm = replace(options, norm_eps=eps)
        self.norm = nn.Identity() if bare else make_norm(self.out_width, last_norm)
        self.before = None if position is None else nn.ModuleList(position)
        self.checkpointing = False
        leads = sorted({mixer.lead for mixer in mixers})
        if len(leads) > 1:
            raise GeneError(
                f"layers want {' and '.join(map(str, leads))} learned tokens in front, but all "
                "read one text: give them the same number"
            )
        self.lead = None
        if leads[-1]:
            self.lead = nn.Parameter(torch.empty(1, leads[-1], width))
            nn.init.normal_(self.lead, std=0.02)

    def forward(
        self,
        x: Tensor,
        *,
        context: Sequence[State] | None = None,
        mask: Mask | None = None,
        state: StackState | None = None,
        hidden: Sequence[int] = (),
    ) -> StackOutput:
        """`x` (batch, length, width) through all layers: (batch, length, out_width).

        Args:
            context: of a decoder, what `read_context` made of the encoder's output.
            hidden: layers whose outputs are wanted, counted from 1; 0 is the input.
        """
        added = self._positions(x, mask, state)
        if self.lead is not None:
            return self._led(self.lead, x, added, context, mask, state, hidden)
        return self._run(x, added, context, mask, state, hidden)

    def _led(
        self,
        lead: Tensor,
        x: Tensor,
        added: Sequence[Tensor] | None,
        context: Sequence[State] | None,
        mask: Mask | None,
        state: StackState | None,
        hidden: Sequence[int],
    ) -> StackOutput:
        """With the learned tokens in front, which stand in every row."""
        count = lead.shape[1]
        if mask is not None:
            mask.require("a stack with learned tokens in front", frozenset({"keep"}))
            if mask.keep is not None:
                mask = Mask(keep=F.pad(mask.keep, (count, 0), value=True))
        x = torch.cat((lead.to(x.dtype).expand(x.shape[0], -1, -1), x), 1)
        if added is not None:
            added = [F.pad(each, (0, 0, count, 0)) for each in added]
        out = self._run(x, added, context, mask, state, hidden)
        kept = tuple(each[:, count:] for each in out.hidden)
        return StackOutput(out.y[:, count:], out.state, out.losses, kept)

    def _run(
        self,
        x: Tensor,
        added: Sequence[Tensor] | None,
        context: Sequence[State] | None,
        mask: Mask | None,
        state: StackState | None,
        hidden: Sequence[int],
    ) -> StackOutput:
        """All layers, then the norm."""
        if self.reversible:
            return self._reversibly(x, added, context, mask, state, hidden)
        losses: Losses = {}
        states: list[State] = []
        kept = {0: x} if 0 in hidden else {}
        for n, block in enumerate(self.blocks):
            if added is not None:
                x = x + added[n]
            before = None if state is None else state.layers[n]
            read = None if context is None else context[n]
            if self.checkpointing and self.training:
                out = self._checkpointed(block, x, context=read, mask=mask, state=before)
            else:
                out = block(x, context=read, mask=mask, state=before)
            x = out.y
            if out.state is not None:
                states.append(out.state)
            if n + 1 in hidden:
                kept[n + 1] = x
            add_losses(losses, out.losses)
        after = None
        if state is not None:
            after = StackState(seen=state.seen + _real(x, mask), layers=tuple(states))
        return StackOutput(self.norm(x), after, losses, tuple(kept[n] for n in hidden))

    def _checkpointed(self, block: nn.Module, x: Tensor, **given: Any) -> MixerOutput:
        """One layer of which the input alone is kept."""
        # the compiler repeats by itself and takes no such contexts
        if not torch.compiler.is_compiling():
            given["context_fn"] = made_again
        out = checkpoint(block, x, use_reentrant=False, **given)
        assert isinstance(out, MixerOutput)
        return out

    def _reversibly(
        self,
        x: Tensor,
        added: Sequence[Tensor] | None,
        context: Sequence[State] | None,
        mask: Mask | None,
        state: StackState | None,
        hidden: Sequence[int],
    ) -> StackOutput:
        blocks = [block for block in self.blocks if isinstance(block, Block)]
        layers = None if state is None else state.layers
        out = run_reversible(blocks, x, added, context, mask, layers, hidden)
        after = None
        if state is not None:
            after = StackState(seen=state.seen + _real(x, mask), layers=out.states)
        y = self.norm(self._join(out.halves, x.dtype))
        kept = tuple(self._join(out.hidden[n], x.dtype) for n in hidden)
        return StackOutput(y, after, out.losses, kept)

    def _join(self, halves: Halves, dtype: torch.dtype) -> Tensor:
        a, b = halves
        return (torch.cat(halves, -1) if self.joined == "concat" else (a + b) / 2).to(dtype)

    def read_context(self, encoded: Tensor, mask: Mask | None = None) -> tuple[State, ...]:
        """The encoder's output (batch, source, width), taken in once by every layer's reader."""
        readers = [block.cross for block in self.blocks if isinstance(block, Block)]
        return tuple(cross.read_context(encoded, mask) for cross in readers if cross is not None)

    def init_state(
        self,
        batch_size: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> StackState:
        """States of all layers before the first token; raises where a layer has none."""
        for each in () if self.before is None else self.before:
            cast(Position, each).check_streaming()
        layers = tuple(
            block.mixer.init_state(batch_size, device=device, dtype=dtype)
            for block in self.blocks
            if isinstance(block, Block)
        )
        return StackState(seen=torch.zeros_like(layers[0].seen), layers=layers)

    def _positions(self, x: Tensor, mask: Mask | None, state: State | None) -> list[Tensor] | None:
        """What is added before every layer, (B or 1, L, width) each."""
        if self.before is None:
            return None
        seen = None if state is None else state.seen
        where = positions_of(x.shape[0], x.shape[1], mask, seen, x.device)
        return [cast(Position, position).embed(where).to(x.dtype) for position in self.before]


def _real(x: Tensor, mask: Mask | None) -> Tensor | int:
    return x.shape[1] if mask is None or mask.keep is None else mask.keep.sum(1)
