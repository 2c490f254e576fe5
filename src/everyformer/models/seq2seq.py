"""The Transformer: an encoder reads a source, a decoder writes a target one token after the other.

    encoder:  h = stack(s E[source] + position)                          both ways
    decoder:  each layer mixes the target so far, then reads h by cross-attention
    logits = decoder(s E[start, y_0 .. y_(T-2)] + position) E^T          loss in nats a target token

s is sqrt(width) with fixed waves; one matrix E serves source, target and output where ``tie`` is
set and the vocabulary is joint. As published (post-norm) there is no norm after the last layer.
What the decoder reads of h is made once (`encode`) and serves every step of `decode`.

Source: Vaswani et al. 2017, arXiv 1706.03762. Here a start token stands where tensor2tensor shifts
the embeddings by a zero vector.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from everyformer.blocks.depth import Exiting
from everyformer.core.errors import ShapeError
from everyformer.core.mask import Mask
from everyformer.core.outputs import Losses, ModelOutput, StackOutput, add_losses
from everyformer.core.state import StackState, State
from everyformer.genes.config import ModelConfig
from everyformer.genes.positions import POSITION
from everyformer.models.base import TOKEN_MEANS, Model
from everyformer.models.exits import ExitHeads
from everyformer.models.language import predict
from everyformer.models.layers import build_stack, encoder_config


class Encoded(NamedTuple):
    """An encoded source, as the decoder reads it."""

    context: tuple[State, ...]
    """of every decoder layer: keys and values (or what else its reader needs), rows = sentences"""
    losses: Losses
    """the encoder's own terms"""


class EncoderDecoder(Model):
    """Encoder-decoder: inputs (B, S) int64 with their mask, targets (B, T), -100 = not scored.

    Logits (B, T, vocabulary): position t has read the source and the targets before t.
    """

    reads = True

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        inner = encoder_config(config)
        self.encoder = build_stack(inner)
        self.source_position = POSITION.embedded(inner)
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.source_embedding = self.embedding
        if config.source_vocabulary is not None:
            self.source_embedding = nn.Embedding(config.source_vocabulary, config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=config.head_bias)
        self.exits = ExitHeads.of(config, self.stack, self.head, predict)
        # each once, in this order
        tables = [*dict.fromkeys((self.embedding, self.source_embedding))]
        self.start_weights(tables, tied=self.embedding)

    def forward(
        self,
        inputs: Tensor,
        *,
        targets: Tensor | None = None,
        mask: Mask | None = None,
        state: StackState | None = None,
        prefix: Tensor | None = None,
        taps: Sequence[str] = (),
    ) -> ModelOutput:
        """Predict every target token; ``taps`` are the decoder's.

        Args:
            mask: ``padding_mask`` of the source.
            prefix: (B, T) what the decoder reads; default: the targets moved on by one, behind the
                start token.
        """
        if prefix is None:
            if targets is None:
                raise ShapeError("an encoder-decoder needs targets to score, or a prefix to read")
            prefix = self.shifted(targets)
        encoded = self.encode(inputs, mask)
        real = None if targets is None else self._real(targets)
        if self.exits is not None and self.training and targets is not None:
            read = partial(self._read_prefix, prefix, encoded.context, state, mask=real)
            return self.exits.teach(read, targets, real, encoded.context, taps, encoded.losses)
        exiting = None if self.exits is None else self.exits.request()
        out = self._read_prefix(prefix, encoded.context, state, taps, real, exiting)
        decoder_losses = {_of_targets(name): term for name, term in out.losses.items()}
        add_losses(encoded.losses, decoder_losses)
        y, head = self._predicting(out.y, exiting)
        predicted = predict(head, y, targets, encoded.losses, self.config, self.training)
        return ModelOutput(*predicted, out.state, taps=out.taps)

    def encode(self, source: Tensor, mask: Mask | None = None) -> Encoded:
        """Read the source (B, S) once, for all steps of `decode`."""
        if mask is not None:
            mask.require("an encoder-decoder", frozenset({"padding_mask"}))
        x = self.embed(self.source_embedding, source)
        x = self.add_positions(x, mask, None, self.source_position)
        out = self.encoder(x, mask=mask)
        return Encoded(self.stack.read_context(out.y, mask), out.losses)

    def decode(
        self, prefix: Tensor, context: tuple[State, ...], *, state: StackState | None = None
    ) -> ModelOutput:
        """Logits after each token of ``prefix`` (R, T); with a state it continues earlier ones.

        R is the number B of sentences in ``context``, or a multiple: then rows b R/B .. of the
        prefix are continuations of sentence b (its beams).
        """
        exiting = None if self.exits is None else self.exits.request()
        out = self._read_prefix(prefix, context, state, exiting=exiting)
        y, head = self._predicting(out.y, exiting)
        return ModelOutput(head(y), None, out.losses, out.state)

    def _predicting(
        self, y: Tensor, exiting: Exiting | None
    ) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Hidden states that the decoder's tokens predict from, and the head that does."""
        if self.exits is None or exiting is None:
            return y, self.head
        return self.exits.read(exiting, y), self.exits.heads_at(exiting.left)

    def _read_prefix(
        self,
        prefix: Tensor,
        context: tuple[State, ...],
        state: StackState | None,
        taps: Sequence[str] = (),
        mask: Mask | None = None,
        exiting: Exiting | None = None,
    ) -> StackOutput:
        x = self.add_positions(self.embed(self.embedding, prefix), mask, state)
        options = {"mask": mask, "state": state, "taps": taps, "exiting": exiting}
        out: StackOutput = self.stack(x, context=context, **options)
        return out

    def term_counts(self, inputs: Tensor, targets: Tensor, mask: Mask | None) -> dict[str, float]:
        counts = super().term_counts(inputs, targets, mask)
        counts["exits"] = int((targets != -100).sum())
        read = int(_until_last(targets).sum())
        return counts | {_of_targets(name): read for name in TOKEN_MEANS}

    def _real(self, targets: Tensor) -> Mask | None:
        """Marks what is behind a row's last target as padding, where a decoder would count it; no
        real token sees it."""
        counted = any(mixer.counts_tokens for mixer in self.stack.mixers)
        if not (counted or self.stack.depth.drives):
            return None
        return Mask(padding_mask=_until_last(targets))

    def shifted(self, targets: Tensor) -> Tensor:
        """The decoder's input (B, T) for ``targets``: the start token, then all but the last."""
        known = targets.masked_fill(targets < 0, self.config.end_token).long()
        start = torch.full_like(known[:, :1], self.config.start_token)
        return torch.cat((start, known[:, :-1]), 1)


def _of_targets(name: str) -> str:
    """The decoder's name of a term: means over targets are kept apart from those over sources."""
    return f"{name}-target" if name in TOKEN_MEANS else name


def _until_last(targets: Tensor) -> Tensor:
    """Target tokens (B, T) that are no padding: those up to the last one that is scored."""
    return (targets != -100).long().flip(1).cummax(1).values.flip(1).bool()
