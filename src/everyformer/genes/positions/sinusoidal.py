"""Sinusoidal positions: fixed waves of geometric wavelengths, added to the embeddings.

    PE[p, 2m] = sin(p w_m),   PE[p, 2m+1] = cos(p w_m),   w_m = 10000^(-2m/d),   m = 0 .. d/2-1

p is the position from 0, d the width. PE[p+k] is PE[p] under a rotation that depends on k
alone, so a linear layer can read relative offsets. Wavelengths: 2 pi to 10000^((d-2)/d) 2 pi.

Two layouts are in use: ``interleaved`` (the paper) and ``halves`` (all sines, then all cosines:
RoFormer, XLNet, Marian). At odd d the last channel is 0.

Source: Vaswani et al. 2017, arXiv 1706.03762, section 3.5. Cost: L d sines, no parameters.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from everyformer.core.bounds import Positive
from everyformer.core.config import Options
from everyformer.core.devices import widest
from everyformer.core.errors import require_word
from everyformer.core.panels import Panel, Panels, Pictures
from everyformer.core.position import Position, Sizes
from everyformer.genes.positions import POSITIONS

Layout = Literal["interleaved", "halves"]
LAYOUTS = get_args(Layout)


@dataclass(frozen=True)
class SinusoidalOptions(Options):
    """Options of `Sinusoidal`."""

    layout: Layout = "interleaved"
    """order of sines and cosines: alternating (the paper) or one half each"""
    base: Positive = 10000.0
    """ratio of the slowest to the fastest wave"""
    gone: ClassVar[dict[str, Any]] = {"freq": "paper"}


def sinusoid_reference(
    positions: Tensor,
    width: int,
    *,
    layout: Layout = "interleaved",
    base: float = 10000.0,
) -> Tensor:
    """The definition, one number at a time, in float64: (*positions.shape, width)."""
    table = torch.zeros(*positions.shape, width, dtype=torch.float64)
    half = width // 2
    for m in range(half):
        angle = positions.double() * base ** (-2 * m / width)
        sine, cosine = (2 * m, 2 * m + 1) if layout == "interleaved" else (m, half + m)
        table[..., sine], table[..., cosine] = angle.sin(), angle.cos()
    return table


def sinusoid(
    positions: Tensor,
    width: int,
    *,
    layout: Layout = "interleaved",
    base: float = 10000.0,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Waves at integer ``positions`` (...,) as (..., width); angles in float32 or wider.

    Raises:
        ConfigError: another ``layout``.
    """
    require_word("layout", layout, LAYOUTS)
    half = width // 2
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    m = torch.arange(half, device=positions.device, dtype=widest(positions.device))
    angles = positions[..., None].to(wide) * (base ** -(2 * m / width)).to(wide)
    if layout == "interleaved":
        waves = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)
    else:
        waves = torch.cat((angles.sin(), angles.cos()), dim=-1)
    return torch.nn.functional.pad(waves, (0, width - 2 * half)).to(dtype)


@POSITIONS.register("sinusoidal")
class Sinusoidal(Position):
    """Sinusoidal positions: `sinusoid` added to the embeddings; any length, any stream."""

    name = "sinusoidal"
    acts_on = "embeddings"
    Options = SinusoidalOptions
    options: SinusoidalOptions

    def build(self, sizes: Sizes) -> None:
        self.width = sizes.width

    def embed(self, positions: Tensor) -> Tensor:
        o = self.options
        return sinusoid(positions, self.width, layout=o.layout, base=o.base)

    def pictures(self, length: int | None, layers: Sequence[Position]) -> Pictures:
        return {"encodings": lambda: self._waves(length or 32)}

    def _waves(self, count: int) -> Panels:
        caption = (
            f"Sinusoidal encodings of {count} positions (rows) in {self.width} channels (columns): "
            "fast waves on the left, slow ones on the right; sines and cosines "
            + ("alternate." if self.options.layout == "interleaved" else "in one half each.")
        )
        table = self.embed(torch.arange(count)[None])[0].float()
        panel = Panel("", table.numpy(), ("channel", "position"))
        return Panels([[panel]], caption, "value", signed=True, wide=True)
