"""`everyformer train NAME --data ...`: one member on your data, resumable."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everyformer import family
from everyformer.cli.found import found_run
from everyformer.cli.names import refuse_files
from everyformer.cli.parsing import Line, say, take
from everyformer.core import plugins
from everyformer.core.config import MISSING, Choice, Given, NoOptions
from everyformer.core.errors import ConfigError, unknown
from everyformer.core.measures import NOT_BETTER
from everyformer.core.tasks import TASKS
from everyformer.core.wording import pluralise
from everyformer.family import info
from everyformer.family.outside import outside_name
from everyformer.family.proposals import reason, three
from everyformer.genes import GENES
from everyformer.system.console import emit, facts
from everyformer.system.files import expanded
from everyformer.training.spec import RunSpec, inherited, resolve, resumed

if TYPE_CHECKING:
    from everyformer.data.dataset import Dataset
    from everyformer.training.result import TrainResult

ABOUT = "Train a member on your data."
EXAMPLES = (
    "everyformer train aft-local --data mytext.txt --steps 2000",
    "everyformer train gmlp --data digits --budget-seconds 60 --model.width 64",
)
NOBODY = RunSpec(MISSING, {n: Choice(gene.default, NoOptions()) for n, gene in GENES.items()})
"""no member chosen yet: the options that all have"""


def run(words: Sequence[str]) -> int:
    """Train, and say where the results are."""
    given, base, options = read_run(words)
    folder = Path("runs") / options.member if options.out is None else expanded(options.out)

    from everyformer.data import load_dataset
    from everyformer.models.draft import require_read
    from everyformer.stores.runs import train_run
    from everyformer.training import RunDirectory
    from everyformer.training.checkpoint import checkpoints
    from everyformer.training.parallel.world import join, read_launch
    from everyformer.training.spec import build_run
    from everyformer.training.warmstart import read_start, warm_start

    here = read_launch()
    if here.size > 1 and here.rank == 0:
        say(f"waiting for the {here.size} processes of this run")
    # together from here on, so that one that is refused does not leave the others waiting
    with join(options.training.device):
        origin = None
        if options.from_run is not None:
            # once a run has started, it knows its origin itself
            exists = options.resume and (folder / "config.json").exists()
            origin = read_start(folder if exists else options.from_run)
        tokenizer = None if origin is None else origin.tokenizer
        if tokenizer is not None:
            options = _with_tokenizer(options, tokenizer.name, take(words, "--tokenizer")[0])
        dataset = load_dataset(
            options.data,
            options.task,
            tokenizer=tokenizer,
            able=_able(options.member, None if origin is None else origin.config.task),
            stored=None if base is None else base.data,
        )
        if base is None:
            # now that the task is known, what the member has there holds where nothing was given
            options = resolve(given, dataset.task)
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
                extra_config={"run": options.record()},
                say=say,
            ).result
    if not result.interrupted:
        rows = _rows(result, options, model, dataset, folder)
        _tell(rows, result, options, dataset, str(folder))
    return result.exit_code


def read_run(words: Sequence[str]) -> tuple[list[Given], RunSpec | None, RunSpec]:
    """The options that the words of a run give; the run that they continue or start from, whose
    options are the defaults; and all options as far as they are known without the data.

    The member, wherever it is named, decides which options there are, and so do the alternatives
    that are named for genes, the task, and that other run.

    Raises:
        ConfigError: what is given is wrong, or no member is named; then three are proposed.
    """
    line = Line(RunSpec, words, "train", family.names())
    _settle_origin(line)
    resumes = _resumes(line)
    member = _named_member(line)
    base = None
    if resumes and not line.helps:
        out = line.peek("out") or (member and str(Path("runs") / member))
        if out is None:
            raise ConfigError("--resume needs to know the run: give --out runs/NAME")
        base = resumed(out, member)
    _refuse_another(line, member)
    member = member or line.peek("member")
    if base is None and (origin := line.peek("from_run")) is not None:
        base = inherited(origin, member)
    if base is not None:
        member = base.member
    if member is None and not line.helps:
        # what data are meant, whoever learns from them
        _, _, any_run = read_run(["attention", *(w for w in words if w != "--print-config")])
        raise propose(words, any_run)
    about, default = ABOUT, NOBODY
    if member is None:
        about += " `everyformer train MEMBER --help all` has that member's own too."
    else:
        default = resolve([({"member": member, "task": line.peek("task")}, "")], None, base)
    given = line.read(about, EXAMPLES, default)
    options = resolve(given, None, base)
    if line.printing:
        line.printed(options)
    return given, base, options


def _settle_origin(line: Line[RunSpec]) -> None:
    """Put the run's own directory after --from, where a comparison's was given."""
    folder, rest = take(line.words, "--from")
    if folder is not None:
        run_folder, note = found_run(folder)
        if note is not None:
            say(note)
        line.words = [*rest, "--from", run_folder]


def _resumes(line: Line[RunSpec]) -> bool:
    """Whether a run goes on, by the line or its file; where it says auto, ``--resume`` or nothing
    comes in its place."""
    words = [word for word in line.words if word != "--resume=auto"]
    auto = len(words) < len(line.words)
    if "--resume" in words and words[(at := words.index("--resume")) + 1 : at + 2] == ["auto"]:
        del words[at : at + 2]
        auto = True
    in_file = line.table.get("resume")
    if in_file == "auto":
        line.table = {name: value for name, value in line.table.items() if name != "resume"}
    in_file = None if "--no-resume" in words else in_file
    if not auto and ("--resume" in words or in_file != "auto"):
        return "--resume" in words or in_file is True
    out = line.peek("out")
    if out is None:
        raise ConfigError("--resume auto needs to know the run: give --out runs/NAME")
    exists = (expanded(out) / "config.json").exists()
    line.words = [*words, "--resume"] if exists else words
    return exists


def _named_member(line: Line[RunSpec]) -> str | None:
    """The positional word, checked; None if there is none."""
    placed = line.placed(NOBODY)
    # before the member is known, all but one of the words after a flag of its own stand there too
    named = [word for word in placed if word in line.names]
    for word in placed[:1] if not named else ():
        if (outside := outside_name(word)) is not None:
            plugins.allow_model(outside)
            return word
    if placed and not named:
        refuse_files(placed[:1], line.verb)
        raise unknown("member", placed[0], line.names)
    return named[0] if named else None


def _refuse_another(line: Line[RunSpec], member: str | None) -> None:
    """Refuse a file with the genes of another member than the line names: it would be built of
    those under this one's name."""
    values = line.table
    genes = [name for name in GENES if name in values]
    if member is not None and genes and values.get("member", member) != member:
        raise ConfigError(
            f"{line.path} describes {values['member']} and its genes, and the command names "
            f"{member}: leave {member} out, or take 'member', {', '.join(genes)} out of the file"
        )


