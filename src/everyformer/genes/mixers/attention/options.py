"""Options of multi-head softmax attention."""

from dataclasses import dataclass, field
from typing import Literal

from everyformer.core.bounds import Count, Dropout, Positive
from everyformer.core.config import Options


@dataclass(frozen=True)
class Widths(Options):
    """Widths of softmax attention; None takes the usual choice."""

    query: Count | None = None
    """i_q, channels of x (default: width)"""
    key: Count | None = None
    """i_k, channels of the context that keys are made of (default: width)"""
    value: Count | None = None
    """i_v, channels of the context that values are made of (default: width)"""
    output: Count | None = None
    """d_o, channels of the output (default: width)"""
    key_dim: Count | None = None
    """d_k, query and key channels of one head (default: width / heads)"""
    value_dim: Count | None = None
    """d_v, value channels of one head (default: key_dim)"""


@dataclass(frozen=True)
class AttentionOptions(Options):
    """Options of `Attention`."""

    kv_heads: Count | None = None
    """key-value heads; fewer than heads shares them in groups, 1 shares one (default: heads)"""
    widths: Widths = field(default_factory=Widths)
    """free input, output and head dimensions"""
    bias: tuple[Literal["query", "key", "value", "output"], ...] = ()
    """which projections have a bias"""
    qk_norm: bool = False
    """normalise queries and keys of each head (RMS, learned gain) before the product"""
    window: Count | tuple[Count | None, ...] | None = None
    """keys seen: i-j < window when causal, |i-j| < window when not; one number or one a head"""
    scale: Positive | None = None
    """factor on the scores (default: 1/sqrt(key_dim))"""
    softcap: Positive | None = None
    """scores s become c tanh(s/c)"""
    sink: bool = False
    """one learned extra score a head, of a key whose value is zero"""
    attention_dropout: Dropout = 0.0
    """dropout on the weights in training"""
