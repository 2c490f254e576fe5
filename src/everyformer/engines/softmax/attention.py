"""The softmax engine: scaled dot-product attention under every mask, with zeros for empty rows.

    A = softmax_S(Q K^T * scale + bias),   O = A V

Plain calls go to torch's `scaled_dot_product_attention`; what it cannot do (soft-capped scores, a
sink, weights to look at) is computed by the formula. Query i of L stands at source position
i + (S - L), so a causal call with a cache never sees too little (torch's own ``is_causal`` aligns
the other corner).

A bias that is linear in distance, -m (i - j), needs no (L, S) tensor: see `engines.softmax.slopes`.

Source: Vaswani et al. 2017, arXiv 1706.03762, eq. 1.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from everyformer.core.dispatch import take
from everyformer.core.errors import ShapeError
from everyformer.core.leaving import leaves_torch
from everyformer.core.mask import Mask
from everyformer.engines.dropout import dropout as drop
from everyformer.engines.once import named_once
from everyformer.engines.softmax import continued, dropped, kernels
from everyformer.engines.softmax.slopes import (
    sloped_attention,
    slopes_in,
    with_bias,
    with_slopes_in,
)
from everyformer.engines.softmax.visibility import (
    Visibility,
    causal_mask,
    in_even_rows,
    visibility,
)

ENGINE = "softmax attention"


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Mask | Tensor | None = None,
    causal: bool = False,
    bias: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Softmax attention without parameters: (B, H, L, Dv).

    Args:
        q, k, v: (B, H, L, D), (B, H_kv, S, D), (B, H_kv, S, Dv).
        mask: a `Mask`, or bool broadcastable to (B, H, L, S) with True = may be seen.
        causal: query i sees keys up to i + (S - L).
        bias: float, added to the scaled scores.

    Raises:
        ShapeError: other shapes or flags, heads that are no multiple of those of keys and values.
    """
    fits = q.dim() == k.dim() == v.dim() == 4 and k.shape[:3] == v.shape[:3]
    if not fits or (q.shape[0], q.shape[3]) != (k.shape[0], k.shape[3]) or q.shape[1] % k.shape[1]:
        raise ShapeError(
            "q must be (batch, heads, length, size), k (batch, heads of keys, source, size) and v "
            f"the same with a size of its own, not {tuple(q.shape)}, {tuple(k.shape)} and "
            f"{tuple(v.shape)}"
        )
    if isinstance(mask, Tensor):
        if mask.dtype != torch.bool:
            raise ShapeError(f"a mask of flags is bool, not {mask.dtype}: give numbers as `bias`")
        mask = Mask(attention_mask=mask)
    if mask is None and bias is None and (not causal or q.shape[2] <= k.shape[2]):
        return softmax_attention(q, k, v, Visibility(causal=causal), scale=scale)
    keys = torch.arange(k.shape[2], device=q.device)[None]
    queries = torch.arange(q.shape[2], device=q.device)[None] + k.shape[2] - q.shape[2]
    padding_mask = None if mask is None else mask.padding_mask
    visible = visibility(mask, queries, keys, causal=causal, padding_mask=padding_mask, bias=bias)
    return softmax_attention(q, k, v, visible, scale=scale)


def softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible: Visibility,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    sink: Tensor | None = None,
    slopes: Tensor | None = None,
) -> Tensor:
    """Heads' outputs (B, H, L, Dv) of ``q`` (B, H, L, D), ``k`` and ``v`` (B, H_kv, S, ...).

    H is a multiple of H_kv; query head h reads key-value head floor(h H_kv / H). ``scale``
    defaults to 1/sqrt(D). ``softcap`` c replaces scores s by c tanh(s/c). ``sink`` (H,) is the
    score of one extra key whose value is 0. ``slopes`` (H,) are m of a bias -m (i + S - L - j) for
    queries that see no later key, under a bool mask. A query that may see nothing gives 0.
    """
    if softcap is not None or sink is not None or k.shape[2] == 0:
        take(ENGINE, "matrix", "torch's kernels know no softcap, no sink and no empty text")
        weights = attention_weights(
            q, k, visible, scale=scale, softcap=softcap, sink=sink, slopes=slopes
        )
        groups = q.shape[1] // v.shape[1]
        return drop(weights, dropout).to(v.dtype) @ v.repeat_interleave(groups, dim=1)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    size = v.shape[-1]
    if slopes is not None:
        kind = slopes_in(q, k, visible, slopes, dropout)
        take(ENGINE, f"fused, slopes in {kind}")
        if kind == "channels" and scale != 0:
            q, k, v = with_slopes_in(q, k, v, slopes / scale)
        elif kind != "squares":
            visible = with_bias(visible, slopes, q.shape[2], k.shape[2])
        else:
            return sloped_attention(q, k, v, slopes, scale)
    mask, causal = visible.mask, visible.causal
    in_tiles = 0 < dropout < 1 and dropped.able(q, k, mask, causal)
    if slopes is None:
        take(ENGINE, "tiles, some weights dropped" if in_tiles else "fused")
    if causal and not dropout and continued.able(q, k):
        y = continued.continued_attention(q, k, v, scale)
    elif not (dropout or (causal and q.shape[2] != k.shape[2])) and kernels.able(q, k, v, mask):
        y = kernels.few_attention(q, k, v, mask, causal, scale)
    elif in_tiles:
        y = dropped.dropped_attention(q, k, v, mask, causal, scale, dropout)
    else:
        y = _by_torch(q, k, v, mask, causal, scale, dropout)
    return y if v.shape[-1] == size else y[..., :size]


def _by_torch(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float, dropout: float
) -> Tensor:
    """`softmax_attention` by torch's `scaled_dot_product_attention`."""
    if causal and q.shape[2] != k.shape[2]:
        causal = False
        if q.shape[2] > 1:
            mask = causal_mask(q.shape[2], k.shape[2], q.device)
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.to(q.dtype)
    k, v, mask = in_even_rows(q, k, v, mask)
    y = F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=mask,
        dropout_p=dropout,
        is_causal=causal,
        scale=scale,
        # a branch, since a compiler may know the number as a symbol
        enable_gqa=True if q.shape[1] != k.shape[1] else False,  # noqa: SIM210
    )
    y = named_once(y)
    if mask is not None and leaves_torch():
        # in ONNX torch's operator gives a mean, or NaN, to a query that sees nothing
        seen = mask if mask.dtype == torch.bool else mask > -math.inf
        y = y.masked_fill(~seen.any(-1, keepdim=True), 0)
    return y


def attention_weights(
    q: Tensor,
    k: Tensor,
    visible: Visibility,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    sink: Tensor | None = None,
    slopes: Tensor | None = None,
) -> Tensor:
    """Attention weights A (B, H, L, S), in float32 or wider; rows that see nothing are zero."""
    scores = attention_scores(q, k, visible, scale=scale, softcap=softcap, slopes=slopes)
    return weights_of(scores, sink)


def weights_of(scores: Tensor, sink: Tensor | None = None) -> Tensor:
    """Softmax over the last axis, beside a sink of heads (B, H, L, S); all of -inf: zeros."""
    if sink is not None:
        column = sink.to(scores).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        return torch.cat((scores, column), dim=-1).softmax(-1)[..., :-1]
    empty = (scores == -math.inf).all(-1, keepdim=True)
    return scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)


def attention_scores(
    q: Tensor,
    k: Tensor,
    visible: Visibility,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    slopes: Tensor | None = None,
) -> Tensor:
    """Attention scores (B, H, L, S) before softmax, in float32 or wider; -inf: not visible."""
    wide = torch.promote_types(q.dtype, torch.float32)
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = (q.to(wide) * scale) @ k.to(wide).transpose(-1, -2)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if slopes is not None:
        visible = with_bias(visible, slopes, q.shape[2], k.shape[2])
    mask = visible.mask
    if visible.causal:
        mask = causal_mask(q.shape[2], k.shape[2], q.device)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    return scores
