"""DA-Transformer: scores are re-scaled by a learned function of distance, head by head.

    A_ij = ReLU(q_i k_j) f(alpha_h |i - j| / c; beta_h) / sqrt(D)
    f(R; beta) = (1 + e^beta) / (1 + e^(beta - R)),    computed as e^(sp(beta) - sp(beta - R))

sp is softplus, c = ``distance_scale``. f(0) = 1 whatever beta is. A head with alpha < 0 looks near
(f falls to 0), one with alpha > 0 looks far (f rises to 1 + e^beta); alpha = 0 is the attention of
positive scores. Scores that ReLU sets to 0 are not hidden: such keys keep the weight e^0, and so
do far ones where alpha < 0. That is the definition. A head in which no score is positive learns
nothing from its scores.

Source: Wu, Wu, Huang 2021, arXiv 2010.06925, section 3; alpha and beta for each head of each layer.
Choices of our own, where the paper is silent: alpha starts evenly spread over -``spread`` ..
``spread`` and beta at 1; distances may be divided by c, since the gradient of alpha grows with
them; the scores of a causal mixer are those of its visible pairs. Cost: O(H L S) products besides
attention's own, 2 H parameters; it is no additive bias, so no fused kernel takes it.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyformer.core.bounds import Amount, Positive
from everyformer.core.config import Options
from everyformer.core.errors import GeneError
from everyformer.core.position import Sizes
from everyformer.core.trials import LENGTH, Make, Pair, Trials, output
from everyformer.engines.softmax.distances import Distances
from everyformer.engines.softmax.pairs import Pairs
from everyformer.engines.softmax.positions import Cap, Parts, ScorePosition
from everyformer.engines.softmax.remembered import Remembered
from everyformer.genes.positions import POSITIONS


@dataclass(frozen=True)
class DaTransformerOptions(Options):
    """Options of `DaTransformer`."""

    spread: Amount = 0.1
    """alpha at the start: from minus this in the first head to this in the last"""
    distance_scale: Positive = 1.0
    """tokens that count as one unit of distance"""


def _limits(make: Make) -> list[Pair]:
    """alpha = 0 is the attention of positive scores."""
    mixer: Any = make("attention", position="da-transformer")
    with torch.no_grad():
        mixer.position.alpha.zero_()

    def positive(x: Tensor) -> Tensor:
        q, k, v = mixer.project(x)
        scores = (q @ k.transpose(-1, -2)).relu() * mixer.scale
        if mixer.causal:
            later = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        y: Tensor = mixer.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return y

    return [("alpha = 0 is softmax(ReLU(q k))", output(mixer), positive)]


@POSITIONS.register("da-transformer")
class DaTransformer(ScorePosition):
    """DA-Transformer's positions: positive scores of softmax attention times f of the distance.

    Any length, any stream.

    Raises:
        GeneError: a ``distance_scale`` that is not positive.
    """

    name = "da-transformer"
    trials = Trials(inside=({"distance_scale": 3.0, "window": (2, None, 5)},), limits=_limits)
    Options = DaTransformerOptions
    options: DaTransformerOptions

    def build(self, sizes: Sizes) -> None:
        o, self.heads = self.options, sizes.heads
        if o.distance_scale <= 0:
            raise GeneError(f"`distance_scale={o.distance_scale}` must be a number above 0")
        self.alpha = nn.Parameter(torch.linspace(-o.spread, o.spread, self.heads))
        self.beta = nn.Parameter(torch.ones(self.heads))
        self.alpha.no_decay = self.beta.no_decay = True  # type: ignore[attr-defined]
        self._remembered = Remembered()

    def factors(self, distance: Tensor, dtype: torch.dtype) -> Tensor:
        """f at distances of any shape: (H, ...)."""
        shape = (-1, *[1] * distance.dim())
        alpha, beta = self.alpha.to(dtype).view(shape), self.beta.to(dtype).view(shape)
        away = alpha * (distance.abs().to(dtype) / self.options.distance_scale)
        return (F.softplus(beta) - F.softplus(beta - away)).exp()

    def curve(self, distance: Tensor) -> tuple[str, Tensor] | None:
        return "factor of the score", self.factors(distance, torch.float32)

    def prepare(self, pairs: Pairs, scale: float, dtype: torch.dtype) -> Parts:
        if not pairs.last or self.training:
            return (pairs.tile(self.factors(pairs.span(), dtype)),)
        make, count = partial(self.factors, dtype=dtype), pairs.columns
        known = self._remembered.of(make, [self.alpha, self.beta], count, 0, dtype)
        return (pairs.tile(known),)

    def distances(self, q: Tensor, pairs: Pairs, scale: float) -> Distances:
        factors = self.factors(pairs.span()[: pairs.seen], torch.float32)
        return Distances(q * scale, numbers=factors, factors=True)

    def cut(self, parts: Parts, pairs: Pairs) -> Parts:
        return (pairs.cut(parts[0]),)

    def score(self, products: Tensor, q: Tensor, k: Tensor, parts: Parts, pairs: Pairs) -> Tensor:
        return products.relu_() * pairs.of_cut(parts[0])

    def reference(
        self, q: Tensor, k: Tensor, distance: Tensor, head: int, scale: float, cap: Cap
    ) -> Tensor:
        positive = cap(scale * (k @ q[:, :, None]).squeeze(-1)).clamp(min=0)
        alpha, beta = self.alpha[head].to(q.dtype), self.beta[head].to(q.dtype)
        away = alpha * distance.abs() / self.options.distance_scale
        return positive * (1 + beta.exp()) / (1 + (beta - away).exp())
