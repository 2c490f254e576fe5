"""MAD's compression: its rows, and the model that answers them (`everyformer.lab.suites.compress`).

x_1 .. x_{L-1} C: random tokens and the sign V - 1; the tokens are asked for
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from everyformer.core.bounds import Several
from everyformer.core.mask import Mask
from everyformer.core.outputs import ModelOutput
from everyformer.core.state import StackState
from everyformer.data.batch import IGNORED
from everyformer.genes.config import ModelConfig
from everyformer.genes.positions.sinusoidal import sinusoid
from everyformer.lab.suites.compress import COMPRESS
from everyformer.lab.suites.probe import Probe, ProbeOptions, Rows
from everyformer.models.base import Model, refuse_state
from everyformer.models.language import predict


@dataclass(frozen=True)
class CompressionOptions(ProbeOptions):
    """Options of `Compression`."""

    length: Several = 32
    """tokens in a row"""
    symbols: Several = 16
    """V, the sign V - 1 included"""


class Compression(Probe):
    """A row through one vector."""

    name = "mad:compression"
    about = "random tokens and a sign: the tokens again, from one vector of the row"
    task = COMPRESS
    Options = CompressionOptions
    options: CompressionOptions

    def check(self) -> None:
        self.require(self.options.symbols >= 3, f"symbols={self.options.symbols} leave one token")

    @property
    def chance(self) -> float:
        return 1 / (self.options.symbols - 1)

    def make(self, random: np.random.Generator, count: int, held_out: bool) -> Rows:
        o = self.options
        rows = random.integers(0, o.symbols - 1, (count, o.length))
        rows[:, -1] = o.symbols - 1
        targets = rows.copy()
        targets[:, -1] = IGNORED
        return Rows(rows, targets)


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
