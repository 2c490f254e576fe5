"""AFT-local: AFT whose position bias is learned for near pairs and zero for all others.

    Y_t = sigma_q(Q_t) * sum_t' exp(K_t' + w'_{t,t'}) * V_t' / sum_t' exp(K_t' + w'_{t,t'})
    w'_{t,t'} = w_{t,t'} where |t - t'| < s, else 0

t' <= t when causal. Symbols as in ``aft_full``; s is ``window``, a half-width, strictly less: 1 is
the diagonal alone, 0 is AFT-simple, s >= L is AFT-full. Outside the window the bias is zero, not
-inf: every token keeps seeing all others by their content.

Cost: O(L s (d + d')) time, O(L d) memory. State: s - 1 keys and values, an average of all that is
older and its log-sum: 2 s d numbers, constant. Tables fix the longest sequence.
Source: Zhai et al. 2021, arXiv 2105.14103, section 3.2. The paper adds (exp(w) - 1) corrections to
global sums; here the window and what lies outside it are summed apart, so that nothing is
subtracted (`everyformer.engines.averages.banded`). rank=None stores the band of w alone.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from everyformer.core.bounds import Whole
from everyformer.core.errors import ConfigError
from everyformer.core.mask import Mask
from everyformer.core.trials import LONGEST, Make, Pair, Trials, output
from everyformer.engines.averages.banded import banded_average
from everyformer.engines.averages.factors import band_product
from everyformer.engines.softmax.visibility import common
from everyformer.genes.mixers import MIXERS
from everyformer.genes.mixers._aft import (
    AttentionFree,
    BandState,
    Factors,
    Gate,
    Grid,
    PositionBias,
    as_tables,
    batch_as_heads,
    dense_table,
    gated_average,
    heads_as_batch,
    hide_padding,
    split_heads,
)
from everyformer.genes.mixers.aft_full import AFTFullOptions, aft_full_reference
from everyformer.genes.mixers.base import Rows


@dataclass(frozen=True)
class AFTLocalOptions(AFTFullOptions):
    """Options of `AFTLocal`."""

    window: Whole = 32
    """s: pairs with |t - t'| < s have a bias; 0 is AFT-simple"""


def aft_local_reference(
    q: Tensor, k: Tensor, v: Tensor, w: Tensor | Factors, *, window: int, causal: bool = False,
    mask: Mask | None = None, gate: Gate = "sigmoid",
) -> Tensor:  # fmt: skip
    """The definition: AFT-full with w set to zero outside the window. Arguments: `aft_local`."""
    position = torch.arange(k.shape[1], device=k.device)
    far = (position[:, None] - position).abs() >= window
    local = dense_table(w, k.shape[1]).masked_fill(far, 0.0)
    return aft_full_reference(q, k, v, local, causal=causal, mask=mask, gate=gate)


