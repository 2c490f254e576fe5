"""Trials of Sparse Sinkhorn attention, which the laws are tried on."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from everyformer.core.trials import HEADS, LONGEST, Make, Pair, Trials, output


class _Rolled(nn.Module):
    """Logits of a permutation of blocks: each sorts in the one after it."""

    def forward(self, pooled: Tensor, count: int) -> Tensor:
        block = torch.arange(count, device=pooled.device)
        chosen = (block[:, None] + 1) % count == block
        return 99 * chosen.to(pooled.dtype).expand(len(pooled), HEADS, -1, -1)


def _limits(make: Make) -> list[Pair]:
    """One block is attention (where causal beside null keys); so are all blocks, permuted."""
    plain = make("attention")
    if plain.causal:
        plain = make("attention", sink=True)
        plain.sink.data.fill_(math.log(LONGEST))
    pairs: list[Pair] = []
    names: dict[str, dict[str, Any]] = {"one block": {"block_size": LONGEST}}
    if not plain.causal:
        names["SortCut of all blocks"] = {"block_size": 3, "sortcut": 4}
    for what, options in names.items():
        whole = make("sinkhorn", **options)
        whole.load_state_dict(plain.state_dict(), strict=False)
        if whole.null is not None:
            whole.null.data.zero_()
        if "sortcut" in options:
            whole.sorter = _Rolled()
        pairs.append((f"{what} is attention", output(whole), output(plain)))
    return pairs


TRIALS = Trials(
    variants=(
        {"block_size": 4},
        {"block_size": 3, "sort_net": "mlp", "bias": ("query", "key", "value", "output")},
        {"block_size": 3, "iterations": 2, "bias": ("key",)},
        {"block_size": 4, "combine": "sum-scores"},
        {"block_size": 5, "mixture": True, "iterations": 1},
        {"block_size": 2},
        {},
    ),
    bidirectional=({"block_size": 4, "sortcut": 2},),
    limits=_limits,
)
