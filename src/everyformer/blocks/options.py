"""Norms and dropout of a block's sub-layers (plain data, no torch)."""

from dataclasses import dataclass
from typing import Literal

from everyformer.core.bounds import Amount, Dropout
from everyformer.core.config import Options


@dataclass(frozen=True)
class BlockOptions(Options):
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    """normalisation over channels"""
    norm_eps: Amount = 1e-5
    """added to the variance"""
    final_norm_eps: Amount | None = None
    """the same of the norm after the last layer (default: norm_eps)"""
    dropout: Dropout = 0.0
    """dropout on what each sub-layer adds, and inside a feed-forward that says no other"""
    drop_path: Dropout = 0.0
    """chance that a sub-layer is skipped for a sample: 0 at the first layer, this at the last"""
