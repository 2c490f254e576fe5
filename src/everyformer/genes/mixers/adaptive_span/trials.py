"""Cases and limits of adaptive attention span for the laws."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from everyformer.core.trials import LENGTH, LONGEST, Make, Pair, Trials, output


def _limits(make: Make) -> list[Pair]:
    """A whole span and p = 0 is attention, causal to the tokens before; dynamic spans of one bias
    are fixed ones."""
    plain = make("attention")
    wide = make("adaptive-span", window=2 * LENGTH, ramp=1)
    still = make("adaptive-span", window=LONGEST, ramp=4, dynamic=True)
    fixed = make("adaptive-span", window=LONGEST, ramp=4)
    with torch.no_grad():
        wide.load_state_dict(plain.state_dict(), strict=False)
        wide.table.zero_()
        wide.spans.fill_(1)
        _copy(fixed, still)
        still.spans_of.weight.zero_()
        fixed.spans.copy_(still.spans_of.bias.sigmoid())

    def earlier(x: Tensor) -> Tensor:
        q, k, v = plain.project(x)
        visible = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril(-1)
        y = F.scaled_dot_product_attention(q, k, v, visible).transpose(1, 2).flatten(2)
        y[:, 0] = 0
        return plain.out(y)

    whole = earlier if wide.causal else output(plain)
    return [
        ("a span over everything is attention", output(wide), whole),
        ("dynamic spans with v = 0 are S sigma(b)", output(still), output(fixed)),
    ]


def _copy(from_: Any, to: Any) -> None:
    to.load_state_dict(from_.state_dict() | {n: p for n, p in to.named_parameters() if "of" in n},
                       strict=False)  # fmt: skip


TRIALS = Trials(
    variants=(
        {"window": 8, "ramp": 4, "start": 0.3},
        {"window": 40, "ramp": 3, "start": 0.1},
        {"window": 12, "ramp": 5, "dynamic": True},
        {"window": 5, "ramp": 5, "start": 1.0},
    ),
    causal=(
        {"window": 6, "ramp": 4, "start": 0.5, "memory": "segment", "slots": 6, "store": "inputs"},
        {"window": 9, "ramp": 3, "memory": "segment", "slots": 5},
    ),
    limits=_limits,
)
