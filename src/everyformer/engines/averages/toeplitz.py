"""Toeplitz products: one filter for all positions, by a dense matrix when short, by FFT when long.

    (W v)_i = sum_j c_(i-j) v_j

A filter (heads, taps) holds c_0 .. c_(taps-1) when causal, (heads, 2 taps - 1) holds
c_-(taps-1) .. c_(taps-1) when not, for up to so many tokens.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

# From about this length the O(L log L) transform beats the O(L^2) matrix product on two CPU cores.
FFT_FROM = 1024


def toeplitz_matrix(filters: Tensor, length: int, *, causal: bool) -> Tensor:
    """The matrices (heads, length, length) that the filters stand for."""
    taps = filters.shape[-1] if causal else (filters.shape[-1] + 1) // 2
    full = F.pad(filters, (taps - 1, 0)) if causal else filters
    at = torch.arange(length, device=filters.device)
    return full[:, taps - 1 + at[:, None] - at[None, :]]


def toeplitz_mix(v: Tensor, filters: Tensor, *, causal: bool) -> Tensor:
    """W v for ``v`` (B, L, c), channels in equal groups, one group a filter: (B, L, c)."""
    length, count = v.shape[1], filters.shape[0]
    heads = v.unflatten(-1, (count, -1)).transpose(1, 2)
    if length < FFT_FROM:
        mixed = toeplitz_matrix(filters, length, causal=causal) @ heads
        return mixed.transpose(1, 2).flatten(2)
    wide = torch.promote_types(v.dtype, torch.float32)
    taps = filters.shape[-1] if causal else (filters.shape[-1] + 1) // 2
    back = 0 if causal else taps - 1
    size = length + filters.shape[-1]
    spectrum = torch.fft.rfft(heads.to(wide), n=size, dim=2)
    response = torch.fft.rfft(filters.to(wide), n=size, dim=1)[:, :, None]
    mixed = torch.fft.irfft(spectrum * response, n=size, dim=2)[:, :, back : back + length]
    return mixed.to(v.dtype).transpose(1, 2).flatten(2)
