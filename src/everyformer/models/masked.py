"""Masked language model: some tokens are hidden, both their sides are read, the hidden guessed.

    h = stack(norm(E[token] + position + E_type[type]))
    t = norm(act(W h + b)),   logits = t E^T + c

In BERT the embeddings are normalised (``embedding_norm``) and typed (``token_types``), the output
goes through a transform (``head_transform``, act = GELU) and has a bias a token (``head_bias``).
Which tokens are hidden is the data's business: targets are -100 wherever nothing is scored. With
summaries (`everyformer.models.summaries`) it may learn to foretell hidden sentences too.

Source: Devlin et al. 2018, arXiv 1810.04805.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from everyformer.blocks.parts import activate, make_norm
from everyformer.core.mask import Mask
from everyformer.core.outputs import ModelOutput
from everyformer.core.state import StackState
from everyformer.genes.config import ModelConfig
from everyformer.models.base import Model, refuse_state
from everyformer.models.language import predict


class MaskedLanguageModel(Model):
    """Masked model: inputs and targets (B, L) int64, -100 = not scored, logits (B, L, V)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.transform: nn.Linear | None = None
        self.transform_norm: nn.Module | None = None
        channels = self.stack.out_width
        if config.head_transform:
            self.transform = nn.Linear(channels, config.width)
            channels = config.width
            self.transform_norm = make_norm(config.width, config.block)
            nn.init.zeros_(self.transform.bias)
        self.head = nn.Linear(channels, config.vocabulary, bias=config.head_bias)
        self.start_weights([self.embedding], tied=self.embedding)

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
        """Guess the tokens at the scored positions.

        Args:
            types: (B, L) segment of each token (default: all 0); needs ``token_types``.
        """
        refuse_state(self, state)
        if self.summaries is not None and self.config.summaries.cpc and self.training:
            return self._foretell(inputs, targets, mask, types, taps)
        x = self.add_positions(self.embed(self.embedding, inputs, types), mask, None)
        out, _ = self.read_text(x, inputs, mask, taps=taps)
        predicted = predict(self.logits, out.y, targets, out.losses, self.config, self.training)
        return ModelOutput(*predicted, None, taps=out.taps)

    def _foretell(
        self, inputs: Tensor, targets: Tensor | None, mask: Mask | None, types: Tensor | None,
        taps: Sequence[str],
    ) -> ModelOutput:  # fmt: skip
        """Guess tokens, and from the rest of the text the global tokens of hidden sentences."""
        summaries = self.summaries
        assert summaries is not None
        whole = inputs if targets is None else torch.where(targets == -100, inputs, targets)
        parts = summaries.divide(whole, mask)
        chosen = summaries.choose(parts)
        mask_token = self.config.summaries.mask_token
        last = self.config.vocabulary - 1
        masked = summaries.hide(inputs, parts, chosen, last if mask_token is None else mask_token)
        outs = []
        for tokens in (masked, whole):
            x = self.add_positions(self.embed(self.embedding, tokens, types), mask, None)
            outs.append(self.read_text(x, tokens, mask, taps=taps, parts=parts))
        (out, guess), (_, full) = outs
        assert guess is not None
        assert full is not None
        out.losses["cpc"] = summaries.contrast(guess.y, full, chosen)
        predicted = predict(self.logits, out.y, targets, out.losses, self.config, self.training)
        return ModelOutput(*predicted, None, taps=out.taps)

    def logits(self, y: Tensor) -> Tensor:
        """From the last layer's output (..., width) to scores (..., vocabulary)."""
        if self.transform is not None and self.transform_norm is not None:
            act = self.config.transform_activation
            y = self.transform_norm(activate(self.transform(y), act))
        return self.head(y)
