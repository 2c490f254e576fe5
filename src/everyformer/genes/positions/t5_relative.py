"""T5's relative positions: a learned number for every range of distances and head.

    A_ij = q_i k_j / sqrt(D) + b[bucket(i - j), h]

    causal, n buckets, e = n/2:  bucket(d) = d for 0 <= d < e, and 0 for d < 0 (hidden anyway);
      bucket(d) = min(e + floor(ln(d/e) / ln(M/e) (n - e)), n - 1) beyond
    bidirectional: n/2 buckets by the same rule for |d| on each side, keys to the right in the upper
      half

n = ``buckets``, M = ``max_distance``: near distances have a number each, farther ones share by
logarithmic ranges, all from M on share the last. One table serves all layers, as published. T5
itself does not divide scores by sqrt(D): give attention ``scale=1.0`` for that.

Source: Raffel et al. 2020, arXiv 1910.10683, section 2.1; edges of the ranges as in Hugging Face's
T5, which computes the logarithms in float32. Table at the start: N(0, 1/width), as there. Cost:
O(H L S) look-ups, n H parameters.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from everyformer.core.bounds import Affects, Amount, Count
from everyformer.core.config import Options
from everyformer.core.devices import Constant
from everyformer.core.errors import GeneError
from everyformer.core.position import Sizes, normal_table
from everyformer.core.trials import Make, Pair, Trials
from everyformer.genes.positions import POSITIONS
from everyformer.genes.positions.base import AdditivePosition, at_zero
from sequence_laws.memory import check_memory


@dataclass(frozen=True)
class T5RelativeOptions(Options):
    """Options of `T5Relative`."""

    buckets: Count = 32
    """rows of the table (bidirectional: half of them for each side)"""
    max_distance: Count = 128
    """distances from here on share one row"""
    shared: bool = True
    """one table for all layers of a stack, as published, or one a layer"""
    std: Annotated[Amount | None, Affects("nothing")] = None
    """standard deviation of the table at the start (default: 1/sqrt(width))"""


def bucket_table(buckets: int, max_distance: int) -> Tensor:
    """Rows of the distances 0 .. max_distance on one side: int64.

    Made once, on the CPU and in float32, so that edges are where T5 has them on every device.
    """
    exact = buckets // 2
    check_memory(
        4 * 8 * max_distance,
        f"position 't5-relative' with a row for each of `max_distance={max_distance:,}` distances",
        "choose a smaller `max_distance`",
    )
    distance = torch.arange(max_distance + 1, device="cpu")
    share = (distance.clamp(min=1).float() / exact).log() / math.log(max_distance / exact)
    far = (exact + (share * (buckets - exact)).long()).clamp(max=buckets - 1)
    return torch.where(distance < exact, distance, far)


def _limits(make: Make) -> list[Pair]:
    """A table of one number is attention without positions."""
    return [at_zero(make, "t5-relative", 0.7)]


@POSITIONS.register("t5-relative")
class T5Relative(AdditivePosition):
    """T5's relative positions: a learned number for each range of distances added to the scores.

    For softmax attention; any length, any stream.

    Raises:
        GeneError: too few buckets, or a max_distance inside the exact ones.
    """

    name = "t5-relative"
    trials = Trials(inside=({"buckets": 8, "max_distance": 12},), limits=_limits)
    Options = T5RelativeOptions
    options: T5RelativeOptions

    def build(self, sizes: Sizes) -> None:
        o, self.heads, self.causal = self.options, sizes.heads, sizes.causal
        self.shared = o.shared
        side = o.buckets if self.causal else o.buckets // 2
        if side < 2 or (not self.causal and o.buckets % 2):
            raise GeneError(
                f"position 't5-relative' needs at least 2 buckets, or an even number of at least 4 "
                f"where both sides are seen (`causal={self.causal}`), not `buckets={o.buckets}`"
            )
        if o.max_distance <= side // 2:
            raise GeneError(
                f"`max_distance={o.max_distance}` lies within the {side // 2} distances that have "
                f"a bucket each: give a larger one, or fewer buckets than {o.buckets}"
            )
        self.side = side
        # no buffer: transformers, which builds without values, would leave it without
        self.rows = Constant(bucket_table(side, o.max_distance))
        std = sizes.width**-0.5 if o.std is None else o.std
        self.table = normal_table(o.buckets, self.heads, std=std)

    def buckets(self, distance: Tensor) -> Tensor:
        """Rows of the table for distances i - j of any shape: int64."""
        rows = self.rows.on(distance.device)
        reach = self.options.max_distance
        if self.causal:
            return rows[distance.clamp(0, reach)]
        return rows[distance.abs().clamp(max=reach)] + (distance < 0) * self.side

    def by_distance(self, distance: Tensor, dtype: torch.dtype) -> Tensor:
        chosen = self.buckets(distance)
        values = self.table.to(dtype).t().index_select(1, chosen.flatten())
        return values.unflatten(1, chosen.shape)
