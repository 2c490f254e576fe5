"""Options of adaptive attention span."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from everyformer.core.bounds import (
    Affects,
    Amount,
    Count,
    Dropout,
    Positive,
    Real,
    Share,
    When,
    Whole,
)
from everyformer.core.config import Options


@dataclass(frozen=True)
class AdaptiveSpanOptions(Options):
    """Options of `AdaptiveSpan`."""

    window: Count = 1024
    """S, keys that a head sees at most"""
    ramp: Count = 32
    """R, keys over which a span fades out, at most S"""
    start: Annotated[Share, Affects("nothing"), When("dynamic", False)] = 0.0
    """z / S at the start: 0 sees R keys, 1 the whole window"""
    dynamic: bool = False
    """whether every token has spans of its own, made of what the layer reads there"""
    dynamic_bias: Annotated[Real, Affects("nothing"), When("dynamic", True)] = -4.0
    """b at the start: the paper's -4 makes z about 0.02 S"""
    per: Literal["head", "layer"] = "head"
    """what has a span of its own: every head, or all heads of a layer have one"""
    penalty: Annotated[Amount, Affects("nothing")] = 2e-6
    """lambda, weight of the mean z of the heads, added up over layers"""
    span_lr: Annotated[Positive, Affects("nothing")] = 1.0
    """learning rate of what makes z, times that of the other weights"""
    ramp_origin: Literal["nearest", "own"] = "nearest"
    """where the ramp counts from: the nearest past token (the authors' code) or the token itself
    (the paper's formula), one key less"""
    persistent: Whole = 0
    """keys and values a head that are learned and always seen, instead of a feed-forward
    (all-attention, by the same authors)"""
    attention_dropout: Dropout = 0.0
    """dropout on the weights in training"""
