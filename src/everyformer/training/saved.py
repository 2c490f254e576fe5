"""Models saved on their own, and the best one of a run.

A saved model is a folder of ``config.json`` and ``model.safetensors``, and ``tokenizer.json`` where
it was saved with what makes its tokens.
"""

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from everyformer.core.config import from_dict, to_dict
from everyformer.core.devices import pick_device
from everyformer.core.errors import CheckpointError
from everyformer.core.tasks import GONE
from everyformer.data.builtins import BUILTINS
from everyformer.data.config import DataConfig
from everyformer.data.tokenizers.base import Tokenizer
from everyformer.system.files import expanded, require_regular, written_whole
from everyformer.system.sealed import DamagedError, check_sums, checksums, read_json, write_json
from everyformer.training.checkpoint import (
    checkpoint_path,
    checkpoints,
    load_model_of,
    newest_checkpoint,
    read_state,
)
from everyformer.training.optimiser import copy_weights
from everyformer.training.storage import (
    MODEL_FORMAT,
    RUN_FORMAT,
    load_weights,
    misfits,
    ties_of,
    weights_of,
    write_tensors,
)
from everyformer.training.stored import holds, tensors_in, weights_in


def save_model(
    model: nn.Module,
    path: str | Path,
    *,
    tokenizer: Tokenizer | None = None,
    classes: Sequence[str] = (),
) -> Path:
    """Save a model as a folder of ``config.json`` and ``model.safetensors``; tied weights once.

    Args:
        model: with a dataclass ``config``, as all models of this library have.
        path: a folder that does not exist, is empty, or holds an earlier saved model.
        tokenizer: saved too, so that the command line can give the model text.
        classes: of a classifier, their names in the order of their ids, saved too.

    Raises:
        CheckpointError: the folder holds something else, or cannot be written; the tokenizer has
            more tokens than the model; the model is not what its config describes any more.
    """
    # a compiled model wraps one
    model = getattr(model, "_orig_mod", model)
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
    _check_described(model)
    with written_whole(path) as temporary:
        write_tensors(temporary / "model.safetensors", *weights_of(model))
        if tokenizer is not None:
            tokenizer.save(temporary)
        values = {
            "format": MODEL_FORMAT,
            "config": to_dict(model.config),
            "data": {"classes": [*classes]},
            "sha256": checksums(temporary),
        }
        write_json(temporary / "config.json", values)
    return path


def _check_described(model: nn.Module) -> None:
    """Refuse a model that `load_model` would not build by its config."""
    config: Any = model.config
    with torch.device("meta"):
        built = build_from_values(to_dict(config))
    shapes = {name: tensor.shape for name, tensor in built.state_dict().items()}
    faults = misfits(shapes, model.state_dict())
    tied, now = ties_of(built), ties_of(model)
    if not faults and tied != now:
        name = min(tied.items() ^ now.items())[0]
        faults = f"'{name}' is {'not ' if name in tied else ''}tied to another weight"
    if faults:
        raise CheckpointError(
            f"the model is not what its config describes any more, so it could not be loaded: "
            f"{faults}. Keep its state_dict() instead, or save a model that is as it was built"
        )


def load_model(path: str | Path, *, average: int | None = None, device: str = "cpu") -> nn.Module:
    """The model saved at ``path`` by `save_model`, or the best one of the run at ``path``.

    Of a run, the best checkpoint is taken (the newest if there was no evaluation), with the
    averaged weights where the run kept them. The model is in evaluation mode. Of a run that made a
    datastore (knn-lm, spalm) it is the model without: `predict` and the command line read both.

    Args:
        path: folder of a saved model, or of a run.
        average: of a run, take the mean of the weights in its newest so many checkpoints instead
            ("Attention is all you need", section 6.1, averages 5); a best one that is older than
            those which ``keep`` asks for is none of them.
        device: where the model lives (default: the CPU); auto: an accelerator if there is one.

    Raises:
        CheckpointError: nothing is there, it is damaged, too new, or does not fit its config.
        ConfigError: there is no such device.
    """
    where = pick_device(device)
    path = expanded(path)
    values = read_config(path)
    if average is not None and average < 1:
        raise CheckpointError(f"average must be at least 1 checkpoint, not {average}")
    if "model" not in values:
        if average is not None:
            raise CheckpointError(f"{path} is a saved model, no run: there is nothing to average")
        check_sums(path, values["sha256"])
        model = build_from_values(values["config"])
        load_model_of(path, model)
        return model.eval().to(where)
    model = build_from_values(values["model"])
    if average is None:
        _load_best(best_checkpoint(path / "checkpoints"), model)
    else:
        _load_mean(path / "checkpoints", model, average, values["training"]["keep"])
    return model.eval().to(where)


def best_checkpoint(folder: Path) -> Path:
    """The checkpoint of a run that `load_model` takes: the best, or the newest where none was
    evaluated or the best is damaged, which is warned of."""
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
    return path


def _load_best(path: Path, model: nn.Module) -> None:
    load_model_of(path, model)
    if holds(path, "ema"):
        copy_weights(model, tensors_in(path, "ema"))


def _load_mean(folder: Path, model: nn.Module, count: int, keep: int) -> None:
    """The mean over the newest ``count`` of the last ``keep`` checkpoints, summed in float64."""
    there = checkpoints(folder)
    paths = there[-keep:][-count:]
    if len(paths) < count:
        older = " and an older best" if len(there) > keep else ""
        raise CheckpointError(
            f"{folder} holds the newest {len(paths)} checkpoints{older}, of which {count} are "
            f"wanted: ask for at most {len(paths)}, or train with `keep` and `checkpoint_every` to "
            "have more"
        )
    total: dict[str, Tensor] = {}
    kinds: dict[str, torch.dtype] = {}
    for path in paths:
        read_state(path)
        for name, value in weights_in(path, model).items():
            kinds[name] = value.dtype
            total[name] = total[name] + value.double() if name in total else value.double()
    mean = {name: (value / count).to(kinds[name]) for name, value in total.items()}
    load_weights(model, mean, paths[-1] / "model.safetensors")


def read_config(path: Path) -> dict[str, Any]:
    """Values of the config.json of a run, with a ``model``, or of a saved model, with ``config``.

    Raises:
        CheckpointError: nothing is there, or it is damaged, or of a task that is gone.
    """
    file = path / "config.json"
    if not file.is_file():
        raise CheckpointError(
            f"{path} holds no saved model and no run: config.json is missing; give the folder of "
            "one or the other"
        )
    values = read_json(file, MODEL_FORMAT if is_model(path) else RUN_FORMAT)
    task = (values.get("model") or values.get("config") or {}).get("task")
    if task in GONE:
        raise CheckpointError(
            f"the model in {path} has the task {task}, which is gone, since {GONE[task]}: use it "
            "with the everyformer that made it, or train one of another task"
        )
    return values


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


def trained_on(values: Mapping[str, Any]) -> DataConfig | None:
    """The data options of a run's config.json; None if it was not made by `train`.

    A relative path is where it was when the run began, as long as anything is there.
    """
    run = values.get("run")
    if not isinstance(run, dict):
        return None
    # earlier versions answered such rows when the training had ended
    skips = {"unlabelled": "skip"} if run["data"].get("unlabelled") == "predict" else {}
    config = from_dict(DataConfig, run["data"] | skips)
    if config.source in BUILTINS:
        return config
    here = expanded(config.source)
    there = Path(values.get("directory", "")) / here
    if not there.exists() or (here.exists() and here.samefile(there)):
        return config
    return dataclasses.replace(config, source=str(there))
