"""Checkpoints of a run.

A checkpoint is a folder ``step-NNNNNNNN``: ``model.safetensors``, ``optimiser.safetensors``,
``ema.safetensors`` with a running average, ``memory.safetensors`` with what a memory carries to the
next step, and ``state.json`` (counters, evaluations, sums of the files). Where weights are split
over processes, each writes its parts of the first three to a file of its own
(`everyformer.training.parallel.saving`); a run's last model is one file again. No
state of random generators is kept, since a step's randomness follows from the seed and the step's
number alone.
"""

from __future__ import annotations

import re
import shutil
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from everyformer.core.config import from_dict
from everyformer.core.errors import CheckpointError
from everyformer.system.files import written_whole
from everyformer.system.sealed import DamagedError, check_sums, checksums, read_json, write_json
from everyformer.training.carry import TextCarry
from everyformer.training.config import Precision
from everyformer.training.optimiser import WeightAverage
from everyformer.training.parallel.shared import whole
from everyformer.training.storage import (
    CHECKPOINT_FORMAT,
    load_weights,
    read_tensors,
    ties_of,
    weights_of,
    write_tensors,
)
from everyformer.training.stored import fill, holds, sizes, weights_in

if TYPE_CHECKING:
    from everyformer.training.parallel.saving import Saver


@dataclass
class TrainingState:
    """State of a run: how far it has come; all of a checkpoint that is no tensor."""

    steps: int = 0
    tokens: int = 0
    flops: int = 0
    seconds: float = 0.0
    """spent in training steps, over all sessions"""
    flops_per_position: dict[str, float] = field(default_factory=dict)
    """of one token or pixel forward and backward, by the size of a batch: counted in the first step
    of each, and again and again where something is carried from step to step"""
    processes: int = 1
    """that the run was trained by until here"""
    logged: int = 0
    """the step of the last row of its curves"""
    precision: Precision | None = None
    """that `precision` auto came to at the first session; None before it, and of others"""
    evaluation: dict[str, Any] | None = None
    """the last evaluation, with its ``step``"""
    best: dict[str, Any] | None = None
    """the evaluation of lowest loss, with its ``step``"""

    @property
    def evaluated(self) -> bool:
        """True if the last evaluation is of the last step."""
        return self.evaluation is not None and self.evaluation["step"] == self.steps


@dataclass(frozen=True)
class CheckpointParts:
    """Parts of a run of which a checkpoint saves tensors."""

    model: nn.Module
    optimiser: torch.optim.Optimizer | None = None
    average: WeightAverage | None = None
    carry: TextCarry | None = None


def save_checkpoint(
    folder: Path,
    state: TrainingState,
    parts: CheckpointParts,
    carried: dict[str, Tensor] | None = None,
) -> Path:
    """Write ``folder/step-NNNNNNNN`` whole, with what is ``carried`` from step to step.

    Raises:
        CheckpointError: the disk is full or read-only; earlier checkpoints are untouched.
    """
    final = checkpoint_path(folder, state.steps)
    with written_whole(final) as temporary:
        write_tensors(temporary / "model.safetensors", *weights_of(parts.model))
        if parts.optimiser is not None:
            write_tensors(temporary / "optimiser.safetensors", _moments(parts))
        if parts.average is not None:
            write_tensors(temporary / "ema.safetensors", parts.average.values)
        if carried is not None:
            write_tensors(temporary / "memory.safetensors", carried)
        _seal(temporary, asdict(state), checksums(temporary))
    return final


def save_split(
    folder: Path, state: TrainingState, parts: CheckpointParts, saver: Saver, last: bool
) -> None:
    """Begin to write ``folder/step-NNNNNNNN`` of a model that is split; all processes call it.

    Args:
        last: write the model, and its average, as one file each, as a run ends.
    """
    ties = ties_of(parts.model)
    split = {"optimiser": _moments(parts)}
    model = {name: t for name, t in parts.model.state_dict().items() if name not in ties}
    gathered = {"model": model}
    if parts.average is not None:
        gathered["ema"] = parts.average.values
    files: dict[str, dict[str, Tensor]] = {}
    if not last:
        split |= gathered
    else:
        for part, tensors in gathered.items():
            # every process has to ask, and the first one keeps them
            wholes = {name: whole(tensor.detach()).cpu() for name, tensor in tensors.items()}
            files |= {part: wholes} if saver.first else {}
    if parts.carry is not None:
        files["memory"] = parts.carry.tensors()
    values = asdict(state)

    def seal(temporary: Path, sums: dict[str, str]) -> None:
        for part, tensors in files.items():
            write_tensors(
                temporary / f"{part}.safetensors", tensors, ties if part == "model" else None
            )
            sums |= checksums(temporary, f"{part}.safetensors")
        _seal(temporary, values, sums)

    named = {f"{part}/{name}": t for part, all_ in split.items() for name, t in all_.items()}
    saver.save(checkpoint_path(folder, state.steps), named, seal)


