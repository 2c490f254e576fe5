"""Linear attention: a feature map in place of softmax, so that the past fits into one matrix.

    phi(x) = elu(x) + 1,    y_t = phi(q_t)^T S_t / phi(q_t)^T z_t
    S_t = sum_{s <= t} phi(k_s) v_s^T,    z_t = sum_{s <= t} phi(k_s)        (all s when not causal)

Queries and keys are not scaled by 1/sqrt(D). Other maps (``feature_map``), each head by itself:

    relu      max(x, 0)                          exp      softmax_D(q), exp(k)
    softmax   softmax_D(x)                       identity x
    t2r       max(W x + b, 0)                    product  (W x + b) * (W' x + b')
    hedgehog  softmax over [2 u, -2 u] of u = W x + b
    dpfp      r_j r_{j-i}, i = 1 .. nu, of r = max([x, -x], 0)

with learned W, b for queries and for keys, shared by the heads. As a function, `linear_attention`
takes features and may fade the past by gates g_t in (0, 1), S_t = g_t S_{t-1} + (1 - g_t) phi v^T.

Cost: O(L M D) time, O(L D) memory, M features (D for most maps). State: M (D + 1) numbers a head,
whatever was read. On CPUs the chunks pay against fused softmax attention from about 1,000 tokens.

Sources: Katharopoulos et al. 2020, arXiv 2006.16236, sections 3.2 to 3.4 (elu); Shen et al. 2021,
arXiv 1812.01243 (exp); Kasai et al. 2021, arXiv 2103.13076 (t2r); Schlag et al. 2021, arXiv
2102.11174 (dpfp); Zhang et al. 2024, arXiv 2402.04347 (hedgehog); Qin et al. 2022, arXiv 2210.10340
(norm in place of denominators). Deviations: the denominator's 1e-6 of the published code is
``eps``, 0 by default (the first token then gives its own value exactly); signed maps (identity,
product) guard their denominators by sign(d) max(|d|, 1e-6); `exp` divides by one denominator in
both directions, where Shen et al. normalise each feature over the row.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyformer.core.bounds import Amount, Count, When
from everyformer.core.errors import ConfigError, GeneError, ShapeError
from everyformer.core.trials import WIDTH, Make, Pair, Trials, output
from everyformer.engines.kernel.attention import ask, kernel_attention, read_all
from everyformer.engines.kernel.denominators import POSITIVE, Denominator
from everyformer.engines.kernel.sums import KernelState
from everyformer.engines.operators import exported_as
from everyformer.engines.projections import applied
from everyformer.engines.ranges import fake, full_precision, widened
from everyformer.genes.mixers import MIXERS
from everyformer.genes.mixers._kernel import (
    KernelAttention,
    KernelOptions,
    Keys,
    dense_average,
    gate_weights,
    value_limits,
)

FeatureMap = Literal[
    "elu", "relu", "exp", "softmax", "identity", "t2r", "product", "hedgehog", "dpfp"
]
LEARNED = ("t2r", "product", "hedgehog")
SIGNED = ("identity", "product")


@dataclass(frozen=True)
class LinearOptions(KernelOptions):
    """Options of `Linear`."""

    feature_map: FeatureMap = "elu"
    """phi"""
    nu: Annotated[Count, When("feature_map", "dpfp")] = 4
    """products that dpfp makes of each channel"""
    normalise: Literal["sum", "rms"] = "sum"
    """divide by the summed weights, or take the sums as they are and RMS-normalise each head"""
    eps: Amount = 0.0
    """added to the denominators (published code: 1e-6)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eps and self.feature_map in ("exp", *SIGNED):
            raise ConfigError(
                f"eps={self.eps} with feature_map='{self.feature_map}': eps is 0 for 'exp', whose "
                "sums are known up to a factor, and for signed maps, whose denominators have a "
                "guard of their own"
            )
        if self.normalise == "rms" and (self.feature_map == "exp" or self.eps):
            raise ConfigError(
                "normalise='rms' has no denominators: it goes with eps=0, and not with "
                "feature_map='exp', whose sums are known up to a factor"
            )


class Attended(NamedTuple):
    """Result of `linear_attention`."""

    y: Tensor
    """(B, H, L, D_v)"""
    state: KernelState
    """after the last token; of use where causal"""


def linear_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, gate: Tensor | None = None,
    keep: Tensor | None = None, guard: Denominator = POSITIVE,
) -> Tensor:  # fmt: skip
    """The definition with its L x L matrix, on features; arguments as in `linear_attention`."""
    visible = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
    visible = visible.tril(k.shape[2] - q.shape[2]) if causal else visible
    visible = visible if keep is None else visible & keep[:, None, None, :]
    scores = q @ k.mT
    if gate is not None:
        scores = scores * gate_weights(gate.exp(), keep)
    return dense_average(scores, v, visible, guard)


