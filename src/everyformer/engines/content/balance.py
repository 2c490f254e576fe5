"""Sinkhorn balancing: a matrix whose rows and columns sum to one, of any matrix of logits.

    Z <- Z - logsumexp_j Z_ij,    Z <- Z - logsumexp_i Z_ij,    ...    P = exp(Z)

Pairs that are not visible have P = 0, and rows or columns without any are left empty. For a causal
mixer the sum over a column runs over rows up to the row itself, so that no row knows a later one,
and a last step over rows makes averages of them. All in log space, in float32 at least.

Sources: Sinkhorn 1964; Mena et al. 2018, arXiv 1802.08665 (with Gumbel noise); the causal columns
follow Tay et al. 2020, arXiv 2002.11296, section 3.3.
"""

import torch
from torch import Tensor

from everyformer.engines.drawing import uniform_rows
from everyformer.engines.ranges import widened

NOTHING = -1e30
"""the log of no weight: finite, so that differences of two of them are no NaN"""


def balanced_reference(logits: Tensor, iterations: int, causal: bool = False) -> Tensor:
    """The definition, by divisions: ``logits`` (H, N, N); causal rows see earlier columns alone."""
    size = logits.shape[-1]
    mask = torch.ones(size, size, dtype=torch.bool, device=logits.device)
    mask = mask.tril(-1) if causal else mask
    top = logits.masked_fill(~mask, NOTHING).amax(-1, keepdim=True).detach()
    p = torch.where(mask, (logits - top).masked_fill(~mask, 0).exp(), 0)
    for _ in range(iterations):
        p = p / _nonzero(p.sum(-1, keepdim=True))
        columns = [p[:, : i + 1 if causal else None].sum(-2) for i in range(size)]
        p = p / _nonzero(torch.stack(columns, -2))
    return p / _nonzero(p.sum(-1, keepdim=True)) if causal else p


def _nonzero(sums: Tensor) -> Tensor:
    return torch.where(sums == 0, 1, sums)


def balanced(
    logits: Tensor, iterations: int, *, causal: bool = False, real: Tensor | None = None
) -> Tensor:
    """P (B, H, N, N) of ``logits``.

    Args:
        causal: row i sees columns j < i.
        real: (B, N) bool, which rows and columns there are; not asked where causal, since the
            unreal ones are the last.
    """
    z = widened(logits)
    if causal:
        mask = torch.ones(z.shape[-2:], dtype=torch.bool, device=z.device).tril(-1)
    elif real is not None:
        mask = (real[:, :, None] & real[:, None, :])[:, None]
    else:
        mask = torch.ones((), dtype=torch.bool, device=z.device)
    z = z.masked_fill(~mask, NOTHING)
    for _ in range(iterations):
        z = (z - z.logsumexp(-1, keepdim=True)).masked_fill(~mask, NOTHING)
        columns = z.logcumsumexp(-2) if causal else z.logsumexp(-2, keepdim=True)
        z = (z - columns).masked_fill(~mask, NOTHING)
    return (z - z.logsumexp(-1, keepdim=True) if causal else z).masked_fill(~mask, NOTHING).exp()


def balanced_row(logits: Tensor, columns: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The next causal row P (B, H, N) and the columns' sums with it.

    Args:
        logits: (B, H, N). columns: (B, H, iterations, N) logs of the sums over earlier rows, one
            for each iteration, `NOTHING` where there are none. mask: (B, 1, N) bool.
    """
    z, sums = widened(logits).masked_fill(~mask, NOTHING), []
    for before in columns.unbind(2):
        z = (z - z.logsumexp(-1, keepdim=True)).masked_fill(~mask, NOTHING)
        sums.append(torch.logaddexp(before, z))
        z = (z - sums[-1]).masked_fill(~mask, NOTHING)
    p = (z - z.logsumexp(-1, keepdim=True)).masked_fill(~mask, NOTHING).exp()
    return p, torch.stack(sums, 2) if sums else columns


def gumbel(like: Tensor) -> Tensor:
    """Noise of the standard Gumbel distribution, in the shape of ``like``."""
    numbers = uniform_rows(like.shape, like.device).clamp(min=2**-25)
    return -(-numbers.log()).log().to(like.dtype)
