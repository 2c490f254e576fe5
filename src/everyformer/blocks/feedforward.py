"""Position-wise feed-forward networks and norms.

FFN(x) = W_2 act(W_1 x + b_1) + b_2              act: GELU (erf, tanh, sigmoid), ReLU or SiLU
SwiGLU(x) = W_2 (silu(W_g x) * W_1 x)            Shazeer 2020, arXiv 2002.05202; T5 1.1 has GEGLU,
GEGLU(x)  = W_2 (gelu(W_g x) * W_1 x)            with the tanh form of GELU

Positions do not meet here, so the length may be worked through in pieces (Kitaev et al. 2020, arXiv
2001.04451): the same result, with the hidden channels of one piece at a time.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from everyformer.blocks.options import BlockOptions
from everyformer.core.config import rounded_share

GATES = {"swiglu": "silu", "geglu": "gelu-tanh"}
"""activation of the gate of gated networks, by name"""


def activate(h: Tensor, name: str) -> Tensor:
    """gelu, gelu-tanh, gelu-sigmoid (h sigma(1.702 h)), relu, silu or tanh of ``h``, by name."""
    if name == "relu":
        return F.relu(h)
    if name == "silu":
        return F.silu(h)
    if name == "tanh":
        return torch.tanh(h)
    if name == "gelu-sigmoid":
        return h * (1.702 * h).sigmoid()
    return F.gelu(h, approximate="tanh" if name == "gelu-tanh" else "none")


class Activation(nn.Module):
    """`activate` as a layer."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, h: Tensor) -> Tensor:
        return activate(h, self.name)


class FeedForward(nn.Module):
    """Two linear layers with an activation between, the same at every position."""

    def __init__(self, width: int, options: BlockOptions) -> None:
        super().__init__()
        hidden = rounded_share(width, options.expansion, "expansion")
        bias = options.feedforward_bias
        gated = options.feedforward in GATES
        self.activation = GATES.get(options.feedforward, options.feedforward)
        self.gate = nn.Linear(width, hidden, bias=bias) if gated else None
        self.up = nn.Linear(width, hidden, bias=bias)
        self.down = nn.Linear(hidden, width, bias=bias)
        inner = options.feedforward_dropout
        self.dropout = options.dropout if inner is None else inner
        self.chunk = options.feedforward_chunk
        for linear in (self.gate, self.up, self.down):
            if linear is not None:
                nn.init.xavier_uniform_(linear.weight)
                if linear.bias is not None:
                    nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.chunk is None or x.shape[1] <= self.chunk:
            return self._whole(x)
        again = torch.is_grad_enabled() and not torch.compiler.is_compiling()
        return torch.cat(
            [
                checkpoint(self._whole, part, use_reentrant=False) if again else self._whole(part)
                for part in x.split(self.chunk, 1)
            ],
            1,
        )

    def _whole(self, x: Tensor) -> Tensor:
        h = self.up(x)
        if self.gate is None:
            h = activate(h, self.activation)
        else:
            h = activate(self.gate(x), self.activation) * h
        return self.down(drop(h, self.dropout, self.training))


def drop(x: Tensor, rate: float, training: bool) -> Tensor:
    """Dropout; nothing is called where there is none, since decoding is made of small calls."""
    return F.dropout(x, rate) if training and rate > 0 else x


def make_norm(width: int, options: BlockOptions) -> nn.Module:
    """The norm that the options name, over the last dimension."""
    if options.norm == "rmsnorm":
        return nn.RMSNorm(width, eps=options.norm_eps)
    return nn.LayerNorm(width, eps=options.norm_eps)