def _seal(temporary: Path, state: dict[str, Any], files: dict[str, str]) -> None:
    write_json(temporary / "state.json", {"format": CHECKPOINT_FORMAT, **state, "files": files})


def _moments(parts: CheckpointParts) -> dict[str, Tensor]:
    """The optimiser's numbers of each weight, as KEY:NAME."""
    state = {} if parts.optimiser is None else parts.optimiser.state
    return {
        f"{key}:{name}": value
        for name, parameter in parts.model.named_parameters()
        for key, value in state.get(parameter, {}).items()
    }


def drop_checkpoints(folder: Path, state: TrainingState, keep: int) -> None:
    """Drop all but the last ``keep`` and the best."""
    best = None if state.best is None else checkpoint_path(folder, state.best["step"])
    for path in checkpoints(folder)[:-keep]:
        if path != best:
            shutil.rmtree(path, ignore_errors=True)


def save_state(path: Path, state: TrainingState) -> None:
    """Bring the state of the checkpoint ``path`` up to date; its tensors stay."""
    values = read_json(path / "state.json", CHECKPOINT_FORMAT)
    write_json(path / "state.json", values | asdict(state))


def checkpoint_path(folder: Path, step: int) -> Path:
    """Path of the checkpoint of ``step``."""
    return folder / f"step-{step:08d}"


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in ``folder``, oldest first, whole or damaged."""
    result = folder.glob("step-*") if folder.is_dir() else ()
    return sorted(path for path in result if re.fullmatch(r"step-\d{8,}", path.name))


def newest_checkpoint(folder: Path) -> tuple[Path, TrainingState] | None:
    """The newest checkpoint whose every file is as it was written; None if none was ever saved.

    A damaged one is named in a warning and the one before is tried.

    Raises:
        CheckpointError: all are damaged, or one was written by a newer version.
    """
    candidates = checkpoints(folder)
    for path in reversed(candidates):
        try:
            return path, read_state(path)
        except DamagedError as error:
            warnings.warn(f"checkpoint {path.name} is skipped: {error}", stacklevel=2)
    if candidates:
        raise CheckpointError(
            f"all {len(candidates)} checkpoints in {folder} are damaged: train again, or put back "
            "a copy of one of them"
        )
    return None


def read_state(path: Path) -> TrainingState:
    """The state in the checkpoint ``path``; raises `DamagedError` unless all its sums hold."""
    values = read_json(path / "state.json", CHECKPOINT_FORMAT)
    check_sums(path, values["files"])
    about = ("format", "version", "files")
    return from_dict(TrainingState, {k: v for k, v in values.items() if k not in about})


def load_checkpoint(path: Path, parts: CheckpointParts) -> None:
    """Fill all but the model from the checkpoint ``path`` (checked by `newest_checkpoint`).

    Raises:
        CheckpointError: names or shapes differ from the model's.
    """
    if parts.optimiser is not None:
        _fill_optimiser(parts.model, parts.optimiser, path)
    if parts.average is not None:
        _fill_average(parts.average, path)
    if parts.carry is not None:
        parts.carry.fill(read_tensors(path / "memory.safetensors"))


def load_model_of(path: Path, model: nn.Module) -> None:
    """Fill a model that is not split from a checkpoint, or a saved model; raises as
    `load_checkpoint`."""
    load_weights(model, weights_in(path, model), path / "model.safetensors")


def _fill_optimiser(model: nn.Module, optimiser: torch.optim.Optimizer, path: Path) -> None:
    weights = dict(model.named_parameters())
    names = {id(weight): name for name, weight in weights.items()}
    trained = [names[id(p)] for group in optimiser.param_groups for p in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    moments: dict[str, Tensor] = {}
    for full, size in sizes(path, "optimiser").items():
        key, _, name = full.partition(":")
        if name not in trained:
            raise CheckpointError(
                f"{path} holds the optimiser's state of '{name}', which this run does not train"
            )
        weight = weights[name].detach()
        moments[full] = torch.empty(size) if size != weight.shape else torch.empty_like(weight)
        state.setdefault(trained.index(name), {})[key] = moments[full]
    fill(path, "optimiser", moments)
    groups = optimiser.state_dict()["param_groups"]
    optimiser.load_state_dict({"state": state, "param_groups": groups})


def _fill_average(average: WeightAverage, path: Path) -> None:
    if not holds(path, "ema"):
        raise CheckpointError(
            f"{path} keeps no average: the run was started without `ema`, so there is none to "
            "continue"
        )
    fill(path, "ema", average.values)
