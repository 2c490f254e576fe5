"""Performer (FAVOR+): softmax attention estimated by random features, in linear time.

    softmax's weight exp(x.y), x = q D^{-1/4}, y = k D^{-1/4}, is the mean over w ~ N(0, I) of
    exp(w.x - |x|^2/2) exp(w.y - |y|^2/2):  a product of positive features of M drawn rows w

``feature_map`` (`engines.kernel.features` has the equations): "positive"; "hyperbolic" (pairs
w, -w); "trigonometric" (sines and cosines, signed: the estimate that the paper argues against);
"relu", max(W x, 0) + eps, another kernel than softmax's. Rows are orthogonal in blocks of D.

Cost: O(L M D) time, O(L (M + D)) memory; O(L D) of causal exponential features on a CPU, which are
made a segment at a time (`engines.kernel.maps`). State: M (D + 1) + 1 numbers a head. Source:
Choromanski et al. 2021, arXiv 2009.14794 (theorem 1, lemma 2, section 3), and its published code.

Deviations. Features are divided by their largest, token by token, with the logs of what was divided
by kept as levels (`engines.kernel.attention`); the published code takes the maximum over all
positions, which in causal form reads the future. So nothing overflows, and the eps that the code
adds to features (1e-4 or 1e-6) is 0 by default for those of softmax: at unit scale nearly all
features are below 1e-4 of the largest of all, so that with it the layer is close to plain
averaging. Here ``eps`` is relative to each token's own largest, which needs no maximum over others:
a large one leaves weights that depend on keys alone. Only sums are unbiased, not their ratio; the
error of a weight grows like exp(|x + y|^2) / M, so large queries and keys need many features.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal, cast

import torch
from torch import Tensor

from everyformer.core.bounds import Affects, Amount, Count, Unless, Whole
from everyformer.core.errors import ConfigError
from everyformer.core.trials import Make, Pair, Trials, near, output
from everyformer.engines.kernel.denominators import POSITIVE, Denominator
from everyformer.engines.kernel.features import (
    Draw,
    Projection,
    fourier_features,
    stable_exponentials,
    trigonometric_level,
)
from everyformer.engines.kernel.maps import Kind, SegmentMap
from everyformer.engines.ranges import full_precision, widened
from everyformer.genes.mixers import MIXERS
from everyformer.genes.mixers._kernel import KernelAttention, KernelOptions, Keys, value_limits

FeatureMap = Literal["positive", "hyperbolic", "trigonometric", "relu"]
EXPONENTIAL = ("positive", "hyperbolic")


@dataclass(frozen=True)
class PerformerOptions(KernelOptions):
    """Options of `Performer`."""

    feature_map: FeatureMap = "positive"
    """which features estimate the kernel"""
    features: Whole | None = None
    """rows w; hyperbolic and trigonometric features are two of each (default: D ln D; 0: relu of
    the channels themselves)"""
    draw: Annotated[Draw, Unless("features", 0)] = "orthogonal"
    """"orthogonal" or "iid" rows, or "regularised": orthogonal, all of norm sqrt(D), biased"""
    redraw: Annotated[Count | None, Unless("features", 0), Affects("nothing")] = 1000
    """training calls after which rows are drawn again; None never"""
    eps: Amount | None = None
    """added to features over their largest (default: 0; relu: 0.001, as it is)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.features == 0 and self.feature_map != "relu":
            raise ConfigError(
                f"`features={self.features}` with `feature_map='{self.feature_map}'`: at least one "
                "row is needed (0, no rows, for 'relu' alone)"
            )
        if self.eps is not None and self.feature_map == "trigonometric":
            raise ConfigError(
                f"`eps={self.eps}` with `feature_map='{self.feature_map}'`: signed features have "
                "none (their denominators are guarded by 1e-6)"
            )


def positive_features_reference(x: Tensor, projection: Tensor) -> Tensor:
    """The definition, row by row: exp(w.x - x.x / 2) / sqrt(M) for x (..., D), W (M, D)."""
    rows = [torch.exp((x * w).sum(-1) - (x * x).sum(-1) / 2) for w in projection]
    return torch.stack(rows, -1) / math.sqrt(len(rows))


