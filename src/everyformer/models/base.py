"""What every model shares: its config, its stack of layers, embeddings of order, and its states."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from everyformer.blocks.block import Block
from everyformer.blocks.stack import Stack
from everyformer.core.errors import UnsupportedError
from everyformer.core.mask import Mask, positions_of
from everyformer.core.outputs import ModelOutput
from everyformer.core.state import StackState, State
from everyformer.models.config import ModelConfig
from everyformer.models.genes import build_mixers, build_position


class Model(nn.Module):
    """Base of all models: ``forward(inputs, *, targets, mask, ...) -> ModelOutput``."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.position = build_position(config)
        self.stack = Stack(build_mixers(config), config.width, config.block)
        self.dropout = nn.Dropout(config.embedding_dropout)

    def forward(
        self,
        inputs: Tensor,
        *,
        targets: Tensor | None = None,
        mask: Mask | None = None,
        state: StackState | None = None,
    ) -> ModelOutput:
        """See the concrete model for the shapes of ``inputs``, ``targets`` and the logits."""
        raise NotImplementedError

    def init_state(
        self,
        batch_size: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> StackState:
        """The state before the first token; raises where a mixer has no exact streaming form."""
        return self.stack.init_state(batch_size, device=device, dtype=dtype)

    def enable_checkpointing(self, on: bool = True) -> None:
        """Keep only each layer's input for the backward pass and compute the rest again."""
        self.stack.checkpointing = on

    def add_positions(self, x: Tensor, mask: Mask | None, state: State | None) -> Tensor:
        """Embeddings ``x`` (B, L, width) plus what the position gene adds to them, dropped out."""
        if self.position is not None:
            seen = None if state is None else state.seen
            where = positions_of(x.shape[0], x.shape[1], mask, seen, x.device)
            x = x + self.position.embed(where).to(x.dtype)
        return self.dropout(x)

    def start_weights(self, embeddings: Sequence[nn.Embedding]) -> None:
        """Apply ``config.init``; called by concrete models when all their parts stand."""
        config = self.config
        std = config.width**-0.5 if self.embedding_scale != 1.0 else 0.02
        for embedding in embeddings:
            nn.init.normal_(embedding.weight, std=std)
        if config.init == "gpt2":
            _gpt2_weights(self, config.layers)

    @property
    def embedding_scale(self) -> float:
        """sqrt(width) where fixed waves are added (2017 paper), so that they do not dominate."""
        return math.sqrt(self.config.width) if self.config.position == "sinusoidal" else 1.0


def _gpt2_weights(model: Model, layers: int) -> None:
    """All matrices N(0, 0.02^2); what is added to the residual stream / sqrt(2 layers)."""
    for name, weight in model.named_parameters():
        if weight.dim() >= 2 and "norm" not in name:
            nn.init.normal_(weight, std=0.02)
    for block in model.stack.blocks:
        assert isinstance(block, Block)
        residual = block.mixer.outputs()
        if block.feedforward is not None:
            residual.append(block.feedforward.down)
        for linear in residual:
            if not isinstance(linear, nn.Linear):
                raise UnsupportedError(f"init='gpt2' knows no output layer of {block.mixer.name}")
            nn.init.normal_(linear.weight, std=0.02 / math.sqrt(2 * layers))
