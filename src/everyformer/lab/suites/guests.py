"""Guests of the board: sequence models that are no Transformers.

    lstm          h_t = LSTM(x_t, h_{t-1}), layers on top of each other, as torch has it
                  (Hochreiter and Schmidhuber 1997)
    mamba2        S_t = exp(-a_t) S_{t-1} + b_t x_t^T, y_t = c_t^T S_t, after a short convolution
                  (Dao and Gu 2024), as transformers has it
    gated_delta   S_t = a_t S_{t-1} (I - b_t k_t k_t^T) + b_t v_t k_t^T, y_t = S_t q_t, after a
                  short convolution (Yang et al. 2024), as Qwen3-Next's layers in transformers,
                  with gates that start as the authors' do

Each takes token ids (B, L) to logits (B, L, V), in plain torch: slower than kernels of its own
would be. ``everyformer suite attention lstm`` has one on a board.
"""

import logging
import math
import sys
from typing import Any

import torch
from torch import Tensor, nn

from sequence_laws.extras import extra_module

# it tells every process that there are faster ways
logging.getLogger("transformers.integrations.hub_kernels").setLevel(logging.ERROR)

CHUNK = 8
"""tokens that Mamba-2 reads at once"""
TAPS = 4
"""of the short convolutions"""


class Logits(nn.Module):
    """The logits of a language model of transformers."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, L) to (B, L, V)."""
        logits: Tensor = self.model(tokens, use_cache=False).logits
        return logits


class LSTM(nn.Module):
    """torch's LSTM between an embedding and an output layer."""

    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, L) to (B, L, V)."""
        logits: Tensor = self.head(self.layers(self.embedding(tokens))[0])
        return logits


def lstm(vocabulary: int, width: int, layers: int) -> nn.Module:
    """torch's LSTM; ``width`` units a layer."""
    return LSTM(vocabulary, width, layers)


def mamba2(vocabulary: int, width: int, layers: int, heads: int) -> nn.Module:
    """Mamba-2 of transformers: 2 ``width`` channels of ``heads`` heads, each with a state of
    64 x 2 width / heads numbers.

    Raises:
        MissingExtraError: transformers is not installed.
    """
    package = extra_module("transformers", "hf", "the guest mamba2")
    config = package.Mamba2Config(
        vocab_size=vocabulary, hidden_size=width, num_hidden_layers=layers, num_heads=heads,
        head_dim=2 * width // heads, state_size=64, n_groups=1, conv_kernel=TAPS, chunk_size=CHUNK,
        pad_token_id=None, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return Logits(package.Mamba2ForCausalLM(config))


def gated_delta(vocabulary: int, width: int, layers: int, heads: int) -> nn.Module:
    """Layers of Qwen3-Next's gated delta rule, each with a feed-forward layer of 4 ``width``.

    Raises:
        MissingExtraError: transformers is not installed.
    """
    package = extra_module("transformers", "hf", "the guest gated_delta")
    size = width // heads
    # where it is installed, its kernels are taken, which need a GPU
    kernels = {
        name: sys.modules.pop(name) for name in [*sys.modules] if name.split(".")[0] == "fla"
    }
    sys.modules["fla"] = None  # type: ignore[assignment]
    try:
        config = package.Qwen3NextConfig(
            vocab_size=vocabulary, hidden_size=width, num_hidden_layers=layers,
            intermediate_size=4 * width, mlp_only_layers=list(range(layers)), num_experts=1,
            num_attention_heads=heads, num_key_value_heads=heads, head_dim=size,
            linear_num_key_heads=heads, linear_num_value_heads=heads, linear_key_head_dim=size,
            linear_value_head_dim=size, linear_conv_kernel_dim=TAPS,
            layer_types=["linear_attention"] * layers,
            pad_token_id=None, bos_token_id=None, eos_token_id=None,
        )  # fmt: skip
        model = package.Qwen3NextForCausalLM(config)
    finally:
        del sys.modules["fla"]
        sys.modules.update(kernels)
    # as Mamba-2's, from 0.001 to 0.1: transformers starts them at 1.3, which forgets at once
    for name, bias in model.named_parameters():
        if name.endswith("dt_bias"):
            step = torch.empty_like(bias).uniform_(math.log(0.001), math.log(0.1)).exp()
            bias.data.copy_(step + torch.log(-torch.expm1(-step)))
    return Logits(model)
