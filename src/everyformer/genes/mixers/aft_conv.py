"""AFT-conv: AFT whose position bias is one kernel a head, the same at every position.

    Y_t = sigma_q(Q_t) * sum_t' exp(K_t' + w_{t'-t}) * V_t' / sum_t' exp(K_t' + w_{t'-t})

with w = 0 beyond the kernel. Symbols: Q, V (T, h, d/h) are ``q``, ``v``, and K (T, h), one key a
head ("tied"), is ``k``; w (h, s) or (h, s, s) is ``kernel``, s its full width, odd; T is L. On a
line, tap r + delta belongs to the key delta after the query, r = s // 2. When causal, t' <= t and
the s taps are the offsets -(s - 1) .. 0. On a picture the kernel is a square around the query.

    w_i = gamma_i (raw_i - mean(raw_i)) / std(raw_i) + beta_i    (per head i)

gamma = beta = 0 at the start, so training begins at AFT-simple with shared keys.

Cost: O(L s d) time on a line, O(L s^2 d) on a picture, O(L d) memory. State: s - 1 keys and values,
an average of all that is older and its log-sum: constant. There is no longest sequence.
Source: Zhai et al. 2021, arXiv 2105.14103, eq. 5 and section 3.4. The paper convolves with
exp(w) - 1 and adds global sums; here both regions are summed apart, so that nothing is subtracted.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyformer.core.bounds import Odd
from everyformer.core.errors import GeneError, ShapeError
from everyformer.core.mask import Mask
from everyformer.core.mixer import heads_divide
from everyformer.core.trials import HEADS, WIDTH, Make, Pair, Trials, output
from everyformer.engines.averages.banded import banded_average
from everyformer.engines.averages.planar import planar_average
from everyformer.engines.rows import checked_keep
from everyformer.genes.mixers import MIXERS
from everyformer.genes.mixers._aft import (
    AFTOptions,
    AttentionFree,
    BandState,
    Gate,
    Grid,
    gated_average,
    hide_padding,
    split_heads,
)
from everyformer.genes.mixers.aft_full import aft_full_reference
from everyformer.genes.mixers.base import Rows, rows_of


@dataclass(frozen=True)
class AFTConvOptions(AFTOptions):
    """Options of `AFTConv`."""

    kernel: Odd = 11
    """s, the full width of the kernel, odd (the paper's image models: 11 and 15)"""
    dims: Literal[1, 2] = 1
    """1: offsets along the sequence; 2: on the picture given by ``Mask.grid`` (bidirectional)"""
    gone: ClassVar[dict[str, Any]] = {"tied": True, "reparameterise": True}


def aft_conv_reference(
    q: Tensor, k: Tensor, v: Tensor, kernel: Tensor, *, causal: bool = False,
    mask: Mask | None = None, grid: Grid | None = None, gate: Gate = "sigmoid",
) -> Tensor:  # fmt: skip
    """The definition: AFT-full with w taken from the kernel. Arguments as in `aft_conv`."""
    length = k.shape[1]
    keys = k.repeat_interleave(v.shape[-1] // k.shape[-1], -1)
    if kernel.dim() == 2:
        w = line_bias(kernel, length, causal)
        return aft_full_reference(q, keys, v, w, causal=causal, mask=mask, gate=gate)
    w = picture_bias(kernel, _grid(mask, grid, length, causal))
    padding_mask = None if mask is None else mask.padding_mask
    y = aft_full_reference(q, hide_padding(keys, padding_mask), v, w, gate=gate)
    return y if padding_mask is None else y * padding_mask[..., None]


def line_bias(kernel: Tensor, length: int, causal: bool) -> Tensor:
    """w (heads, L, L) of a kernel (heads, s): w_{t,t'} = kernel[r + t' - t], zero beyond."""
    side = kernel.shape[-1]
    position = torch.arange(length, device=kernel.device)
    tap = position - position[:, None] + (side - 1 if causal else side // 2)
    w = kernel[:, tap.clamp(0, side - 1)]
    return w.masked_fill((tap < 0) | (tap >= side), 0.0)


def picture_bias(kernel: Tensor, grid: Grid) -> Tensor:
    """w (heads, L, L) of a kernel (heads, s, s) on a picture in raster order."""
    side, cell = kernel.shape[-1], torch.arange(math.prod(grid), device=kernel.device)
    line, column = cell // grid[1], cell % grid[1]
    down = line - line[:, None] + side // 2
    right = column - column[:, None] + side // 2
    outside = (down < 0) | (down >= side) | (right < 0) | (right >= side)
    w = kernel[:, down.clamp(0, side - 1), right.clamp(0, side - 1)]
    return w.masked_fill(outside, 0.0)


def aft_conv(
    q: Tensor, k: Tensor, v: Tensor, kernel: Tensor, *, causal: bool = False,
    mask: Mask | None = None, grid: Grid | None = None, gate: Gate = "sigmoid",
) -> Tensor:  # fmt: skip
    """gate(q) times the softmax average of ``v``, weighted by ``k`` + the kernel.

    Args:
        q, v: (B, L, d).
        k: (B, L, heads), one key a head, or (B, L, d).
        kernel: (heads, s) on a line or (heads, s, s) on a picture, s odd.
        causal: on a line only: average over t' <= t; the taps are the offsets -(s - 1) .. 0.
        mask: ``padding_mask`` is honoured, on a line ``documents`` too; padded outputs are 0.
            Tokens of a picture keep their cells, on a line the real ones close ranks.
        grid: (lines, columns) of the picture; default ``mask.grid``.

    ``gate`` and what is returned as in `aft_full`.

    Raises:
        ShapeError: the tensors, the kernel and the grid do not go together.
        GeneError: causal on a picture.
    """
    if kernel.dim() not in (2, 3) or kernel.shape[-1] % 2 == 0:
        raise ShapeError(
            f"kernel must be (heads, s) or (heads, s, s) with s odd, not {tuple(kernel.shape)}"
        )
    if kernel.dim() == 2:
        line = partial(line_average, kernel=kernel, causal=causal)
        return gated_average(q, k, v, mask, gate, line)
    picture = _grid(mask, grid, k.shape[1], causal)
    if mask is not None:
        mask.require("AFT-conv on a picture", frozenset({"padding_mask", "grid"}))
    hidden = Mask(padding_mask=checked_keep(v, mask), grid=picture)
    rows, restore = rows_of(torch.cat([q, k, v], -1), hidden, planar=True)
    q, k, v = rows.x.split([q.shape[-1], k.shape[-1], v.shape[-1]], -1)

    def average(k: Tensor, v: Tensor, _: Tensor | None) -> Tensor:
        return picture_average(k, v, rows.padding_mask, kernel, picture)

    return restore(gated_average(q, k, v, None, gate, average))


def line_average(
    k: Tensor, v: Tensor, padding_mask: Tensor | None, kernel: Tensor, causal: bool
) -> Tensor:
    """Averages (B, L, d) of rows whose real tokens come first."""
    k = k if causal else hide_padding(k, padding_mask)
    heads = kernel.shape[0]
    k, v = split_heads(k, heads), split_heads(v, heads)
    return banded_average(k, v, kernel[:, None], causal=causal).flatten(2)


def picture_average(
    k: Tensor, v: Tensor, padding_mask: Tensor | None, kernel: Tensor, grid: Grid
) -> Tensor:
    """Averages (B, L, d) over pictures; padding keeps its cells and is not seen."""
    heads = kernel.shape[0]
    k, v = split_heads(hide_padding(k, padding_mask), heads), split_heads(v, heads)
    return planar_average(k, v, kernel, lines=grid[0]).flatten(2)


def normalised_kernel(raw: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    """gamma (raw - mean) / std + beta over the taps of each head; raw (heads, s[, s])."""
    shape = (-1, *[1] * (raw.dim() - 1))
    normal = F.layer_norm(raw, raw.shape[1:], eps=1e-5)
    return torch.addcmul(beta.view(shape), normal, gamma.view(shape))


def _grid(mask: Mask | None, grid: Grid | None, length: int, causal: bool) -> Grid:
    """The picture's (lines, columns), or why there is none."""
    if causal:
        raise GeneError(
            "aft-conv with `dims=2` cannot be `causal=True`: in raster order no depth-wise kernel "
            "sees only earlier pixels. Use `dims=1`, or `causal=False`"
        )
    grid = grid or (None if mask is None else mask.grid)
    if grid is None:
        raise ShapeError(
            "aft-conv with `dims=2` needs the picture's shape: give Mask(grid=(lines, columns))"
        )
    if math.prod(grid) != length:
        raise ShapeError(f"a grid of {grid[0]} x {grid[1]} does not hold {length} tokens")
    return grid


def _limits(make: Make) -> list[Pair]:
    """gamma = beta = 0, as at the start, is AFT-simple with one key a head."""
    conv, simple = make("aft-conv", kernel=5), make("aft-simple")
    with torch.no_grad():
        for name, weight in conv.named_parameters():
            if name.endswith(("gamma", "beta")):
                weight.zero_()
        shared = {
            key: value.repeat_interleave(WIDTH // HEADS, dim=0) if key.startswith("key") else value
            for key, value in conv.state_dict().items()
        }
        simple.load_state_dict({k: v for k, v in shared.items() if k in simple.state_dict()})
    return [("gamma = beta = 0 is AFT-simple", output(conv), output(simple))]


@MIXERS.register("aft-conv")
class AFTConv(AttentionFree):
    """AFT-conv over (B, L, width); each head has a kernel and a key of its own.

    Raises:
        GeneError: heads do not divide the width, or a causal picture.
    """

    name = "aft-conv"
    trials = Trials(variants=({"kernel": 5}, {"kernel": 3}), limits=_limits)
    Options = AFTConvOptions
    options: AFTConvOptions
    states = (BandState,)

    def key_channels(self) -> int:
        heads_divide(self.channels, self.heads, self.name)
        return self.heads

    def build(self, max_length: int | None) -> None:
        super().build(max_length)
        o, heads, self.planar = self.options, self.heads, self.options.dims == 2
        if self.planar:
            if self.causal:
                _grid(None, None, 0, self.causal)
            self.supported_masks = frozenset({"padding_mask", "grid"})  # type: ignore[misc]
        self.kernel = nn.Parameter(torch.randn(heads, *[o.kernel] * o.dims))
        self.gamma, self.beta = (nn.Parameter(torch.zeros(heads)) for _ in range(2))

    @property
    def w(self) -> Tensor:
        """The kernel as it is applied: (heads, s) or (heads, s, s)."""
        return normalised_kernel(self.kernel, self.gamma, self.beta)

    def average(self, k: Tensor, v: Tensor, rows: Rows) -> Tensor:
        if not self.planar:
            return line_average(k, v, rows.padding_mask, self.w, self.causal)
        grid = _grid(None, rows.grid, k.shape[1], self.causal)
        return picture_average(k, v, rows.padding_mask, self.w, grid)

    def resume(
        self, k: Tensor, v: Tensor, padding_mask: Tensor | None, state: BandState
    ) -> tuple[Tensor, BandState]:
        """The carried average and the buffer go in front."""
        if padding_mask is None and k.shape[1] == 1:
            return state.step(k, v, F.pad(self.w.t(), (0, 0, 1, 0)))
        keys, values = state.extended(k, v)
        w = self.w[:, None]
        heads, taps = w.shape[0], w.shape[-1]
        o = banded_average(
            split_heads(keys, heads), split_heads(values, heads), w, causal=True, lead=taps
        )
        return o.flatten(2), state.after(keys, values, k.shape[1], padding_mask)

    def dense_bias(self, length: int, grid: Grid | None = None) -> Tensor:
        if grid is not None:
            return picture_bias(self.w, grid)
        return line_bias(self.w, length, self.causal)

    def reference_average(self, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
        return aft_conv_reference(q, k, v, self.w, **how)

    def empty_state(self, batch: int, **like: Any) -> BandState:
        taps, keys = self.kernel.shape[-1], self.key.out_features
        return BandState.empty(batch, taps - 1, keys, self.channels, **like)
