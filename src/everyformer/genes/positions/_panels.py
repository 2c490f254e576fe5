"""The picture of positions whose scores are sums of terms."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from everyformer.core.panels import Panel, Panels, layer_title

TERMS = ("a: content", "b: distance by content", "c: the key's own", "d: the distance's own")
"""of Transformer-XL's scores, in the order in which they are recorded"""


def terms_of_scores(found: Mapping[str, Tensor], causal: bool) -> Panels:
    """The four terms of Transformer-XL's scores (B, 4, H, L, S), a row a layer."""
    rows, shares = [], []
    for path, terms in found.items():
        each = terms[0].float().cpu()
        seen = torch.ones(each.shape[-2:], dtype=torch.bool)
        seen = seen.tril() if causal else seen
        spread = each[..., seen].std(-1)
        head = int(spread[1].argmax())
        shares.append(f"{float(spread[1:].square().sum() / spread.square().sum()):.0%}")
        visible = each[:, head].masked_fill(~seen, float("nan")).numpy()
        names = (f"{layer_title(path, f'head {head + 1}')}\n{TERMS[0]}", *TERMS[1:])
        rows.append([Panel(name, term) for name, term in zip(names, visible, strict=True)])
    caption = (
        "The four terms of a score, of the head of each layer that leans most on (b): the token of "
        "the row reads that of the column. Part of the variance of all heads that is not due to "
        f"content alone, layer by layer: {', '.join(shares)}."
    )
    return Panels(rows, caption, "score", signed=True)
