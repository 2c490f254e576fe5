"""Causal language model: tokens in, a distribution over the next token at every position out.

    x = s E[token] + position;   h = stack(x);   logits = h E^T (tied) or h W^T;   loss in nats

s is sqrt(width) with fixed waves and 1 otherwise. Sources: Vaswani et al. 2017, arXiv 1706.03762;
Radford et al. 2019 (GPT-2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

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
        made = predict(self.head, y, targets, out.losses, self.config, self.training)
        return ModelOutput(*made, out.state)


def predict(
    head: Callable[[Tensor], Tensor],
    y: Tensor,
    targets: Tensor | None,
    terms: Losses,
    config: ModelConfig,
    training: bool,
) -> tuple[Tensor, Tensor | None, Losses]:
    """Logits ``head(y)`` of ``y`` (B, L, channels), and their loss as `total_loss` gives it.

    In training with ``config.loss_chunk`` the loss is summed over pieces of so many tokens, whose
    logits are made again in the backward pass; the logits are then those of no token (B, 0, V).
    """
    if config.loss_chunk is None or targets is None or not training:
        logits = head(y)
        return logits, *total_loss(logits, targets, terms, config)

    def piece(part: Tensor, goals: Tensor) -> Tensor:
        return _summed(head(part), goals, config)

    goals = targets.flatten().long()
    cut = (y.flatten(0, -2).split(config.loss_chunk), goals.split(config.loss_chunk))
    sums = [checkpoint(piece, *both, use_reentrant=False) for both in zip(*cut, strict=True)]
    return head(y[:, :0]), *_with_terms(torch.stack(sums).sum(), goals, terms)


def total_loss(
    logits: Tensor, targets: Tensor | None, terms: Losses, config: ModelConfig
) -> tuple[Tensor | None, Losses]:
    """Mean cross-entropy over scored targets as ``task``, and its sum with the members' terms.

    ``config.label_smoothing`` e is spread over all V classes (torch), e / V each, or over the
    others (tensor2tensor), e / (V - 1) each, which is the first with e V / (V - 1).
    """
    if targets is None:
        return None, dict(terms)
    goals = targets.flatten().long()
    return _with_terms(_summed(logits.flatten(0, -2), goals, config), goals, terms)


def _summed(logits: Tensor, goals: Tensor, config: ModelConfig) -> Tensor:
    """Cross-entropy of logits (N, V) with ``goals`` (N,), summed over those that are scored."""
    smoothing = config.label_smoothing
    if config.smoothing_over == "others":
        smoothing *= logits.shape[-1] / (logits.shape[-1] - 1)
    wide = torch.promote_types(logits.dtype, torch.float32)
    return F.cross_entropy(logits.to(wide), goals, reduction="sum", label_smoothing=smoothing)


def _with_terms(summed: Tensor, goals: Tensor, terms: Losses) -> tuple[Tensor, Losses]:
    task = summed / (goals != -100).sum().clamp(min=1)
    total = task
    for term in terms.values():
        total = total + term
    return total, {"task": task, **terms}
