"""Products of matrices inside the engines: float32 or wider, or in bfloat16 with float32 sums.

Where an engine was given bfloat16 and `halves` says so, its products take bfloat16 factors, and
each entry is summed up in float32. Exponents have the range of float32, so whatever float32 can
hold, the factors can. What is added to a product, and running maxima, denominators and states, is
float32 all along. float16 has not that range, and is computed in float32.
"""

import torch
from torch import Tensor


def halves(given: Tensor, *, large: bool = False) -> bool:
    """Whether an engine multiplies in bfloat16 what came with ``given``, its values.

    On a CPU products of matrices of a hundred rows take longer so: rounding the factors costs more
    than the product gains (1.05x to 1.25x, where products of a thousand rows gain 2.6x).

    Args:
        large: whether the matrices have a thousand rows.
    """
    return given.dtype is torch.bfloat16 and (large or given.is_cuda)


def product(a: Tensor, b: Tensor, half: bool) -> Tensor:
    """a b of (X, n, r) and (X, r, m): (X, n, m), float32 or wider.

    Args:
        half: whether factors are rounded to bfloat16.
    """
    if not half:
        return torch.bmm(a, b)
    a, b = a.bfloat16(), b.bfloat16()
    if a.is_cuda:
        return torch.bmm(a, b, out_dtype=torch.float32)
    # sums are float32 inside, whatever is written
    return torch.bmm(a, b).float()


def plus_product(added: Tensor, a: Tensor, b: Tensor, half: bool) -> Tensor:
    """``added``, broadcast, + a b."""
    return product(a, b, True).add_(added) if half else torch.baddbmm(added, a, b)


def add_product(into: Tensor, a: Tensor, b: Tensor, half: bool) -> Tensor:
    """``into`` + a b, in place."""
    return into.add_(product(a, b, True)) if half else into.baddbmm_(a, b)
