"""Trials of routed attention, which the laws are tried on."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from everyformer.core.trials import HEADS, LENGTH, Make, Pair, Trials, output


def _limits(make: Make) -> list[Pair]:
    """One cluster and windows over everything are dense attention, of normalised queries and keys
    where heads are routed."""
    pairs: list[Pair] = []
    for routing in ("strict", "prefix", "paper"):
        sizes = {"clusters": 1, "window": LENGTH, "local_heads": 1, "routing": routing}
        mixer = make("routing", **sizes)

        def dense(x: Tensor, mixer: Any = mixer) -> Tensor:
            q, v = (y.view(*x.shape[:2], HEADS, -1) for y in (mixer.query(x), mixer.value(x)))
            k = mixer.key(x).view(*x.shape[:2], -1, q.shape[-1])
            k = torch.cat((k, q[:, :, k.shape[2] :]), 2)
            norm = partial(nn.functional.layer_norm, normalized_shape=q.shape[-1:])
            q, k = (torch.cat((t[:, :, :1], norm(t[:, :, 1:])), 2) for t in (q, k))
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=mixer.causal)
            mixed: Tensor = mixer.out(y.transpose(1, 2).flatten(2))
            return mixed

        pairs.append((f"one cluster, {routing}, is attention", output(mixer), dense))
    return pairs


TRIALS = Trials(
    variants=(
        {"clusters": 3, "window": 4},
        {"clusters": 2, "window": 3, "routing": "prefix"},
        {"clusters": 3, "window": 4, "routing": "paper", "local_heads": 0},
        {"clusters": 1, "window": 1, "local_heads": 2},
        {"clusters": 4, "window": 3, "update": "none", "local_heads": 0},
        {},
    ),
    limits=_limits,
)
