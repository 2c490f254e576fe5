"""MAD's compression: its rows, and the model that answers them (`everyformer.lab.suites.compress`).

x_1 .. x_{L-1} C: random tokens and the sign V - 1; the tokens are asked for
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from everyformer.core.mask import Mask
from everyformer.core.outputs import ModelOutput
from everyformer.core.state import StackState
from everyformer.genes.config import ModelConfig
from everyformer.genes.positions.sinusoidal import sinusoid
from everyformer.models.base import Model, refuse_state
from everyformer.models.language import predict


class Compressor(Model):
    """Inputs and targets (B, L) int64, logits (B, L, V)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        width = self.stack.out_width
        self.recover = nn.Sequential(
            nn.Linear(width, width), nn.GELU(), nn.Linear(width, config.vocabulary)
        )
        self.start_weights([self.embedding])

    def forward(
        self,
        inputs: Tensor,
        *,
        targets: Tensor | None = None,
        mask: Mask | None = None,
        state: StackState | None = None,
        taps: Sequence[str] = (),
    ) -> ModelOutput:
        """Every token of a row, from the vector of its last."""
        refuse_state(self, state)
        x = self.add_positions(self.embed(self.embedding, inputs), mask, None)
        out = self.stack(x, mask=mask, taps=taps)
        places = torch.arange(inputs.shape[1], device=inputs.device)
        asked = out.y[:, -1:] + sinusoid(places, out.y.shape[2]).to(out.y)
        predicted = predict(self.recover, asked, targets, out.losses, self.config, self.training)
        return ModelOutput(*predicted, None, taps=out.taps)
