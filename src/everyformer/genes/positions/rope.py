"""Rotary positions (RoPE): queries and keys are rotated by an angle that grows with position.

    pair m of q at position p, as a complex number, is multiplied by e^(i p theta_m),
    theta_m = base^(-2m/D_r),   m = 0 .. D_r/2-1;   keys likewise;   values are not touched

so that <R_p q, R_s k> = <q, R_(s-p) k>: scores see distances only. D_r <= D is the rotated part of
the head dimension (``fraction``). Two layouts of the pairs exist: ``half`` (m, m + D_r/2: Llama,
GPT-NeoX) and ``interleaved`` (2m, 2m+1: the paper, GPT-J); they differ by a fixed permutation of
each head's channels.

``scaling`` changes the angles for texts longer than those of the training (`rope_scaling`).

Source: Su et al. 2021, arXiv 2104.09864, eq. 15 and 34. Cost: O(L D) a head, no parameters. A
stream caches rotated keys with their absolute positions. Angles are built in float64 (float32 where
a device has no other), so that they are right at any position.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from everyformer.core.bounds import Part, Positive
from everyformer.core.config import Options
from everyformer.core.devices import widest
from everyformer.core.errors import GeneError, require_word
from everyformer.core.mask import lengths_of
from everyformer.core.panels import Panel, Panels, Pictures
from everyformer.core.position import Position, Sizes
from everyformer.core.shared import shared
from everyformer.core.trials import LENGTH, Make, Pair, Trials
from everyformer.genes.positions import POSITIONS
from everyformer.genes.positions.rope_scaling import (
    BY_LENGTH,
    RopeScaling,
    check_scaling,
    rates,
    rates_reference,
)

PairLayout = Literal["half", "interleaved"]
LAYOUTS = get_args(PairLayout)


@dataclass(frozen=True)
class RopeOptions(Options):
    """Options of `Rope`."""

    base: Positive = 10000.0
    """ratio of the slowest to the fastest rotation"""
    layout: PairLayout = "half"
    """which channels make a pair: (m, m + D_r/2) or (2m, 2m+1)"""
    fraction: Part = 1.0
    """part of each head's channels that is rotated, as in GPT-NeoX and GPT-J; the rest is left
    alone"""
    scaling: RopeScaling = field(default_factory=RopeScaling)
    """other angles for texts longer than those of the training"""
    gone: ClassVar[dict[str, Any]] = {"learned": False}


def rotate_reference(
    x: Tensor,
    positions: Tensor,
    *,
    base: float = 10000.0,
    layout: PairLayout = "half",
    scaling: RopeScaling | None = None,
) -> Tensor:
    """The definition with complex numbers: ``x`` (B, H, L, D), ``positions`` (B or 1, L)."""
    half = x.shape[-1] // 2
    chosen = RopeScaling() if scaling is None else scaling
    check_scaling(chosen, half)
    if layout == "half":
        pairs = torch.complex(x[..., :half].double(), x[..., half:].double())
    else:
        pairs = torch.complex(x[..., 0::2].double(), x[..., 1::2].double())
    rotations: list[list[Tensor]] = []
    for row, lengths in zip(positions.tolist(), lengths_of(positions).tolist(), strict=True):
        rotations.append([])
        for position, tokens in zip(row, lengths, strict=True):
            theta, size = rates_reference(half, base, chosen, tokens)
            angles = torch.tensor(theta, dtype=torch.float64, device=x.device) * position
            rotations[-1].append(torch.polar(torch.full_like(angles, size), angles))
    rotated = pairs * torch.stack([torch.stack(row) for row in rotations])[:, None]
    if layout == "half":
        return torch.cat((rotated.real, rotated.imag), dim=-1).to(x.dtype)
    return torch.stack((rotated.real, rotated.imag), dim=-1).flatten(-2).to(x.dtype)


def rotate(
    x: Tensor,
    positions: Tensor,
    *,
    base: float = 10000.0,
    layout: PairLayout = "half",
    scaling: RopeScaling | None = None,
) -> Tensor:
    """Rotate all channels of ``x`` (B, H, L, D), D even, to ``positions`` (B or 1, L).

    Raises:
        GeneError: a ``scaling`` whose options do not go together.
        ConfigError: another ``layout``.
    """
    require_word("layout", layout, LAYOUTS)
    chosen = RopeScaling() if scaling is None else scaling
    half = x.shape[-1] // 2
    check_scaling(chosen, half)
    wide = torch.promote_types(x.dtype, torch.float32)
    waves = _waves(positions, *rates(positions, half, base, chosen), layout, wide)
    return _rotated(x, *waves, layout)


def _turns(
    positions: Tensor,
    lengths: Tensor | None,
    pairs: int,
    o: RopeOptions,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """The `_waves` of all layers with these options."""
    return _waves(positions, *rates(positions, pairs, o.base, o.scaling, lengths), o.layout, dtype)


def _waves(
    where: Tensor, theta: Tensor, size: float, layout: PairLayout, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Factors (B or 1, 1, L, channels) of channels, and of the other channel of their pair: cosines
    and signed sines of ``theta`` (pairs,) or (B or 1, 1, L, pairs) a token, times ``size``."""
    # an angle of a thousand turns has no digits left for the part of a turn in float32
    exact = widest(where.device)
    angles = where[:, None, :, None].to(exact) * theta.to(exact)
    angles = torch.remainder(angles, 2 * math.pi).to(dtype)
    cosine, sine = angles.cos(), angles.sin()
    if size != 1:
        cosine, sine = cosine * size, sine * size
    if layout == "half":
        return torch.cat((cosine, cosine), -1), torch.cat((-sine, sine), -1)
    return cosine.repeat_interleave(2, -1), torch.stack((-sine, sine), -1).flatten(-2)


