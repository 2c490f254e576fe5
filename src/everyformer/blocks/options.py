"""How sub-layers are wired: options of a block (plain data, no torch)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from everyformer.core.bounds import Affects, Amount, Count, Dropout, Positive, Unless
from everyformer.core.config import Options

SEPARABLE = "sepconv"
"""the feed-forward whose layers read neighbours too"""


@dataclass(frozen=True)
class BlockOptions(Options):
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    """normalisation over channels"""
    norm_eps: Amount = 1e-5
    """added to the variance"""
    final_norm_eps: Amount | None = None
    """the same of the norm after the last layer (default: norm_eps)"""
    feedforward: Literal[
        "gelu", "gelu-tanh", "gelu-sigmoid", "relu", "silu", "swiglu", "geglu", "sepconv"
    ] = "gelu"
    """activation of the two-layer network after the mixer (a mixer that has its own gets none);
    gelu-sigmoid is x sigmoid(1.702 x), swiglu and geglu have a gate; sepconv has separable
    convolutions over 3 and 5 tokens in place of the linear layers, with ReLU"""
    expansion: Positive = 4.0
    """hidden channels of the feed-forward, times width"""
    feedforward_bias: bool = True
    """whether the feed-forward's linear layers have biases"""
    feedforward_chunk: Annotated[
        Count | None, Affects("speed"), Unless("feedforward", SEPARABLE)
    ] = None
    """tokens that the feed-forward works on at a time; its hidden channels are then not kept, but
    made again in the backward pass (default: all, kept)"""
    dropout: Dropout = 0.0
    """dropout on what each sub-layer adds, and inside the feed-forward"""
    feedforward_dropout: Dropout | None = None
    """dropout inside the feed-forward (default: dropout)"""
    drop_path: Dropout = 0.0
    """chance that a sub-layer is skipped for a sample: 0 at the first layer, this at the last"""
