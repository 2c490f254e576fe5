"""Softmax attention by its literal equation, one query and one head at a time.

    O_h = softmax_S(cap(c Q_h K_h^T) + M) V_h        c: ``scale``, cap: ``softcap``, M: ``bias``

See `everyformer.genes.mixers.attention` for the symbols and the sources.
"""

import math
from functools import partial

import torch
from torch import Tensor

from everyformer.engines.softmax.positions import ScorePosition


def attention_reference(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, causal: bool = False,
    bias: Tensor | None = None, scale: float | None = None, softcap: float | None = None,
    sink: Tensor | None = None, position: ScorePosition | None = None,
    distance: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Softmax attention, one query at a time: q (B, H, L, D), k and v (B, H_kv, S, ...).

    ``mask`` is bool, ``bias`` is added after scaling; both broadcast to (B, H, L, S). A
    ``position`` that acts on scores makes them of q, k and ``distance`` (B or 1, L, S).
    """
    batch, heads, queries, size = q.shape
    keys, groups = k.shape[2], heads // k.shape[1]
    full = (batch, heads, queries, keys)
    seen = q.new_ones(full, dtype=torch.bool) if mask is None else mask.expand(full)
    added = q.new_zeros(full) if bias is None else bias.expand(full)
    if 0 in (queries, keys):
        return v.new_zeros(batch, heads, queries, v.shape[3])
    index = torch.arange(keys, device=q.device)
    scale = 1 / math.sqrt(size) if scale is None else scale
    cap = partial(_capped, softcap)
    rows = []
    for i in range(queries):
        last = i + keys - queries + 1 if causal else keys
        heads_out = []
        for h in range(heads):
            query, read = q[:, h, i], k[:, h // groups]
            if position is None or distance is None:
                scores = cap(scale * (read @ query[:, :, None]).squeeze(-1))
            else:
                scores = position.reference(query, read, distance[:, i], h, scale, cap)
            scores = scores + added[:, h, i]
            visible = seen[:, h, i] & (index < last) & (scores > -math.inf)
            lowest = torch.finfo(scores.dtype).min
            top = scores.masked_fill(~visible, lowest).amax(-1, keepdim=True)
            if sink is not None:
                top = torch.maximum(top, sink[h])
            weight = torch.where(visible, (scores - top).masked_fill(~visible, 0).exp(), 0)
            total = weight.sum(-1, keepdim=True)
            if sink is not None:
                total = total + (sink[h] - top).exp()
            weight = weight / total.masked_fill(total == 0, 1)
            y = (weight[:, None] @ v[:, h // groups]).squeeze(1)
            if position is not None and distance is not None:
                more = position.literal_values(weight, distance[:, i], h)
                y = y if more is None else y + more
            heads_out.append(y)
        rows.append(torch.stack(heads_out, 1))
    return torch.stack(rows, 2)


def _capped(softcap: float | None, scores: Tensor) -> Tensor:
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)
