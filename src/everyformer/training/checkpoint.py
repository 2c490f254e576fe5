"""Checkpoints of a run, and models saved on their own.

A checkpoint is a folder ``step-NNNNNNNN``: ``model.safetensors``, ``optimiser.safetensors``,
``ema.safetensors`` with a running average, ``memory.safetensors`` with what a memory carries to the
next step, and ``state.json`` (counters, evaluations, sums of the
files). No state of random generators is kept, since a step's randomness follows from the seed and
the step's number alone. A saved model is a folder of ``config.json`` and ``model.safetensors``, and
``tokenizer.json`` where it was saved with what makes its tokens.
"""

import re
import shutil
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from everyformer.core.config import from_dict, to_dict
from everyformer.core.errors import CheckpointError
from everyformer.data.tokenizers.base import Tokenizer
from everyformer.system.files import expanded, require_regular, written_whole
from everyformer.system.sealed import DamagedError, check_sums, checksums, read_json, write_json
from everyformer.training.config import Precision
from everyformer.training.optimiser import WeightAverage, copy_weights
from everyformer.training.step import Carry
from everyformer.training.storage import (
    CHECKPOINT_FORMAT,
    MODEL_FORMAT,
    RUN_FORMAT,
    check_fit,
    load_weights,
    read_tensors,
    weights_of,
    write_tensors,
)


@dataclass
class TrainingState:
    """State of a run: how far it has come, all that a checkpoint has beside tensors."""

    steps: int = 0
    tokens: int = 0
    flops: int = 0
    seconds: float = 0.0
    """spent in training steps, over all sittings"""
    flops_per_position: float | None = None
    """of one token or pixel forward and backward, counted in the first step"""
    precision: Precision | None = None
    """that `precision` auto came to at the first sitting; None before it, and of others"""
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
    carry: Carry | None = None


def save_checkpoint(folder: Path, state: TrainingState, parts: CheckpointParts) -> Path:
    """Write ``folder/step-NNNNNNNN`` whole.

    Raises:
        CheckpointError: the disk is full or read-only; earlier checkpoints are untouched.
    """
    final = checkpoint_path(folder, state.steps)
    with written_whole(final) as temporary:
        write_tensors(temporary / "model.safetensors", *weights_of(parts.model))
        if parts.optimiser is not None:
            moments = {
                f"{key}:{name}": value
                for name, parameter in parts.model.named_parameters()
                for key, value in parts.optimiser.state.get(parameter, {}).items()
            }
            write_tensors(temporary / "optimiser.safetensors", moments)
        if parts.average is not None:
            write_tensors(temporary / "ema.safetensors", parts.average.values)
        if parts.carry is not None:
            write_tensors(temporary / "memory.safetensors", parts.carry.tensors())
        values = {"format": CHECKPOINT_FORMAT, **asdict(state), "files": checksums(temporary)}
        write_json(temporary / "state.json", values)
    return final


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
    """Fill what is given from the checkpoint ``path`` (checked by `newest_checkpoint`).

    Raises:
        CheckpointError: names or shapes differ from the model's.
    """
    weights = path / "model.safetensors"
    load_weights(parts.model, read_tensors(weights), weights)
    if parts.optimiser is not None:
        _fill_optimiser(parts.model, parts.optimiser, path / "optimiser.safetensors")
    if parts.average is not None:
        _fill_average(parts.average, parts.model, path / "ema.safetensors")
    if parts.carry is not None:
        parts.carry.fill(read_tensors(path / "memory.safetensors"))


