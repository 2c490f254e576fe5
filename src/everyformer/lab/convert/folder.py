"""A folder of safetensors: its config.json, the files that are the model, and others."""

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from everyformer.core.bounds import Count
from everyformer.core.config import converted
from everyformer.core.errors import CheckpointError, UnsupportedError
from everyformer.core.wording import join_first
from everyformer.system.files import expanded, require_regular
from everyformer.system.plain import from_json
from everyformer.training.storage import read_tensors
from sequence_laws.extras import extra_module

FILES = ("*.json", "*.safetensors", "*.spm")
"""files that are read of a checkpoint on the hub"""
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
SCALE = "_scale_inv"
"""what the scales of a weight in fp8 are called behind its name"""
BLOCK = (128, 128)
"""rows and columns of a weight that share a scale, where nothing says how many"""
QUANTISED = re.compile(
    r"(qweight|qzeros|g_idx|SCB|absmax|quant_map|quant_state\S*|[._]packed|[._]scales?|zero_point)$"
)
"""names of tensors that only quantised checkpoints of other methods have"""


def find_folder(source: str | Path) -> Path:
    """Folder of a checkpoint: itself, or that of the files of the hub's OWNER/NAME.

    Raises:
        CheckpointError: there is neither.
        MissingExtraError: a name on the hub needs huggingface_hub.
    """
    path = expanded(source)
    if path.is_dir():
        return path
    if path.exists() or str(source).count("/") != 1 or str(source).startswith((".", "/")):
        raise CheckpointError(
            f"there is no folder '{source}': give one with config.json and safetensors, or a name "
            "on the Hugging Face hub (OWNER/NAME)"
        )
    hub = extra_module("huggingface_hub", "hf", "reading from the hub")
    errors = extra_module("huggingface_hub.errors", "hf", "reading from the hub")
    try:
        return Path(hub.snapshot_download(str(source), allow_patterns=[*FILES]))
    except (errors.HfHubHTTPError, errors.LocalEntryNotFoundError, OSError) as error:
        raise CheckpointError(
            f"there is no folder '{source}', and no such name could be read from the Hugging Face "
            f"hub: {str(error).splitlines()[0]}"
        ) from error


def read_config(folder: Path, name: str = "config.json") -> dict[str, Any]:
    """The values of the folder's config.json, or of another table.

    Raises:
        CheckpointError: it is missing or no table.
    """
    require_regular(folder / name)
    try:
        result = from_json((folder / name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder / name} cannot be read: {error}") from error
    if not isinstance(result, dict):
        raise CheckpointError(f"{folder / name} is not a table of options")
    return result


def read_folder(folder: Path) -> tuple[dict[str, Tensor], list[str]]:
    """The tensors of a folder's model, and a note on other safetensors files, if any.

    The index says which files are the model, else it is model.safetensors.

    Raises:
        CheckpointError: there are none (pickles are not read), or one is damaged or missing; the
            folder does not say which are the model.
    """
    files = {path.name for path in folder.glob("*.safetensors")}
    if not files:
        pickles = sorted(path.name for path in folder.glob("*.bin"))
        reason = f" ({pickles[0]} is a pickle, which could run anything)" if pickles else ""
        raise CheckpointError(
            f"{folder} holds no safetensors file{reason}: save it again with "
            "model.save_pretrained(...), which writes safetensors"
        )
    places: dict[str, str] = {}
    if (folder / INDEX).exists():
        table = read_config(folder, INDEX).get("weight_map")
        places = converted(dict[str, str], table, f"weight_map of {INDEX}")
    parts = {*places.values()}
    if WHOLE in files - parts:
        if parts and parts <= files:
            raise CheckpointError(
                f"{folder} holds two models, {WHOLE} and the files of {INDEX}: remove one of them"
            )
        # an index of files that are gone was left behind by an earlier save
        places, parts = {}, {WHOLE}
    if not parts or not parts <= files:
        raise CheckpointError(
            f"{folder} lacks {join_first(sorted(parts - files)) or f'{WHOLE} and {INDEX}'}, so "
            f"that {join_first(sorted(files))} may not be the whole model: save it again, or "
            "download the rest"
        )
    tensors: dict[str, Tensor] = {}
    for part in sorted(parts):
        read = read_tensors(folder / part)
        tensors |= {name: value for name, value in read.items() if places.get(name, part) == part}
    beside = sorted(files - parts)
    ignored = f"not read, since the model is in other files: {join_first(beside)}"
    return tensors, [ignored] if beside else []


def dequantised(
    tensors: Mapping[str, Tensor], config: Mapping[str, Any], kind: torch.dtype | None
) -> dict[str, Tensor]:
    """The tensors, those of fp8 times the scale of their block, in ``kind`` (default: float32).

    Raises:
        UnsupportedError: they are quantised by another method.
        CheckpointError: scales that do not fit.
    """
    quantization = config.get("quantization_config") or {}
    other = next(filter(QUANTISED.search, tensors), None)
    if other or quantization.get("quant_method", None if quantization else "fp8") != "fp8":
        method = quantization.get("quant_method", "a method that config.json does not name")
        raise UnsupportedError(
            f"the checkpoint is quantised by {method}{f' ({other})' if other else ''}, which is "
            f"not read, but fp8 with scales called *{SCALE} is: give the model as it was before"
        )
    where = "weight_block_size of quantization_config"
    block = converted(tuple[Count, Count] | None, quantization.get("weight_block_size"), where)
    result = dict(tensors)
    for name, weight in tensors.items():
        if name + SCALE not in tensors or weight.itemsize > 1:
            continue
        scale = result.pop(name + SCALE).float()
        scale = scale.reshape(1, 1) if scale.numel() == 1 else scale
        sides = block or (tuple(weight.shape) if scale.numel() == 1 else BLOCK)
        blocks = tuple(-(-n // side) for n, side in zip(weight.shape, sides, strict=False))
        if weight.dim() != 2 or tuple(scale.shape) != blocks:
            raise CheckpointError(
                f"the checkpoint's {name}{SCALE} is {tuple(scale.shape)}, where {name} "
                f"{tuple(weight.shape)} has {blocks} blocks of {sides}"
            )
        rows, columns = (
            torch.arange(n) // side for n, side in zip(weight.shape, sides, strict=True)
        )
        result[name] = (weight.float() * scale[rows][:, columns]).to(kind or torch.float32)
    return result


def widest(tensors: Mapping[str, Tensor]) -> torch.dtype:
    """The narrowest dtype that holds every value of the tensors that are no whole numbers."""
    kinds = {value.dtype for value in tensors.values() if value.is_floating_point()}
    return functools.reduce(torch.promote_types, kinds, next(iter(kinds), torch.float32))
