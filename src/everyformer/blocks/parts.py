"""Norms, dropout and activations: the parts that layers and heads share."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyformer.blocks.options import BlockOptions
from everyformer.engines.dropout import dropout


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


def drop(x: Tensor, rate: float, training: bool) -> Tensor:
    """Dropout; nothing is called where there is none, since decoding is made of small calls."""
    return dropout(x, rate) if training and rate > 0 else x


def make_norm(width: int, options: BlockOptions) -> nn.Module:
    """The norm that the options name, over the last dimension."""
    if options.norm == "rmsnorm":
        return nn.RMSNorm(width, eps=options.norm_eps)
    return nn.LayerNorm(width, eps=options.norm_eps)


def start(layer: nn.Linear) -> None:
    """Begin a linear layer with Glorot's uniform weights, and biases of 0."""
    nn.init.xavier_uniform_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
