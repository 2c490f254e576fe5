"""Tensors in safetensors files, and models filled from them; nothing is unpickled."""

import hashlib
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from everyformer.core.config import converted
from everyformer.core.errors import CheckpointError, DivergedError
from everyformer.system.files import require_regular
from everyformer.system.fingerprint import raw_bytes
from everyformer.system.plain import from_json, to_json
from everyformer.system.sealed import DamagedError

MODEL_FORMAT = "everyformer-model"
RUN_FORMAT = "everyformer-run"
CHECKPOINT_FORMAT = "everyformer-checkpoint"
PARTS = "shard-{}*.safetensors"
"""names that torch gives the files of several processes, counted from 1 in five digits"""


def weights_of(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The model's parameters and buffers, each once, and the further names of the tied ones."""
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[tuple[Any, ...], str] = {}
    for name, tensor in model.state_dict().items():
        if not isinstance(tensor, Tensor):
            raise CheckpointError(f"'{name}' of the model is not a tensor and cannot be saved")
        memory = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride())
        if tensor.numel() and memory in first:
            aliases[name] = first[memory]
        else:
            first[memory] = name
            tensors[name] = tensor
    return tensors, aliases


def ties_of(model: nn.Module) -> dict[str, str]:
    """Further names of tied weights, and the first name of each."""
    first: dict[int, str] = {}
    every = model.named_parameters(remove_duplicate=False)
    names = {name: first.setdefault(id(weight), name) for name, weight in every}
    return {name: known for name, known in names.items() if name != known}


def write_tensors(
    path: Path,
    tensors: dict[str, Tensor],
    aliases: dict[str, str] | None = None,
    *,
    sealed: bool = False,
) -> None:
    """One safetensors file; ``aliases`` (further names of a tensor) go into its metadata, and with
    ``sealed``, for a file whose sum is kept nowhere else, a digest of all."""
    apart: dict[str, Tensor] = {}
    storages: set[tuple[torch.device, int]] = set()
    for name, tensor in tensors.items():
        contiguous = tensor.detach().contiguous()
        memory = (contiguous.device, contiguous.untyped_storage().data_ptr())
        # safetensors refuses two tensors in one storage, as views of a common table are
        apart[name] = contiguous.clone() if memory in storages else contiguous
        storages.add(memory)
    metadata = {"aliases": to_json(aliases or {})}
    if sealed:
        metadata["digest"] = _digest(apart, metadata["aliases"])
    save_file(apart, path, metadata=metadata)


def read_tensors(path: Path, sealed: str | None = None) -> dict[str, Tensor]:
    """All tensors of a safetensors file by name, the further names included, on the CPU.

    Args:
        sealed: contents of a file that was written ``sealed``, in words.

    Raises:
        DamagedError: it cannot be read, or differs from what was written and sealed.
        CheckpointError: it is to be sealed and is not.
    """
    require_regular(path)
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
        aliases = converted(dict[str, str], from_json(metadata.get("aliases", "{}")), "aliases")
        further = {name: tensors[source] for name, source in aliases.items()}
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise DamagedError(f"{path} cannot be read: {error}") from error
    if sealed and "digest" not in metadata:
        raise CheckpointError(f"{path} holds no {sealed}: it was written by something else")
    if sealed and metadata["digest"] != _digest(tensors, metadata.get("aliases", "")):
        raise DamagedError(f"{path} was changed or damaged after it was written")
    return tensors | further


def _digest(tensors: dict[str, Tensor], aliases: str) -> str:
    """sha256 of the names, dtypes, shapes and values, and of the further names."""
    sha256 = hashlib.sha256(aliases.encode())
    for name, tensor in sorted(tensors.items()):
        sha256.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        sha256.update(raw_bytes(tensor))
    return sha256.hexdigest()


def load_weights(model: nn.Module, tensors: dict[str, Tensor], source: Path) -> None:
    """Fill the model with ``tensors``, taking over their dtypes.

    Raises:
        CheckpointError: a name is missing or unknown, or a shape differs; the model is unchanged.
    """
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    check_fit(shapes, tensors, source)
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if name in tensors:
                tensor.data = tensor.data.to(tensors[name].dtype)
    model.load_state_dict(tensors)


def check_finite(model: nn.Module, source: Path | str) -> None:
    """Refuse a model whose weights are not all finite numbers: whatever it gives is none either.

    Raises:
        DivergedError: names the first such weight, and the ``source`` that it came from.
    """
    broken = [name for name, weight in model.named_parameters() if not weight.isfinite().all()]
    if broken:
        raise DivergedError(
            f"the weights in {source} are not finite numbers ({broken[0]}"
            f"{f' and {len(broken) - 1} more' if broken[1:] else ''}): its training diverged; take "
            "an earlier checkpoint, or train it again with a lower `lr`"
        )


def check_fit(expected: dict[str, torch.Size], tensors: dict[str, Tensor], source: Path) -> None:
    """Raise a `CheckpointError` that lists missing and unknown names and other shapes."""
    if faults := misfits(expected, tensors):
        raise CheckpointError(
            f"{source} does not fit the model: {faults}. Build the model with the config that it "
            "was saved with"
        )


def misfits(expected: dict[str, torch.Size], tensors: dict[str, Tensor]) -> str:
    """The first missing and unknown names and other shapes, in words; nothing: all fit."""
    faults = [f"'{name}' is missing" for name in expected if name not in tensors]
    faults += [f"'{name}' is unknown to the model" for name in tensors if name not in expected]
    faults += [
        f"'{name}' has shape {tuple(tensors[name].shape)}, the model's is {tuple(shape)}"
        for name, shape in expected.items()
        if name in tensors and tensors[name].shape != shape
    ]
    more = f" and {len(faults) - 5} more" if len(faults) > 5 else ""
    return "; ".join(faults[:5]) + more
