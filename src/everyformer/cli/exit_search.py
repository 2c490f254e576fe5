"""Search of `everyformer eval RUN --search-exits N`: thresholds, and those that are worth it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from everyformer.cli.console import emit, table
from everyformer.cli.parsing import say
from everyformer.core.errors import ConfigError
from everyformer.lab.exits.options import ExitConfig
from everyformer.system.files import expanded

if TYPE_CHECKING:
    from everyformer.cli.eval_options import EvalOptions
    from everyformer.cli.trained import TrainedRun
    from everyformer.data.dataset import Dataset

RECORD = "exit-search.json"
"""in the run's folder: what was tried, of which `show` draws"""


def search_exits(
    trained: TrainedRun, model: Any, dataset: Dataset, options: EvalOptions, rules: dict[str, Any]
) -> int:
    """Try them, keep and draw all, print the front with the flags of each.

    Raises:
        ConfigError: a threshold is given too.
    """
    from everyformer.lab.exits.search import pareto, search_thresholds, write_tries
    from everyformer.lab.report.exits import draw_search
    from everyformer.system.status import status

    if options.exits != ExitConfig():
        raise ConfigError("--search-exits tries thresholds: leave out --exits")
    assert options.search_exits is not None
    trials = []
    with status(f"trying {options.search_exits} thresholds"):
        for tried in search_thresholds(model, dataset, options.search_exits, **rules):
            trials.append(tried)
            say(f"{len(trials)} of {options.search_exits + 1}: {tried.depth:.2f} layers, loss "
                f"{tried.loss:.4f}")  # fmt: skip
    write_tries(trained.path / RECORD, trials)
    front = pareto(trials)
    out = expanded(options.out) if options.out is not None else trained.path / "exits.png"
    draw_search(trials, front, out)
    if options.json:
        emit({"run": options.run, "tried": [one._asdict() for one in trials],
              "front": [one._asdict() for one in front], "figure": str(out)})  # fmt: skip
        return 0
    rows = [
        [f"{one.depth:.2f}", f"{one.loss:.4f}", f"{one.accuracy:.4f}", _flags(one.thresholds)]
        for one in front
    ]
    print(table(["layers", "loss", "accuracy", "with"], rows))
    print(out)
    return 0


def _flags(thresholds: tuple[float, ...]) -> str:
    if not thresholds:
        return "--exits.full"
    name = "threshold" if len(thresholds) == 1 else "thresholds"
    return f"--exits.{name} {' '.join(f'{one:g}' for one in thresholds)}"
