"""Table of `everyformer eval RUN --store STORE --sweep`: all ways to read it."""

from __future__ import annotations

import math
import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from everyformer.cli.console import emit, table
from everyformer.cli.parsing import say
from everyformer.core.errors import ConfigError, DivergedError
from everyformer.genes.retrieval import Grid, KnnOptions
from everyformer.system.files import expanded

if TYPE_CHECKING:
    from everyformer.cli.eval_options import EvalOptions
    from everyformer.cli.trained import TrainedRun
    from everyformer.data.dataset import Dataset
    from everyformer.datastores.sweep import Cell

MOST = 20
"""rows of the table; all are in --json"""


def check_sweep(options: EvalOptions, windowed: bool) -> None:
    """Refuse options that a sweep does not read, or that nothing but a sweep does.

    Raises:
        ConfigError: names them.
    """
    if not options.sweep:
        if options.grid != Grid():
            raise ConfigError("--grid.k, --grid.temperature and --grid.weight are of --sweep")
        return
    if windowed or options.lengths or options.bleu or options.translations is not None:
        raise ConfigError(
            "--sweep reads windows side by side and gives losses: leave out --mode, --stride, "
            "--streams, --lengths, --bleu and --translations"
        )
    for name in ("k", "weight", "temperature"):
        if getattr(options.knn, name) != getattr(KnnOptions, name):
            raise ConfigError(f"--knn.{name} is one, and --sweep tries several: --grid.{name}")


def sweep_store(
    trained: TrainedRun, model: Any, dataset: Dataset, options: EvalOptions, rules: dict[str, Any]
) -> int:
    """Try every combination, print the table, draw the curves, name the best and what to do next.

    Raises:
        DivergedError: the loss of the model itself is not finite.
    """
    from everyformer.data.text import TextDataset
    from everyformer.datastores.reader import StoreReader
    from everyformer.datastores.sweep import sweep
    from everyformer.models.knn_lm import KnnLanguageModel
    from everyformer.report.sweep import draw_sweep
    from everyformer.system.pulse import doing
    from everyformer.training.evaluate import why_not_finite

    if not isinstance(model, KnnLanguageModel):
        raise ConfigError("--sweep tries ways to read a datastore: say which with --store")
    assert isinstance(dataset, TextDataset)
    assert isinstance(model.reader, StoreReader)
    store = model.reader.index.store
    grid = options.grid.resolved(len(store), model.options.distance)
    with doing("reading the text and its neighbours"):
        swept = sweep(model, dataset, grid, **rules)
    loss = swept.plain["loss"]
    if not math.isfinite(loss):
        raise DivergedError(
            f"the loss of {options.run} is {loss}, which measures nothing: "
            f"{why_not_finite(model.model, loss)}"
        )
    best = swept.tuned[0]
    out = expanded(options.out) if options.out is not None else trained.path / "sweep.png"
    draw_sweep(swept, out)
    flags = _flags(best, model.options)
    command = ["everyformer", "eval", options.run, "--store", str(store.folder)]
    after = f"{shlex.join(command)} --data OTHER.txt {flags}"
    if options.json:
        emit(
            {
                "run": options.run,
                "data": dataset.summary(),
                "model": swept.plain,
                "cells": [asdict(cell) for cell in swept.cells],
                "best": asdict(best) | {"options": flags},
                "figure": str(out),
            }
        )
        return 0
    print(_table(swept.tuned, swept.cells, options.grid))
    if len(swept.tuned) > MOST:
        say(f"the best {MOST} of {len(swept.tuned)} combinations; --json gives all")
    print(f"\nmodel alone  loss {loss:.4f}")
    print(f"best         loss {best.loss:.4f}   {flags}")
    for line in (*_remarks(best, grid), swept.at_most(best.weight)):
        if line:
            say(line)
    say(
        "k, temperature and lambda were chosen on this very text, so its loss is a little too "
        "good: measure another text with them"
    )
    if best.weight > 0:
        print(f"next         {after}")
    print(out)
    return 0


def _flags(best: Cell, knn: KnnOptions) -> str:
    """The options that read the store so."""
    words = [f"--knn.k {best.k}", f"--knn.temperature {best.temperature:g}"]
    # as many digits as keep the largest lambda of a long text below 1
    words.append(f"--knn.weight {best.weight:.9g}")
    if knn.distance != KnnOptions.distance:
        words.append(f"--knn.distance {knn.distance}")
    return " ".join(words)


def _table(tuned: list[Cell], cells: list[Cell], grid: Grid) -> str:
    """A line for each k and temperature, the best first; weights that were asked for as columns."""
    by_place = {(cell.k, cell.temperature, cell.weight): cell for cell in cells if not cell.tuned}
    weights = sorted(set(grid.weight))
    with_bytes = tuned[0].bits_per_byte is not None
    names = ["loss", "perplexity", *(["bits per byte"] if with_bytes else [])]
    rows = [
        [
            f"{cell.k:,}",
            f"{cell.temperature:g}",
            f"{cell.weight:.6g}",
            f"{cell.loss:.4f}",
            f"{cell.perplexity:.4f}",
            *([f"{cell.bits_per_byte:.4f}"] if with_bytes else []),
            *(f"{by_place[cell.k, cell.temperature, w].loss:.4f}" for w in weights),
        ]
        for cell in tuned[:MOST]
    ]
    return table(["k", "T", "lambda by EM", *names, *(f"loss at {w:g}" for w in weights)], rows)


def _remarks(best: Cell, grid: Grid) -> list[str]:
    """Remarks on the best combination."""
    if best.weight == 0:
        return ["the store does not help with this text: lambda 0, the model alone, is best"]
    remarks = []
    for name, value, tried in (
        ("k", best.k, grid.k),
        ("temperature", best.temperature, grid.temperature),
    ):
        if len(tried) > 1 and value in (tried[0], tried[-1]):
            end = "smallest" if value == tried[0] else "largest"
            remarks.append(
                f"{name} {value:g} is the {end} that was tried: try others with --grid.{name}"
            )
    return remarks
