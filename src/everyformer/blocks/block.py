"""One layer: a mixer and a feed-forward, each inside a residual connection.

pre-norm:   x = x + drop(mixer(norm(x)));    x = x + drop(ffn(norm(x)))
post-norm:  x = norm(x + drop(mixer(x)));    x = norm(x + drop(ffn(x)))

A decoder's layer has a third sub-layer between the two, which reads an encoder's output.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from everyformer.blocks.feedforward import FeedForward, drop, make_norm
from everyformer.blocks.options import BlockOptions
from everyformer.core.errors import ShapeError
from everyformer.core.mask import Mask
from everyformer.core.mixer import Mixer
from everyformer.core.outputs import MixerOutput
from everyformer.core.state import State


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
        if self.cross is not None and self.cross_norm is not None:
            if context is None:
                raise ShapeError("a decoder's layer needs the encoder's output as its context")
            rows = context.seen.shape[0]
            asked = (x if self.post else self.cross_norm(x)).reshape(rows, -1, x.shape[-1])
            read = self.cross(asked, state=context).y.view_as(x)
            x = self.cross_norm(x + self._thin(read)) if self.post else x + self._thin(read)
        if self.feedforward is not None and self.feedforward_norm is not None:
            if self.post:
                x = self.feedforward_norm(x + self._thin(self.feedforward(x)))
            else:
                x = x + self._thin(self.feedforward(self.feedforward_norm(x)))
        return MixerOutput(x, mixed.state, mixed.losses)

    def extend(self, x: Tensor, *, mask: Mask | None = None, state: State) -> State:
        """Take the layer's input into its state without computing the layer's output."""
        return self.mixer.extend(x if self.post else self.mixer_norm(x), mask=mask, state=state)

    def _thin(self, y: Tensor) -> Tensor:
        """Dropout, and stochastic depth by sample with the survivors scaled up."""
        y = drop(y, self.dropout, self.training)
        if self.drop_path == 0.0 or not self.training:
            return y
        alive = torch.rand(y.shape[0], 1, 1, device=y.device) >= self.drop_path
        return y * (alive / (1 - self.drop_path)).to(y.dtype)
