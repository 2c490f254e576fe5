"""Ranges of sums of exponentials that may be taken against one reference, and their precision.

A softmax average is a ratio of two sums of ``exp(key + bias)``. When every sum is taken relative to
one reference key per row and channel, both sums are linear maps of ``exp(key - reference)``, hence
matrix products. That is exact as long as no factor leaves the exponent range of the dtype, which is
what `one_reference` and `bias_fits` check; the engines hold an exact path for the rest.
"""

from contextlib import AbstractContextManager

import torch
from torch import Tensor

from everyformer.core import devices

# float32 holds exp(88). Keys at most 40 above the reference and biases within 20 leave exp(28) for
# the values, their gradients and the number of terms; what underflows is below exp(-40) of a sum.
_KEY_LIMIT = {torch.float32: 40.0, torch.float64: 400.0}
_BIAS_LIMIT = {torch.float32: 20.0, torch.float64: 200.0}


HALF = (torch.float16, torch.bfloat16)
"""dtypes whose sums are taken in float32"""


def widened(t: Tensor) -> Tensor:
    """``t`` in the precision that sums are taken in: float32 at least."""
    return t.float() if t.dtype in HALF else t


def returned(t: Tensor, like: Tensor) -> Tensor:
    """A custom operator's result: in the dtype of ``like`` and, as its fake says, contiguous."""
    return t.to(like.dtype).contiguous()


def fake(like: Tensor) -> Tensor:
    """An empty tensor in the form of `returned`."""
    return like.new_empty(like.shape)


def full_precision(t: Tensor) -> AbstractContextManager[None]:
    """Autocast switched off on the device of ``t``: products inside an engine keep their dtype."""
    return devices.full_precision(t.device.type)


def bias_limit(dtype: torch.dtype) -> float:
    """Largest absolute bias for which exp(bias) may be a factor of a product."""
    return _BIAS_LIMIT[dtype]


def one_reference(k: Tensor, causal: bool, lead: int = 0) -> tuple[Tensor, bool]:
    """A reference key per row and channel, and whether all keys ``k`` (B, S, H, K) fit it.

    Without causality it is the largest key: every query sees it, so no denominator vanishes. With
    causality it is the largest of the first ``lead + 1`` keys, which every query sees: it does not
    depend on the future, and only keys far above it are a danger.
    """
    top = k.amax(1, keepdim=True)
    reference = k[:, : lead + 1].amax(1, keepdim=True) if causal else top
    fits = torch.isfinite(reference).all() & ((top - reference).amax() <= _KEY_LIMIT[k.dtype])
    return reference, bool(fits)


def per_key(t: Tensor, keys: int) -> Tensor:
    """``t`` (..., V) summed over the channels that share a key: (..., ``keys``)."""
    return t if t.shape[-1] == keys else t.sum(-1, keepdim=True)


def key_gradient(v: Tensor, weight: Tensor, dv: Tensor, dweight: Tensor) -> Tensor:
    """dK = sum over a key's channels of V dV, plus exp(K) dexp(K)."""
    return per_key(dv * v, weight.shape[-1]).addcmul_(weight, dweight)