def _fill_optimiser(model: nn.Module, optimiser: torch.optim.Optimizer, path: Path) -> None:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    trained = [names[id(p)] for group in optimiser.param_groups for p in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for full, value in read_tensors(path).items():
        key, _, name = full.partition(":")
        if name not in trained:
            raise CheckpointError(
                f"{path} holds the optimiser's state of '{name}', which this run does not train"
            )
        state.setdefault(trained.index(name), {})[key] = value.clone()
    groups = optimiser.state_dict()["param_groups"]
    optimiser.load_state_dict({"state": state, "param_groups": groups})


def _fill_average(average: WeightAverage, model: nn.Module, path: Path) -> None:
    if not path.exists():
        raise CheckpointError(
            f"{path} is missing: the run was begun without 'ema', so it cannot go on with it"
        )
    tensors = read_tensors(path)
    check_fit({name: value.shape for name, value in average.values.items()}, tensors, path)
    for name, value in average.values.items():
        value.copy_(tensors[name])


def save_model(model: nn.Module, path: str | Path, *, tokenizer: Tokenizer | None = None) -> Path:
    """Save a model as a folder of ``config.json`` and ``model.safetensors``; tied weights once.

    Args:
        model: with a dataclass ``config``, as all models of this library have.
        path: a folder that does not exist, is empty, or holds an earlier saved model.
        tokenizer: saved too, so that the command line can give the model text.

    Raises:
        CheckpointError: the folder holds something else, or cannot be written; the tokenizer has
            more tokens than the model.
    """
    path = expanded(path).absolute()
    if path.exists() and (not path.is_dir() or (any(path.iterdir()) and not is_model(path))):
        raise CheckpointError(
            f"{path} exists and is not a saved model, so it is not replaced: choose another path"
        )
    room = getattr(model.config, "vocabulary", None)
    if tokenizer is not None and room is not None and tokenizer.vocabulary > room:
        raise CheckpointError(
            f"the tokenizer {tokenizer} has more tokens than the model, which has {room}: they do "
            "not belong together"
        )
    with written_whole(path) as temporary:
        write_tensors(temporary / "model.safetensors", *weights_of(model))
        if tokenizer is not None:
            tokenizer.save(temporary)
        values = {
            "format": MODEL_FORMAT,
            "config": to_dict(model.config),
            "sha256": checksums(temporary),
        }
        write_json(temporary / "config.json", values)
    return path


def load_model(path: str | Path, *, average: int | None = None) -> nn.Module:
    """The model saved at ``path`` by `save_model`, or the best one of the run at ``path``.

    Of a run, the best checkpoint is taken (the newest if there was no evaluation), with the
    averaged weights where the run kept them. The model is in evaluation mode, on the CPU.

    Args:
        path: folder of a saved model, or of a run.
        average: of a run, take the mean of the weights in its newest so many checkpoints instead
            ("Attention is all you need", section 6.1, averages 5); a best one that is older than
            those which ``keep`` asks for is none of them.

    Raises:
        CheckpointError: nothing is there, it is damaged, too new, or does not fit its config.
    """
    path = expanded(path)
    values = read_config(path)
    if average is not None and average < 1:
        raise CheckpointError(f"average must be at least 1 checkpoint, not {average}")
    if "model" not in values:
        if average is not None:
            raise CheckpointError(f"{path} is a saved model, no run: there is nothing to average")
        check_sums(path, values["sha256"])
        model = build_from_values(values["config"])
        load_checkpoint(path, CheckpointParts(model))
        return model.eval()
    model = build_from_values(values["model"])
    if average is None:
        _load_best(path / "checkpoints", model)
    else:
        _load_mean(path / "checkpoints", model, average, values["training"]["keep"])
    return model.eval()


def _load_best(folder: Path, model: nn.Module) -> None:
    newest = newest_checkpoint(folder)
    if newest is None:
        raise CheckpointError(f"{folder} holds no checkpoint yet: the run has not saved one")
    path, state = newest
    if state.best is not None:
        best = checkpoint_path(folder, state.best["step"])
        try:
            read_state(best)
            path = best
        except DamagedError as error:
            warnings.warn(f"the best checkpoint is skipped for {path.name}: {error}", stacklevel=3)
    load_checkpoint(path, CheckpointParts(model))
    if (path / "ema.safetensors").exists():
        copy_weights(model, read_tensors(path / "ema.safetensors"))


def _load_mean(folder: Path, model: nn.Module, count: int, keep: int) -> None:
    """The mean over the newest ``count`` of the last ``keep`` checkpoints, summed in float64."""
    there = checkpoints(folder)
    paths = there[-keep:][-count:]
    if len(paths) < count:
        older = " and an older best" if len(there) > keep else ""
        raise CheckpointError(
            f"{folder} holds the newest {len(paths)} checkpoints{older}, of which {count} are "
            f"wanted: ask for at most {len(paths)}, or train with 'keep' and 'checkpoint_every' to "
            "have more"
        )
    total: dict[str, Tensor] = {}
    kinds: dict[str, torch.dtype] = {}
    for path in paths:
        read_state(path)
        for name, value in read_tensors(path / "model.safetensors").items():
            kinds[name] = value.dtype
            total[name] = total[name] + value.double() if name in total else value.double()
    mean = {name: (value / count).to(kinds[name]) for name, value in total.items()}
    load_weights(model, mean, paths[-1] / "model.safetensors")


def read_config(path: Path) -> dict[str, Any]:
    """Values of the config.json of a run, with a ``model``, or of a saved model, with ``config``.

    Raises:
        CheckpointError: nothing is there, or it is damaged.
    """
    file = path / "config.json"
    if not file.is_file():
        raise CheckpointError(
            f"{path} holds no saved model and no run: config.json is missing; give the folder of "
            "one or the other"
        )
    return read_json(file, MODEL_FORMAT if is_model(path) else RUN_FORMAT)


def is_model(path: Path) -> bool:
    """True if a folder is a model saved by `save_model`."""
    require_regular(path / "config.json")
    try:
        return f'"{MODEL_FORMAT}"' in (path / "config.json").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False


def build_from_values(values: dict[str, Any]) -> nn.Module:
    """The model of this library that plain values of a config describe."""
    from everyformer.genes.config import ModelConfig
    from everyformer.models.build import build_model

    return build_model(from_dict(ModelConfig, values))
