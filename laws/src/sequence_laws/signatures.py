"""Parameters of a ``forward``, and words that they have for what is given beside its inputs."""

import inspect
from collections.abc import Mapping

from torch import nn

CACHES, LABELS = ("cache", "state"), ("labels", "targets")
MASKS = (
    "mask",
    "padding_mask",
    "keep",
    "attention_mask",
    "key_padding_mask",
    "src_key_padding_mask",
)
DECODER_MASKS = (
    "decoder_attention_mask",
    "decoder_padding_mask",
    "decoder_mask",
    "tgt_key_padding_mask",
    "tgt_padding_mask",
)
DOCUMENTS = ("document_ids", "documents", "segment_ids", "seq_idx")
POSITIONS = ("position_ids", "positions", "pos_ids")


def named(model: nn.Module) -> str:
    """Names of its parameters, of many the first eight: (x, mask, cache)."""
    names = [*parameters(model)]
    more = [f"{len(names) - 8} more"] if len(names) > 9 else []
    return f"({', '.join([*names[:8], *more] if more else names)})"


def parameters(model: nn.Module) -> Mapping[str, inspect.Parameter]:
    """Parameters of its ``forward``; none of one that does not tell them."""
    try:
        return inspect.signature(model.forward).parameters
    except (TypeError, ValueError):
        return {}


def takes(model: nn.Module, *words: str) -> str | None:
    """The first of some words that ``forward`` has a parameter of."""
    has = parameters(model)
    return next((word for word in words if word in has), None)