def aft_local(
    q: Tensor, k: Tensor, v: Tensor, w: Tensor | Factors, *, window: int, causal: bool = False,
    mask: Mask | None = None, gate: Gate = "sigmoid",
) -> Tensor:  # fmt: skip
    """gate(q) times the softmax average of ``v``, weighted by ``k`` + ``w`` inside the window.

    Args:
        w: a table, of which the band is read, or its factors.
        window: s >= 0: the bias counts where |t - t'| < s and is zero elsewhere.

    The others, what is returned and raised as in `aft_full`.

    Raises:
        ConfigError: a window below 0.
    """
    if window < 0:
        raise ConfigError(f"`window` must be at least 0, not {window}")

    def average(k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
        length = k.shape[1]
        band = band_of(as_tables(w, length), length, reach(window, length), causal)[0]
        return local_average(k, v, band, padding_mask, causal)

    return gated_average(q, k, v, mask, gate, average)


def reach(window: int, length: int) -> int:
    """The window, no wider than the sequence."""
    return min(window, length)


def local_average(
    k: Tensor, v: Tensor, band: Tensor, padding_mask: Tensor | None, causal: bool
) -> Tensor:
    """Averages (B, L, d) of rows whose real tokens come first; ``band`` (H, L or 1, n)."""
    k = k if causal else hide_padding(k, padding_mask)
    heads = band.shape[0]
    k, v = split_heads(k, heads), split_heads(v, heads)
    return banded_average(k, v, band, causal=causal).flatten(2)


def band_of(
    w: Tensor | Factors, length: int, window: int, causal: bool, first: Tensor | None = None
) -> Tensor:
    """The biases inside the window for the queries first .. first + length - 1.

    Args:
        w: factors (H, N, rank) or a table (H, N, N).
        first: (B,) the position of each row's first query; None: 0 for all, and B is 1.

    Returns:
        (B, H, L, n), entry j for the key at t - (window - 1) + j; n is window (causal) or
        2 window - 1. An empty window gives one zero, the diagonal of AFT-simple.
    """
    if window == 0:
        some = w[0] if isinstance(w, tuple) else w
        return some.new_zeros(1 if first is None else len(first), some.shape[0], length, 1)
    before = window - 1
    count = window if causal else 2 * window - 1
    if isinstance(w, tuple):
        u = table_rows(w[0], first, 0, 0, length)
        v = table_rows(w[1], first, -before, count - window, length + count - 1)
        return band_product(u.flatten(0, 1), v.flatten(0, 1), count).unflatten(0, u.shape[:2])
    assert first is None, "a streamed table is stored as its band"
    at = torch.arange(length, device=w.device)[:, None]
    near = (at + torch.arange(-before, count - before, device=w.device)).clamp(0, length - 1)
    return w[None, :, at, near]


def table_rows(table: Tensor, first: Tensor | None, start: int, beyond: int, count: int) -> Tensor:
    """Rows start .. start + count - 1, from ``first`` on, of (H, N, c): (B, H, count, c).

    ``start`` is at most 0 and ``beyond`` the number of rows after the last query's; what lies
    outside the table belongs to pairs that do not exist, and may be anything.
    """
    if first is None:
        return F.pad(table, (0, 0, -start, beyond))[None, :, :count]
    at = first[:, None] + torch.arange(start, start + count, device=table.device)
    return table[:, at.clamp(0, table.shape[1] - 1)].transpose(0, 1)


def _limits(make: Make) -> list[Pair]:
    """A window over everything is AFT-full; an empty one is AFT-simple."""
    wide, full = make("aft-local", window=LONGEST, rank=4), make("aft-full", rank=4)
    full.load_state_dict(wide.state_dict())
    none, simple = make("aft-local", window=0, rank=4), make("aft-simple")
    simple.load_state_dict(none.state_dict(), strict=False)
    return [
        ("window >= L is AFT-full", output(wide), output(full)),
        ("window 0 is AFT-simple", output(none), output(simple)),
    ]


@MIXERS.register("aft-local")
class AFTLocal(AttentionFree):
    """AFT-local over (B, L, width); ``max_length``, the size of w's tables, is required.

    Raises:
        ConfigError: max_length is missing.
    """

    name = "aft-local"
    trials = Trials(
        variants=({"window": 4}, {"window": 1}, {"window": 0}, {"window": 8, "rank": None}),
        limits=_limits,
    )
    Options = AFTLocalOptions
    options: AFTLocalOptions
    states = (BandState,)

    def build(self, max_length: int | None) -> None:
        super().build(max_length)
        lines = self.hold_table(max_length, "every near pair")
        o = self.options
        self.window = reach(o.window, lines)
        self.offsets = max(self.window if self.causal else 2 * self.window - 1, 1)
        if self.window:
            self.position = PositionBias(lines, self.offsets, o.rank)

    def band(self, length: int, first: Tensor | None = None) -> Tensor:
        """Biases (B, 1, L, n) as `band_of` gives them."""
        if self.position is None:
            rows = 1 if first is None else first.shape[0]
            return self.key.weight.new_zeros(rows, 1, 1, 1)
        w = self.position.w
        if isinstance(w, tuple):
            return band_of(w, length, self.window, self.causal, first)
        return table_rows(w, first, 0, 0, length)

    def average(self, k: Tensor, v: Tensor, rows: Rows) -> Tensor:
        return local_average(k, v, self.band(k.shape[1])[0], rows.padding_mask, self.causal)

    def resume(
        self, k: Tensor, v: Tensor, padding_mask: Tensor | None, state: BandState
    ) -> tuple[Tensor, BandState]:
        """The carried average and the buffer go in front; rows look up their own positions."""
        length = k.shape[1]
        if padding_mask is None and length == 1:
            first = common(state.num_tokens)
            if first is None:
                self.check_seen(state.num_tokens + 1)
                line = F.pad(self.band(1, state.num_tokens)[:, 0, 0], (1, 0))
            else:
                self.check_length(first + 1)
                line = self._line(first)
            return state.step(k, v, line[..., None])
        self.check_seen(
            state.num_tokens + (length if padding_mask is None else padding_mask.sum(1))
        )
        keys, values = state.extended(k, v)
        o = banded_average(
            batch_as_heads(keys), batch_as_heads(values), self.band(length, state.num_tokens)[:, 0],
            causal=True, lead=self.offsets,
        )  # fmt: skip
        return heads_as_batch(o), state.after(keys, values, length, padding_mask)

    def _line(self, t: int) -> Tensor:
        """Biases (1 + n,) of the query at position ``t``, one zero in front."""
        if self.position is None:
            return self.key.weight.new_zeros(2)
        w = self.position.w
        if isinstance(w, Tensor):
            return F.pad(w[0, t], (1, 0))
        near = w[1][0, max(t + 1 - self.offsets, 0) : t + 1] @ w[0][0, t]
        # the keys before the text are none, whatever their biases are
        return F.pad(near, (1 + self.offsets - len(near), 0))

    def dense_bias(self, length: int, grid: Grid | None = None) -> Tensor:
        position = torch.arange(length, device=self.key.weight.device)
        band = self.band(length)[0].expand(-1, length, -1)
        offset = position - position[:, None] + max(self.window, 1) - 1
        near = (offset >= 0) & (offset < self.offsets)
        w = band.gather(2, offset.clamp(0, self.offsets - 1).expand(band.shape[0], -1, -1))
        return w.masked_fill(~near, 0.0)

    def reference_average(self, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
        w = self.dense_bias(k.shape[1])
        if self.position is not None and isinstance(self.position.w, tuple):
            w = dense_table(self.position.w, k.shape[1])
        return aft_local_reference(q, k, v, w, window=self.window, **how)

    def empty_state(self, batch: int, **like: Any) -> BandState:
        return BandState.empty(batch, self.offsets - 1, self.channels, self.channels, **like)
