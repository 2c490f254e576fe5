"""Scaled rotations: other angles for texts longer than those a model was trained on.

theta_m = base^(-2m/D_r) is the unscaled rate of pair m, s = ``factor``, L = ``original_length``:

    linear     theta_m / s                                       (position interpolation)
    ntk        base' = base s^(D_r/(D_r-2)): the fastest pair keeps its rate, the slowest gets 1/s
    dynamic    base' = base (s T/L - (s-1))^(D_r/(D_r-2)) for T > L tokens, unscaled up to L
    yarn       theta_m/s r_m + theta_m (1 - r_m),  r_m = clamp((m - low)/(high - low), 0, 1),
               low = floor(c(32)), high = ceil(c(1)) within 0 .. D_r-1,
               c(b) = D_r ln(L/(2 pi b)) / (2 ln base);  queries and keys times 0.1 ln s + 1
    llama3     w = 2 pi/theta_m < L/hi: theta_m;  w > L/lo: theta_m / s;  between them
               theta_m ((1 - g)/s + g), g = (L/w - lo)/(hi - lo)
    longrope   theta_m / f_m, f from one table up to L tokens and from another beyond;
               queries and keys times sqrt(1 + ln s / ln L)

T counts the real tokens of the row (of the document, where several are packed), so padding changes
nothing. With ``dynamic`` and ``longrope`` the angles of all tokens change when T grows, so keys
that a state has rotated would be wrong: there is no state, whole sequences are recomputed.

Sources: Chen et al. 2023, arXiv 2306.15595 (linear); Peng et al. 2023, arXiv 2309.00071 (ntk,
dynamic, yarn); Llama 3.1; Ding et al. 2024, arXiv 2402.13753 (longrope). Numbers as in Hugging
Face's `modeling_rope_utils`.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from everyformer.core.bounds import Positive, Several, Times
from everyformer.core.config import Options
from everyformer.core.devices import widest
from everyformer.core.errors import GeneError
from everyformer.core.mask import lengths_of

Kind = Literal["none", "linear", "ntk", "dynamic", "yarn", "llama3", "longrope"]


@dataclass(frozen=True)
class RopeScaling(Options):
    """Change of the angles of rotary positions for longer texts."""

    kind: Kind = "none"
    """how the angles change"""
    factor: Times | None = None
    """s >= 1, how many times longer texts become (default: 8 with llama3)"""
    original_length: Several | None = None
    """L, longest text of the first training: dynamic, yarn, llama3 (default: 8192), longrope"""
    attention_factor: Positive | None = None
    """on queries and keys alike (yarn, longrope; default: the formula)"""
    beta_fast: Positive = 32.0
    """yarn: pairs with more turns than this within L keep their rate"""
    beta_slow: Positive = 1.0
    """yarn: pairs with fewer turns than this within L get 1/s of theirs"""
    truncate: bool = True
    """yarn: whether the ends of the ramp between the two are rounded to whole pairs"""
    low_frequency: Positive = 1.0
    """llama3: lo, pairs with fewer turns within L get 1/s of their rate"""
    high_frequency: Positive = 4.0
    """llama3: hi, pairs with more turns within L keep their rate"""
    short: tuple[Positive, ...] = ()
    """longrope: divisors f_m up to L tokens, one a pair"""
    long: tuple[Positive, ...] = ()
    """longrope: divisors f_m beyond"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind == "llama3":
            for name, value in _LLAMA3.items():
                if getattr(self, name) is None:
                    object.__setattr__(self, name, value)


READS: dict[Kind, tuple[str, ...]] = {
    "none": (),
    "linear": ("factor",),
    "ntk": ("factor",),
    "dynamic": ("factor", "original_length"),
    "yarn": (
        *("factor", "original_length", "attention_factor"),
        *("beta_fast", "beta_slow", "truncate"),
    ),
    "llama3": ("factor", "original_length", "low_frequency", "high_frequency"),
    "longrope": ("factor", "original_length", "attention_factor", "short", "long"),
}
"""which options each kind reads"""
BY_LENGTH: tuple[Kind, ...] = ("dynamic", "longrope")
"""kinds whose angles change with the number of tokens"""
_LLAMA3 = {"factor": 8.0, "original_length": 8192}


def check_scaling(scaling: RopeScaling, pairs: int) -> None:
    """Refuse a ``scaling`` that cannot be used on ``pairs`` rotated pairs a head.

    Raises:
        GeneError: an option that the kind needs is missing, or one is set that it does not read.
    """
    kind, unset = scaling.kind, RopeScaling()
    for name in (f.name for f in dataclasses.fields(scaling)):
        changed = getattr(scaling, name) != getattr(unset, name)
        if changed and name != "kind" and name not in READS[kind]:
            raise GeneError(f"rope scaling '{kind}' reads no `{name}`; it reads {_list(kind)}")
    for name in ("factor", "original_length"):
        if name in READS[kind] and getattr(scaling, name) is None:
            raise GeneError(f"rope scaling '{kind}' needs `{name}`: give it (reads {_list(kind)})")
    if kind == "llama3" and scaling.low_frequency >= scaling.high_frequency:
        raise GeneError(
            f"low_frequency={scaling.low_frequency} must be less than high_frequency="
            f"{scaling.high_frequency}"
        )
    if kind == "longrope" and {len(scaling.short), len(scaling.long)} != {pairs}:
        raise GeneError(
            f"rope scaling 'longrope' needs one divisor for each of {pairs} pairs in 'short' and "
            f"'long', not {len(scaling.short)} and {len(scaling.long)}"
        )


