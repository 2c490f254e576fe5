"""`SeriesSteps`: vectors of the steps of a series, where numbers are read in place of tokens."""

import torch
from torch import Tensor, nn

from everyformer.core.errors import GeneError, ShapeError
from everyformer.core.mask import Mask
from everyformer.genes.config import ModelConfig


class SeriesSteps(nn.Linear):
    """Linear layer over the numbers of each step, less their means, over their deviations.

    (B, L, series) floats to (B, L, width).

    Raises:
        GeneError: the config does not say how many numbers there are, or of others means and
            deviations.
    """

    def __init__(self, config: ModelConfig) -> None:
        if config.series is None:
            raise GeneError(
                f"task '{config.task}' needs series, how many numbers there are at each step"
            )
        for name in ("series_mean", "series_std"):
            known = getattr(config, name)
            if known and len(known) != config.series:
                raise GeneError(
                    f"{name} has {len(known)} numbers, but there are {config.series} at each step"
                )
        super().__init__(config.series, config.width)
        self.config = config
        nn.init.xavier_uniform_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, inputs: Tensor, mask: Mask | None = None) -> Tensor:
        config = self.config
        if inputs.dim() != 3 or inputs.shape[-1] != config.series:
            raise ShapeError(
                f"series must be (batch, length, {config.series}), not {tuple(inputs.shape)}"
            )
        # large numbers that differ by little come in more than the weights' precision
        series = inputs.to(torch.promote_types(inputs.dtype, self.weight.dtype))
        if config.series_mean:
            series = series - series.new_tensor(config.series_mean)
        if config.series_std:
            series = series / series.new_tensor(config.series_std)
        series = series.to(self.weight.dtype)
        if mask is not None and mask.padding_mask is not None:
            # what stands in the padding may be anything
            series = series.where(mask.padding_mask[..., None], 0.0)
        return super().forward(series) * config.embedding_scale
