"""Random feature attention (RFA): a Gaussian kernel of normalised queries and keys, with a gate.

    phi(x) = Df^{-1/2} [sin(W x), cos(W x)],   W = (drawn rows N(0, I)) * sigma / tau,
    of x = q / |q| and k / |k|:    E phi(x) . phi(y) = exp(-|sigma (x - y)|^2 / (2 tau^2)),
    for sigma = 1 softmax's weight exp(x . y / tau^2) up to a constant, which cancels

    S_t = g_t S_{t-1} + (1 - g_t) phi(k_t) v_t^T,   z_t the same of phi(k_t),
    y_t = phi(q_t)^T S_t / phi(q_t)^T z_t,          g_t = sigmoid(w_g . x_t + b_g), one a head

Without the gate (the default, "RFA"; "RFA-Gate" is ``gate=True``) S and z are plain sums. sigma (D)
is learned for each head, tau is ``temperature``. ``feature_map="arccos"``: phi = Df^{-1/2}
max(W x, 0), the arc-cosine kernel. The gate forgets, so it is for causal self-attention alone.

Cost: O(L Df D) time, O(L (Df + D)) memory. State: 2 Df (D + 1) + 1 numbers a head (Df for arccos,
no level without gates). Source: Peng et al. 2021, arXiv 2103.02143, sections 3.1, 3.2 and 4.

Deviations. sin and cos are signed, so a denominator d may be near 0 or below: it becomes
sign(d) max(|d|, 1e-6). The published code divides by max(d, 1) of features scaled by 0.1, which
shrinks what the first tokens give. Rows are drawn again in training as
published (there from a pool of 500, here ``pool``), never in evaluation, where the published code
takes the pool's first. The gate's bias is not published: it starts where g is 0.95.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyformer.core.bounds import Affects, Count, Positive, Unless, Whole
from everyformer.core.errors import GeneError
from everyformer.core.leaving import leaves_torch
from everyformer.core.trials import Make, Pair, Trials, near, output
from everyformer.engines.kernel.denominators import POSITIVE, Denominator
from everyformer.engines.kernel.features import (
    Draw,
    Projection,
    fourier_features,
    rectified_features,
)
from everyformer.engines.ranges import widened
from everyformer.genes.mixers import MIXERS
from everyformer.genes.mixers._kernel import (
    Bias,
    KernelAttention,
    KernelOptions,
    Keys,
    value_limits,
)


@dataclass(frozen=True)
class RFAOptions(KernelOptions):
    """Options of `RFA`."""

    bias: Bias = ("query", "key", "value", "output")
    """which projections have a bias"""
    gate: bool = False
    """fade the past (causal self-attention only)"""
    feature_map: Literal["fourier", "arccos"] = "fourier"
    """sines and cosines, or rectified products"""
    features: Count = 64
    """Df, rows drawn; as many as a head has channels, or more"""
    temperature: Positive = 1.0
    """tau"""
    draw: Draw = "iid"
    """"iid" or "orthogonal" rows, or "regularised": orthogonal, all of norm sqrt(D), biased"""
    redraw: Annotated[Count | None, Affects("nothing")] = 1
    """training calls after which rows are drawn again; None never, as states in training need it"""
    pool: Annotated[Whole, Unless("redraw", None)] = 0
    """number of draws from which redrawing picks (published: 500 for all layers); 0: fresh ones"""
    gone: ClassVar[dict[str, Any]] = {"compat_clamp": False}


def fourier_features_reference(x: Tensor, projection: Tensor) -> Tensor:
    """The definition, row by row: sin w.x, then cos w.x, over sqrt(M); x (..., D), W (M, D)."""
    angles = [(x * w).sum(-1) for w in projection]
    both = [a.sin() for a in angles] + [a.cos() for a in angles]
    return torch.stack(both, -1) / math.sqrt(len(angles))


def _limits(make: Make) -> list[Pair]:
    """With many features it is softmax attention of unit queries and keys; equal gates cancel."""
    many = make("rfa", features=2**15, temperature=0.7)

    def normalised(x: Tensor) -> Tensor:
        q, k, v = many.project(x)
        q, k = nn.functional.normalize(q, dim=-1), nn.functional.normalize(k, dim=-1)
        y = nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=many.causal, scale=0.7**-2
        )
        return many.out(y.transpose(1, 2).flatten(2))

    limits = [
        near("32,768 draws are softmax of unit vectors within 5%", 0.05, output(many), normalised),
        *value_limits(make, "rfa"),
    ]
    if many.causal:
        gated, plain = make("rfa", gate=True), make("rfa")
        plain.load_state_dict(gated.state_dict(), strict=False)
        with torch.no_grad():
            gated.gate.weight.zero_()
            gated.gate.bias.fill_(30.0)
        limits.append(("gates of 1, all alike, cancel", output(gated), output(plain)))
    return limits


@MIXERS.register("rfa")
class RFA(KernelAttention):
    """Random feature attention over (B, L, width).

    Raises:
        GeneError: a gate where there is no order of time.
    """

    name = "rfa"
    trials = Trials(
        variants=(
            {},
            {"draw": "orthogonal", "pool": 4},
            {"feature_map": "arccos", "temperature": 0.5},
        ),
        causal=(
            {"gate": True},
            {"gate": True, "feature_map": "arccos", "features": 16, "temperature": 2.0},
        ),
        limits=_limits,
    )
    accepts_positions = True
    Options = RFAOptions
    options: RFAOptions

    def feature_sizes(self) -> tuple[int, bool]:
        o = self.options
        if o.gate:
            if not self.causal:
                raise GeneError(
                    "rfa: `gate=True` is defined for causal self-attention alone, but "
                    "`causal=False` was given: leave gate at its default here"
                )
            self.no_context = (
                "rfa with `gate=True` is causal self-attention and reads no context: build "
                "cross-attention with `causal=False` and gate at its default"
            )
        return o.features * (2 if o.feature_map == "fourier" else 1), o.gate

    def add_features(self) -> None:
        o, size = self.options, self.head_dim
        self.guard = Denominator("signed", 1e-6) if o.feature_map == "fourier" else POSITIVE
        self.random = Projection(self.heads, o.features, size, o.draw, o.redraw, o.pool)
        self.scale = nn.Parameter(torch.ones(self.heads, 1, size))
        self.gate = nn.Linear(self.width, self.heads) if o.gate else None
        if self.gate is not None:
            nn.init.constant_(self.gate.bias, math.log(0.95 / (1 - 0.95)))

    def draw(self, carried: bool, again: bool = True) -> Tensor:
        drawn = self.random(carried) if again else self.random.current()
        drawn = drawn if self.options.temperature == 1 else drawn / self.options.temperature
        return drawn * self.scale

    def query_features(self, q: Tensor, drawn: Tensor | None) -> Tensor:
        return self.key_features(q, drawn)[0]

    def key_features(self, k: Tensor, drawn: Tensor | None) -> Keys:
        assert drawn is not None
        make = fourier_features if self.options.feature_map == "fourier" else rectified_features
        return make(F.normalize(widened(k), dim=-1), drawn), None

    def log_kernel(self, q: Tensor, k: Tensor) -> Tensor:
        """Logs of the Gaussian kernel, or of the arc-cosine one: (B, H, L, S)."""
        scale = self.scale / self.options.temperature
        x, y = (F.normalize(widened(t), dim=-1) * scale.to(t) for t in (q, k))
        if self.options.feature_map == "fourier":
            return -torch.cdist(x, y).square() / 2
        sizes = x.norm(dim=-1)[..., None] * y.norm(dim=-1)[..., None, :]
        cosine = (x @ y.mT / sizes).clamp(-1, 1)
        angle = cosine.acos()
        return (sizes * (angle.sin() + (math.pi - angle) * cosine)).log()

    def gates(self, x: Tensor) -> tuple[Tensor, Tensor] | None:
        if self.gate is None:
            return None
        logits = widened(self.gate(x)).transpose(1, 2)
        if leaves_torch():
            # ONNX has the log of a sigmoid, which is -inf below -88
            return -F.softplus(-logits), -F.softplus(logits)
        return F.logsigmoid(logits), F.logsigmoid(-logits)

    def literal_gates(self, x: Tensor) -> Tensor | None:
        if self.gate is None:
            return None
        logits = x @ self.gate.weight.mT + self.gate.bias
        return (1 / (1 + (-logits).exp())).transpose(1, 2)

    def reference_scores(self, q: Tensor, k: Tensor, drawn: Tensor | None) -> Tensor:
        assert drawn is not None
        o = self.options
        size = o.features**-0.5

        def phi(x: Tensor) -> Tensor:
            products = x / x.norm(dim=-1, keepdim=True) @ drawn.to(x.dtype).mT
            if o.feature_map == "arccos":
                return products.relu() * size
            return torch.cat([products.sin(), products.cos()], -1) * size

        return phi(q) @ phi(k).mT
