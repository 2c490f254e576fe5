"""Autoregressive pixels: the density of an image, one intensity after the other.

    p(image) = prod_t p(x_t | x_<t),   t in raster order, channels of a pixel last

A language model over 256 intensities and a start token; beside the position gene, learned vectors
for the row, the column and the channel of the pixel to be predicted tell where it is (as in the
Image Transformer, Parmar et al. 2018, arXiv 1802.05751). Loss in nats a pixel and channel; divided
by ln 2 it is bits/dim.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from everyformer.core.errors import GeneError, ShapeError
from everyformer.core.mask import Mask
from everyformer.core.outputs import ModelOutput
from everyformer.core.state import StackState
from everyformer.models.base import Model
from everyformer.models.config import ModelConfig
from everyformer.models.language import predict

START = 256


class PixelModel(Model):
    """inputs (B, C, H, W) uint8; logits (B, H*W*C, 256) of every pixel given those before it.

    With a state, inputs are (B, L) tokens instead (intensities, `START` first) that continue it.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        if config.image is None:
            raise GeneError("task 'pixels' needs image=(channels, height, width)")
        channels, height, width = config.image
        self.embedding = nn.Embedding(257, config.width)
        self.row = nn.Embedding(height, config.width)
        self.column = nn.Embedding(width, config.width)
        self.channel = nn.Embedding(channels, config.width)
        self.head = nn.Linear(self.stack.out_width, 256, bias=False)
        self.start_weights([self.embedding, self.row, self.column, self.channel])

    def forward(
        self,
        inputs: Tensor,
        *,
        targets: Tensor | None = None,
        mask: Mask | None = None,
        state: StackState | None = None,
    ) -> ModelOutput:
        assert self.config.image is not None
        if state is None:
            if tuple(inputs.shape[1:]) != self.config.image:
                raise ShapeError(
                    f"images must be (batch, {', '.join(map(str, self.config.image))}), "
                    f"not {tuple(inputs.shape)}"
                )
            tokens = self.flatten(inputs).roll(1, dims=1)
            tokens[:, 0] = START
            where = torch.arange(tokens.shape[1], device=tokens.device)[None]
        else:
            tokens = inputs.long()
            steps = torch.arange(tokens.shape[1], device=tokens.device)
            where = state.seen[:, None] + steps
        x = (self.embedding(tokens) + self._place(where)) * self.embedding_scale
        out = self.stack(self.add_positions(x, mask, state), mask=mask, state=state)
        made = predict(self.head, out.y, targets, out.losses, self.config, self.training)
        return ModelOutput(*made, out.state)

    @staticmethod
    def flatten(images: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, H*W*C) int64, raster order with the channels of a pixel together."""
        return images.permute(0, 2, 3, 1).flatten(1).long()

    def unflatten(self, tokens: Tensor) -> Tensor:
        """The inverse of `flatten`: (B, H*W*C) -> (B, C, H, W) uint8."""
        assert self.config.image is not None
        channels, height, width = self.config.image
        return tokens.view(-1, height, width, channels).permute(0, 3, 1, 2).to(torch.uint8)

    def _place(self, where: Tensor) -> Tensor:
        assert self.config.image is not None
        channels, _, width = self.config.image
        pixel = where // channels
        row, column = self.row(pixel // width), self.column(pixel % width)
        return row + column + self.channel(where % channels)