def performer_features_reference(
    x: Tensor, projection: Tensor | None, feature_map: FeatureMap, eps: float
) -> Tensor:
    """phi (B, H, L, M) of scaled queries or keys (B, H, L, D), W (1, M, D)."""
    if projection is None:
        return torch.relu(x) + eps
    products = x @ projection.to(x.dtype).mT
    count, half = products.shape[-1], (x * x).sum(-1, keepdim=True) / 2
    if feature_map == "relu":
        return torch.relu(products) + eps
    if feature_map == "trigonometric":
        both = torch.cat([products.sin(), products.cos()], -1)
        return torch.exp(half) * both / math.sqrt(count)
    if feature_map == "hyperbolic":
        products, count = torch.cat([products, -products], -1), 2 * count
    phi = torch.exp(products - half)
    return (phi + eps * phi.amax(-1, keepdim=True)) / math.sqrt(count)


def _limits(make: Make) -> list[Pair]:
    """With many features it is softmax attention, with an error of about 1/sqrt(M)."""
    many, exact = make("performer", features=2**16), make("attention")
    exact.load_state_dict(many.state_dict(), strict=False)
    return [
        near("65,536 features are softmax within 5%", 0.05, output(many), output(exact)),
        *value_limits(make, "performer"),
    ]


@MIXERS.register("performer")
class Performer(KernelAttention):
    """Performer's attention (FAVOR+) over (B, L, width)."""

    name = "performer"
    trials = Trials(
        variants=(
            {},
            {"features": 16, "draw": "iid", "eps": 1e-3},
            {"features": 8, "feature_map": "hyperbolic", "draw": "regularised"},
            {"features": 256, "feature_map": "trigonometric"},
            {"features": 8, "feature_map": "relu", "bias": ("query", "value")},
            {"features": 0, "feature_map": "relu"},
        ),
        limits=_limits,
    )
    accepts_positions = True
    Options = PerformerOptions
    options: PerformerOptions

    def feature_sizes(self) -> tuple[int, bool]:
        o, size = self.options, self.head_dim
        paired = o.feature_map in ("hyperbolic", "trigonometric")
        return (2 if paired else 1) * self.rows or size, o.feature_map != "relu"

    @property
    def rows(self) -> int:
        """Drawn rows w."""
        features, size = self.options.features, self.head_dim
        return max(1, int(size * math.log(size))) if features is None else features

    def add_features(self) -> None:
        o = self.options
        self.eps = o.eps if o.eps is not None else 1e-3 if o.feature_map == "relu" else 0.0
        self.guard = Denominator("signed", 1e-6) if o.feature_map == "trigonometric" else POSITIVE
        self.random = None
        if self.rows:
            self.random = Projection(1, self.rows, self.head_dim, o.draw, o.redraw)

    def draw(self, carried: bool, again: bool = True) -> Tensor | None:
        if self.random is None:
            return None
        return self.random(carried) if again else self.random.current()

    def map(self, drawn: Tensor | None) -> SegmentMap | None:
        if drawn is None or self.eps or self.options.feature_map not in EXPONENTIAL:
            return None
        return SegmentMap(drawn, cast(Kind, self.options.feature_map))

    def scaled(self, x: Tensor) -> Tensor:
        return widened(x) * self.head_dim**-0.25

    def query_features(self, q: Tensor, drawn: Tensor | None) -> Tensor:
        return self.key_features(q, drawn)[0]

    def key_features(self, k: Tensor, drawn: Tensor | None) -> Keys:
        kind, x = self.options.feature_map, self.scaled(k)
        if kind == "relu" or drawn is None:
            with full_precision(x):
                products = x if drawn is None else x @ drawn.to(x.dtype).mT
            return products.relu() + self.eps, None
        if kind == "trigonometric":
            return fourier_features(x, drawn), trigonometric_level(x)
        return stable_exponentials(x, drawn, kind == "hyperbolic", self.eps)

    def reference_scores(self, q: Tensor, k: Tensor, drawn: Tensor | None) -> Tensor:
        fq, fk = (
            performer_features_reference(
                t * self.head_dim**-0.25, drawn, self.options.feature_map, self.eps
            )
            for t in (q, k)
        )
        return fq @ fk.mT
