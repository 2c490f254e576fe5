"""Tensors of a checkpoint by part (model, optimiser, ema).

A part is one file, or lies in the files of several processes (`everyformer.training.parallel`).
"""

from pathlib import Path

import torch
from torch import Tensor, nn

from everyformer.training.parallel.shared import place
from everyformer.training.storage import PARTS, check_fit, read_tensors, ties_of


def holds(path: Path, part: str) -> bool:
    """True if a checkpoint has the part."""
    there = (path / f"{part}.safetensors").exists()
    return there or (_in_parts(path, part) and bool(sizes(path, part)))


def tensors_in(path: Path, part: str) -> dict[str, Tensor]:
    """Whole tensors of a part by name, on the CPU; in one file, under further names too.

    Raises:
        DamagedError: they cannot be read.
    """
    if not _in_parts(path, part):
        return read_tensors(path / f"{part}.safetensors")
    from everyformer.training.parallel.saving import read_whole

    return read_whole(path, part)


def weights_in(path: Path, model: nn.Module) -> dict[str, Tensor]:
    """The part model, the further names of the ``model``'s tied weights included."""
    tensors = tensors_in(path, "model")
    ties = {name: first for name, first in ties_of(model).items() if first in tensors}
    return {name: tensors[first] for name, first in ties.items()} | tensors


def sizes(path: Path, part: str) -> dict[str, torch.Size]:
    """Shapes of a part's tensors by name."""
    if not _in_parts(path, part):
        file = path / f"{part}.safetensors"
        return {name: tensor.shape for name, tensor in read_tensors(file).items()}
    from everyformer.training.parallel.saving import sizes_of

    return sizes_of(path, part)


def fill(path: Path, part: str, into: dict[str, Tensor]) -> None:
    """Fill tensors, whole or split over processes, with those of a part that have their names.

    Raises:
        CheckpointError: names or shapes differ.
    """
    if _in_parts(path, part):
        from everyformer.training.parallel.saving import read_parts

        read_parts(path, part, into)
        return
    tensors = tensors_in(path, part)
    check_fit({name: value.shape for name, value in into.items()}, tensors, path)
    for name, value in into.items():
        place(tensors[name], value)


def _in_parts(path: Path, part: str) -> bool:
    """True if the part lies in files of several processes."""
    return not (path / f"{part}.safetensors").exists() and any(path.glob(PARTS.format("")))
