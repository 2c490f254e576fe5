"""SPALM: what followed similar contexts is gated into the state that a prediction is made from.

    m_t = sum over i of softmax_i(y_i . h_t) y_i,   y_i = W[v_i]
    z_t = (1 - g_t) m_t + g_t h_t,   g_t = sigmoid(w_g . h_t)
    p(. | x_<=t) = softmax(W z_t)

h_t is the model's last state, W its output layer, v_1 .. v_k the tokens that followed the k nearest
contexts of the training text. g is one number a token. Contexts are compared by a language model
that was trained before and is frozen, so neighbours do not change while this one learns: they are
looked up once. Of training text a token's own position, and those within ``near`` of it, are left
out. Without neighbours z = h.

Gradients reach h, W (as the y_i too) and w_g; none the keys. Cost: O(k d) a token and the search.

Source: Yogatama, de Masson d'Autume, Kong 2021, arXiv 2102.02557, section 3. No code is public; the
paper has neither a scale nor a bias in g: ``gate_bias`` is ours, for models trained without.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from everyformer.core.bounds import Affects, Count, Part, Real, Whole
from everyformer.core.panels import Panel, Panels, Recorded, line_by_line
from everyformer.core.trace import record
from everyformer.core.trials import Trials
from everyformer.genes.retrieval import RETRIEVALS, StoreOptions
from everyformer.genes.retrieval.base import Retrieval


@dataclass(frozen=True)
class SpalmOptions(StoreOptions):
    """Options of `Spalm`."""

    model: Annotated[str | None, Affects("nothing")] = None
    """run or saved model, frozen, by which contexts are compared (default: one of the same
    sizes, member `rope`, trained first)"""
    share: Annotated[Part, Affects("nothing")] = 0.25
    """how long that one is trained, as a part of this run's budget, in addition to it"""
    k: Annotated[Count, Affects("results")] = 4
    """neighbours of a token"""
    near: Annotated[Whole, Affects("results")] = 8
    """tokens around a token's own position in the training text that are no neighbours of it"""
    gate_bias: Annotated[Real | None, Affects("nothing")] = None
    """a learned bias beside w_g . h, as it begins; far above 0 a model begins as without neighbours
    (default: none, as in the paper)"""


def gate(recorded: Mapping[str, Tensor], causal: bool) -> Panels:
    """Picture of the shares 1 - g (B, L) of the first text's tokens, line by line."""
    rows, means = [], []
    for own in recorded.values():
        shares = 1 - own[0].float().cpu().numpy()
        means.append(f"{shares.mean():.0%}")
        rows.append([Panel("", line_by_line(shares), ("token", "line"))])
    caption = (
        "How much of the state behind each token, from which the next one is predicted, is what "
        "followed its neighbours, 1 - g, line by line: the darker, the more. On average "
        f"{', '.join(means)}."
    )
    return Panels(rows, caption, "share of neighbours", wide=True, text=True)


class SpalmGate(nn.Module):
    """z (B, L, d) from h and what followed the neighbours (`Retrieval.make_part`)."""

    recorded: ClassVar[Recorded] = {"gate": gate}

    def __init__(self, width: int, bias: float | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.bias = None if bias is None else nn.Parameter(torch.tensor(float(bias)))

    def forward(self, h: Tensor, neighbours: Tensor, table: Tensor) -> Tensor:
        present = neighbours >= 0
        y = torch.nn.functional.embedding(neighbours.clamp(min=0), table).to(h.dtype)
        wide = torch.promote_types(h.dtype, torch.float32)
        scores = torch.einsum("blkd,bld->blk", y, h).to(wide)
        some = present.any(-1, keepdim=True)
        # a token without neighbours has a softmax over zeros, which the gate leaves out
        scores = scores.masked_fill(~present & some, -math.inf)
        m = torch.einsum("blk,blkd->bld", scores.softmax(-1).to(h.dtype), y)
        logit = (h * self.weight).sum(-1, keepdim=True).to(wide)
        if self.bias is not None:
            logit = logit + self.bias
        g = logit.sigmoid().masked_fill(~some, 1.0)
        record(self, "gate", lambda: g.squeeze(-1))
        g = g.to(h.dtype)
        return (1 - g) * m + g * h


@RETRIEVALS.register("spalm")
class Spalm(Retrieval):
    """Neighbours gated into the last state."""

    name = "spalm"
    recorded: ClassVar[Recorded] = SpalmGate.recorded
    Options = SpalmOptions
    trials = Trials(variants=({"gate_bias": 2.0},))
    learned_without: ClassVar[Mapping[str, Any]] = {"gate_bias": 4.0}
    cost = (
        "compares contexts by a frozen model, trained before it and apart, and looks neighbours "
        "up in a store of the training text, which no time of a token here counts"
    )

    def make_part(self, width: int) -> SpalmGate:
        return SpalmGate(width, self.options.gate_bias)
