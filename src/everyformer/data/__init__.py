"""Real data in, batches out: text, labelled text, images and generated tasks.

Names are looked up late: reading `DataConfig` (the command line's help does) must not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everyformer.data.batch import Batch
    from everyformer.data.config import DataConfig
    from everyformer.data.dataset import Dataset
    from everyformer.data.load import load_dataset
    from everyformer.data.tasks import BUILTINS
    from everyformer.data.text import decode, encode_prompt
    from everyformer.data.tokenizers.base import Tokenizer
    from everyformer.data.tokenizers.load import load_tokenizer, require_same

_HOMES = {
    "BUILTINS": "tasks",
    "Batch": "batch",
    "DataConfig": "config",
    "Dataset": "dataset",
    "Tokenizer": "tokenizers.base",
    "decode": "text",
    "encode_prompt": "text",
    "load_dataset": "load",
    "load_tokenizer": "tokenizers.load",
    "require_same": "tokenizers.load",
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
