"""Cases and limits of Reformer for the laws."""

from __future__ import annotations

import torch
from torch import Tensor

from everyformer.core.trials import HEADS, LENGTH, WIDTH, Make, Pair, Trials, output


def _limits(make: Make) -> list[Pair]:
    """Dense attention among others, with shared keys, where one window holds all tokens."""
    wide, cut = make("reformer", chunk=LENGTH), make("reformer", chunk=6, look_ahead=1)
    cut.load_state_dict(wide.state_dict())

    def dense(x: Tensor) -> Tensor:
        heads = (2, LENGTH, HEADS, WIDTH // HEADS)
        qk, v = (w(x).view(heads).transpose(1, 2) for w in (wide.query_key, wide.value))
        k = qk / (qk.square().sum(-1, keepdim=True) + qk.shape[-1] * 1e-6).sqrt()
        positions = torch.arange(LENGTH, device=x.device)
        others = positions[:, None] > positions if wide.causal else positions[:, None] != positions
        weights = (qk @ k.mT).masked_fill(~others, -torch.inf).softmax(-1)
        y = weights.nan_to_num(0.0) @ v
        if wide.causal:
            y = torch.cat((v[:, :, :1], y[:, :, 1:]), 2)
        return wide.out(y.transpose(1, 2).flatten(2))

    return [
        ("chunk >= L is dense", output(wide), dense),
        ("a window of all chunks is dense, in any number of rounds", output(cut), dense),
    ]


TRIALS = Trials(
    variants=(
        {"chunk": 4, "rounds": 2},
        {"chunk": 4, "rounds": 3, "wrap": "circular", "look_ahead": 1},
        {"chunk": 4, "rounds": 3, "once": True, "scale": 0.5},
        {"chunk": 3, "rounds": 2, "across_buckets": False, "look_back": 2},
        {"chunk": 3, "rounds": 2, "once": True, "wrap": "circular", "buckets": (4, 2)},
        {},
    ),
    limits=_limits,
)
