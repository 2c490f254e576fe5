"""One layer: a mixer and a feed-forward, each inside a residual connection.

pre-norm:   x = x + drop(mixer(norm(x)));    x = x + drop(ffn(norm(x)))
post-norm:  x = norm(x + drop(mixer(x)));    x = norm(x + drop(ffn(x)))

A decoder's layer has a third sub-layer between the two, which reads an encoder's output. What a
sub-layer adds is also there alone (`Block.added`): other wirings (`everyformer.blocks.reversible`)
are made of it.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from everyformer.blocks.feedforward import FeedForward, drop, make_norm
from everyformer.blocks.options import BlockOptions
from everyformer.core.errors import ShapeError
from everyformer.core.mask import Mask
from everyformer.core.mixer import Mixer
from everyformer.core.outputs import MixerOutput
from everyformer.core.state import State

Part = Literal["mixer", "cross", "feedforward"]


class Block(nn.Module):
    """A residual layer around any `Mixer`; the feed-forward is left out where the mixer has one.

    Args:
        cross: the mixer that reads the context; None in all but decoders.
    """

    def __init__(
        self,
        mixer: Mixer,
        options: BlockOptions,
        drop_path: float = 0.0,
        cross: Mixer | None = None,
    ) -> None:
        super().__init__()
        self.post = options.wiring == "post"
        self.mixer = mixer
        self.mixer_norm = make_norm(mixer.width, options)
        self.cross = cross
        self.cross_norm = None if cross is None else make_norm(mixer.width, options)
        self.feedforward = FeedForward(mixer.width, options) if mixer.with_feedforward else None
        self.feedforward_norm = make_norm(mixer.width, options) if self.feedforward else None
        self.dropout = options.dropout
        self.drop_path = drop_path

    @property
    def parts(self) -> list[Part]:
        """The sub-layers that this layer has, in order."""
        there: tuple[tuple[Part, nn.Module | None], ...] = (
            ("mixer", self.mixer),
            ("cross", self.cross),
            ("feedforward", self.feedforward),
        )
        return [part for part, module in there if module is not None]

    def forward(
        self,
        x: Tensor,
        *,
        context: State | None = None,
        mask: Mask | None = None,
        state: State | None = None,
    ) -> MixerOutput:
        """`x` (batch, length, width) through the layer; state and losses are the mixer's.

        ``context`` is what ``cross.read_context`` made. It may have fewer rows than ``x``: then
        each is read by as many rows of ``x`` as stand together (the beams of one sentence).
        """
        mixed = self.mixer(x if self.post else self.mixer_norm(x), mask=mask, state=state)
        x = x + self._thin(mixed.y)
        if self.post:
            x = self.mixer_norm(x)
        if self.cross_norm is not None:
            read = self._read(x if self.post else self.cross_norm(x), context)
            x = self.cross_norm(x + read) if self.post else x + read
        if self.feedforward is not None and self.feedforward_norm is not None:
            if self.post:
                x = self.feedforward_norm(x + self._thin(self.feedforward(x)))
            else:
                x = x + self._thin(self.feedforward(self.feedforward_norm(x)))
        return MixerOutput(x, mixed.state, mixed.losses)

    def added(
        self,
        part: Part,
        x: Tensor,
        *,
        context: State | None = None,
        mask: Mask | None = None,
        state: State | None = None,
    ) -> MixerOutput:
        """What one sub-layer adds to the residual stream, from ``x`` before its norm."""
        if part == "mixer":
            mixed = self.mixer(self.mixer_norm(x), mask=mask, state=state)
            return MixerOutput(self._thin(mixed.y), mixed.state, mixed.losses)
        if part == "cross":
            assert self.cross_norm is not None
            return MixerOutput(self._read(self.cross_norm(x), context), None, {})
        assert self.feedforward is not None
        assert self.feedforward_norm is not None
        return MixerOutput(self._thin(self.feedforward(self.feedforward_norm(x))), None, {})

    def weights_of(self, part: Part) -> dict[str, nn.Parameter]:
        """The parameters that one sub-layer and its norm use, by name."""
        both = (f"{part}_norm", part)
        return {k: w for name in both for k, w in self.get_submodule(name).named_parameters(name)}

    def extend(self, x: Tensor, *, mask: Mask | None = None, state: State) -> State:
        """Take the layer's input into its state without computing the layer's output."""
        return self.mixer.extend(x if self.post else self.mixer_norm(x), mask=mask, state=state)

    def _read(self, x: Tensor, context: State | None) -> Tensor:
        """What the cross-mixer adds, dropped out."""
        assert self.cross is not None
        if context is None:
            raise ShapeError("a decoder's layer needs the encoder's output as its context")
        asked = x.reshape(context.seen.shape[0], -1, x.shape[-1])
        return self._thin(self.cross(asked, state=context).y.view_as(x))

    def _thin(self, y: Tensor) -> Tensor:
        """Dropout, and stochastic depth by sample with the survivors scaled up."""
        y = drop(y, self.dropout, self.training)
        if self.drop_path == 0.0 or not self.training:
            return y
        alive = torch.rand(y.shape[0], 1, 1, device=y.device) >= self.drop_path
        return y * (alive / (1 - self.drop_path)).to(y.dtype)