def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, gate: Tensor | None = None,
    keep: Tensor | None = None, state: KernelState | None = None, guard: Denominator = POSITIVE,
) -> Attended:  # fmt: skip
    """Averages of ``v`` weighted by products of features, in linear time.

    Args:
        q, k: (B, H, L, M), (B, H, S, M) features, already mapped. v: (B, H, S, D_v).
        causal: average over s <= t (then S = L) instead of all s.
        gate: (B, H, L) log of the gates g, below 0; causal only. Weights are multiplied by
            (1 - g_s) prod_{s < u <= t} g_u.
        keep: (B, S) bool, which keys are real.
        state: continue it; causal only.
        guard: of the denominators; the default needs features that are not negative.

    Returns:
        (B, H, L, D_v) in v's dtype, zero where nothing is seen; and the sums after the last token.

    Raises:
        ShapeError: the tensors do not go together. ConfigError: gates or a state without causal.
    """
    rows, fits = k.shape[:-1], q.dim() == 4 and q.shape[-1] == k.shape[-1]
    fits = fits and v.shape[:-1] == rows and q.shape[:2] == k.shape[:2]
    if not fits or (causal and q.shape[2] != k.shape[2]):
        raise ShapeError(
            "q and k must be (batch, heads, length, features), v (batch, heads, length, values), "
            "of one length when causal, not "
            f"{tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}"
        )
    if not causal:
        if gate is not None or state is not None:
            raise ConfigError("gates and states follow the order of tokens: give causal=True")
        sums = read_all(k, v, keep)
        count = k.new_full(k.shape[:1], k.shape[2], dtype=torch.long)
        seen = count if keep is None else keep.sum(1)
        return Attended(ask(q, sums, guard, v.dtype), KernelState(seen, sums))
    level = None if gate is None else torch.log(-torch.expm1(widened(gate)))
    y, after = kernel_attention(
        q, k, v, keep=keep, level=level, gate=gate, state=state, guard=guard
    )
    return Attended(y, after)


@torch.library.custom_op("everyformer::elu_features", mutates_args=())
def elu_features(x: Tensor) -> Tensor:
    """elu(x) + 1 to full relative precision: e^x below 0, x + 1 above."""
    wide = widened(x)
    if x.shape[-2] > 2:
        return wide.clamp(max=0).exp_().add_(wide.relu()).contiguous()
    # one operation less: 1 + max(x, 0), times the slope of elu, which is e^x below 0 and 1 above
    slope = torch.ops.aten.elu_backward
    return slope(wide.clamp(min=0).add_(1), 1, 1, 1, False, wide).contiguous()


@elu_features.register_fake
def _(x: Tensor) -> Tensor:
    return fake(widened(x))


def _save(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(output)
    ctx.dtype = inputs[0].dtype


def _differentiate(ctx: Any, grad: Tensor) -> Tensor:
    """The slope is e^x = phi below 0, and 1 above, where phi is larger."""
    return (ctx.saved_tensors[0].clamp(max=1) * grad).to(ctx.dtype)


elu_features.register_autograd(_differentiate, setup_context=_save)


@exported_as(elu_features)
def _(x: Tensor) -> Tensor:
    return widened(x).clamp(max=0).exp() + widened(x).relu()


def dpfp_features(x: Tensor, nu: int) -> Tensor:
    """Products of the rectified channels [x, -x] with those 1 .. ``nu`` channels before: 2 nu D."""
    r = torch.cat([x, -x], -1).relu()
    return torch.cat([r * r.roll(shift, -1) for shift in range(1, nu + 1)], -1)


def map_reference(name: FeatureMap, x: Tensor, nu: int) -> Tensor:
    """The features of one map as the text has them; of a learned one, what follows W x + b."""
    if name == "elu":
        return F.elu(x) + 1
    if name == "exp":
        return torch.exp(x)
    if name in ("relu", "t2r"):
        return x.clamp(min=0)
    if name == "softmax":
        return torch.exp(x) / torch.exp(x).sum(-1, keepdim=True)
    if name == "hedgehog":
        both = torch.exp(torch.cat([2 * x, -2 * x], -1))
        return both / both.sum(-1, keepdim=True)
    if name == "dpfp":
        size = 2 * x.shape[-1]
        r = torch.cat([x, -x], -1).clamp(min=0)
        return torch.stack(
            [r[..., j] * r[..., j - i] for i in range(1, nu + 1) for j in range(size)], -1
        )
    return x


class LearnedMap(nn.Module):
    """W x + b (hedgehog: W = 1, b = 0 at the start), or the product of two such."""

    def __init__(self, name: FeatureMap, size: int) -> None:
        super().__init__()
        self.first = nn.Linear(size, size)
        self.second = nn.Linear(size, size) if name == "product" else None
        if name == "hedgehog":
            nn.init.eye_(self.first.weight)
            nn.init.zeros_(self.first.bias)

    def forward(self, x: Tensor) -> Tensor:
        # in float32 at least, as all features are
        x = widened(x)
        y = applied(self.first, x)
        return y if self.second is None else y * applied(self.second, x)


def _limits(make: Make) -> list[Pair]:
    """Keys of zero take plain means of the values; constants and single tokens stay themselves."""
    mixer = make("linear", bias=("key",))
    with torch.no_grad():
        mixer.project.weights[0][WIDTH : 2 * WIDTH].zero_()

    def means(x: Tensor) -> Tensor:
        v = mixer.project(x)[2].transpose(1, 2).flatten(2)
        steps = torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]
        return mixer.out(v.cumsum(1) / steps if mixer.causal else v.mean(1, keepdim=True) + 0 * v)

    return [("equal keys take the mean of V", output(mixer), means), *value_limits(make, "linear")]


