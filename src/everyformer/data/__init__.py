"""Real data in, batches out: text, labelled text, images and generated tasks.

Names are looked up late: reading `DataConfig` (the command line's help does) must not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everyformer.data.base import Dataset, load_dataset
    from everyformer.data.batch import Batch
    from everyformer.data.config import BUILTINS, DataConfig
    from everyformer.data.text import decode, encode_prompt
    from everyformer.data.tokenizers import Tokenizer, load_tokenizer, require_same

_HOMES = {
    "BUILTINS": "config",
    "Batch": "batch",
    "DataConfig": "config",
    "Dataset": "base",
    "Tokenizer": "tokenizers",
    "decode": "text",
    "encode_prompt": "text",
    "load_dataset": "base",
    "load_tokenizer": "tokenizers",
    "require_same": "tokenizers",
}

__all__ = [
    "BUILTINS",
    "Batch",
    "DataConfig",
    "Dataset",
    "Tokenizer",
    "decode",
    "encode_prompt",
    "load_dataset",
    "load_tokenizer",
    "require_same",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
