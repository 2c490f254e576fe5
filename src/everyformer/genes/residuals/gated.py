"""Gated: a learned gate in the place of the sum, and the norm on a sub-layer's input.

    x' = g(x, ReLU(f(norm(x))))                                    x the stream, f a sub-layer

    gate       g(x, y)
    input      sigma(W x) x + y
    output     x + sigma(W x - b_g) y
    highway    s x + (1 - s) y,         s = sigma(W x + b_g)
    sigtanh    x + sigma(W y - b_g) tanh(U y)
    gru        (1 - z) x + z h,         r = sigma(W_r y + U_r x),   z = sigma(W_z y + U_z x - b_g),
                                        h = tanh(W_g y + U_g (r x))
    residual   x + y                    (TrXL-I: no gate, but the order of norm and ReLU)

Products are by channel. Every sub-layer of every layer has a gate, without biases but
for b_g. Large b_g make all but ``input`` and ``residual`` pass x on, so that a policy may learn to
react before it learns to remember. The gate resets x before U_g, unlike torch's GRU cell. The
stream is never normed, not after the last layer either.

Cost: d^2 weights a sub-layer with ``input``, ``output`` and ``highway``, 2 d^2 with ``sigtanh``,
6 d^2 with ``gru``, as many in a layer as attention and a feed-forward of 4 d have together.

The paper's M holds the streams E that entered a layer, and norm(.) acts on [M; E]. A memory of the
segment kind holds norm(E), which gives the same outputs; the norm itself learns nothing from M.

Source: Parisotto et al. 2020, arXiv 1910.06764.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor

from everyformer.blocks.residual import Around, SingleStream
from everyformer.core.bounds import Affects, Real, Unless
from everyformer.core.config import Options
from everyformer.core.trials import Trials
from everyformer.engines.remade import noted
from everyformer.genes.residuals import RESIDUALS
from everyformer.genes.residuals._gates import GATES, Gate


@dataclass(frozen=True)
class GatedOptions(Options):
    gate: Literal["gru", "output", "highway", "sigtanh", "input", "residual"] = "gru"
    """how a sub-layer's output joins the stream"""
    gate_bias: Annotated[Real, Affects("nothing"), Unless("gate", "input", "residual")] = 2.0
    """b_g at the start: the larger, the nearer is a layer to the identity"""
    relu: bool = True
    """whether a sub-layer's output goes through a ReLU before the gate"""
    gone: ClassVar[dict[str, Any]] = {"last_norm": False}


@RESIDUALS.register("gated")
class Gated(SingleStream):
    """x' = g(x, ReLU(f(norm(x))))."""

    name = "gated"
    Options = GatedOptions
    options: GatedOptions
    recorded = Gate.recorded
    last_norm = False
    trials = Trials(
        variants=(
            {"gate": "gru", "gate_bias": 0.5},
            {"gate": "output", "relu": False},
            {"gate": "highway"},
            {"gate": "sigtanh"},
            {"gate": "input"},
            {"gate": "residual"},
        )
    )

    def make_gate(self, width: int) -> Gate | None:
        gate = GATES.get(self.options.gate)
        return None if gate is None else gate(width, self.options.gate_bias)

    def read(self, stream: Tensor, around: Around) -> Tensor:
        return noted(around.norm, stream)

    def join(self, stream: Tensor, y: Tensor, around: Around) -> Tensor:
        y = F.relu(y) if self.options.relu else y
        return stream + y if around.gate is None else around.gate(stream, y)
