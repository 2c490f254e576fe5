"""Linear attention: a feature map in place of softmax, so that the past fits into one matrix.

    phi(x) = elu(x) + 1,    y_t = phi(q_t)^T S_t / phi(q_t)^T z_t
    S_t = sum_{s <= t} phi(k_s) v_s^T,    z_t = sum_{s <= t} phi(k_s)        (all s when not causal)

Queries and keys are not scaled by 1/sqrt(D). As a function, `linear_attention`
takes features and may fade the past by gates g_t in (0, 1), S_t = g_t S_{t-1} + (1 - g_t) phi v^T.

Cost: O(L M D) time, O(L D) memory, M features (D for most maps). State: M (D + 1) numbers a head,
whatever was read. On CPUs the chunks pay against fused softmax attention from about 1,000 tokens.

Source: Katharopoulos et al. 2020, arXiv 2006.16236, sections 3.2 to 3.4. Deviation: the
denominator's 1e-6 of the published code is ``eps``, 0 by default (the first token then gives its
own value exactly).
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from everyformer.core.bounds import Amount
from everyformer.core.errors import ConfigError, ShapeError
from everyformer.core.trials import WIDTH, Make, Pair, Trials, output
from everyformer.engines.kernel.attention import ask, kernel_attention, read_all
from everyformer.engines.kernel.denominators import POSITIVE, Denominator
from everyformer.engines.kernel.features import made
from everyformer.engines.kernel.maps import SegmentMap
from everyformer.engines.kernel.sums import KernelState
from everyformer.engines.ranges import fake, full_precision, widened
from everyformer.engines.remade import noted
from everyformer.genes.mixers import MIXERS
from everyformer.genes.mixers._kernel import (
    KernelAttention,
    KernelOptions,
    Keys,
    dense_average,
    gate_weights,
    value_limits,
)


@dataclass(frozen=True)
class LinearOptions(KernelOptions):
    """Options of `Linear`."""

    eps: Amount = 0.0
    """added to the denominators (published code: 1e-6)"""
    gone: ClassVar[dict[str, Any]] = {"feature_map": "elu", "nu": 4, "normalise": "sum"}


class Attended(NamedTuple):
    """Result of `linear_attention`."""

    y: Tensor
    """(B, H, L, D_v)"""
    state: KernelState
    """after the last token; of use where causal"""


def linear_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, gate: Tensor | None = None,
    padding_mask: Tensor | None = None, guard: Denominator = POSITIVE,
) -> Tensor:  # fmt: skip
    """The definition with its L x L matrix, on features; arguments as in `linear_attention`."""
    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
    mask = mask.tril(k.shape[2] - q.shape[2]) if causal else mask
    mask = mask if padding_mask is None else mask & padding_mask[:, None, None, :]
    scores = q @ k.mT
    if gate is not None:
        scores = scores * gate_weights(gate.exp(), padding_mask)
    return dense_average(scores, v, mask, guard)


def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, gate: Tensor | None = None,
    padding_mask: Tensor | None = None, state: KernelState | None = None,
    guard: Denominator = POSITIVE,
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
            raise ConfigError("gates and states follow the order of tokens: give `causal=True`")
        sums = read_all(k, v, padding_mask)
        count = k.new_full(k.shape[:1], k.shape[2], dtype=torch.long)
        num_tokens = count if padding_mask is None else padding_mask.sum(1)
        return Attended(ask(q, sums, guard, v.dtype), KernelState(num_tokens, sums))
    level = None if gate is None else torch.log(-torch.expm1(widened(gate)))
    y, after = kernel_attention(
        q, k, v, padding_mask=padding_mask, level=level, gate=gate, state=state, guard=guard
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
    ctx.save_for_backward(inputs[0])


def _differentiate(ctx: Any, grad: Tensor) -> Tensor:
    """The slope is e^x below 0, and 1 above."""
    x = ctx.saved_tensors[0]
    return torch.ops.aten.elu_backward(grad, 1, 1, 1, False, widened(x)).to(x.dtype)


elu_features.register_autograd(_differentiate, setup_context=_save)


ELU = SegmentMap(None, "elu")


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
        variants=({}, {"eps": 1e-6, "bias": ("query", "key", "value", "output")}),
        limits=_limits,
    )
    Options = LinearOptions
    options: LinearOptions

    def feature_sizes(self) -> tuple[int, bool]:
        return self.head_dim, False

    def add_features(self) -> None:
        self.guard = Denominator("positive", self.options.eps)

    def map(self, drawn: Tensor | None) -> SegmentMap:
        return ELU

    def query_features(self, q: Tensor, drawn: Tensor | None) -> Tensor:
        with full_precision(q):
            if torch.compiler.is_compiling():
                return made(ELU, q)[0]  # which a compiler puts into one loop with what is around it
            return noted(elu_features, q)

    def key_features(self, k: Tensor, drawn: Tensor | None) -> Keys:
        return self.query_features(k, drawn), None

    def reference_scores(self, q: Tensor, k: Tensor, drawn: Tensor | None) -> Tensor:
        return (F.elu(q) + 1) @ (F.elu(k) + 1).mT
