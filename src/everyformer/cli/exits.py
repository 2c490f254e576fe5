"""Thresholds of a run's early exits: as given, or as its certificate or its training has them; and
the search for some (`everyformer eval RUN --search-exits N`)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from everyformer.cli.parsing import say
from everyformer.core.errors import ConfigError
from everyformer.core.plugins import command
from everyformer.lab.exits.options import ExitConfig
from everyformer.system.console import emit, table
from everyformer.system.files import expanded

if TYPE_CHECKING:
    from everyformer.cli.trained import TrainedRun
    from everyformer.cli.verbs.eval import EvalOptions
    from everyformer.data.dataset import Dataset

CERTIFICATE = "certificate.json"
"""beside the weights of a run"""
CALIBRATION = "calibration.json"
"""beside the certificate: what pictures are drawn of"""
CALIBRATION_FORMAT = "everyformer-calibration"
RECORD = "exit-search.json"
"""in the run's folder: what was tried, of which `show` draws"""


def settle_exits(
    trained: TrainedRun,
    model: Any,
    options: ExitConfig,
    data: str | None = None,
    *,
    tokens: float | None = None,
    likeliest: bool = True,
) -> None:
    """Let the tokens of ``model`` leave as given, or as the run has it, and report which.

    Args:
        data: fingerprint of what it is going to read, where that is known.
        tokens: that it is going to write, where it writes; infinite: without an end.
        likeliest: whether each of them is the likeliest.

    Raises:
        ConfigError: thresholds are given for a model without early exits.
        CheckpointError: the run's certificate is of another model, or damaged.
    """
    from everyformer.genes.depth.early_exits import exits_of, set_threshold
    from everyformer.lab.exits.certificate import Certificate
    from everyformer.system.fingerprint import weights_digest

    chosen = [
        name
        for name in ("threshold", "thresholds", "full")
        if getattr(options, name) != getattr(ExitConfig(), name)
    ]
    if len(chosen) > 1:
        raise ConfigError(
            f"--exits.{chosen[0]} and --exits.{chosen[1]} both say where tokens leave: give one of "
            "them"
        )
    if not exits_of(model) and options == ExitConfig():
        return
    file = trained.path / CERTIFICATE
    if options != ExitConfig():
        set_threshold(model, options.thresholds or options.threshold)
    elif file.exists():
        certificate = Certificate.read(file)
        certificate.require(weights_digest(trained.model()))
        set_threshold(model, certificate.used)
        say(certificate.statement)
        other = [] if likeliest else ["draws its tokens (--temperature 0 takes the likeliest)"]
        if tokens not in (None, certificate.tokens):
            other.append("has no end" if tokens == math.inf else f"has {tokens:,} tokens")
        if other and certificate.used is not None:
            say(f"This text {' and '.join(other)}, so nothing of it is promised.")
        if None not in (data, certificate.source) and data != certificate.source:
            say(
                "Its prompts were drawn of other data than these, of which it promises nothing: "
                f"{command(f'calibrate {trained.path} --data ...')} does"
            )
    elif exits_of(model)[0].has_threshold:
        say(
            "tokens leave as in training, which promises nothing: "
            f"{command(f'calibrate {trained.path}')} finds the threshold that keeps a promise"
        )


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
