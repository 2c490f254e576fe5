"""Dropout whose random numbers are drawn once, and of each call only where they begin.

    y_g = x_g w_{(i + g) mod P}        for element g of a tensor of at most P elements

The wheel w is a row of P zeros and factors P / n, in an order drawn once and the same in all
processes; n = round(P (1 - rate)) are factors, so that each element stays with that probability, to
1e-6, and the mean of what stays is x. i comes from torch's generator, one number a call where
`torch.nn.functional.dropout` draws one for each element, which costs a CPU a quarter of a small
model's step. A call has one of P patterns. Any two of its elements stay as independently as two
that lie as far apart in a drawn row: to 2e-4. A longer tensor is cut into parts of P, each with a
number of its own.

For the backward pass a view of the wheel is kept, no pattern of one's own. Other devices and
compilers take torch's function: there numbers are drawn where they are used.
"""

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

P = 1 << 19
"""entries of a wheel"""
SEED = 20140601
"""of their order"""


def dropout(x: Tensor, rate: float) -> Tensor:
    """``x`` without a share ``rate`` of its elements, drawn anew, the others scaled up.

    Args:
        rate: from 0 to 1.
    """
    turned = x.device.type == "cpu" and x.is_floating_point() and 0 < rate < 1
    if not turned or torch.compiler.is_compiling():
        return F.dropout(x, rate)
    w, count = wheel(rate, x.dtype), x.numel()
    if count <= P:
        return x * _part(w, count).view(x.shape)
    parts = x.reshape(-1).split(P)
    return torch.cat([part * _part(w, len(part)) for part in parts]).view(x.shape)


def _part(w: Tensor, count: int) -> Tensor:
    place = int(torch.randint(P, (), device="cpu"))
    return w[place : place + count]


@lru_cache(maxsize=8)
def wheel(rate: float, dtype: torch.dtype) -> Tensor:
    """(2 P,) w twice in a row, so that any P entries from a place on stand together."""
    count = round(P * (1 - rate))
    with torch.inference_mode(False):
        order = torch.randperm(P, generator=torch.Generator().manual_seed(SEED))
        w = torch.zeros(P, dtype=dtype)
        w[order[:count]] = P / max(count, 1)
        return w.repeat(2)
