"""Exits that tokens should have taken, and the likelihood of theirs: statistics of early exits.

    geometric    log q(n) = log sigma(a_n) + sum_(m < n) log sigma(-a_m),   n < N
                 log q(N) = sum_(m < N) log sigma(-a_m)
    oracle       n*_t = argmax_n (sum_t' kappa(t, t') s_t'^n - lambda n),  ties to the smallest n
                 kappa(t, t') = exp(-|t - t'|^2 / sigma), divided by its sum over t'

s is log p(y_t) or whether the likeliest token is y_t. t' are scored tokens of the same document,
later ones too: the oracle is a target, no input.

Source: Elbayad et al. 2019, arXiv 1910.10073, section 3.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def geometric(odds: Tensor) -> Tensor:
    """log q (..., N) of ``odds`` a (..., N - 1) of leaving at each layer but the last."""
    stays = F.logsigmoid(-odds).cumsum(-1)
    before = F.pad(stays[..., :-1], (1, 0)) if odds.shape[-1] else stays
    return torch.cat((F.logsigmoid(odds) + before, _last(stays)), -1)


def _last(stays: Tensor) -> Tensor:
    """The last of sums (..., N - 1); 0 of none."""
    return stays[..., -1:] if stays.shape[-1] else stays.new_zeros(*stays.shape[:-1], 1)


def smoothed(scores: Tensor, scored: Tensor, runs: Tensor | None, sigma: float | None) -> Tensor:
    """Means of ``scores`` (N, B, T) around every token, by the kernel.

    Args:
        scored: (B, T) which count. runs: (B, T) their documents; None: one.
        sigma: width of the kernel; 0: each token by itself; None: the text as a whole.
    """
    if sigma == 0:
        return scores
    length = scores.shape[-1]
    place = torch.arange(length, device=scores.device, dtype=scores.dtype)
    distance = (place[:, None] - place[None]).square()
    kernel = torch.ones_like(distance) if sigma is None else (-distance / sigma).exp()
    counts = kernel * scored[:, None].to(scores.dtype)
    if runs is not None:
        counts = counts * (runs[:, :, None] == runs[:, None])
    sums = torch.einsum("bts,nbs->nbt", counts, scores.masked_fill(~scored, 0.0))
    return sums / counts.sum(-1).clamp(min=torch.finfo(scores.dtype).tiny)


def oracle(scores: Tensor, penalty: float) -> Tensor:
    """(...) the best layer, from 1, by ``scores`` (N, ...) less ``penalty`` times its number."""
    n = torch.arange(1, len(scores) + 1, device=scores.device, dtype=scores.dtype)
    worth = scores - penalty * n.view(-1, *[1] * (scores.dim() - 1))
    return (worth == worth.amax(0)).to(torch.uint8).argmax(0) + 1


def first_agreeing(best: Tensor) -> Tensor:
    """(...) the first layer, from 1, whose likeliest token is the last one's: ``best`` (N, ...)."""
    return (best == best[-1]).to(torch.uint8).argmax(0) + 1


def balanced(odds: Tensor, right: Tensor) -> Tensor:
    """Cross-entropy of ``odds`` (M,) with ``right`` (M,) bool, both answers counting as much."""
    each = F.binary_cross_entropy_with_logits(odds, right.to(odds.dtype), reduction="none")
    sides = [each[side] for side in (right, ~right) if bool(side.any())]
    return torch.stack([side.mean() for side in sides]).mean() if sides else odds.sum() * 0
