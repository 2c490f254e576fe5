"""Position-wise feed-forward networks, by their activation.

FFN(x) = W_2 act(W_1 x + b_1) + b_2              act: GELU (erf, tanh, sigmoid), ReLU or SiLU
SwiGLU(x) = W_2 (silu(W_g x) * W_1 x)            Shazeer 2020, arXiv 2002.05202; T5 1.1 has GEGLU,
GEGLU(x)  = W_2 (gelu(W_g x) * W_1 x)            with the tanh form of GELU

Positions do not meet here, so the length may be worked through in pieces (Kitaev et al. 2020, arXiv
2001.04451): the same result, with the hidden channels of one piece at a time.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from everyformer.blocks.feedforward import FeedForward
from everyformer.blocks.parts import activate, drop, start
from everyformer.core.bounds import Affects, Count, rounded_share
from everyformer.core.mask import Mask
from everyformer.core.state import State
from everyformer.engines.dropout import drawn, turns
from everyformer.engines.remade import by_pieces, read, worth
from everyformer.genes.feedforward import FEEDFORWARDS, FeedForwardOptions


@dataclass(frozen=True)
class DenseOptions(FeedForwardOptions):
    feedforward_chunk: Annotated[Count | None, Affects("speed")] = None
    """tokens that it works on at a time; its hidden channels are then not saved, but made again in
    the backward pass (default: all, saved)"""


class Dense(FeedForward):
    """Two linear layers with an activation between, the same at every position."""

    Options = DenseOptions
    options: DenseOptions
    activation: ClassVar[str]
    gated: ClassVar[bool] = False

    @final
    def build(self, width: int) -> None:
        o = self.options
        self.channels = hidden = rounded_share(width, o.expansion, "expansion")
        bias = o.feedforward_bias
        self.gate = nn.Linear(width, hidden, bias=bias) if self.gated else None
        self.up = nn.Linear(width, hidden, bias=bias)
        self.down = nn.Linear(hidden, width, bias=bias)
        for layer in (self.gate, self.up, self.down):
            if layer is not None:
                start(layer)
        self.dropout = self.dropout if o.feedforward_dropout is None else o.feedforward_dropout

    def forward(
        self, x: Tensor, mask: Mask | None = None, state: State | None = None
    ) -> tuple[Tensor, State | None]:
        chunk = self.options.feedforward_chunk
        if chunk is None or x.shape[1] <= chunk:
            return self._whole(x), None
        again = torch.is_grad_enabled() and not torch.compiler.is_compiling()
        parts = [
            checkpoint(self._whole, part, use_reentrant=False) if again else self._whole(part)
            for part in x.split(chunk, 1)
        ]
        return torch.cat(parts, 1), None

    def _whole(self, x: Tensor) -> Tensor:
        rate = self.dropout if self.training else 0.0
        if not worth(x) or (rate > 0 and not turns(x, rate)):
            return self.down(drop(self._activated(*self._hidden(x)), rate, True))
        channels = self.channels
        dropped = drawn(x.numel() // x.shape[-1] * channels, rate) if rate else None

        def rows(n: int, x: Tensor) -> Tensor:
            def activated(*hidden: Tensor) -> Tensor:
                h = self._activated(*hidden)
                return h if dropped is None else dropped(h, n * channels)

            return read(self.down, activated, *self._hidden(x))

        return by_pieces(rows, channels, x)

    def _hidden(self, x: Tensor) -> tuple[Tensor, ...]:
        return (self.up(x),) if self.gate is None else (self.gate(x), self.up(x))

    def _activated(self, h: Tensor, gated: Tensor | None = None) -> Tensor:
        h = activate(h, self.activation)
        return h if gated is None else h * gated


@FEEDFORWARDS.register("gelu")
class GELU(Dense):
    """x Phi(x)."""

    name = activation = "gelu"


@FEEDFORWARDS.register("gelu-tanh")
class GELUTanh(Dense):
    """GELU by tanh, as GPT-2 has it."""

    name = activation = "gelu-tanh"


@FEEDFORWARDS.register("gelu-sigmoid")
class GELUSigmoid(Dense):
    """x sigma(1.702 x)."""

    name = activation = "gelu-sigmoid"


@FEEDFORWARDS.register("relu")
class ReLU(Dense):
    """max(x, 0)."""

    name = activation = "relu"


@FEEDFORWARDS.register("silu")
class SiLU(Dense):
    """x sigma(x)."""

    name = activation = "silu"


@FEEDFORWARDS.register("swiglu")
class SwiGLU(Dense):
    """SiLU of a gate."""

    name, activation, gated = "swiglu", "silu", True


@FEEDFORWARDS.register("geglu")
class GEGLU(Dense):
    """GELU, by tanh, of a gate."""

    name, activation, gated = "geglu", "gelu-tanh", True
