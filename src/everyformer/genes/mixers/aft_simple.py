"""AFT-simple: the Attention-Free Transformer without position bias.

    Y_t = sigma_q(Q_t) * sum_t' softmax_t'(K)_t' * V_t'

elementwise over channels; t' <= t when causal, all t' when not (one context vector for all t).
Symbols: Q, K, V (T, d) are ``q``, ``k``, ``v``; sigma_q is ``gate``; T is L. Without a bias every
token is still seen by every other through exp(K) > 0: the pooling is global but blind to position.

Cost: O(L d) time and memory besides the projections. State: a log-sum and an average, 2 d numbers.
Source: Zhai et al. 2021, arXiv 2105.14103, section 3.2. The causal form is a running average whose
gates lie in [0, 1] (`everyformer.engines.averages.running`), not a ratio of sums that can overflow.
"""

from __future__ import annotations

import math
from dataclasses import field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from everyformer.core.mask import Mask
from everyformer.core.shared import advanced
from everyformer.core.state import State, state
from everyformer.core.trials import Make, Pair, Trials, output
from everyformer.engines.averages.running import joined, running_average, total_average
from everyformer.genes.mixers import MIXERS
from everyformer.genes.mixers._aft import (
    AFTOptions,
    AttentionFree,
    Gate,
    Grid,
    gated_average,
    hide_padding,
)
from everyformer.genes.mixers.aft_full import aft_full_reference
from everyformer.genes.mixers.base import Rows


def aft_simple_reference(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, mask: Mask | None = None,
    gate: Gate = "sigmoid",
) -> Tensor:  # fmt: skip
    """The definition: AFT-full with w = 0. Arguments as in `aft_simple`."""
    w = k.new_zeros(k.shape[1], k.shape[1])
    return aft_full_reference(q, k, v, w, causal=causal, mask=mask, gate=gate)


def aft_simple(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False, mask: Mask | None = None,
    gate: Gate = "sigmoid",
) -> Tensor:  # fmt: skip
    """gate(q) times the softmax average of ``v``, weighted by ``k`` per channel.

    Args:
        q, k, v: (B, L, d).

    The others, what is returned and raised as in `aft_full`, but for w.
    """
    return gated_average(q, k, v, mask, gate, partial(simple_average, causal=causal))


def simple_average(k: Tensor, v: Tensor, padding_mask: Tensor | None, causal: bool) -> Tensor:
    """Averages (B, L, d) of rows whose real tokens come first."""
    if causal:
        return running_average(k[:, :, None], v[:, :, None])[1].squeeze(2)
    _, o = total_average(hide_padding(k, padding_mask)[:, :, None], v[:, :, None])
    return o.to(v.dtype).expand(-1, k.shape[1], -1)


@state
class SimpleState(State):
    """The softmax average of all tokens seen."""

    num_tokens: Tensor
    average: Tensor
    """(B, d)"""
    lse: Tensor = field(metadata={"empty": -math.inf})
    """(B, d) log of the summed weights"""


def _limits(make: Make) -> list[Pair]:
    """Keys of zero take plain means of the values."""
    simple = make("aft-simple", gate="identity")
    with torch.no_grad():
        for name, weight in simple.named_parameters():
            if name.startswith("key"):
                weight.zero_()
    query, value, out = (simple.get_submodule(n) for n in ("query", "value", "out"))

    def mean(x: Tensor) -> Tensor:
        v = value(x)
        steps = torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]
        average = v.cumsum(1) / steps if simple.causal else v.mean(1, keepdim=True)
        return out(query(x) * average)

    return [("K = 0 is the mean of V", output(simple), mean)]


@MIXERS.register("aft-simple")
class AFTSimple(AttentionFree):
    """AFT-simple over (B, L, width); each channel is a head of its own, whatever ``heads`` says."""

    name = "aft-simple"
    trials = Trials(variants=({}, {"gate": "identity", "bias": False}), limits=_limits)
    Options = AFTOptions
    options: AFTOptions
    states = (SimpleState,)

    def average(self, k: Tensor, v: Tensor, rows: Rows) -> Tensor:
        return simple_average(k, v, rows.padding_mask, self.causal)

    def resume(
        self, k: Tensor, v: Tensor, padding_mask: Tensor | None, state: SimpleState
    ) -> tuple[Tensor, SimpleState]:
        """The carried average goes in front as one more token."""
        if padding_mask is None and k.shape[1] == 1:
            lse, average = joined(state.lse, state.average, k[:, 0], v[:, 0])
            after = SimpleState(advanced(state.num_tokens, 1), average, lse)
            return average[:, None].to(v.dtype), after
        k = torch.cat([state.lse[:, None], k], 1)
        v = torch.cat([state.average[:, None], v], 1)
        lse, o = (t.squeeze(2) for t in running_average(k[:, :, None], v[:, :, None]))
        count = (
            torch.full_like(state.num_tokens, o.shape[1] - 1)
            if padding_mask is None
            else padding_mask.sum(1)
        )
        last = count[:, None, None].expand(-1, 1, o.shape[2])
        after = SimpleState(
            advanced(state.num_tokens, o.shape[1] - 1, padding_mask),
            o.gather(1, last).squeeze(1).to(state.average.dtype),
            lse.gather(1, last).squeeze(1).to(state.lse.dtype),
        )
        return o[:, 1:], after

    def dense_bias(self, length: int, grid: Grid | None = None) -> Tensor:
        return self.key.weight.new_zeros(1, length, length)

    def reference_average(self, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
        return aft_simple_reference(q, k, v, **how)

    def empty_state(self, batch: int, **like: Any) -> SimpleState:
        like["dtype"] = torch.promote_types(like["dtype"], torch.float32)
        lse = torch.full((batch, self.channels), -math.inf, **like)
        num_tokens = torch.zeros(batch, dtype=torch.long, device=lse.device)
        return SimpleState(num_tokens, torch.zeros_like(lse), lse)
