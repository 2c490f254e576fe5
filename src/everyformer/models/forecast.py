"""Forecaster: steps of a series in, quantiles of the next H values out, at every step.

    x[t] = W inputs[t] + position;   h = stack(x), causal;   z[t] = sorted(W' h[t])  (H, Q)
    loss = mean over t, h, q of 2 max(q e, (q - 1) e),   e = target[t, h] - z[t, h, q]

All horizons from one state, learned at every step (forking sequences): Wen et al. 2017, arXiv
1711.11053, section 3. That is twice the quantile loss, which of the median is the absolute error.
Sorting the outputs keeps quantiles from crossing (Chernozhukov et al. 2010). At the start they are
those of a normal distribution about 0 whose mean absolute value is 1: of targets in units of the
seasonal naive forecast's errors (`everyformer.data.dated.windows`), that forecast with its spread.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist

import torch
from torch import Tensor, nn

from everyformer.core.chosen import gather_rows
from everyformer.core.errors import GeneError, ShapeError
from everyformer.core.mask import Mask
from everyformer.core.outputs import ModelOutput
from everyformer.core.state import StackState
from everyformer.genes.config import ModelConfig
from everyformer.models.base import Model
from everyformer.models.language import added, last_of
from everyformer.models.series import SeriesSteps


class Forecaster(Model):
    """Forecaster: inputs (B, L, series) floats, targets (B, L, H) with NaN where nothing is scored,
    logits (B, L, H, Q): ascending quantiles at ``config.quantiles``."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        levels = config.quantiles
        if sorted({0.5, *levels}) != [*levels] or not 0 < levels[0] <= levels[-1] < 1:
            raise GeneError(
                f"quantiles={levels} must ascend above 0 and below 1, with 0.5 among them, the "
                "forecast itself"
            )
        self.steps = SeriesSteps(config)
        self.head = nn.Linear(self.stack.out_width, config.horizon * len(levels))
        self.start_weights([])
        nn.init.zeros_(self.head.weight)
        spread = math.sqrt(math.pi / 2)
        normal = torch.tensor([spread * NormalDist().inv_cdf(level) for level in levels])
        with torch.no_grad():
            self.head.bias.copy_(normal.repeat(config.horizon))

    def term_counts(self, inputs: Tensor, targets: Tensor, mask: Mask | None) -> dict[str, float]:
        return super().term_counts(inputs[..., 0], targets, mask)

    def forward(
        self,
        inputs: Tensor,
        *,
        targets: Tensor | None = None,
        mask: Mask | None = None,
        state: StackState | None = None,
        taps: Sequence[str] = (),
        last: int | None = None,
    ) -> ModelOutput:
        """Forecast from each step.

        Args:
            last: from so many last real steps of each row alone; rows with fewer have padding in
                front.
        """
        x = self.add_positions(self.steps(inputs, mask), mask, state)
        out = self.stack(x, mask=mask, state=state, taps=taps)
        y = out.y
        if last is not None:
            at = last_of(inputs, last, mask)
            y = gather_rows(y, at)
            targets = None if targets is None else gather_rows(targets, at)
        z = self.head(y).unflatten(-1, (self.config.horizon, len(self.config.quantiles)))
        z = z.to(torch.promote_types(z.dtype, torch.float32)).sort(-1).values
        loss, losses = None, out.losses
        if targets is not None:
            loss, losses = added(self._loss(z, targets), losses)
        return ModelOutput(z, loss, losses, out.state, taps=out.taps)

    def _loss(self, z: Tensor, targets: Tensor) -> Tensor:
        if targets.shape != z.shape[:-1]:
            raise ShapeError(
                f"targets must be {tuple(z.shape[:-1])}, NaN where nothing is scored, not "
                f"{tuple(targets.shape)}"
            )
        scored = ~targets.isnan()
        each = quantile_losses(z, targets.nan_to_num(), self.config.quantiles).mean(-1)
        return each.where(scored, 0.0).sum() / scored.sum().clamp(min=1)


def quantile_losses(z: Tensor, targets: Tensor, levels: Sequence[float]) -> Tensor:
    """2 max(q e, (q - 1) e) of each quantile (..., Q), e = targets - z; of the median |e|.

    Args:
        targets: (...)
        levels: Q of them.
    """
    error = targets[..., None].to(z.dtype) - z
    q = z.new_tensor(levels)
    return 2 * torch.maximum(q * error, (q - 1) * error)