def propose(words: Sequence[str], run: RunSpec) -> ConfigError:
    """Say which three members suit the data, each with a reason and its command; the refusal.

    Args:
        words: those of `train`, without a member.
        run: of any member on these data.

    Raises:
        ConfigError, DataError: the data cannot be read, or serve no such task.
    """
    from everyformer.data.kind import Request
    from everyformer.data.load import recognised

    with Request(run.data, run.task) as request:
        task = recognised(request).does
    say(f"{run.data.source}: {task.reads}, for the task {task.name}; try one of these")
    for member in three(task):
        command = plugins.command(shlex.join(["train", member.name, *words]))
        say(f"\n  {command}\n      {member.title}; {reason(member, task)}")
    say("")
    return ConfigError(
        f"name the member to train: three are above, `everyformer list --task {task.name}` has all "
        "that can"
    )


def _with_tokenizer(options: RunSpec, tokenizer: str, other: str | None) -> RunSpec:
    """The tokenizer of the run that is started from holds; another one is refused."""
    if other is not None and other != tokenizer:
        raise ConfigError(
            f"the run in {options.from_run} reads text with the tokenizer {tokenizer}, and so "
            f"does one that starts from it: leave out --tokenizer {other}"
        )
    data = dataclasses.replace(options.data, tokenizer=tokenizer)
    return dataclasses.replace(options, data=data)


def _able(member: str, learned: str | None) -> tuple[str, ...]:
    """Tasks of the member; of plain text a model continues the one that it has ``learned``."""
    tasks = info(member).tasks
    plain = [name for name, task in TASKS.items() if task.reads == "text"]
    return tuple(
        task for task in tasks if learned not in plain or task not in plain or task == learned
    )


def _rows(
    result: TrainResult, options: RunSpec, model: Any, dataset: Dataset, folder: Path
) -> dict[str, Any]:
    """Numbers of the last evaluation, and their comparison with a baseline, by name."""
    from everyformer.core.leaks import leak_of
    from everyformer.core.wording import NOT_WRITING
    from everyformer.training.curves import advice, curve

    measured = result.evaluation or {}
    rows: dict[str, Any] = {n: v for n, v in measured.items() if isinstance(v, int | float)}
    value = dataset.does.against_baseline(measured)
    if value is not None:
        rows["baseline"] = value
        if value.startswith(NOT_BETTER):
            rows["advice"] = advice(measured, curve(folder), options.training.lr)
    if leak := leak_of(model, dataset.length):
        rows["baseline"] = f"{NOT_WRITING}: {leak}"
    return rows


def _tell(
    rows: dict[str, Any], result: TrainResult, options: RunSpec, dataset: Dataset, where: str
) -> None:
    """Print how a training ended, and the command that continues it."""
    task, measured = dataset.does, result.evaluation
    tables = task.table(measured, dataset) if measured and not options.json else None
    if tables is not None:
        print(f"{tables}\n")
        kept = ("step", "loss", "baseline", "advice")
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
        "trained": f"{pluralise(result.steps, 'step')}, {result.seconds:.1f} s{speed}",
        "next": plugins.command(use.format(run=shlex.quote(where))),
    }
    if options.json:
        emit({**rows, "evaluation": measured, "best": best})
    else:
        print(facts(rows))
