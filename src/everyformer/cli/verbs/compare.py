"""`everyformer compare A B ...`: the main job."""

import dataclasses
import shlex
from collections.abc import Sequence

import tyro

from everyformer.cli.flags import FlagGroup, without
from everyformer.cli.parsing import Line, say, take
from everyformer.core import plugins
from everyformer.core.config import part_of
from everyformer.core.errors import ConfigError
from everyformer.family import info, names
from everyformer.lab.compare.config import CompareConfig
from everyformer.lab.report.terminal import render
from everyformer.system.console import emit
from everyformer.system.files import expanded
from everyformer.training.config import TrainingConfig
from sequence_laws.names import is_target


@dataclasses.dataclass(frozen=True)
class CompareOptions(CompareConfig):
    """The words of `everyformer compare`."""

    members: tyro.conf.Positional[tuple[str, ...]] = ("attention", "aft-local", "gmlp")
    """members to compare (`everyformer list`)"""
    only: str | None = None
    """train this one of the members alone, with --seed (of a comparison in --out any of its seeds;
    else they begin with 0), as a job of any scheduler that shares --out, and no more"""
    collect: bool = False
    """train nothing: table and page of the trainings that jobs have left in --out, and which are
    missing"""
    json: bool = False
    """machine output on stdout"""


def run(words: Sequence[str]) -> int:
    """Compare, print the table, and say where the report is."""
    line = Line(CompareOptions, words, "compare", names())
    options = line.parse(
        about="Compare members on your data, on equal footing: quality, speed, memory.",
        examples=(
            "everyformer compare attention aft-conv gmlp --data mytext.txt --budget-seconds 60",
            "everyformer compare attention gmlp --data digits --seeds 3 --match parameters",
        ),
        default=_options_of_folder(line) or CompareOptions(),
    )
    for name in (member.partition("@")[0] for member in options.members):
        if not is_target(name):
            info(name)
    from everyformer.lab.compare.compare import run_comparison
    from everyformer.lab.compare.folder import COMPARISONS
    from everyformer.lab.report.comparison import write_report

    config = part_of(CompareConfig, options)
    config = dataclasses.replace(config, resume=config.resume or options.collect)
    command = _command(words, config)
    if options.only is not None or options.collect:
        return _scheduled(options, config, command)
    again = plugins.command(f"compare --resume --out {shlex.quote(config.out)}")
    hint = f"stopped; continue with: {again}"
    try:
        done = run_comparison(config, write_report, say=say, command=command)
    except KeyboardInterrupt:
        if COMPARISONS.options(expanded(config.out)) is not None:
            say(hint)
        raise
    page = f"{done.folder}/report.html"
    if done.interrupted:
        if done.rows:
            say(f"report of the members so far: {page}")
        say(hint)
        return 128 + done.interrupted
    if options.json:
        emit(done.results)
    else:
        print(render(done.results))
        print(f"\nreport  {page}")
    return 1 if any(row["status"] != "done" for row in done.rows) else 0


def _scheduled(options: CompareOptions, config: CompareConfig, command: str) -> int:
    """One training of a comparison, or what its jobs have left."""
    from everyformer.lab.compare.folder import COMPARISONS
    from everyformer.lab.compare.scheduled import collect_trained, train_one
    from everyformer.lab.report.comparison import write_report

    if options.collect:
        if options.only is not None or options.overwrite:
            raise ConfigError("--collect trains nothing: leave out --only and --overwrite")
        done, missing = collect_trained(config, write_report, say=say, command=command)
        if options.json:
            emit(done.results)
        else:
            print(render(done.results))
            print(f"\nreport  {done.folder}/report.html")
        return 1 if missing or any(row["status"] != "done" for row in done.rows) else 0
    assert options.only is not None
    if options.overwrite:
        raise ConfigError("other jobs share the folder: leave out --overwrite")
    known = COMPARISONS.options(expanded(config.out))
    first = TrainingConfig.seed if known is None else known["training"]["seed"]
    training = dataclasses.replace(config.training, seed=first)
    plan = dataclasses.replace(config, training=training, resume=known is not None)
    return train_one(plan, options.only, config.training.seed, say=say, command=command)


def _command(words: Sequence[str], config: CompareConfig) -> str:
    """Command that repeats the whole: the words that began it, then those of now."""
    from everyformer.lab.compare.folder import COMPARISONS

    rest = [word for word in words if word not in ("--resume", "--overwrite", "--collect")]
    only, rest = take(rest, "--only")
    rest = rest if only is None else take(rest, "--seed")[1]
    before = COMPARISONS.first_command(expanded(config.out)) if config.resume else None
    if before is None:
        return plugins.command(shlex.join(["compare", *rest]))
    rest = take(rest, "--out")[1]
    before = shlex.join(without(shlex.split(before), rest, FlagGroup(CompareOptions()).flags()))
    return f"{before} {shlex.join(rest)}" if rest else before


def _options_of_folder(line: Line[CompareOptions]) -> CompareOptions | None:
    """With --resume, what the comparison in that directory was started with.

    Raises:
        CheckpointError: there is none, and no member is named to begin one with.
    """
    if not {"--resume", "--collect"} & {*line.words} or line.helps:
        return None
    from everyformer.lab.compare.folder import COMPARISONS

    out = line.peek("out") or CompareOptions.out
    return COMPARISONS.started(CompareOptions, out, named=bool(line.placed() or line.path))
