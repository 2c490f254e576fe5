"""Classifiers of text, images and series: one stack, three ways in, five ways to pool.

The same models predict numbers where their task asks for that. Then the head's outputs z stand for
numbers in units of the training data, m + s z with its mean m and standard deviation s, and the
loss is the mean of (z - (y - m) / s)^2.

Images are cut into patches by a strided convolution (equal to a linear layer on flattened patches),
in raster order: Dosovitskiy et al. 2020, arXiv 2010.11929, eq. 1. The pooled vector is the mean of
the real tokens, a class token put first, or the first or last real token. A head of two layers with
tanh is BERT's: its first layer is what is called the pooler there (Devlin et al. 2018). The one
token that is read is a global one for mixers that know such, unless the mask names others.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from everyformer.blocks.parts import Activation
from everyformer.core.errors import GeneError, ShapeError
from everyformer.core.mask import Mask
from everyformer.core.mixer import Mixer
from everyformer.core.outputs import ModelOutput, StackOutput
from everyformer.core.rounding import told_apart
from everyformer.core.state import StackState
from everyformer.genes.config import ModelConfig
from everyformer.models.base import Model, refuse_state
from everyformer.models.language import added, total_loss
from everyformer.models.series import SeriesSteps

_POOLED = frozenset({"padding_mask", "attention_mask", "bias", "global_tokens", "grid"})


class Pool(nn.Module):
    """Pooling and head: (B, L, channels) to logits (B, classes), by ``config.pooling``."""

    def __init__(self, config: ModelConfig, channels: int, mixers: Sequence[Mixer] = ()) -> None:
        super().__init__()
        self.pooling = config.pooling
        # those that read sentences have other global tokens, which stand for them
        knows = all(
            m.supported_masks & {"global_tokens", "sentences"} == {"global_tokens"} for m in mixers
        )
        self.marks = bool(mixers) and knows and self.pooling in ("class", "first")
        hidden = config.head_hidden
        if hidden is None:
            last = nn.Linear(channels, config.outputs)
            self.head: nn.Module = last
        else:
            last = nn.Linear(hidden, config.outputs)
            between = Activation(config.head_activation)
            self.head = nn.Sequential(nn.Linear(channels, hidden), between, last)
        nn.init.zeros_(last.bias)
        # ViT starts its head at zero, and numbers begin at their mean; a text classifier does not,
        # since every logit then moves alike and small tasks stay on that plateau (seen on modular
        # sums)
        if config.does.measures or not config.does.embeds_text:
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
        if self.token is not None:
            if mask is not None:
                able = frozenset({"padding_mask", "global_tokens"})
                mask.require("a classifier with a class token", able)
                mask = Mask(
                    padding_mask=_and_one(mask.padding_mask),
                    global_tokens=_and_one(mask.global_tokens),
                )
            x = torch.cat((self.token.to(x.dtype).expand(x.shape[0], -1, -1), x), dim=1)
        if self.marks and (mask is None or mask.global_tokens is None):
            # the first real token of every row
            real = None if mask is None else mask.padding_mask
            real = x.new_ones(x.shape[:2], dtype=torch.bool) if real is None else real
            mask = replace(mask or Mask(), global_tokens=real & (real.long().cumsum(1) == 1))
        return x, mask

    def forward(self, y: Tensor, mask: Mask | None) -> Tensor:
        padding_mask = None if mask is None else mask.padding_mask
        if self.pooling == "class":
            pooled = y[:, 0]
        elif padding_mask is None:
            ends = {"first": y[:, 0], "last": y[:, -1]}
            pooled = y.mean(1) if self.pooling == "mean" else ends[self.pooling]
        elif self.pooling in ("mean", "globals"):
            real = padding_mask[..., None].to(y.dtype)
            pooled = (y * real).sum(1) / real.sum(1).clamp(min=1)
        else:
            positions = torch.arange(1, padding_mask.shape[1] + 1, device=y.device)
            if self.pooling == "first":
                positions = positions.flip(0)
            result = (positions * padding_mask).argmax(1)
            pooled = y[torch.arange(y.shape[0], device=y.device), result]
        return self.head(pooled)


def _and_one(flags: Tensor | None) -> Tensor | None:
    return None if flags is None else nn.functional.pad(flags, (1, 0), value=True)


class Answering(Model):
    """Base of models that say one thing of a row: logits (B, C) of classes, or numbers (B, N).

    Targets are class ids (B,), or floats (B,) or (B, N).
    """

    pool: Pool
    class_weights: Tensor | None

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.register_buffer("class_weights", None, persistent=False)

    def weigh_classes(self, weights: Sequence[float] | None) -> None:
        """Weigh each row's loss in training by that of its class; None: all alike."""
        self.class_weights = None if weights is None else torch.tensor(weights)

    def answer(self, z: Tensor, targets: Tensor | None, out: StackOutput) -> ModelOutput:
        """The output of a head's outputs ``z``, with the loss where there are targets."""
        config = self.config
        if not config.does.measures:
            weights = self.class_weights if self.training else None
            loss, losses = total_loss(z, targets, out.losses, config, weights)
            return ModelOutput(z, loss, losses, None, taps=out.taps)
        # in half precision a number would be rounded by a 256th of itself, not of its deviation
        z = z.to(torch.promote_types(z.dtype, torch.float32))
        sizes = zip(map(abs, config.target_mean), config.target_std, strict=True)
        wide = z.dtype if all(itertools.starmap(told_apart, sizes)) else torch.float64
        units = torch.tensor((config.target_mean, config.target_std), dtype=wide, device=z.device)
        mean, std = units
        loss, losses = None, out.losses
        if targets is not None:
            goals = targets.reshape(len(z), -1).to(wide)
            if goals.shape != z.shape:
                raise ShapeError(
                    f"targets must be ({len(z)}, {z.shape[1]}) numbers, not {tuple(targets.shape)}"
                )
            off = z - ((goals - mean) / std).to(z.dtype)
            loss, losses = added(off.square().mean(), losses)
        return ModelOutput(mean + std * z, loss, losses, None, taps=out.taps)


