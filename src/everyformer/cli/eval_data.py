"""Options of data that an evaluation is given: those that it has no use for are refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from everyformer.cli.names import spelled
from everyformer.cli.parsing import say
from everyformer.core.config import field_defaults
from everyformer.core.errors import ConfigError, DataError
from everyformer.core.tasks import Task
from everyformer.data.builtins import BUILTINS
from everyformer.data.config import GENERATED, PICTURES, TABLE, DataConfig
from everyformer.data.table import TABLES
from everyformer.system.files import expanded

if TYPE_CHECKING:
    from everyformer.cli.trained import TrainedRun

ARRAYS = (".npy", ".npz", ".zip")
"""endings of sources that may hold arrays, of which the held-out rows are drawn"""


TO_BE_GIVEN = "to be said"
"""stands where no source of data is known"""


def for_source(config: DataConfig, source: str | None) -> DataConfig:
    """The data of a run, and where others are named all of those, without what is given of its own
    files alone.

    A saved model does not know what it was trained on, so that of anything a part is held out.
    """
    if source is None or same_place(source, config.source):
        return config
    foreign = ["part"]
    if expanded(str(source)).is_file() and expanded(str(source)).suffix not in TABLES:
        foreign += [*TABLE, "split"]
    usual = field_defaults(DataConfig)
    kept = {name: getattr(config, name) for name in usual}
    kept |= {name: usual[name] for name in foreign}
    if source not in BUILTINS and config.source != TO_BE_GIVEN:
        kept["validation"] = 1.0
    return DataConfig(**kept)


def same_place(source: str, other: str) -> bool:
    """True if two sources are one file or folder, or one name."""
    if source == other:
        return True
    paths = Path(source), Path(other)
    return all(path.exists() for path in paths) and paths[0].samefile(paths[1])


def measured(trained: TrainedRun, config: DataConfig) -> DataConfig:
    """``config``; of all that a run was trained on, whatever its name, its held-out part alone."""
    run = trained.data
    if run is None:
        return config
    if same_place(config.source, run.source):
        return dataclasses.replace(config, source=run.source)
    if config.validation < 1:
        return config
    own = dataclasses.replace(config, validation=run.validation)
    try:
        same = trained.dataset(own).fingerprint == trained.values["data"]["fingerprint"]
    except (ConfigError, DataError):  # too few to hold some out, or what all of it is refused for
        return config
    if same:
        say(f"{config.source} is what the run was trained on: its held-out part is measured")
    return own if same else config


def refuse_idle(config: DataConfig, run: DataConfig, task: Task, tokenizer: str | None) -> None:
    """Refuse what would change nothing.

    Args:
        run: the options that hold by default.
        tokenizer: name of the run's.

    Raises:
        ConfigError: names the first of them, with the reason.
    """
    for name, why in _idle(config, task, tokenizer):
        if getattr(config, name) != getattr(run, name):
            raise ConfigError(
                f"{spelled(f'--data.{name}')} changes nothing here: {why}; leave it out"
            )


def _idle(config: DataConfig, task: Task, tokenizer: str | None) -> Iterator[tuple[str, str]]:
    """Options that such an evaluation does not read, each with the reason."""
    builtin = BUILTINS.get(config.source)
    if config.tokenizer != tokenizer:
        reads = "no text" if tokenizer is None else f"text with the tokenizer {tokenizer}"
        yield "tokenizer", f"the run reads {reads}"
    made_by = None if builtin is None else builtin.options
    for name in GENERATED:
        if name not in (made_by or ()):
            yield name, f"'{config.source}' is not made by it"
    if made_by is not None:
        yield "validation", f"'{config.source}' is generated, and nothing of it is held out"
    elif (
        task.reads in ("text", "parallel text")
        and task.predicts != "hidden"
        and not config.source.removesuffix(".gz").endswith((*ARRAYS,))
    ):
        yield "seed", "nothing is drawn, the end of the texts is held out"
    if task.predicts != "hidden":
        yield "mask_rate", f"it is for mlm, and the task is {task.name}"
    if not task.pictures:
        for name in PICTURES:
            yield name, f"it is for pictures, and the task is {task.name}"
    if task.pictures or task.acts:
        yield "length", f"it is for sequences, and the task is {task.name}"
    yield "tokens", "it is of batches that are trained on"
    for name in ("best", "scale"):
        yield name, "it is of episodes that are trained on"
