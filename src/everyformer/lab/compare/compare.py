"""`compare`: run every job, collect what came of them, and write table and page.

Members are timed in turn first: all speeds that are compared come from there, a budget in seconds
becomes a fair number of steps of each, and the whole can be foretold. Every training runs in a
process, one after the other here or as tasks of Ray. After every member the table and a page are
written; what is finished is saved: a comparison that was stopped is resumed by
`resume`.
"""

import dataclasses
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from everyformer.core.devices import check_compiler, pick_device
from everyformer.core.plugins import allow_model
from everyformer.core.tasks import TASKS
from everyformer.core.wording import duration, join_first, pluralise
from everyformer.data import load_dataset
from everyformer.data.dataset import Dataset
from everyformer.family import info
from everyformer.family.outside import outside_name
from everyformer.lab.compare.calibration import calibrate
from everyformer.lab.compare.cluster import Cluster
from everyformer.lab.compare.collect import collect, write
from everyformer.lab.compare.config import CompareConfig
from everyformer.lab.compare.decoding import LONGEST
from everyformer.lab.compare.estimate import Estimate
from everyformer.lab.compare.files import RESULT
from everyformer.lab.compare.folder import COMPARISONS
from everyformer.lab.compare.launchers import Launcher, Local
from everyformer.lab.compare.lawful import sentence, with_laws
from everyformer.lab.compare.plan import Candidate, candidates, check_design, jobs, own_options
from everyformer.lab.compare.results import Calibrated, FailedRow, Results, TableRow
from everyformer.lab.compare.timing import LayerTimes
from everyformer.lab.compare.trainings import Finished, Say, Trainings, say_news
from everyformer.system.signals import GracefulStop
from everyformer.system.status import status
from everyformer.training.config import TrainingConfig
from sequence_laws.memory import size

Report = Callable[..., object]
"""``report(results, folder, complete=...)`` writes the page"""


@dataclass(frozen=True)
class Outcome:
    """End of a comparison; the same as results.json."""

    rows: list[TableRow | FailedRow]
    """one a member, best first"""
    results: Results
    """everything: config, environment, data, rows, runs with their curves, bench points; of an
    interrupted one what there is, empty where that is nothing"""
    folder: Path
    interrupted: int | None = None
    """the signal that stopped it, if one did"""


def run_comparison(
    config: CompareConfig, report: Report, *, say: Say = print, command: str = ""
) -> Outcome:
    """Run or continue the comparison that ``config`` describes.

    Args:
        report: writes a page about the results into the folder; ``complete`` says whether more
            will come, so that a brief one will do.
        say: takes the news, a line at a time.
        command: the words that began it.
    """
    start = time.perf_counter()
    dataset = read(config, say)
    ready = built(config, dataset, say)
    place = COMPARISONS.opened(config, command, data=dataset.fingerprint)
    with place as folder, _launcher(config) as launcher:
        if any(not (folder / one.folder / RESULT).exists() for one in jobs(config, ready)):
            launcher.open()
        finished, results = Finished(), cast(Results, {})
        layered = [e.member for e in ready if e.config is not None and e.config.outside is None]
        times = LayerTimes(config, layered, folder)
        times.pilot()
        with (stop := GracefulStop()):
            calibrated = calibrate(config, ready, dataset, folder, stop, say)
        ready = [_settled(candidate, calibrated, config.training) for candidate in ready]
        estimate = Estimate(config, ready, dataset, calibrated, times.expected(), launcher.at_once)
        trainings = Trainings(config, dataset, folder, say, stop, estimate, launcher)
        trainings.note_saved(ready)
        if stop.received is None:
            gone = time.perf_counter() - start
            say(announced(config, ready, calibrated, estimate, gone))
            for length, seconds in times.measure():
                estimate.timed(length, seconds)
                say_news(estimate, say)
        with stop:

            def collected(finished: Finished) -> Results:
                """Results so far, in their files."""
                so_far = collect(
                    config, dataset, ready, calibrated, finished, times.points, folder, command
                )
                write(so_far, folder)
                return so_far

            for trained in trainings.run(ready):
                finished += trained
                results = collected(finished)
                with status("drawing the page so far"):
                    report(results, folder, complete=False)
            # one that was left behind may share the first tier again, and at last gets all seeds
            for seeds in itertools.chain(config.looks[1:], itertools.repeat(config.until_settled)):
                first = results["verdict"]["best"] if finished and config.looks else []
                if stop.received or not first or results["verdict"].get("ended") or not seeds:
                    break
                again = [candidate for candidate in ready if candidate.member in first]
                estimate.more(first, seeds)
                left = duration(estimate.announce())
                say(f"not settled: {join_first(first)} get {seeds} seeds each, in about {left}")
                more = [*itertools.chain(*trainings.run(again, seeds))]
                if stop.received is None:
                    finished = [one for one in finished if one[0].member not in first] + more
                    results = collected(finished)
        if stop.received:
            return Outcome(results.get("rows", []), results, folder, stop.received)
        if not finished:
            results = collected([])
        # a stop from this point on loses nothing that was trained, so it may come at once
        with status("drawing the page"):
            report(results, folder, complete=True)
        return Outcome(results["rows"], results, folder)


