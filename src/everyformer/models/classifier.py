"""Classifiers of text and of images: one stack, two ways in, four ways to pool.

Images are cut into patches by a strided convolution (equal to a linear layer on flattened patches),
in raster order: Dosovitskiy et al. 2020, arXiv 2010.11929, eq. 1. The pooled vector is the mean of
the real tokens, a class token put first, or the first or last real token. A head of two layers with
tanh is BERT's: its first layer is what is called the pooler there (Devlin et al. 2018).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from everyformer.blocks.block import Block
from everyformer.core.errors import GeneError, ShapeError
from everyformer.core.mask import Mask
from everyformer.core.outputs import ModelOutput
from everyformer.core.state import StackState
from everyformer.models.base import Model, refuse_state
from everyformer.models.config import ModelConfig
from everyformer.models.language import total_loss

_POOLED = frozenset({"keep", "allowed", "bias", "global_tokens", "grid"})


class Pool(nn.Module):
    """From (B, L, channels) to logits (B, classes), by ``config.pooling``."""

    def __init__(self, config: ModelConfig, channels: int) -> None:
        super().__init__()
        self.pooling = config.pooling
        hidden = config.head_hidden
        if hidden is None:
            last = nn.Linear(channels, config.classes)
            self.head: nn.Module = last
        else:
            last = nn.Linear(hidden, config.classes)
            between = nn.Tanh() if config.head_activation == "tanh" else nn.GELU()
            self.head = nn.Sequential(nn.Linear(channels, hidden), between, last)
        nn.init.zeros_(last.bias)
        # ViT starts its head at zero; a text classifier does not, since every logit then moves
        # alike and small tasks stay on that plateau (seen on modular sums)
        if config.task == "classify-image":
            nn.init.zeros_(last.weight)
        else:
            nn.init.normal_(last.weight, std=channels**-0.5)
        self.token = None
        if self.pooling == "class":
            self.token = nn.Parameter(torch.zeros(1, 1, config.width))

    def open(self, x: Tensor, mask: Mask | None) -> tuple[Tensor, Mask | None]:
        """Put the class token, if there is one, before the tokens (B, L, width)."""
        if mask is not None and mask.documents is not None:
            mask.require("a classifier, which gives one answer a row,", _POOLED)
        if self.token is None:
            return x, mask
        if mask is not None:
            mask.require("a classifier with a class token", frozenset({"keep"}))
            if mask.keep is not None:
                mask = Mask(keep=nn.functional.pad(mask.keep, (1, 0), value=True))
        return torch.cat((self.token.to(x.dtype).expand(x.shape[0], -1, -1), x), dim=1), mask

    def forward(self, y: Tensor, mask: Mask | None) -> Tensor:
        keep = None if mask is None else mask.keep
        if self.pooling == "class":
            pooled = y[:, 0]
        elif keep is None:
            ends = {"first": y[:, 0], "last": y[:, -1]}
            pooled = y.mean(1) if self.pooling == "mean" else ends[self.pooling]
        elif self.pooling in ("mean", "globals"):
            real = keep[..., None].to(y.dtype)
            pooled = (y * real).sum(1) / real.sum(1).clamp(min=1)
        else:
            places = torch.arange(1, keep.shape[1] + 1, device=y.device)
            if self.pooling == "first":
                places = places.flip(0)
            found = (places * keep).argmax(1)
            pooled = y[torch.arange(y.shape[0], device=y.device), found]
        return self.head(pooled)


class TextClassifier(Model):
    """inputs (B, L) int64 with ``mask.keep``, targets (B,), logits (B, classes)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.pool = Pool(config, self.stack.out_width)
        self.start_weights([self.embedding])

    def forward(
        self,
        inputs: Tensor,
        *,
        targets: Tensor | None = None,
        mask: Mask | None = None,
        state: StackState | None = None,
        types: Tensor | None = None,
    ) -> ModelOutput:
        """Classify every row; ``types`` (B, L) are the tokens' segments (see `Model.embed`)."""
        refuse_state(self, state)
        x = self.embed(self.embedding, inputs, types)
        x, mask = self.pool.open(x, mask)
        out, made = self.read_text(self.add_positions(x, mask, None), inputs, mask)
        if made is not None and self.config.pooling == "globals":
            logits = self.pool(made.y, Mask(keep=made.keep))
        else:
            logits = self.pool(out.y, mask)
        loss, losses = total_loss(logits, targets, out.losses, self.config)
        return ModelOutput(logits, loss, losses, None)


class ImageClassifier(Model):
    """inputs (B, C, H, W): uint8 pixels, or floats already normalised; targets (B,)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        if config.image is None:
            raise GeneError("task 'classify-image' needs image=(channels, height, width)")
        channels, height, width = config.image
        if height % config.patch or width % config.patch:
            sides = [p for p in range(1, min(height, width) + 1) if not (height % p or width % p)]
            raise GeneError(
                f"patch={config.patch} does not divide the image of {height}x{width}; "
                f"patches that fit: {', '.join(map(str, sides))}"
            )
        self.grid = (height // config.patch, width // config.patch)
        self.patches = nn.Conv2d(channels, config.width, config.patch, stride=config.patch)
        nn.init.xavier_uniform_(self.patches.weight.flatten(1))
        nn.init.zeros_(self.patches.bias)  # type: ignore[arg-type]
        self.pool = Pool(config, self.stack.out_width)
        self.start_weights([])
        self.gridded = config.pooling != "class" and all(
            isinstance(block, Block) and "grid" in block.mixer.honours
            for block in self.stack.blocks
        )

    def forward(
        self,
        inputs: Tensor,
        *,
        targets: Tensor | None = None,
        mask: Mask | None = None,
        state: StackState | None = None,
    ) -> ModelOutput:
        refuse_state(self, state)
        if inputs.dim() != 4 or tuple(inputs.shape[1:]) != self.config.image:
            raise ShapeError(
                f"images must be (batch, {', '.join(map(str, self.config.image or ()))}), "
                f"not {tuple(inputs.shape)}"
            )
        pixels = inputs
        if not pixels.is_floating_point():
            pixels = pixels.to(self.patches.weight.dtype) / 127.5 - 1.0
        x = self.patches(pixels).flatten(2).transpose(1, 2) * self.embedding_scale
        if mask is None and self.gridded:
            mask = Mask(grid=self.grid)
        x, mask = self.pool.open(x, mask)
        out = self.stack(self.add_positions(x, mask, None), mask=mask)
        logits = self.pool(out.y, mask)
        loss, losses = total_loss(logits, targets, out.losses, self.config)
        return ModelOutput(logits, loss, losses, None)
