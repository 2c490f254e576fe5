"""ALiBi: scores fall in proportion to distance, each head at its own rate.

    A_ij = q_i k_j / sqrt(D) - m_h (i - j)          j <= i; the bias is not divided by sqrt(D)

    m_h = 2^(-8 h / H),  h = 1 .. H,  for H a power of two;  any other H takes the slopes of the
    largest power of two c below it, then every second one of 2c, from the first, until H are there

No vector of position enters anywhere else. In a bidirectional mixer (not in the paper; its author's
first form) the bias is -m_h |i - j|.

Source: Press, Smith, Lewis 2022, arXiv 2108.12409, section 3; the bidirectional form is from the
authors' repository, issue 5. Cost: in a causal mixer nothing besides attention's own (see
`engines.softmax.slopes`); both ways, with padding or dropout on the weights O(H L S) additions.
Nothing is learned.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from everyformer.core.bounds import Amount
from everyformer.core.config import Options
from everyformer.core.errors import GeneError, require_word
from everyformer.core.position import Sizes
from everyformer.core.trials import HEADS, Make, Pair, Trials
from everyformer.genes.positions import POSITIONS
from everyformer.genes.positions.base import AdditivePosition, at_zero

Slopes = Literal["alibi", "geometric"]
RULES = get_args(Slopes)


@dataclass(frozen=True)
class AlibiOptions(Options):
    """Options of `Alibi`."""

    slopes: Slopes | tuple[Amount, ...] = "alibi"
    """slope of each head: the paper's rule, 2^(-8h/H) for any H (geometric), or one number a head;
    0 leaves a head without positions"""
    gone: ClassVar[dict[str, Any]] = {
        "sides": "symmetric", "right_slopes": None, "learned": False, "lowest": None,
        "stretch": 1.0,
    }  # fmt: skip


def alibi_slopes(heads: int, rule: Slopes = "alibi") -> tuple[float, ...]:
    """Slopes m_1 .. m_H of ``heads`` heads, by the paper's rule or 2^(-8h/H) for any number."""
    require_word("rule", rule, RULES)
    if rule == "geometric":
        return tuple(2.0 ** (-8 * h / heads) for h in range(1, heads + 1))
    below = 1 << (heads.bit_length() - 1)
    between = alibi_slopes(2 * below, "geometric")[0::2]
    return alibi_slopes(below, "geometric") + between[: heads - below]


def alibi_slopes_reference(heads: int) -> tuple[float, ...]:
    """m_h in closed form: 2^(-8 h / n) for the first n heads, n the largest power of two in them,
    and 2^(-4 (2 h - 1) / n) for the h-th of the others."""
    n = 1 << (heads.bit_length() - 1)
    first = tuple(2 ** (-8 * h / n) for h in range(1, n + 1))
    return first + tuple(2 ** (-4 * (2 * h - 1) / n) for h in range(1, heads - n + 1))


def _limits(make: Make) -> list[Pair]:
    """Slopes of zero are attention without positions."""
    return [at_zero(make, "alibi", 0.0, slopes=(0.0,) * HEADS)]


@POSITIONS.register("alibi")
class Alibi(AdditivePosition):
    """ALiBi: ``-m_h |i - j|`` added to the scores of softmax attention; any length, any stream.

    Raises:
        GeneError: slopes that are not one a head or negative.
    """

    name = "alibi"
    trials = Trials(
        inside=(
            {},
            {"window": 5, "kv_heads": 1},
            {
                "mixer": "by-head",
                "mixer_options": {"mixers": ("attention", "aft-conv", "attention")},
            },
        ),
        limits=_limits,
    )
    shared = True
    Options = AlibiOptions
    options: AlibiOptions

    def build(self, sizes: Sizes) -> None:
        slopes, self.heads = self.options.slopes, sizes.heads
        self.slopes = slopes if isinstance(slopes, tuple) else alibi_slopes(sizes.heads, slopes)
        if len(self.slopes) != self.heads:
            raise GeneError(
                f"position 'alibi' needs one slope for each of `heads={self.heads}`, not "
                f"{self.slopes}"
            )

    def by_distance(self, distance: Tensor, dtype: torch.dtype) -> Tensor:
        rates = self.slopes_of(dtype, distance.device)
        return -rates.view(-1, *[1] * distance.dim()) * distance.abs().to(dtype)

    def slopes_of(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.tensor(self.slopes, dtype=dtype, device=device)
