"""Softmax attention of each query over keys that were chosen for it.

    l_it = q_i . k_c(i,t),   o_i = sum_t softmax_t(l_it) v_c(i,t),   s_i = log sum_t e^(l_it)

c are the keys that `nearest` gives for these queries, and l their scores, -inf where there is none:
a query without any has o = 0 and s = -inf. Keys and values get no gradient, and may be of a
narrower dtype than the queries: queries alone learn to tell the chosen keys apart. Keys and values
are gathered a budget of numbers (`nearest.BUDGET`) at a time, again for the gradients.

Cost: O(L k (D + Dv)) time and the budget of memory.
"""

import math

import torch
from torch import Tensor

from everyformer.engines.content.nearest import pieces
from everyformer.engines.operators import operator
from everyformer.engines.softmax.attention import weights_of


def chosen_attention(
    q: Tensor, k: Tensor, v: Tensor, chosen: Tensor, scores: Tensor
) -> tuple[Tensor, Tensor]:
    """Outputs (..., L, Dv) and log-sums (..., L) of ``q`` (..., L, D) over chosen keys.

    Args:
        k, v: (..., S, D) and (..., S, Dv), without a gradient.
        chosen, scores: (..., L, count), as `nearest` gives them.
    """
    lead = q.shape[:-2]
    q, k, v, chosen, scores = (t.reshape(-1, *t.shape[-2:]) for t in (q, k, v, chosen, scores))
    o, sums = _chosen(q, k.detach(), v.detach(), chosen, scores.detach())
    return o.view(*lead, *o.shape[1:]), sums.view(*lead, -1)


def _forward(
    q: Tensor, k: Tensor, v: Tensor, chosen: Tensor, scores: Tensor
) -> tuple[Tensor, Tensor]:
    weights = weights_of(scores)
    o = q.new_empty(*q.shape[:2], v.shape[-1])
    for n, part in pieces(chosen.shape[:2], chosen.shape[2] * v.shape[-1]):
        o[n, part] = (weights[n, part, None] @ _gathered(v[n], chosen[n, part], q)).squeeze(-2)
    return o, scores.logsumexp(-1)


def _gradients(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    chosen: Tensor,
    scores: Tensor,
    grad_o: Tensor | None,
    grad_sums: Tensor | None,
) -> tuple[Tensor]:
    weights = weights_of(scores)
    grad = torch.empty_like(q)
    for n, part in pieces(chosen.shape[:2], chosen.shape[2] * max(k.shape[-1], v.shape[-1])):
        w = weights[n, part]
        of_scores = torch.zeros_like(w)
        if grad_o is not None:
            products = (_gathered(v[n], chosen[n, part], q) @ grad_o[n, part, :, None]).squeeze(-1)
            of_scores = w * (products - (w * products).sum(-1, keepdim=True))
        if grad_sums is not None:
            of_scores = of_scores + w * grad_sums[n, part, None]
        grad[n, part] = (of_scores[..., None, :] @ _gathered(k[n], chosen[n, part], q)).squeeze(-2)
    return (grad,)


def _gathered(rows: Tensor, chosen: Tensor, like: Tensor) -> Tensor:
    """``rows`` (N, S, D) that were chosen, (N, L, count, D), in the dtype of ``like``."""
    # of rows that are part of a larger room, flat ones would be a copy of them all
    row = torch.arange(len(rows), device=rows.device)[:, None, None]
    return rows[row, chosen].to(like.dtype)


def _like(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    return q.new_empty(*q.shape[:2], v.shape[-1]), q.new_empty(q.shape[:2])


def _flops(chosen: torch.Size, v: torch.Size) -> int:
    return 2 * math.prod(chosen) * v[-1]


def _gradient_flops(chosen: torch.Size, k: torch.Size, v: torch.Size) -> int:
    return 2 * math.prod(chosen) * (k[-1] + v[-1])


_chosen, _ = operator(
    "chosen_attention",
    _forward,
    _gradients,
    results=("o", "sums"),
    inputs=("q",),
    shapes=_like,
    flops=(_flops, _gradient_flops),
)
