"""`everyformer train NAME --data ...`: one member on your data, resumable."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everyformer.cli.console import emit, facts
from everyformer.cli.found import found_run
from everyformer.cli.parsing import peek, say, take
from everyformer.cli.run_options import TrainOptions, read_run, run_folder
from everyformer.core import plugins as own
from everyformer.core.baselines import NOT_BETTER
from everyformer.core.config import to_dict
from everyformer.core.errors import ConfigError
from everyformer.core.tasks import TASKS
from everyformer.core.wording import counted
from everyformer.family import info

if TYPE_CHECKING:
    from everyformer.data.dataset import Dataset
    from everyformer.data.tokenizers.base import Tokenizer
    from everyformer.training.result import TrainResult
    from everyformer.training.warmstart import Start


def run(words: Sequence[str]) -> int:
    """Train, and say where the results are."""
    typed, words = words, _from_a_run(words)
    said, options = read_run(words, typed)
    folder = run_folder(options)

    from everyformer.data import load_dataset
    from everyformer.models.draft import require_read
    from everyformer.stores.runs import train_run
    from everyformer.training import RunDirectory
    from everyformer.training.checkpoint import checkpoints
    from everyformer.training.parallel.world import join, read_launch
    from everyformer.training.spec import build_run
    from everyformer.training.warmstart import warm_start

    here = read_launch()
    if here.size > 1 and here.rank == 0:
        say(f"waiting for the {here.size} processes of this run")
    # together from here on, so that one that is refused does not leave the others waiting
    with join(options.training.device):
        origin = _origin(options, folder)
        if origin is not None and origin.tokenizer is not None:
            options = _with_tokenizer(options, origin.tokenizer, peek(words, "--tokenizer"))
        dataset = load_dataset(
            options.data,
            options.task,
            tokenizer=None if origin is None else origin.tokenizer,
            able=_able(options, origin),
            stored=None if said.base is None else said.base.data,
        )
        if said.base is None:
            # now that the task is known, what the member has there holds where nothing was said
            options = said.options(dataset.task)
            require_read(options.member, dataset.task, options.model)
        # what was called classify or regress has its full name from here on
        options = dataclasses.replace(options, task=dataset.task)
        model = build_run(options, dataset, None if origin is None else origin.config)
        count = sum(p.numel() for p in model.parameters())
        say(f"{options.member}: {count:,} parameters, task {dataset.task}; {dataset.split}")
        started = not options.overwrite and checkpoints(folder / "checkpoints")
        if options.from_run is not None and not started:
            for line in warm_start(model, options.from_run, dataset.tokenizer).lines():
                say(f"from {options.from_run}: {line}")
        with RunDirectory(folder, resume=options.resume, overwrite=options.overwrite) as directory:
            result = train_run(
                model,
                dataset,
                options.training,
                directory,
                resume=options.resume,
                extra_config={"run": to_dict(options.spec())},
                say=say,
            ).result
    if not result.interrupted:
        rows = _rows(result, options, model, dataset, folder)
        _tell(rows, result, options, dataset, str(folder))
    return result.exit_code


def _rows(
    result: TrainResult, options: TrainOptions, model: Any, dataset: Dataset, folder: Path
) -> dict[str, Any]:
    """Numbers of the last evaluation, and what they are worth, by name."""
    from everyformer.core.leaks import leak_of
    from everyformer.core.wording import NOT_WRITING
    from everyformer.training.curves import advice, curve

    measured = result.evaluation or {}
    rows: dict[str, Any] = {n: v for n, v in measured.items() if isinstance(v, int | float)}
    value = dataset.does.worth(measured)
    if value is not None:
        rows["worth"] = value
        if value.startswith(NOT_BETTER):
            rows["advice"] = advice(measured, curve(folder), options.training.lr)
    if leak := leak_of(model, dataset.length):
        rows["worth"] = f"{NOT_WRITING}: {leak}"
    return rows


def _tell(
    rows: dict[str, Any], result: TrainResult, options: TrainOptions, dataset: Dataset, where: str
) -> None:
    """Print how a training ended, and the command that goes on from it."""
    task, measured = dataset.does, result.evaluation
    tables = task.table(measured, dataset) if measured and not options.json else None
    if tables is not None:
        print(f"{tables}\n")
        kept = ("step", "loss", "worth", "advice")
        rows = {name: rows[name] for name in kept if name in rows}
    best = result.best
    if best and measured and best["step"] != measured["step"]:
        at = f"step {best['step']:,}, loss {best['loss']:.6g}"
        rows["best"] = f"{at}: eval, predict and generate take that one"
    speed = f", {result.tokens_per_second:,.0f} tokens/s" if result.tokens_per_second else ""
    if result.left_out:
        speed += f" after the first {result.left_out} steps"
    use = task.use if dataset.tokenizer is not None or dataset.kind != "text" else "eval {run}"
    rows = {
        "run": where,
        **rows,
        "trained": f"{counted(result.steps, 'step')}, {result.seconds:.1f} s{speed}",
        "next": own.command(use.format(run=shlex.quote(where))),
    }
    if options.json:
        emit({**rows, "evaluation": measured, "best": best})
    else:
        print(facts(rows))


def _from_a_run(words: Sequence[str]) -> list[str]:
    """``words`` with the run's own directory after --from, where a comparison's was given."""
    folder, rest = take(words, "--from")
    if folder is None:
        return rest
    run_folder, note = found_run(folder)
    if note is not None:
        say(note)
    return [*rest, "--from", run_folder]


def _origin(options: TrainOptions, folder: Path) -> Start | None:
    """Model that a run began with; once it has begun, it knows that itself."""
    from everyformer.training.warmstart import read_start

    if options.from_run is None:
        return None
    started = options.resume and (folder / "config.json").exists()
    return read_start(folder if started else options.from_run)


def _able(options: TrainOptions, origin: Start | None) -> tuple[str, ...]:
    """Tasks of the member; of plain text a model goes on with the one that it has learned."""
    tasks = info(options.member).tasks
    plain = [name for name, task in TASKS.items() if task.reads == "text"]
    if origin is None or origin.config.task not in plain:
        return tasks
    return tuple(task for task in tasks if task not in plain or task == origin.config.task)


def _with_tokenizer(options: TrainOptions, tokenizer: Tokenizer, other: str | None) -> TrainOptions:
    """The tokenizer of the run that is started from holds; another one is refused."""
    if other is not None and other != tokenizer.name:
        raise ConfigError(
            f"the run in {options.from_run} reads text with the tokenizer {tokenizer.name}, and so "
            f"does one that starts from it: leave out --tokenizer {other}"
        )
    data = dataclasses.replace(options.data, tokenizer=tokenizer.name)
    return dataclasses.replace(options, data=data)
