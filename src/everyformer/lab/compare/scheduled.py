"""A comparison as jobs of any scheduler: one training of it at a time, and at last the table.

    compare A B --data D --steps 500 --seeds 3 --out DIR --only A --seed 1
    compare --collect --out DIR

Jobs share the folder, in which each trains in its own place, and need not know of each other. No
member is timed: who wants speeds too lets ``--resume`` continue the comparison on one machine.
"""

import dataclasses

from everyformer.core.errors import ConfigError
from everyformer.core.wording import join_first, pluralise
from everyformer.lab.compare.collect import collect, write
from everyformer.lab.compare.compare import Outcome, Report, built, read
from everyformer.lab.compare.config import CompareConfig
from everyformer.lab.compare.files import read_result, write_result
from everyformer.lab.compare.folder import COMPARISONS
from everyformer.lab.compare.plan import job
from everyformer.lab.compare.processes import ended, launch
from everyformer.lab.compare.trainings import Say, prepare, saved
from everyformer.system.signals import GracefulStop
from everyformer.system.status import status
from everyformer.training.evaluate import in_words

WAIT = 60.0
"""seconds in which another job has written down what is compared"""


def train_one(
    config: CompareConfig, member: str, seed: int, *, say: Say = print, command: str = ""
) -> int:
    """Train a member with a seed into the comparison's folder; the exit code.

    Args:
        config: the whole comparison, which all of its jobs are given alike.

    Raises:
        ConfigError: there is no such training in it, it is no comparison of such jobs, or another
            one is in the folder.
    """
    check_scheduled(config)
    seeds = _seeds(config)
    if member not in config.members or seed not in seeds:
        raise ConfigError(
            f"the comparison has no training of {member} with seed {seed}: its members are "
            f"{', '.join(config.members)}, its seeds {seeds[0]} to {seeds[-1]}"
        )
    dataset = read(config, say)
    [candidate] = [one for one in built(config, dataset, say) if one.member == member]
    shared = dataclasses.replace(config, resume=True, overwrite=False)
    with COMPARISONS.opened(shared, command, data=dataset.fingerprint, wait=WAIT) as folder:
        pass
    if candidate.config is None:
        return 1
    planned = job(config, candidate, seed, config.training.lr)
    place = folder / planned.folder
    result = saved(planned, place)
    if result is None or result["status"] != "done":
        prepare(planned, place, dataset.fingerprint)
        with GracefulStop() as stop:
            code = launch("worker", place, stop)
        result = read_result(place)
        if result is None and stop.received is not None:
            say("stopped; the same words continue it")
            return 128 + stop.received
        if result is None:
            result = {"status": "failed", "error": ended(code)}
            write_result(place, result)
    if result["status"] != "done":
        say(f"{member}: failed: {result['error']}")
        return 1
    say(f"{member} with seed {seed}: {in_words(result['evaluation'])}")
    return 0


def collect_trained(
    config: CompareConfig, report: Report, *, say: Say = print, command: str = ""
) -> tuple[Outcome, list[str]]:
    """Table and page of the trainings that are in the folder, and names of those that are not.

    Raises:
        ConfigError: there are none yet, or it is no comparison of such jobs.
    """
    check_scheduled(config)
    dataset = read(config, say)
    ready = built(config, dataset, say)
    with COMPARISONS.opened(config, command, data=dataset.fingerprint) as folder:
        able = [candidate for candidate in ready if candidate.config is not None]
        every = [job(config, e, seed, config.training.lr) for e in able for seed in _seeds(config)]
        found = [(one, saved(one, folder / one.folder)) for one in every]
        finished = [(one, result) for one, result in found if result is not None]
        first = config.training.seed + config.first_seeds
        missing = [one.folder for one, result in found if result is None and one.seed < first]
        if not finished:
            raise ConfigError(
                f"no training of the comparison in {folder} has ended: train with `only` and "
                "`seed`, or wait"
            )
        if missing:
            names = [name.rpartition("/")[2] for name in missing]
            say(
                f"{pluralise(len(missing), 'training')} of {len(every)} missing: "
                f"{join_first(names)}; --resume --only MEMBER --seed N --out {config.out} trains "
                "one"
            )
        results = collect(config, dataset, ready, {}, finished, [], folder, command)
        write(results, folder)
        with status("drawing the page"):
            report(results, folder, complete=True)
        return Outcome(results["rows"], results, folder), missing


def check_scheduled(config: CompareConfig) -> None:
    """Refuse a comparison whose trainings do not follow from its options alone.

    Raises:
        ConfigError: names the option.
    """
    if config.training.budget_seconds is not None:
        raise ConfigError(
            "a budget in seconds becomes steps only where all members are timed in turn: give "
            "`steps` or `budget_tokens` with `only` and `collect`"
        )
    if config.lr_grid:
        raise ConfigError(
            "`lr_grid` chooses a rate for the later seeds by the first: compare with the grid in "
            "one go, or give `lr` with `only` and `collect`"
        )


def _seeds(config: CompareConfig) -> range:
    """Every seed that a member may be trained with."""
    first = config.training.seed
    return range(first, first + (config.until_settled or config.seeds))