class TextClassifier(Answering):
    """Text classifier, or regressor: inputs (B, L) int64 with ``mask.padding_mask``."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.pool = Pool(config, self.stack.out_width, self.stack.mixers)
        self.start_weights([self.embedding])

    def forward(
        self,
        inputs: Tensor,
        *,
        targets: Tensor | None = None,
        mask: Mask | None = None,
        state: StackState | None = None,
        types: Tensor | None = None,
        taps: Sequence[str] = (),
    ) -> ModelOutput:
        """Classify every row; ``types`` (B, L) are the tokens' segments (see `Model.embed`)."""
        refuse_state(self, state)
        x = self.embed(self.embedding, inputs, types)
        x, mask = self.pool.open(x, mask)
        out, summarised = self.read_text(self.add_positions(x, mask, None), inputs, mask, taps=taps)
        if summarised is not None and self.config.pooling == "globals":
            z = self.pool(summarised.y, Mask(padding_mask=summarised.padding_mask))
        else:
            z = self.pool(out.y, mask)
        return self.answer(z, targets, out)


class VectorReader(Answering):
    """Base of those that read vectors, of patches or of series, in the place of tokens."""

    def forward(
        self,
        inputs: Tensor,
        *,
        targets: Tensor | None = None,
        mask: Mask | None = None,
        state: StackState | None = None,
        taps: Sequence[str] = (),
    ) -> ModelOutput:
        refuse_state(self, state)
        x, mask = self.tokens_of(inputs, mask)
        x, mask = self.pool.open(x, mask)
        out = self.stack(self.add_positions(x, mask, None), mask=mask, taps=taps)
        return self.answer(self.pool(out.y, mask), targets, out)

    def tokens_of(self, inputs: Tensor, mask: Mask | None) -> tuple[Tensor, Mask | None]:
        """Vectors (B, L, width) of the tokens of ``inputs``, and their mask."""
        raise NotImplementedError


class ImageClassifier(VectorReader):
    """Image classifier, or regressor: inputs (B, C, H, W), uint8 or floats already normalised."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        if config.image is None:
            raise GeneError(f"task '{config.task}' needs image=(channels, height, width)")
        channels, height, width = config.image
        side = config.side
        if height % side or width % side:
            sides = [p for p in range(1, min(height, width) + 1) if not (height % p or width % p)]
            raise GeneError(
                f"`patch={side}` does not divide the image of {height}x{width}; "
                f"patches that fit: {', '.join(map(str, sides))}"
            )
        self.grid = (height // side, width // side)
        self.patches = nn.Conv2d(channels, config.width, side, stride=side)
        nn.init.xavier_uniform_(self.patches.weight.flatten(1))
        nn.init.zeros_(self.patches.bias)  # type: ignore[arg-type]
        mixers = self.stack.mixers
        self.pool = Pool(config, self.stack.out_width, mixers)
        self.start_weights([])
        self.gridded = config.pooling != "class" and all(
            "grid" in m.supported_masks for m in mixers
        )

    def tokens_of(self, inputs: Tensor, mask: Mask | None) -> tuple[Tensor, Mask | None]:
        if inputs.dim() != 4 or tuple(inputs.shape[1:]) != self.config.image:
            raise ShapeError(
                f"images must be (batch, {', '.join(map(str, self.config.image or ()))}), "
                f"not {tuple(inputs.shape)}"
            )
        pixels = inputs
        if not pixels.is_floating_point():
            pixels = pixels.to(self.patches.weight.dtype) / 127.5 - 1.0
        x = self.patches(pixels).flatten(2).transpose(1, 2) * self.config.embedding_scale
        return x, Mask(grid=self.grid) if mask is None and self.gridded else mask


class SeriesClassifier(VectorReader):
    """Classifier, or regressor, of series: inputs (B, L, series) floats with ``mask.padding_mask``.

    Every step is a token: its numbers, less their means and over their standard deviations, go
    through one linear layer.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.steps = SeriesSteps(config)
        self.pool = Pool(config, self.stack.out_width, self.stack.mixers)
        self.start_weights([])

    def tokens_of(self, inputs: Tensor, mask: Mask | None) -> tuple[Tensor, Mask | None]:
        return self.steps(inputs, mask), mask