def _rotated(x: Tensor, cosine: Tensor, sine: Tensor, layout: PairLayout) -> Tensor:
    """``x`` rotated by the `_waves` of its positions."""
    if layout == "interleaved":
        other = x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    else:
        other = x.roll(x.shape[-1] // 2, -1)
    return torch.addcmul(x * cosine, other, sine).to(x.dtype)


def _limits(make: Make) -> list[Pair]:
    """Rotations at position 0 change nothing; equal rotations of all positions neither."""

    def scores(x: Tensor, shift: int) -> Tensor:
        positions = torch.arange(x.shape[1], device=x.device)[None] + shift
        q, k = rotate(x[:, None], positions), rotate(x.flip(-1)[:, None], positions)
        return q @ k.transpose(-1, -2)

    def at_origin(x: Tensor) -> Tensor:
        origin = torch.zeros(1, LENGTH, dtype=torch.long, device=x.device)
        return rotate(x[:, None], origin)[:, 0]

    return [
        ("position 0 is the identity", at_origin, lambda x: x),
        ("a common shift changes no score", lambda x: scores(x, 7), lambda x: scores(x, 0)),
    ]


@POSITIONS.register("rope")
class Rope(Position):
    """Rotary positions: rotates queries and keys inside a mixer; any length, any stream."""

    name = "rope"
    trials = Trials(
        inside=(
            {"fraction": 0.5},
            {"scaling": {"kind": "yarn", "factor": 4.0, "original_length": 8}},
        ),
        limits=_limits,
    )
    acts_on = "queries-keys"
    Options = RopeOptions
    options: RopeOptions

    def build(self, sizes: Sizes) -> None:
        size = sizes.key_dim
        self.rotary_dim = int(size * self.options.fraction)
        if self.rotary_dim < 2 or self.rotary_dim % 2:
            raise GeneError(
                f"position 'rope' turns pairs of channels: head_dim={size} x "
                f"`fraction={self.options.fraction}` must be an even number >= 2, not "
                f"{self.rotary_dim}"
            )

        scaling = self.options.scaling
        check_scaling(scaling, self.rotary_dim // 2)
        if scaling.kind in BY_LENGTH:
            self.streams = (
                f"with scaling '{scaling.kind}' the angles of all tokens change with their "
                "number, so keys that are turned already would be wrong"
            )

    def rotate(self, x: Tensor, positions: Tensor, lengths: Tensor | None = None) -> Tensor:
        layout, rotary = self.options.layout, self.rotary_dim
        wide = torch.promote_types(x.dtype, torch.float32)
        waves = shared(_turns, positions, lengths, rotary // 2, self.options, wide)
        if rotary == x.shape[-1]:
            return _rotated(x, *waves, layout)
        head = _rotated(x[..., :rotary], *waves, layout)
        return torch.cat((head, x[..., rotary:]), dim=-1)

    def pictures(self, length: int | None, layers: Sequence[Position]) -> Pictures:
        return {"rotary": lambda: self._angles(length or 32)}

    def _angles(self, count: int) -> Panels:
        pairs, places = self.rotary_dim // 2, torch.arange(count)
        theta = rates(places[None], pairs, self.options.base, self.options.scaling)[0].double()
        angles = places[:, None] * theta.expand(1, 1, 1, pairs)[0, 0]
        caption = (
            f"Rotary positions: cosine of the angle by which each of the {pairs} pairs of channels "
            "(columns) is turned at each position (rows); the first pairs turn fast, the last "
            "slowly."
        )
        panel = Panel("", angles.cos().numpy(), ("pair of channels", "position"))
        return Panels([[panel]], caption, "cosine", signed=True, wide=True)
