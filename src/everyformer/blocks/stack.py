"""A stack of layers: passes states and losses through, and offers what lies inside.

What it offers is named by `everyformer.core.taps`; the loop over the layers is
`everyformer.blocks.passing.StackRun`. Mixers may want learned tokens in front (`Mixer.prefix`):
they go through all layers with the text, without positions, and are left out of what comes out.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyformer.blocks.block import Block
from everyformer.blocks.depth import Depth, Exiting
from everyformer.blocks.feedforward import FeedForward
from everyformer.blocks.options import BlockOptions
from everyformer.blocks.parts import make_norm
from everyformer.blocks.passing import StackRun
from everyformer.blocks.residual import Residual
from everyformer.core.errors import ConfigError, GeneError
from everyformer.core.leaks import of_others, tried
from everyformer.core.mask import Mask, positions_of
from everyformer.core.mixer import Mixer
from everyformer.core.outputs import StackOutput
from everyformer.core.position import Position
from everyformer.core.shared import advanced, sharing
from everyformer.core.state import StackState, State, in_step
from everyformer.core.taps import Tap
from everyformer.core.wording import join_names
from everyformer.engines.remade import noted
from sequence_laws.foreign import source


class Stack(nn.Module):
    """Layers in order, then a final norm unless they are post-norm.

    ``out_width`` is the number of channels that come out.

    Args:
        residual: how sub-layers are joined.
        depth: how often blocks are applied.
        feedforward: makes that of a mixer's layer.
        cross: of a decoder, the mixers that read the context.
        position: one a layer, whose `embed` is added to its input.
    """

    def __init__(
        self,
        mixers: Sequence[Mixer],
        width: int,
        options: BlockOptions,
        residual: Residual,
        depth: Depth,
        feedforward: Callable[[Mixer], FeedForward],
        cross: Sequence[Mixer] | None = None,
        position: Sequence[Position] | None = None,
    ) -> None:
        super().__init__()
        last = max(len(mixers) - 1, 1)
        readers = [None] * len(mixers) if cross is None else cross
        self.residual = residual
        self.blocks = nn.ModuleList(
            Block(mixer, options, residual, feedforward, options.drop_path * i / last, reader)
            for i, (mixer, reader) in enumerate(zip(mixers, readers, strict=True))
        )
        self.depth = depth
        self.steps = tuple(tuple(step) for step in self.depth.steps(len(mixers)))
        self.order = tuple(n for step in self.steps for n in step)
        self.out_width = self.residual.out_width(width)
        eps = options.norm_eps if options.final_norm_eps is None else options.final_norm_eps
        last_norm = make_norm(self.out_width, replace(options, norm_eps=eps))
        self.norm = last_norm if self.residual.last_norm else nn.Identity()
        self.before = None if position is None else nn.ModuleList(position)
        self.checkpointing = False
        leads = sorted({mixer.prefix for mixer in mixers})
        if len(leads) > 1:
            raise GeneError(
                f"layers want {' and '.join(map(str, leads))} learned tokens in front, but all "
                "read one text: give them the same number"
            )
        self.lead = None
        if leads[-1]:
            self.lead = nn.Parameter(torch.empty(1, leads[-1], width))
            nn.init.normal_(self.lead, std=0.02)

    @sharing
    def forward(
        self,
        x: Tensor,
        *,
        context: Sequence[State] | None = None,
        mask: Mask | None = None,
        state: StackState | None = None,
        taps: Sequence[str] = (),
        exiting: Exiting | None = None,
    ) -> StackOutput:
        """`x` (batch, length, width) through all layers: (batch, length, out_width).

        Args:
            context: of a decoder, what `read_context` made of the encoder's output.
            taps: names of tensors inside to return (`everyformer.core.taps`).
            exiting: request to early exits (default: all tokens go through all layers).
        """
        places = {text: self._tap(text) for text in taps}
        run = (self.residual.passes or StackRun)(
            [cast(Block, block) for block in self.blocks],
            self.residual,
            self.steps,
            added=self._positions(x, mask, state),
            context=context,
            mask=mask,
            carried=state,
            taps=frozenset(places.values()),
            exiting=exiting,
            checkpointing=self.checkpointing and self.training and not self.residual.recomputes,
        )
        prefix = 0
        if self.lead is not None:
            prefix = run.prefix = self.lead.shape[1]
            x = self._led(self.lead, x, run)
        stream = run.forward(x, self.depth.schedule(run, x))
        after = None
        if state is not None:
            padding_mask = None if run.mask is None else run.mask.padding_mask
            num_tokens = advanced(state.num_tokens, x.shape[1], padding_mask)
            after = StackState(num_tokens=num_tokens, layers=tuple(run.states), pending=run.pending)
        y = noted(self.norm, self.residual.close(stream))
        inside = {text: self._tapped(run, tap)[:, prefix:] for text, tap in places.items()}
        return StackOutput(y[:, prefix:] if prefix else y, after, run.losses, inside)

    def _tap(self, text: str) -> Tap:
        tap = Tap.of(text, len(self.order))
        if tap.name == "ffn-input":
            block = self.blocks[self.order[tap.layer - 1]]
            if "feedforward" not in cast(Block, block).parts:
                raise ConfigError(
                    f"tap '{text}': this layer has no feed-forward, its mixer holds one; "
                    f"'attention-output:{tap.layer}' is what that mixer gives"
                )
        return tap

    def _tapped(self, run: StackRun, tap: Tap) -> Tensor:
        tensor = run.tapped[tap]
        return self.residual.close(tensor) if tap.name == "block-output" else tensor

    def _led(self, lead: Tensor, x: Tensor, run: StackRun) -> Tensor:
        """``x`` with the learned tokens in front, which are in every row of ``run`` too."""
        count, mask = lead.shape[1], run.mask
        if mask is not None:
            mask.require("a stack with learned tokens in front", frozenset({"padding_mask"}))
            if mask.padding_mask is not None:
                run.mask = Mask(padding_mask=F.pad(mask.padding_mask, (count, 0), value=True))
        if run.added is not None:
            run.added = [F.pad(each, (0, 0, count, 0)) for each in run.added]
        return torch.cat((lead.to(x.dtype).expand(x.shape[0], -1, -1), x), 1)

    def units(self) -> list[nn.Module]:
        """Parts whose weights are needed together and can lie elsewhere until then: the blocks.

        It is the stack itself where blocks are not called one by one: where they are computed
        again, with readers of a context, and where blocks share weights. Where tokens leave
        early it is nothing: the model predicts with parts of the stack in between.
        """
        if self.depth.drives:
            return []
        blocks = [cast(Block, block) for block in self.blocks]
        shared = sum(len(list(block.parameters())) for block in blocks)
        apart = shared == len(list(self.blocks.parameters()))
        reads = any(block.cross is not None for block in blocks)
        if not apart or reads or self.residual.recomputes:
            return [self]
        return list(blocks)

    @property
    def mixers(self) -> list[Mixer]:
        """Mixers of every block, first block first."""
        return [cast(Block, block).mixer for block in self.blocks]

    def found_leak(self, length: int) -> str | None:
        """Where causal layers see the future, if not all that is around their mixers is of this
        library, in short texts and those of a ``length``; None: nowhere."""
        fed = (block.feedforward for block in self.blocks if isinstance(block, Block))
        parts: dict[str, Any] = {"feedforward": next(filter(None, fed), None)}
        parts |= {"residual": self.residual, "depth": self.depth}
        named = [
            f"{kind} '{part.name}' ({source(type(part))})"
            for kind, part in parts.items()
            if part is not None and of_others(part)
        ]
        if not named or not all(mixer.causal for mixer in self.mixers):
            return None

        def run(x: Tensor) -> Tensor:
            # the encoder's output, of one that has any, is the same for all rows
            y: Tensor = self(x, context=self.read_context(x[-1:]) or None).y
            return y

        most = min([length, *(m.max_length for m in self.mixers if m.max_length is not None)])
        what = f"the layers with {join_names(named)}"
        return tried(self, run, self.mixers[0].width, most, what)

    def read_context(self, encoded: Tensor, mask: Mask | None = None) -> tuple[State, ...]:
        """The encoder's output (batch, source, width), taken in once by every layer's reader."""
        readers = [block.cross for block in self.blocks if isinstance(block, Block)]
        read = [cross.read_context(encoded, mask) for cross in readers if cross is not None]
        further = self.depth.read_context(encoded, mask)
        return tuple(read) if further is None else (*read, further)

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
        blocks = [cast(Block, self.blocks[n]) for n in self.order]
        layers = tuple(block.init_state(batch_size, device=device, dtype=dtype) for block in blocks)
        pending = None
        if self.before is None and all(block.can_append for block in blocks):
            weight = next(self.parameters())
            like = {"device": device or weight.device, "dtype": dtype or weight.dtype}
            pending = self.depth.begin(batch_size, blocks[0].mixer.width, **like)
        return in_step(StackState(torch.zeros_like(layers[0].num_tokens), layers, pending))

    def _positions(self, x: Tensor, mask: Mask | None, state: State | None) -> list[Tensor] | None:
        """Positions added before every layer, (B or 1, L, width) each."""
        if self.before is None:
            return None
        num_tokens = None if state is None else state.num_tokens
        where = positions_of(x.shape[0], x.shape[1], mask, num_tokens, x.device)
        return [cast(Position, position).added(where, x) for position in self.before]