def rates(
    positions: Tensor, pairs: int, base: float, scaling: RopeScaling, lengths: Tensor | None = None
) -> tuple[Tensor, float]:
    """Angles a token and what queries and keys are multiplied by.

    Args:
        positions: (B or 1, L); only kinds of `BY_LENGTH` read them.
        scaling: one that `check_scaling` lets pass.
        lengths: (B or 1, L or 1) tokens of each one's text (default: by ``positions``).

    Returns:
        theta (pairs,), or (B or 1, 1, L or 1, pairs) where it goes by the length, in float64
        where the device has it; and the factor on queries and keys.
    """
    m = torch.arange(pairs, dtype=widest(positions.device), device=positions.device)
    theta = base ** (-m / pairs)
    kind, factor = scaling.kind, scaling.factor
    if kind == "none" or factor is None:
        return theta, 1.0
    if kind == "linear":
        return theta / factor, 1.0
    if kind == "ntk":
        return theta * factor ** (-m / max(pairs - 1, 1)), 1.0
    assert scaling.original_length is not None
    length = scaling.original_length
    if kind == "yarn":
        low, high = _ramp(pairs, base, scaling)
        slow = ((m - low) / (high - low)).clamp(0, 1)
        return theta / factor * slow + theta * (1 - slow), _attention_factor(scaling)
    if kind == "llama3":
        turns = length * theta / (2 * math.pi)
        low, high = scaling.low_frequency, scaling.high_frequency
        share = ((turns - low) / (high - low)).clamp(0, 1)
        return theta * ((1 - share) / factor + share), 1.0
    tokens = (lengths_of(positions) if lengths is None else lengths)[:, None, :, None]
    if kind == "dynamic":
        grown = (factor * tokens.to(m.dtype) / length - (factor - 1)).clamp(min=1)
        return theta * grown ** (-m / max(pairs - 1, 1)), 1.0
    tables = torch.tensor((scaling.short, scaling.long), dtype=theta.dtype, device=theta.device)
    divisors = torch.where(tokens > length, tables[1], tables[0])
    return theta / divisors, _attention_factor(scaling)


def rates_reference(
    pairs: int, base: float, scaling: RopeScaling, tokens: int
) -> tuple[list[float], float]:
    """The definition, one pair at a time, for a sequence of ``tokens`` tokens."""
    size, kind, s = 2 * pairs, scaling.kind, scaling.factor or 1.0
    length = scaling.original_length or 1
    if kind == "ntk":
        base = base * s ** (size / (size - 2))
    if kind == "dynamic" and tokens > length:
        base = base * (s * tokens / length - (s - 1)) ** (size / (size - 2))
    low, high = _ramp(pairs, base, scaling) if kind == "yarn" else (0.0, 1.0)
    scaled = []
    for m in range(pairs):
        theta = base ** (-2 * m / size)
        wave = 2 * math.pi / theta
        if kind == "linear":
            theta = theta / s
        elif kind == "yarn":
            ramp = min(max((m - low) / (high - low), 0.0), 1.0)
            theta = theta / s * ramp + theta * (1 - ramp)
        elif kind == "llama3" and wave > length / scaling.low_frequency:
            theta = theta / s
        elif kind == "llama3" and wave >= length / scaling.high_frequency:
            spread = scaling.high_frequency - scaling.low_frequency
            g = (length / wave - scaling.low_frequency) / spread
            theta = theta * ((1 - g) / s + g)
        elif kind == "longrope":
            theta = theta / (scaling.long if tokens > length else scaling.short)[m]
        scaled.append(theta)
    return scaled, _attention_factor(scaling) if kind in ("yarn", "longrope") else 1.0


def _ramp(pairs: int, base: float, scaling: RopeScaling) -> tuple[float, float]:
    """First and last pair of yarn's ramp."""
    size = 2 * pairs
    assert scaling.original_length is not None

    def pair_of(turns: float) -> float:
        share = math.log(scaling.original_length / (2 * math.pi * turns))  # type: ignore[operator]
        return size * share / (2 * math.log(base))

    low, high = pair_of(scaling.beta_fast), pair_of(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    return low, high + 0.001 if low == high else high


def _attention_factor(scaling: RopeScaling) -> float:
    """Factor of queries and keys by yarn and longrope."""
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    assert scaling.factor is not None
    assert scaling.original_length is not None
    if scaling.factor <= 1:
        return 1.0
    if scaling.kind == "yarn":
        return 0.1 * math.log(scaling.factor) + 1
    return math.sqrt(1 + math.log(scaling.factor) / math.log(scaling.original_length))


def _list(kind: Kind) -> str:
    return ", ".join(READS[kind]) or "nothing"