def read(config: CompareConfig, say: Say) -> Dataset:
    """The data of a comparison whose description holds."""
    for member in config.members:
        info(member)
        if (outside := outside_name(member)) is not None:
            allow_model(outside)
    own_options(config)
    check_design(config)
    COMPARISONS.check(config)
    if config.training.compile:
        check_compiler(pick_device(config.training.device))
    with status(f"reading {config.data.source}"):
        dataset = load_dataset(
            config.data,
            config.task,
            able=common_tasks(config.members),
            stored=config.data if config.resume else None,
        )
        config.training.check_task(dataset.does)
    say(f"{dataset.name}: {dataset.split}")
    if config.decode is None and dataset.does.continues and dataset.length > LONGEST:
        say(
            f"a token is timed after up to {LONGEST:,} others, not the {dataset.length:,} of a "
            "text, which may take long: --decode N measures more"
        )
    return dataset


def _launcher(config: CompareConfig) -> Launcher:
    """The launcher of the trainings."""
    return Local() if config.launcher == "local" else Cluster(config)


def built(config: CompareConfig, dataset: Dataset, say: Say) -> list[Candidate]:
    """The members, third-party models with the laws that they break."""
    with status("building the members"):
        ready = candidates(config, dataset)
    for candidate in ready:
        if candidate.error is not None:
            say(f"{candidate.member}: cannot be built: {candidate.error}")
    ready = with_laws(ready, causal=dataset.does.forward_only)
    for candidate in ready:
        for law in candidate.broken:
            say(f"{candidate.member} {sentence(law)}")
    return ready


def announced(
    config: CompareConfig,
    ready: list[Candidate],
    calibrated: dict[str, Calibrated],
    estimate: Estimate,
    gone: float,
) -> str:
    """Plan of the comparison with its time and memory, in one sentence.

    Args:
        gone: seconds that were spent before.
    """
    able = [candidate.member for candidate in ready if candidate.config is not None]
    steps = [f"{name} {calibrated[name]['steps']:,}" for name in able if name in calibrated]
    training = config.training
    in_steps = "" if training.budget[0] == "steps" else f" (steps: {join_first(steps)})"
    memory = max((known["peak_bytes"] or 0 for known in calibrated.values()), default=0)
    whole = gone + estimate.announce()
    most = config.until_settled
    until = f", and more until it is settled, up to {most} seeds" if most else ""
    many = f"{pluralise(estimate.trainings, 'training')} of {training.budget_words}{in_steps}"
    return (
        f"{many}{' each' * (estimate.trainings != 1)}, with timing, evaluations and the page about "
        f"{duration(whole)} in all ({duration(gone)} of them are over){until}"
        + (f"; up to {size(memory)} of memory" if memory else "")
    )


def _settled(
    candidate: Candidate, calibrated: dict[str, Calibrated], training: TrainingConfig
) -> Candidate:
    """A member whose budget in seconds is turned into steps, and whose precision is chosen, where
    they are to be and its speed is known."""
    known = calibrated.get(candidate.member)
    if known is None:
        return candidate
    steps = None if training.budget_seconds is None else known["steps"]
    precision = known["precision"] if training.precision == "auto" else None
    return dataclasses.replace(candidate, steps=steps, precision=precision)


def common_tasks(members: Sequence[str]) -> tuple[str, ...]:
    """The tasks that all of ``members`` have, or that any has where they share none."""
    tasks = [info(member).tasks for member in members]
    shared = tuple(task for task in TASKS if all(task in able for able in tasks))
    return shared or tuple(TASKS)
