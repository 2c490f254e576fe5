"""ALiBi: scores fall in proportion to distance, each head at its own rate.

    A_ij = q_i k_j / sqrt(D) - m_h (i - j)          j <= i; the bias is not divided by sqrt(D)

    m_h = 2^(-8 h / H),  h = 1 .. H,  for H a power of two;  any other H takes the slopes of the
    largest power of two c below it, then every second one of 2c, from the first, until H are there

No vector of position enters anywhere else. In a bidirectional mixer (not in the paper; the three
forms are its author's): ``symmetric`` -m_h |i - j|; ``asymmetric`` with slopes of their own for
keys to the right, which are learned; ``split``, where the first half of the heads sees the left
alone and the second half the right alone (the token itself is seen by both), each half with the
slopes of that many heads.

Source: Press, Smith, Lewis 2022, arXiv 2108.12409, section 3; the bidirectional forms are from the
authors' repository, issue 5. Cost: in a causal mixer nothing beside attention's own (see
`engines.softmax.slopes`); with both sides, ``learned``, padding or dropout on the weights O(H L S)
additions. Nothing is learned unless ``learned``.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

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
    sides: Literal["symmetric", "asymmetric", "split"] = "symmetric"
    """of a bidirectional mixer: one slope for both sides, one a side, or half the heads a side"""
    learned: bool = False
    """whether the slopes are trained (as logarithms), from these at the start"""
    gone: ClassVar[dict[str, Any]] = {"right_slopes": None, "lowest": None, "stretch": 1.0}


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


def alibi_reference(q_positions: Tensor, k_positions: Tensor, slopes: tuple[float, ...]) -> Tensor:
    """The definition, one number at a time, in float64: -m_h |i - j| as (B or 1, H, L, S)."""
    rows = max(len(q_positions), len(k_positions))
    queries = q_positions.expand(rows, -1).tolist()
    keys = k_positions.expand(rows, -1).tolist()
    bias = [
        [[[-m * abs(i - j) for j in row_keys] for i in row_queries] for m in slopes]
        for row_queries, row_keys in zip(queries, keys, strict=True)
    ]
    return torch.tensor(bias, dtype=torch.float64)


def _limits(make: Make) -> list[Pair]:
    """Slopes of zero are attention without positions."""
    return [at_zero(make, "alibi", 0.0, slopes=(0.0,) * HEADS)]


@POSITIONS.register("alibi")
class Alibi(AdditivePosition):
    """ALiBi: ``-m_h |i - j|`` added to the scores of softmax attention; any length, any stream.

    Raises:
        GeneError: slopes that are not one a head or negative, sides without meaning.
    """

    name = "alibi"
    trials = Trials(
        inside=(
            {},
            {"learned": True, "window": 5, "kv_heads": 1},
            {
                "mixer": "by-head",
                "mixer_options": {"mixers": ("attention", "aft-conv", "attention")},
            },
        ),
        limits=_limits,
    )
    Options = AlibiOptions
    options: AlibiOptions

    def build(self, sizes: Sizes) -> None:
        o, self.heads = self.options, sizes.heads
        if o.sides != "symmetric":
            self._check_sides(sizes.causal)
            self.causal = False
        self.slopes = self._slopes_of_heads()
        if len(self.slopes) != self.heads:
            raise GeneError(
                f"position 'alibi' needs one slope for each of heads={self.heads}, not "
                f"{self.slopes}"
            )
        self.logarithms: nn.Parameter | None = None
        if o.learned:
            starts = [self.slopes] * (1 + (o.sides == "asymmetric"))
            if min(self.slopes) == 0:
                raise GeneError("learned slopes of 'alibi' are kept as logarithms: start above 0")
            self.logarithms = nn.Parameter(torch.tensor(starts).log())
            self.logarithms.no_decay = True  # type: ignore[attr-defined]
        self.shared = not o.learned

    def by_distance(self, distance: Tensor, dtype: torch.dtype) -> Tensor:
        left, right = self._rates(dtype, distance)
        away = distance.abs().to(dtype)
        if self.options.sides == "asymmetric":
            left = torch.where(distance >= 0, left, right)
        bias = -left * away
        if self.options.sides != "split":
            return bias
        heads = torch.arange(len(left), device=distance.device).view(left.shape)
        hidden = torch.where(heads >= self._left, distance > 0, distance < 0)
        return bias.masked_fill(hidden, -math.inf)

    def slopes_of(self, dtype: torch.dtype, device: torch.device) -> Tensor | None:
        if self.options.sides != "symmetric":
            return None
        return self._rates(dtype, torch.empty((), device=device))[0]

    def _rates(self, dtype: torch.dtype, against: Tensor) -> tuple[Tensor, Tensor]:
        """Slopes to the left and to the right, (H, 1 ... 1) each, to be laid ``against`` this."""
        if self.logarithms is None:
            rates = torch.tensor([self.slopes], dtype=dtype, device=against.device)
        else:
            rates = self.logarithms.to(dtype).exp()
        rates = rates.view(*rates.shape, *[1] * against.dim())
        return rates[0], rates[-1]

    @property
    def _left(self) -> int:
        """Number of heads that see the left, where each sees one side."""
        assert self.heads is not None
        return (self.heads + 1) // 2

    def _slopes_of_heads(self) -> tuple[float, ...]:
        o, heads = self.options, self.heads
        assert heads is not None
        if isinstance(o.slopes, tuple):
            return o.slopes
        if o.sides == "split":
            return alibi_slopes(self._left, o.slopes) + alibi_slopes(heads - self._left, o.slopes)
        return alibi_slopes(heads, o.slopes)

    def _check_sides(self, causal: bool) -> None:
        o = self.options
        if causal:
            raise GeneError(
                f"position 'alibi' with sides='{o.sides}' says how keys to the right are seen, but "
                "causal=True hides them all: use sides='symmetric'"
            )
        if o.sides == "asymmetric" and not o.learned:
            raise GeneError(
                "position 'alibi' with sides='asymmetric' has the same slopes on both sides for "
                "ever: give learned=True"
            )
        if o.sides == "split" and self.heads == 1:
            raise GeneError("position 'alibi' with sides='split' needs a head for each side")
