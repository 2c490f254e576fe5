"""Fine-tuning: a model begins with what another one of its member and sizes has learned.

Taken over is every tensor that means the same in both. Two kinds are fitted: tables over tokens
(the mask token of a masked language model is the last row, so all others keep their rows), and
learned positions (of text their first rows; of pictures resized to the new grid, bicubic). What the
old model has and the new one lacks, such as its head, is left; what only the new one has is fresh.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from everyformer.blocks.options import BlockOptions
from everyformer.core.config import affects, differences, field_types, from_dict, to_dict
from everyformer.core.errors import CheckpointError
from everyformer.data.tokenizers.base import Tokenizer
from everyformer.data.tokenizers.load import load_tokenizer, require_same
from everyformer.genes import GENES
from everyformer.genes.config import ModelConfig
from everyformer.genes.positions.learned import resize_grid
from everyformer.models.base import Model
from everyformer.system.files import expanded
from everyformer.training.saved import load_model, read_config
from everyformer.training.storage import weights_of

SAME = (
    "width", "layers", "heads", "patch", "schedule", "block", "scale_embedding",
    "embedding_norm", "token_types", "pixels",
    *(gene.name for gene in GENES.values() if gene.holds_weights),
)  # fmt: skip
"""fields of a config, and genes, that both models must share"""
BY_TOKEN = ("embedding.weight", "head.weight", "head.bias")
"""tensors with a row a token"""
TABLE = "position.table"


@dataclass(frozen=True)
class Start:
    """Config and tokenizer of a run or a saved model to start from."""

    path: Path
    config: ModelConfig
    tokenizer: Tokenizer | None
    """of its tokens; None where there were none, or where a model was saved without"""
    values: dict[str, Any] = field(default_factory=dict)
    """what else the config.json of a run says; of a saved model what its ``data`` were"""


@dataclass(frozen=True)
class WarmStart:
    """Report of a warm start: what became of every tensor, by name."""

    taken: tuple[str, ...]
    """as they were"""
    fitted: tuple[str, ...]
    """in part or resized, each with what was done"""
    fresh: tuple[str, ...]
    """of the new model alone: as they start without this"""
    left: tuple[str, ...]
    """of the old model alone"""

    def lines(self) -> list[str]:
        """The report, one line a kind."""
        results = []
        for kind, names in vars(self).items():
            listed = names[:3] if kind == "taken" else names
            more = f" and {len(names) - 3} more" if len(listed) < len(names) else ""
            results.append(f"{len(names)} {kind}{': ' if names else ''}{', '.join(listed)}{more}")
        return results


def read_start(path: str | Path) -> Start:
    """The config and the tokenizer of the run or saved model at ``path``.

    Raises:
        CheckpointError: nothing is there, or it is damaged.
    """
    path = expanded(path)
    values = read_config(path)
    if "model" not in values:
        config = from_dict(ModelConfig, values["config"])
        return Start(path, config, saved_tokenizer(path), {"data": values.get("data", {})})
    saved = values.get("tokenizer")
    tokenizer = None if saved is None else load_tokenizer(saved)
    return Start(path, from_dict(ModelConfig, values["model"]), tokenizer, values)


def saved_tokenizer(path: str | Path) -> Tokenizer | None:
    """The tokenizer of the model that `save_model` saved at ``path``."""
    return load_tokenizer(path) if (expanded(path) / "tokenizer.json").exists() else None


def warm_start(model: Model, path: str | Path, tokenizer: Tokenizer | None = None) -> WarmStart:
    """Fill ``model`` with what fits of the run or saved model at ``path``.

    Args:
        model: changed in place; its other weights stay as they are.
        path: a run's directory (its best weights are taken) or a folder written by `save_model`.
        tokenizer: what makes the tokens that ``model`` will read.

    Raises:
        CheckpointError: nothing to read there, or a model of another member, size or kind of input.
        DataError: its tokens are those of another tokenizer.
    """
    start = read_start(path)
    _check(start, model.config, tokenizer or start.tokenizer)
    if start.tokenizer is not None and tokenizer is not None:
        require_same(start.tokenizer, tokenizer)
    source = load_model(path)
    old = source.state_dict()
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    taken, fitted, fresh = [], [], []
    with torch.no_grad():
        for name, tensor in tensors.items():
            done = None if name not in old else _take(name, tensor, old[name], start, model)
            if done is None:
                fresh.append(name)
            elif done:
                fitted.append(f"{name} ({done})")
            else:
                taken.append(name)
    left = [name for name in weights_of(source)[0] if name not in tensors]
    return WarmStart(tuple(taken), tuple(fitted), tuple(fresh), tuple(left))


def _take(name: str, into: Tensor, old: Tensor, start: Start, model: Model) -> str | None:
    """Fill ``into``; '' if ``old`` was taken whole, else what was done to it; None: not taken."""
    if name == TABLE:
        return _take_positions(into, old, start.config, model.config)
    if into.shape == old.shape:
        into.copy_(old)
        return ""
    if name in BY_TOKEN and into.shape[1:] == old.shape[1:]:
        rows = min(len(into), len(old))
        into[:rows] = old[:rows]
        return f"{rows} rows of {len(old)}, {len(into) - rows} fresh"
    return None


def _take_positions(
    into: Tensor, table: Tensor, before: ModelConfig, after: ModelConfig
) -> str | None:
    # a class token has the first row
    slots = [int(config.does.answers and config.pooling == "class") for config in (before, after)]
    old, new = table[slots[0] :], into[slots[1] :]
    if before.image != after.image and not after.does.answers:
        return None
    if min(slots) == 1:
        into[0] = table[0]
    grids = [_grid(config) for config in (before, after)]
    if grids[0] is not None and grids[1] is not None:
        new.copy_(resize_grid(old, grids[0], grids[1]))
        if grids[0] == grids[1] and slots[0] == slots[1]:
            return ""
        return "{} x {} places to {} x {}".format(*grids[0], *grids[1])
    rows = min(len(old), len(new))
    new[:rows] = old[:rows]
    if len(old) == len(new) and slots[0] == slots[1]:
        return ""
    return f"{rows} positions of {len(old)}, {len(into) - rows - min(slots)} fresh"


def _grid(config: ModelConfig) -> tuple[int, int] | None:
    """Rows and columns of patches; None for a model that reads no patches."""
    if config.image is None or not config.does.answers:
        return None
    return config.image[1] // config.side, config.image[2] // config.side


def _check(start: Start, new: ModelConfig, tokenizer: Tokenizer | None) -> None:
    old, path = start.config, start.path
    if (old.image is None) != (new.image is None):
        kinds = ["text" if config.image is None else "pictures" for config in (old, new)]
        raise CheckpointError(
            f"the model in {path} reads {kinds[0]}, not {kinds[1]} as this one: start from "
            f"a model of {kinds[1]}, or leave out `from_run`"
        )
    shared = _shared(old), _shared(new)
    for gene in GENES.keys() & shared[0].keys():
        if shared[0][gene]["name"] != shared[1][gene]["name"]:
            for values in shared:
                values[gene] = values[gene]["name"]
    faults = differences(*shared)
    if old.image is not None and new.image is not None and old.image[0] != new.image[0]:
        faults.append(f"channels of its pictures: {old.image[0]} -> {new.image[0]}")
    masks = tokenizer is None or tokenizer.mask is None
    tokens = [
        config.vocabulary - (masks and config.does.predicts == "hidden") for config in (old, new)
    ]
    if old.image is None and tokens[0] != tokens[1]:
        faults.append(f"number of different tokens: {tokens[0]} -> {tokens[1]}")
    if faults:
        raise CheckpointError(
            f"the weights in {path} do not fit this model (theirs -> its own: "
            f"{'; '.join(faults[:5])}): give the member, sizes and tokenizer that they have, or "
            "leave out `from_run`"
        )


def _shared(config: ModelConfig) -> dict[str, Any]:
    """Values that both models must share, options that were not given filled in."""
    kin = {name: GENES[name].learned_as(choice) for name, choice in config.genes.items()}
    config = config.with_genes(**kin)
    every = ModelConfig.settled(to_dict(config))
    values = {name: every[name] for name in SAME}
    kinds: list[tuple[str, Any]] = [("block", BlockOptions)]
    for name in GENES.keys() & values.keys():
        chosen = {config.genes[name].name, *config.schedule.get(name, ())}
        kinds += [(name, GENES[name].options(alternative)) for alternative in chosen]
    for name, kind in kinds:
        for option in field_types(kind):
            if affects(kind, option) != "weights":
                values[name].pop(option, None)
    return values
