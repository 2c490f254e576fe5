"""Autoregressive pixels: the density of an image, one token after the other.

    p(image) = prod_t p(x_t | x_<t)

A token is the intensity of one channel, drawn from 256, or a whole pixel, drawn from a mixture of
discretised logistics. Tokens are drawn in raster order or block by block, and what is read is moved
on by one along that order. Beside the position gene, vectors of the row, the column and the channel
to be predicted tell where it is; the vector of a class, where the model is conditioned on one, is
added at every position. Losses are in nats a pixel and channel: divided by ln 2 they are bits/dim.

Source: Parmar et al. 2018, arXiv 1802.05751 (Image Transformer), sections 3 and 4.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyformer.core.errors import ConfigError, GeneError, ShapeError
from everyformer.core.mask import Mask
from everyformer.core.outputs import ModelOutput, StackOutput, add_losses
from everyformer.core.state import StackState, State
from everyformer.engines.ranges import full_precision
from everyformer.engines.softmax.visibility import surely
from everyformer.genes.config import ModelConfig
from everyformer.genes.positions import POSITION
from everyformer.models.base import Model
from everyformer.models.language import predict, with_terms
from everyformer.models.layers import build_stack, source_config
from everyformer.models.logistics import mixture_logits, mixture_losses, parameters_of
from everyformer.models.pixel_sequence import PixelEmbedding, PixelSequence
from everyformer.models.seq2seq import Encoded


class DrawingModel(Model):
    """Base of models that draw pictures, value by value: the parts, and how what is read is scored.

    Values and logits are in raster order, channels of a pixel together, in whatever order they
    are drawn. With ``output="mixture"`` the logits are (B, H*W, parameters of a pixel's mixture).
    """

    def __init__(self, config: ModelConfig) -> None:
        _check(config)
        super().__init__(config)
        assert config.image is not None
        self.sequence = PixelSequence(config.image, config.pixels)
        self.embedding = PixelEmbedding(self.sequence, config.width, config.pixels)
        self.classes: nn.Embedding | None = None
        if config.class_names:
            self.classes = nn.Embedding(len(config.class_names), config.width)
        size, bias = 256, config.head_bias
        if self.sequence.whole:
            size, bias = config.pixels.mixtures * parameters_of(self.sequence.channels), False
        self.head = nn.Linear(self.stack.out_width, size, bias=bias)
        tables = [*self.embedding.tables(), *self.build_reading(config)]
        self.start_weights(tables if self.classes is None else [*tables, self.classes])

    def build_reading(self, config: ModelConfig) -> list[nn.Module]:
        """Make what reads a source, in models that have one; its tables are given back."""
        return []

    def decode(self, tokens: Tensor, **options: Any) -> ModelOutput:
        """Logits after each of ``tokens``, which begin the sequence or continue a state's.

        ``options`` are what `read` takes.
        """
        out = self.read(tokens, **options)
        return ModelOutput(self._logits(out.y), None, dict(out.losses), out.state)

    def read(
        self,
        tokens: Tensor,
        *,
        labels: Tensor | None = None,
        context: Sequence[State] | None = None,
        mask: Mask | None = None,
        state: StackState | None = None,
        taps: Sequence[str] = (),
    ) -> StackOutput:
        """Output of the stack for ``tokens``, in drawing order."""
        count = tokens.shape[1]
        steps = torch.arange(count, device=tokens.device)[None]
        if state is not None:
            steps = state.num_tokens[:, None] + steps
        x = self.embedding(tokens, steps, self.config.embedding_scale)
        self.check_labels(labels, len(tokens))
        if self.classes is not None and labels is not None:
            x = x + self.classes(labels.long())[:, None] * self.config.embedding_scale
        x = self.add_positions(x, mask, state)
        return self.stack(x, context=context, mask=mask, state=state, taps=taps)

    def scored(self, out: StackOutput, values: Tensor, targets: Tensor | None) -> ModelOutput:
        """Logits and losses in raster order of what `read` gave for all ``values`` (B, H*W*C)."""
        y = self.sequence.in_raster(out.y)
        if not self.sequence.whole or targets is None:
            predicted = predict(self._logits, y, targets, out.losses, self.config, self.training)
            return ModelOutput(*predicted, out.state, taps=out.taps)
        logits, scored = self._logits(y), targets != -100
        goals = torch.where(scored, targets.long(), values)
        each = mixture_losses(logits, goals.unflatten(1, (-1, self.sequence.channels)))
        each = each.flatten(1).masked_fill(~scored, 0.0)
        loss, losses = with_terms(each.sum(), targets, out.losses)
        return ModelOutput(logits, loss, losses, out.state, each, out.taps)

    def extra_inputs(self, inputs: Tensor) -> dict[str, Any]:
        return {"labels": self.every_class(len(inputs))}

    def every_class(self, count: int) -> Tensor | None:
        """Labels (count,) in which the classes take turns; None without classes."""
        if self.classes is None:
            return None
        return torch.arange(count, device=self.head.weight.device) % self.classes.num_embeddings

    def check_targets(self, targets: Tensor | None, rows: int) -> None:
        """Refuse targets that are not all values of ``rows`` pictures."""
        if targets is None:
            return
        expected = (rows, math.prod(self.sequence.image))
        if targets.shape != expected:
            raise ShapeError(
                f"targets must be {expected}, the values of each picture in raster order with its "
                f"channels together, not {tuple(targets.shape)}"
            )
        if surely((((targets < 0) & (targets != -100)) | (targets > 255)).any()):
            raise ShapeError(
                f"targets hold {targets.min()} to {targets.max()}, but an intensity is 0 to 255, "
                "or -100 where none is scored"
            )

    def check_labels(self, labels: Tensor | None, rows: int) -> None:
        """Refuse class ids that are missing, out of place, or of no class."""
        count = len(self.config.class_names)
        if labels is None:
            if count:
                raise ConfigError(
                    "the model is conditioned on the class of each picture: give labels, one of "
                    f"{count} class ids a row"
                )
            return
        if not count:
            raise ConfigError(
                "labels are given, but the model was built without class_names: leave them out"
            )
        if labels.shape != (rows,) or labels.is_floating_point():
            raise ShapeError(
                f"labels must be ({rows},) integers, one a picture, not {tuple(labels.shape)}"
            )
        if surely(((labels < 0) | (labels >= count)).any()):
            raise ConfigError(
                f"labels hold {labels.min()} to {labels.max()}, but the {count} classes of the "
                f"model have the ids 0 to {count - 1}"
            )

    def distribution(self, logits: Tensor, drawn: Tensor) -> Tensor:
        """Log-probabilities, up to a constant, of the next value of a token.

        Args:
            logits: (B, ...) of the token, as `decode` gives them for one position.
            drawn: (B, c) channels of it that are drawn; the channel after them is meant.

        Returns:
            (B, 256).
        """
        if not self.sequence.whole:
            return logits
        return mixture_logits(logits, drawn, self.sequence.channels)

    def _logits(self, y: Tensor) -> Tensor:
        """Logits of ``y``; the means of a mixture are finer than bfloat16."""
        if not self.sequence.whole:
            return self.head(y)
        with full_precision(y):
            return F.linear(y.to(self.head.weight.dtype), self.head.weight)


class PixelModel(DrawingModel):
    """Pixel model: inputs (B, C, H, W) uint8; logits (B, H*W*C, 256) of values given those before.

    With a state, inputs are tokens in drawing order, as `PixelSequence.shifted` gives them.
    """

    def forward(
        self,
        inputs: Tensor,
        *,
        targets: Tensor | None = None,
        mask: Mask | None = None,
        state: StackState | None = None,
        labels: Tensor | None = None,
        taps: Sequence[str] = (),
    ) -> ModelOutput:
        """Predict every value; what ``taps`` give is in the order in which values are drawn.

        Args:
            targets: (B, H*W*C) the values in raster order, -100 where one is not scored.
            labels: (B,) int64, the class of each picture, of a class-conditional model.

        Raises:
            ShapeError: images, targets or labels of another shape or kind.
            ConfigError: labels missing, out of place, or of no class.
        """
        if state is not None:
            return self.decode(inputs, labels=labels, mask=mask, state=state)
        values = self.sequence.flatten(inputs)
        self.check_targets(targets, len(values))
        tokens = self.sequence.shifted(self.sequence.tokens(values))
        return self.scored(self.read(tokens, labels=labels, mask=mask, taps=taps), values, targets)


def _check(config: ModelConfig) -> None:
    if config.does.encodes and config.source_image is None:
        raise GeneError(
            "task 'super-resolution' needs source_image=(channels, height, width), the shape "
            "of the small images"
        )
    if config.image is None:
        raise GeneError(f"task '{config.task}' needs image=(channels, height, width)")
    if config.pixels.output != "mixture":
        return
    for name, idle in (("label_smoothing", 0.0), ("loss_chunk", None)):
        if getattr(config, name) != idle:
            raise GeneError(
                f"`{name}={getattr(config, name)}` is for 256 logits a value, but "
                "`pixels.output='mixture'` gives the parameters of a mixture: leave it out"
            )


class SuperResolution(DrawingModel):
    """Enlarging model: inputs (B, C, h, w) uint8, targets (B, H*W*C), -100 = not scored.

        h = encoder(values of the small image)                               both ways
        p(image | small) = prod_t p(x_t | x_<t, h)                           cross-attention to h

    Every small value is a token with vectors of its row, column and channel; the encoder compares
    all with all, once for all steps. Logits (B, H*W*C, 256), as `PixelModel` gives them: raster
    order, or a mixture's parameters. Source: Parmar et al. 2018, section 5.3 (8x8 to 32x32).
    """

    reads = True

    def build_reading(self, config: ModelConfig) -> list[nn.Module]:
        assert config.source_image is not None
        inner = source_config(config)
        self.encoder = build_stack(inner)
        self.source_position = POSITION.embedded(inner)
        self.source_sequence = PixelSequence(config.source_image, inner.pixels)
        self.source_embedding = PixelEmbedding(self.source_sequence, config.width, inner.pixels)
        return self.source_embedding.tables()

    def forward(
        self,
        inputs: Tensor,
        *,
        targets: Tensor | None = None,
        mask: Mask | None = None,
        state: StackState | None = None,
        labels: Tensor | None = None,
        taps: Sequence[str] = (),
    ) -> ModelOutput:
        """Predict every value of the large images; ``taps`` are the decoder's.

        Raises:
            ShapeError: no targets, or images or targets of another size than the model's.
            ConfigError: a state, which `decode` takes.
        """
        if mask is not None:
            mask.require("a model that enlarges images", frozenset())
        if state is not None:
            raise ConfigError("a state continues with `decode`, and what `encode` gave: call them")
        if targets is None:
            raise ShapeError("super-resolution needs targets to score; `decode` draws without")
        self.check_targets(targets, len(inputs))
        encoded = self.encode(inputs)
        values = targets.long().clamp(min=0)
        tokens = self.sequence.shifted(self.sequence.tokens(values))
        out = self.read(tokens, labels=labels, context=encoded.context, taps=taps)
        add_losses(out.losses, encoded.losses)
        return self.scored(out, values, targets)

    def encode(self, inputs: Tensor, mask: Mask | None = None) -> Encoded:
        """Read small images (B, C, h, w) once, for all steps of `decode`."""
        sequence = self.source_sequence
        values = sequence.flatten(inputs)
        steps = torch.arange(sequence.steps, device=values.device)[None]
        x = self.source_embedding(values, steps, self.config.embedding_scale, own=steps)
        x = self.add_positions(x, mask, None, self.source_position)
        out = self.encoder(x, mask=mask)
        return Encoded(self.stack.read_context(out.y, mask), out.losses)
