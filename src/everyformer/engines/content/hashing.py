"""Locality-sensitive hashing: vectors that point the same way fall into the same bucket.

    h(x) = argmax([x R; -x R])            R in R^(D x b/2), entries N(0, 1), b even
    h(x) = h_1(x) + b_1 h_2(x) + ...      for b = b_1 b_2 ..., each with columns of its own

The factorised form costs sum_i b_i / 2 columns in place of b / 2. Each head and each round has an R
of its own. Length does not matter to an argmax, so x is not normalised.

Sources: Andoni et al. 2015, arXiv 1509.02897; Kitaev et al. 2020, arXiv 2001.04451, section 2.
"""

import math

import torch
from torch import Tensor

from everyformer.core.errors import GeneError
from everyformer.engines.ranges import full_precision, widened

_WHOLE = 32
"""more buckets than this are hashed in two factors by default"""


def bucket_factors(buckets: int) -> tuple[int, ...]:
    """Two even factors of about ``buckets``, or ``buckets`` itself where it is small."""
    if buckets <= _WHOLE:
        return (buckets,)
    first = 2 ** math.ceil(math.log2(math.sqrt(buckets)))
    return first, max(2, buckets // first // 2 * 2)


def check_factors(factors: tuple[int, ...]) -> None:
    """Refuse numbers of buckets that the hash cannot make."""
    if not factors or any(b < 2 or b % 2 for b in factors):
        raise GeneError(
            f"`buckets={factors}` must be even numbers: a hash gives the index of the largest of "
            "[x R; -x R]; give one number, or factors such as (32, 16)"
        )


def columns(factors: tuple[int, ...]) -> int:
    """Columns of R for one round."""
    return sum(factors) // 2


def seeded_rotations(seed: int, heads: int, rounds: int, size: int, count: int) -> Tensor:
    """R (heads, rounds, size, count) that depends on the seed alone, float32 on the CPU.

    Round r is the same however many rounds there are.
    """
    drawn = []
    for number in range(rounds):
        generator = torch.Generator("cpu").manual_seed(seed + 1_000_003 * number)
        drawn.append(torch.randn(heads, size, count, generator=generator, device="cpu"))
    return torch.stack(drawn, 1)


def lsh_buckets(x: Tensor, rotations: Tensor, factors: tuple[int, ...]) -> Tensor:
    """Bucket of every vector in every round: (B, H, rounds, L), 0 <= bucket < product of factors.

    Args:
        x: (B, H, L, D).
        rotations: (H, rounds, D, sum of factors / 2).
        factors: b_1, b_2, ...; int16 comes out where it holds all buckets and one more, else int32.
    """
    with torch.no_grad(), full_precision(x):
        wide = widened(x.detach())
        rotated = wide[:, :, None] @ rotations.to(wide)
        buckets, times = None, 1
        for part, size in zip(rotated.split([b // 2 for b in factors], -1), factors, strict=True):
            top = part.abs().argmax(-1, keepdim=True)
            negative = (part.gather(-1, top) < 0).to(top.dtype)
            bucket = (top + negative * (size // 2)).squeeze(-1) * times
            buckets = bucket if buckets is None else buckets + bucket
            times *= size
    assert buckets is not None
    return buckets.to(torch.int16 if times < 2**15 else torch.int32)


def lsh_buckets_reference(x: Tensor, rotations: Tensor, factors: tuple[int, ...]) -> Tensor:
    """The definition; arguments as in `lsh_buckets`."""
    rotated = torch.einsum("bhld,hrdc->bhrlc", x, rotations.to(x))
    buckets, times = torch.zeros(rotated.shape[:-1], dtype=torch.long, device=x.device), 1
    for part, size in zip(rotated.split([b // 2 for b in factors], -1), factors, strict=True):
        buckets = buckets + times * torch.cat((part, -part), -1).argmax(-1)
        times *= size
    return buckets


def bucket_order(buckets: Tensor) -> Tensor:
    """Tokens (..., L) in the order of their buckets, then of their positions: int64."""
    length = buckets.shape[-1]
    position = torch.arange(length, device=buckets.device)
    return torch.argsort(buckets.long() * length + position, dim=-1)