@MIXERS.register("linear")
class Linear(KernelAttention):
    """Linear attention over (B, L, width)."""

    name = "linear"
    trials = Trials(
        variants=(
            {},
            {"eps": 1e-6, "bias": ("query", "key", "value", "output")},
            {"feature_map": "relu"},
            {"feature_map": "exp"},
            {"feature_map": "softmax"},
            {"feature_map": "identity", "normalise": "rms"},
            {"feature_map": "t2r"},
            {"feature_map": "product", "normalise": "rms"},
            {"feature_map": "hedgehog"},
            {"feature_map": "dpfp", "nu": 2},
        ),
        limits=_limits,
    )
    Options = LinearOptions
    options: LinearOptions

    def feature_sizes(self) -> tuple[int, bool]:
        o, size = self.options, self.head_dim
        if o.feature_map == "dpfp" and o.nu >= 2 * size:
            raise GeneError(
                f"dpfp with 'nu'={o.nu} makes the same products again: give less than {2 * size}, "
                f"twice the {size} channels of a head"
            )
        features = {"hedgehog": 2 * size, "dpfp": 2 * size * o.nu}.get(o.feature_map, size)
        return features, o.feature_map == "exp"

    def add_features(self) -> None:
        o, size = self.options, self.head_dim
        self.alike = o.feature_map not in ("exp", *LEARNED)
        if o.normalise == "rms":
            self.guard = Denominator("none")
        elif o.feature_map in SIGNED:
            self.guard = Denominator("signed", 1e-6)
        else:
            self.guard = Denominator("positive", o.eps)
        learned = o.feature_map in LEARNED
        self.query_map = LearnedMap(o.feature_map, size) if learned else None
        self.key_map = LearnedMap(o.feature_map, size) if learned else None
        self.norm = nn.RMSNorm(size, eps=1e-6) if o.normalise == "rms" else None

    def query_features(self, q: Tensor, drawn: Tensor | None) -> Tensor:
        if self.options.feature_map == "exp":
            return torch.softmax(widened(q), -1)
        return self._map(q, self.query_map)

    def key_features(self, k: Tensor, drawn: Tensor | None) -> Keys:
        if self.options.feature_map != "exp":
            return self._map(k, self.key_map), None
        k = widened(k)
        # e^level times the features: the maximum has no gradient of its own
        top = k.detach().amax(-1, keepdim=True)
        return torch.exp(k - top), top.squeeze(-1)

    def literal(self, q: Tensor, k: Tensor, drawn: Tensor | None) -> Tensor:
        name, nu = self.options.feature_map, self.options.nu
        q = q if self.query_map is None else self.query_map(q)
        k = k if self.key_map is None else self.key_map(k)
        return map_reference(name, q, nu) @ map_reference(name, k, nu).mT

    def finish(self, y: Tensor) -> Tensor:
        if self.norm is not None:
            weight = self.norm.weight
            y = F.rms_norm(y, weight.shape, weight.to(y.dtype), self.norm.eps)
            y = y.to(weight.dtype)
        return super().finish(y)

    def _map(self, x: Tensor, learned: LearnedMap | None) -> Tensor:
        name = self.options.feature_map
        with full_precision(x):
            x = x if learned is None else learned(x)
            if name == "elu":
                return elu_features(x)
            if name in ("relu", "t2r"):
                return x.relu()
            if name == "softmax":
                return torch.softmax(widened(x), -1)
            if name == "hedgehog":
                return torch.softmax(torch.cat([2 * widened(x), -2 * widened(x)], -1), -1)
            if name == "dpfp":
                return dpfp_features(widened(x), self.options.nu)
            return x
