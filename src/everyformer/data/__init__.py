"""Real data in, batches out: text, labelled text, images and generated tasks.

Names are looked up late: reading `DataConfig` (the command line's help does) must not import torch.
"""

from typing import TYPE_CHECKING

from everyformer.system.lazy import late_names

if TYPE_CHECKING:
    from everyformer.data.batch import Batch as Batch
    from everyformer.data.builtins import BUILTINS as BUILTINS
    from everyformer.data.config import DataConfig as DataConfig
    from everyformer.data.dataset import Dataset as Dataset
    from everyformer.data.load import load_dataset as load_dataset
    from everyformer.data.text import decode as decode
    from everyformer.data.text import encode_prompt as encode_prompt
    from everyformer.data.tokenizers.base import Tokenizer as Tokenizer
    from everyformer.data.tokenizers.load import load_tokenizer as load_tokenizer
    from everyformer.data.tokenizers.load import require_same as require_same

_HOMES = {
    "BUILTINS": "builtins",
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
__all__ = list(_HOMES)
__getattr__ = late_names(__name__, _HOMES)
