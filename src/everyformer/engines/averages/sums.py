"""The sums that softmax averages are ratios of, [exp(K) V | exp(K)], relative to one reference key.

Engines that take them by matrix products share this; shapes and letters are those of ``running``.
"""

import torch
from torch import Tensor

from everyformer.engines.ranges import bias_limit, key_gradient, one_reference, per_key, widened


def reference_of(k: Tensor, bias: Tensor, causal: bool, lead: int = 0) -> Tensor | None:
    """The reference keys, None where keys or biases leave the range in which sums are exact."""
    reference, fits = one_reference(k, causal, lead)
    return reference if fits and bool(bias.abs().amax() <= bias_limit(bias.dtype)) else None


def fill_sums(out: Tensor, k: Tensor, v: Tensor, reference: Tensor) -> None:
    """Sums' terms exp(K) V and exp(K) of each token, side by side in ``out`` (B, S, H, V + K)."""
    # exp of a contiguous tensor is four times as fast as of a slice
    weight, values = torch.sub(k, reference).exp_(), v.shape[-1]
    out[..., values:] = weight
    torch.mul(weight, v, out=out[..., :values])


def sums_gradient(o: Tensor, grad_o: Tensor, keys: int) -> tuple[Tensor, Tensor]:
    """Gradients of both sums of an average o, times its denominator: g, and c = -g o by key."""
    g = widened(grad_o)
    return g, per_key(g * widened(o), keys).neg_()


def inputs_gradient(v: Tensor, weight: Tensor, dx: Tensor) -> tuple[Tensor, Tensor]:
    """dK = V dV + exp(K) dexp(K) and dV, from ``weight`` = exp(K) and the gradient of the sums."""
    values = v.shape[-1]
    dv = weight * dx[..., :values]
    return key_gradient(v, weight, dv, dx[..., values:]), dv
