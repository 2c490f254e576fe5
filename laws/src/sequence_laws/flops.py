"""FLOP formulas that torch's counter lacks before 2.15: fused attention on CPUs.

Its rule for fused attention is kept: the two matrix products, counted whole, also when causal.
Importing this module registers the formulas; FLOPs are counted here by it alone.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, flop_registry, register_flop_formula

_FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def _forward(q: Any, k: Any, v: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
    batch, heads, queries, size = q
    return 2 * batch * heads * queries * k[-2] * (size + v[-1])


def _backward(grad: Any, q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> int:
    # scores again, then gradients of weights, values, queries and keys
    batch, heads, queries, size = q
    return 2 * batch * heads * queries * k[-2] * (3 * size + 2 * v[-1])


for _operation, _formula in ((_FORWARD, _forward), (_BACKWARD, _backward)):
    if _operation not in flop_registry:  # torch 2.15 has them
        register_flop_formula(_operation)(_formula)


def flop_counter() -> FlopCounterMode:
    """A context whose ``get_total_flops`` are those that run in it, as in `count_flops`."""
    return FlopCounterMode(display=False)


def count_flops(work: Callable[[], Any]) -> int:
    """Floating-point operations of the matrix products that ``work()`` runs, backward included."""
    with flop_counter() as counter:
        work()
    return counter.get_total_flops()
