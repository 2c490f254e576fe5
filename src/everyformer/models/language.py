"""Causal language model: tokens in, a distribution over the next token at every position out.

    x = s E[token] + position;   h = stack(x);   logits = h E^T (tied) or h W^T;   loss in nats

s is sqrt(width) with fixed waves and 1 otherwise. Sources: Vaswani et al. 2017, arXiv 1706.03762;
Radford et al. 2019 (GPT-2).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyformer.core.mask import Mask
from everyformer.core.outputs import Losses, ModelOutput
from everyformer.core.state import StackState
from everyformer.models.base import Model
from everyformer.models.config import ModelConfig


class LanguageModel(Model):
    """inputs (B, L) int64, targets (B, L) with -100 = not scored, logits (B, L, vocabulary)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.head = nn.Linear(self.stack.out_width, config.vocabulary, bias=config.head_bias)
        self.start_weights([self.embedding])
        if config.tie:
            self.head.weight = self.embedding.weight
        if self.head.bias is not None:
            nn.init.zeros_(self.head.bias)

    def forward(
        self,
        inputs: Tensor,
        *,
        targets: Tensor | None = None,
        mask: Mask | None = None,
        state: StackState | None = None,
        embeddings: Tensor | None = None,
        hidden: Sequence[int] = (),
        last: int | None = None,
    ) -> ModelOutput:
        """Predict each next token.

        Args:
            embeddings: (B, L, width) read instead of the tokens' embeddings.
            hidden: layers whose outputs `Stack` keeps (see there); for datastores.
            last: predict after so many last tokens alone, as reading a long prompt needs it.
        """
        x = self.embed(self.embedding, inputs) if embeddings is None else embeddings
        x = self.add_positions(x, mask, state)
        out = self.stack(x, mask=mask, state=state, hidden=hidden)
        y = out.y
        if last is not None:
            y, targets = y[:, -last:], None if targets is None else targets[:, -last:]
        logits = self.head(y)
        loss, losses = total_loss(logits, targets, out.losses, self.config)
        return ModelOutput(logits, loss, losses, out.state)


def total_loss(
    logits: Tensor, targets: Tensor | None, terms: Losses, config: ModelConfig
) -> tuple[Tensor | None, Losses]:
    """Mean cross-entropy over scored targets as ``task``, and its sum with the members' terms.

    ``config.label_smoothing`` e is spread over all V classes (torch), e / V each, or over the
    others (tensor2tensor), e / (V - 1) each, which is the first with e V / (V - 1).
    """
    if targets is None:
        return None, dict(terms)
    smoothing = config.label_smoothing
    if config.smoothing_over == "others":
        smoothing *= logits.shape[-1] / (logits.shape[-1] - 1)
    wide = torch.promote_types(logits.dtype, torch.float32)
    flat, goals = logits.flatten(0, -2).to(wide), targets.flatten().long()
    summed = F.cross_entropy(flat, goals, reduction="sum", label_smoothing=smoothing)
    task = summed / (goals != -100).sum().clamp(min=1)
    losses = {"task": task, **terms}
    total = task
    for term in terms.values():
        total = total + term
    return total, losses
