"""`everyformer suite`: a comparison for each probe, and a board of all of them.

    OUT/suite.json               what was asked for
    OUT/PROBE/                   a comparison, as `everyformer compare` leaves one
    OUT/board.json, board.csv, index.html

Trainings run several at once. Nothing is timed: a board is about what members learn. A learning
rate is chosen by the validation rows, every number on the board is of the test rows. A suite that
was stopped is resumed; jobs of any scheduler may train a cell (a probe, a member) each.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everyformer.core.errors import ConfigError
from everyformer.core.plugins import allow_model
from everyformer.core.wording import duration
from everyformer.data import load_dataset
from everyformer.data.config import DataConfig
from everyformer.data.dataset import Dataset
from everyformer.family import info
from everyformer.family.outside import outside_name
from everyformer.lab.compare.cluster import Cluster
from everyformer.lab.compare.collect import collect, write
from everyformer.lab.compare.compare import built
from everyformer.lab.compare.config import CompareConfig, own_genes
from everyformer.lab.compare.estimate import Estimate
from everyformer.lab.compare.files import RECORD
from everyformer.lab.compare.folder import COMPARISONS, Folders
from everyformer.lab.compare.launchers import Launcher, Local, Pool
from everyformer.lab.compare.plan import Candidate
from everyformer.lab.compare.results import Results
from everyformer.lab.compare.trainings import Finished, Say, Trainings
from everyformer.lab.suites.board import Board, board_of, cell_words, write_board
from everyformer.lab.suites.config import SuiteConfig
from everyformer.lab.suites.kind import PROBES
from everyformer.lab.suites.presets import BOARD, GUESTS, Setting, chosen
from everyformer.system.files import expanded
from everyformer.system.machine import cores
from everyformer.system.signals import GracefulStop
from everyformer.training.config import TrainingConfig

SUITES = Folders(SuiteConfig, "suite", "suite.json", "everyformer-suite")
SIZES = ("width", "layers", "heads")
"""what guests are given"""
WAIT = 60.0
"""seconds in which another job has written down what is asked for"""
Write = Callable[[Board, Path], object]


@dataclass(frozen=True)
class Outcome:
    """End of a suite."""

    board: Board | None
    """None where no probe was finished"""
    folder: Path
    interrupted: int | None = None
    """the signal that stopped it, if one did"""


@dataclass(frozen=True)
class Column:
    """A probe, ready to be trained."""

    name: str
    setting: Setting
    comparison: CompareConfig
    parts: list[tuple[Dataset, list[Candidate]]]
    """the members that see one side, and those that see both, each with the data as they read it"""

    @property
    def ready(self) -> list[Candidate]:
        """All members, in the order in which they were given."""
        every = {one.member: one for _, ready in self.parts for one in ready}
        return [every[member] for member in self.comparison.members]


def run_suite(config: SuiteConfig, page: Write, *, say: Say = print, command: str = "") -> Outcome:
    """Run or continue a suite.

    Args:
        page: writes the page of a board into the folder.
        say: takes the news, a line at a time.
        command: the words that began it.
    """
    config = complete(config)
    settings = chosen(config.preset, config.suite)
    with SUITES.opened(config, command) as folder, GracefulStop() as stop:
        results: dict[str, Results] = {}
        board = None
        with _launcher(config, settings) as launcher:
            launcher.open()
            for name, setting in settings.items():
                column = prepared(config, name, setting, say)
                found = _train(column, launcher, stop, say, command)
                if found is None:
                    break
                results[name] = found
                board = board_of(config, settings, results, command)
                write_board(board, folder)
                page(board, folder)
        return Outcome(board, folder, stop.received)


def run_cell(config: SuiteConfig, cell: str, *, say: Say = print, command: str = "") -> int:
    """Train one member on one probe, as a job of any scheduler; the exit code.

    Args:
        cell: PROBE/MEMBER.

    Raises:
        ConfigError: the suite has no such cell.
    """
    config = complete(config)
    settings = chosen(config.preset, config.suite)
    name, _, member = cell.partition("/")
    if name not in settings or member not in config.members:
        raise ConfigError(
            f"the suite has no cell '{cell}': its probes are {', '.join(settings)}, its members "
            f"{', '.join(config.members)}; give PROBE/MEMBER"
        )
    shared = dataclasses.replace(config, resume=True, overwrite=False)
    with SUITES.opened(shared, command, wait=WAIT):
        pass
    column = prepared(config, name, settings[name], say)
    fingerprint = column.parts[0][0].fingerprint
    with COMPARISONS.opened(column.comparison, command, data=fingerprint, wait=WAIT) as place:
        pass
    with GracefulStop() as stop, _processes(config.jobs or 1) as launcher:
        alone = [
            (dataset, [one for one in ready if one.member == member])
            for dataset, ready in column.parts
        ]
        finished = _trained(dataclasses.replace(column, parts=alone), place, launcher, stop, say)
        if stop.received is not None:
            say("stopped; the same words continue it")
            return 128 + stop.received
    good = finished and all(result["status"] == "done" for _, result in finished)
    return 0 if good else 1


def complete(config: SuiteConfig) -> SuiteConfig:
    """The options with every member by its name.

    Raises:
        ConfigError: a name is unknown, or a model of others may not be run.
    """
    named = [n for m in config.members for n in ((*BOARD, *GUESTS) if m == "board" else (m,))]
    named = [GUESTS.get(name, name) for name in named]
    for member in named:
        info(member)
        if (outside := outside_name(member)) is not None:
            allow_model(outside)
    return dataclasses.replace(config, members=(*dict.fromkeys(named),))


def comparison_of(config: SuiteConfig, name: str, setting: Setting) -> CompareConfig:
    """The comparison of a probe."""
    bases = {member: member.partition("@")[0] for member in config.members}
    own = [
        f"{member}.{option}"
        for member, base in bases.items()
        for one, _, option in (words.partition(".") for words in setting.own)
        if one == base
    ]
    out = expanded(config.out) / name.replace(":", "-")
    shared: dict[str, Any] = {
        "checkpoint_every": None,
        "evaluate_every": None,
        "keep": 1,
        "log_every": 50,
    }
    shared |= {"threads": config.threads, "device": config.device}
    training = TrainingConfig(**{**shared, **setting.training})
    assert training.steps is not None
    steps = max(1, round(training.steps * config.times))
    rates = config.lr_grid or setting.rates
    return CompareConfig(
        members=config.members,
        task=PROBES[setting.data].tasks()[0],
        data=DataConfig(source=setting.data, options=setting.options),
        genes={**own_genes(), **setting.genes},
        model=dict(setting.model),
        training=dataclasses.replace(training, steps=steps, lr=rates[0], seed=config.seed),
        options=tuple(own),
        seeds=config.seeds,
        lr_grid=rates if len(rates) > 1 else (),
        lengths=(),
        decode=(),
        launcher=config.launcher,
        out=str(out),
        resume=(out / RECORD).exists(),
    )


def prepared(config: SuiteConfig, name: str, setting: Setting, say: Say) -> Column:
    """A probe with its data and its members, each of which reads one side if it can."""
    comparison = comparison_of(config, name, setting)
    tasks, groups = PROBES[setting.data].tasks(), dict[tuple[str, bool], list[str]]()
    for member in config.members:
        able = [task for task in tasks if task in info(member).tasks]
        group = able[0] if able else tasks[0], outside_name(member) is not None
        groups.setdefault(group, []).append(member)
    parts = [_part(comparison, *group, (*those,), say) for group, those in groups.items()]
    return Column(name, setting, comparison, parts)


def _part(
    comparison: CompareConfig, task: str, guests: bool, members: tuple[str, ...], say: Say
) -> tuple[Dataset, list[Candidate]]:
    """Members that read alike with their data; ``guests`` are whole, and take sizes alone."""
    own = (x for x in comparison.options if x.partition("=")[0].rpartition(".")[0] in members)
    part = dataclasses.replace(comparison, members=members, task=task, options=tuple(own))
    if guests:
        sizes = {name: part.model[name] for name in SIZES}
        part = dataclasses.replace(part, genes=own_genes(), model=sizes)
    dataset = load_dataset(comparison.data, task)
    return dataset, built(part, dataset, say)


def _train(
    column: Column, launcher: Launcher, stop: GracefulStop, say: Say, command: str
) -> Results | None:
    """All trainings of a probe, and the results of its comparison in their files; None of one that
    was stopped."""
    dataset = column.parts[0][0]
    say(f"{column.name}: {dataset.split}")
    with COMPARISONS.opened(column.comparison, command, data=dataset.fingerprint) as place:
        finished = _trained(column, place, launcher, stop, say)
        if stop.received is not None:
            return None
        results = collect(
            column.comparison, dataset, column.ready, {}, finished, [], place, command
        )
        write(results, place)
        return results


def _trained(
    column: Column, place: Path, launcher: Launcher, stop: GracefulStop, say: Say
) -> Finished:
    """The trainings of a probe with their results."""
    finished = Finished()
    for dataset, ready in column.parts:
        estimate = Estimate(column.comparison, ready, dataset, {}, None, launcher.at_once)
        # a line for each member will do
        trainings = Trainings(column.comparison, dataset, place, _silent, stop, estimate, launcher)
        trainings.note_saved(ready)
        for of_member in trainings.run(ready):
            finished += of_member
            left = f" ({duration(estimate.left)} left)" if estimate.remaining else ""
            say(f"{column.name}: {cell_words(of_member, dataset)}{left}")
    return finished


def _silent(line: str) -> None:
    """Say nothing."""


def _launcher(config: SuiteConfig, settings: dict[str, Setting]) -> Launcher:
    """The launcher of the trainings of all probes."""
    if config.launcher == "ray":
        return Cluster(comparison_of(config, *next(iter(settings.items()))))
    return _processes(config.jobs or max(1, cores() // config.threads))


def _processes(at_once: int) -> Launcher:
    """A launcher of so many trainings at once here."""
    return Local() if at_once == 1 else Pool(at_once)
