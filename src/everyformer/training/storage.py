"""Files that survive a kill: whole folders or nothing, sums over every file, nothing unpickled.

A folder is written under a temporary name, synced to the disk and renamed. Its JSON file lists the
sha256 of the others and seals itself with a digest, so that a cut or changed file is noticed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from everyformer.core.errors import CheckpointError

VERSION = 1
"""of the layout of saved models and runs; raised when an older library could not read it"""


class DamagedError(CheckpointError):
    """A saved file is missing, cut short or changed."""


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write ``values`` with a digest of themselves; a reader sees the old file or the new one."""
    sealed = json.loads(json.dumps(values | {"version": VERSION}, allow_nan=False, default=str))
    sealed["digest"] = _digest(sealed)
    temporary = path.with_name(f".writing-{path.name}")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(json.dumps(sealed, indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync(path.parent)


def read_json(path: Path, expected_format: str) -> dict[str, Any]:
    """What `write_json` wrote.

    Raises:
        DamagedError: the file is missing, is not JSON, or differs from what was written.
        CheckpointError: another format, or a version that only a newer library reads.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DamagedError(f"{path} is missing") from error
    except (OSError, ValueError) as error:
        raise DamagedError(f"{path} cannot be read: {error}") from error
    if not isinstance(values, dict) or "format" not in values:
        raise DamagedError(f"{path} was not written by everyformer, or is damaged")
    intact = values.pop("digest", None) == _digest(values)
    if isinstance(values.get("version"), int) and values["version"] > VERSION:
        raise (CheckpointError if intact else DamagedError)(
            f"{path} has format version {values['version']}, but this everyformer reads up to "
            f"{VERSION}: upgrade it with: pip install --upgrade everyformer"
        )
    if not intact:
        raise DamagedError(f"{path} was changed or damaged after it was written")
    if values["format"] != expected_format:
        raise CheckpointError(
            f"{path} is of format '{values['format']}'; '{expected_format}' is needed here"
        )
    return values


def _digest(values: dict[str, Any]) -> str:
    plain = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(plain.encode()).hexdigest()


def checksums(folder: Path) -> dict[str, str]:
    """sha256 of every file of ``folder``, by name."""
    return {path.name: _sha256(path) for path in sorted(folder.iterdir())}


def check_sums(folder: Path, expected: dict[str, str]) -> None:
    """Raise `DamagedError` naming the first file of ``folder`` that is not as it was written."""
    for name, wanted in expected.items():
        path = folder / name
        if not path.is_file():
            raise DamagedError(f"{path} is missing")
        if _sha256(path) != wanted:
            raise DamagedError(f"{path} was cut short or damaged: its sha256 does not match")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Ask the system to put a file, or the names in a folder, on the disk now."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class UnsavedError(CheckpointError):
    """A run could not write what it had computed."""

    exit_code = 1


@contextmanager
def written_whole(final: Path) -> Iterator[Path]:
    """A temporary folder that becomes ``final`` when the block ends well, and else goes away.

    Raises:
        UnsavedError: the disk is full or cannot be written; what stood there before still does.
    """
    temporary = final.with_name(f".writing-{final.name}")
    former = final.with_name(f".former-{final.name}")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        yield temporary
        for path in temporary.iterdir():
            sync(path)
        sync(temporary)
        if final.exists():
            shutil.rmtree(former, ignore_errors=True)
            final.rename(former)
        temporary.rename(final)
        sync(final.parent)
        shutil.rmtree(former, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        full = "No space left" in str(error)
        raise UnsavedError(
            f"could not write {final}: {'the disk is full' if full else error}; what was saved "
            "before is untouched. Free some space or choose another place, then go on from there"
        ) from error
    finally:
        if former.exists() and not final.exists():
            former.rename(final)
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def file_written_whole(final: Path) -> Iterator[Path]:
    """A path to write at; its file, and any beside it, go to where ``final`` is when the block ends
    well.

    Raises:
        UnsavedError: the disk is full or cannot be written; nothing new is left there.
    """
    try:
        with tempfile.TemporaryDirectory(dir=final.parent, prefix=".writing-") as folder:
            yield Path(folder) / final.name
            made = sorted(Path(folder).iterdir())
            for path in made:
                sync(path)
            for path in made:
                path.replace(final.with_name(path.name))
            sync(final.parent)
    except OSError as error:
        full = "No space left" in str(error)
        raise UnsavedError(
            f"could not write {final}: {'the disk is full' if full else error}. Free some space or "
            "choose another place"
        ) from error


def weights_of(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The model's parameters and buffers, each once, and the further names of the tied ones."""
    kept: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[tuple[Any, ...], str] = {}
    for name, tensor in model.state_dict().items():
        if not isinstance(tensor, Tensor):
            raise CheckpointError(f"'{name}' of the model is not a tensor and cannot be saved")
        place = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride())
        if tensor.numel() and place in first:
            aliases[name] = first[place]
        else:
            first[place] = name
            kept[name] = tensor
    return kept, aliases


def write_tensors(
    path: Path, tensors: dict[str, Tensor], aliases: dict[str, str] | None = None
) -> None:
    """One safetensors file; ``aliases`` (further names of a tensor) go into its metadata."""
    apart: dict[str, Tensor] = {}
    storages: set[tuple[torch.device, int]] = set()
    for name, tensor in tensors.items():
        own = tensor.detach().contiguous()
        place = (own.device, own.untyped_storage().data_ptr())
        # safetensors refuses two tensors in one storage, as views of a common table are
        apart[name] = own.clone() if place in storages else own
        storages.add(place)
    save_file(apart, path, metadata={"aliases": json.dumps(aliases or {})})


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file by name, the further names included, on the CPU."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            aliases = json.loads((file.metadata() or {}).get("aliases", "{}"))
    except (OSError, ValueError, SafetensorError) as error:
        raise DamagedError(f"{path} cannot be read: {error}") from error
    return tensors | {name: tensors[source] for name, source in aliases.items()}


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


def check_fit(expected: dict[str, torch.Size], given: dict[str, Tensor], source: Path) -> None:
    """Raise a `CheckpointError` that lists missing and unknown names and other shapes."""
    faults = [f"'{name}' is missing" for name in expected if name not in given]
    faults += [f"'{name}' is unknown to the model" for name in given if name not in expected]
    faults += [
        f"'{name}' has shape {tuple(given[name].shape)}, the model's is {tuple(shape)}"
        for name, shape in expected.items()
        if name in given and given[name].shape != shape
    ]
    if faults:
        more = f" and {len(faults) - 5} more" if len(faults) > 5 else ""
        raise CheckpointError(
            f"{source} does not fit the model: {'; '.join(faults[:5])}{more}. Build the model "
            "with the config that it was saved with"
        )
