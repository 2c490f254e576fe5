"""`everyformer compare A B ...`: the main job."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence

import tyro

from everyformer.cli.comparison_table import render
from everyformer.cli.console import emit
from everyformer.cli.flags import arrange, flags_of
from everyformer.cli.parsing import chosen_genes, parse, peek, say
from everyformer.cli.playing import environment_words
from everyformer.comparison.config import OWN, CompareConfig, own_genes
from everyformer.core.config import Choice, from_dict
from everyformer.core.errors import CheckpointError
from everyformer.core.files import expanded
from everyformer.core.gene import NONE, plain_choice
from everyformer.core.tasks import TASKS, tasks_that
from everyformer.family import names
from everyformer.genes import GENES
from everyformer.training.config import TrainingConfig

NAMES = names()
POLICY_STEPS = 100_000
"""steps of an environment that every policy may play"""


@dataclasses.dataclass(frozen=True)
class CompareOptions(CompareConfig):
    """The words of `everyformer compare`."""

    members: tyro.conf.Positional[tuple[str, ...]] = ("attention", "aft-local", "gmlp")
    """members to compare (`everyformer list`)"""
    json: bool = False
    """machine output on stdout"""


def run(words: Sequence[str]) -> int:
    """Compare, print the table, and say where the report is."""
    words = environment_words(words)
    options = parse(
        CompareOptions,
        words,
        verb="compare",
        about="Compare members on your data, on equal footing: quality, speed, memory.",
        examples=(
            "everyformer compare attention aft-conv gmlp --data mytext.txt --budget-seconds 60",
            "everyformer compare attention gmlp --data digits --seeds 3 --match parameters",
        ),
        default=_begun_options(words) or _default(words),
        names=NAMES,
    )
    from everyformer.comparison.compare import run_comparison
    from everyformer.comparison.folder import begun_with
    from everyformer.report.comparison import write_report

    config = CompareConfig(
        **{f.name: getattr(options, f.name) for f in dataclasses.fields(CompareConfig)}
    )
    kept = [word for word in words if word not in ("--resume", "--debug")]
    command = shlex.join(["everyformer", "compare", *kept])
    hint = f"stopped; go on with: everyformer compare --resume --out {config.out}"
    try:
        done = run_comparison(config, write_report, say=say, command=command)
    except KeyboardInterrupt:
        if begun_with(expanded(config.out)) is not None:
            say(hint)
        raise
    if done.interrupted:
        if done.rows:
            say(f"report of the members so far: {done.folder / 'report.html'}")
        say(hint)
        return 128 + done.interrupted
    if options.json:
        emit(done.results)
    else:
        print(render(done.results))
        print(f"\nreport  {done.folder / 'report.html'}")
    return 1 if any(row["status"] != "done" for row in done.rows) else 0


def _default(words: Sequence[str]) -> CompareOptions:
    """What holds where nothing is said; policies have the trainings of their task, and a budget in
    steps of the environment."""
    if peek(words, "--data.env") is None:
        return CompareOptions(genes=_genes(words))
    [task] = tasks_that("interacts")
    training = TrainingConfig(
        budget_tokens=POLICY_STEPS, checkpoint_every=None, **TASKS[task].training
    )
    return CompareOptions(genes=_genes(words), training=training)


def _genes(words: Sequence[str]) -> dict[str, Choice]:
    """What the words choose for a gene in all members, with the options that there are of it."""
    said = chosen_genes(words, "compare", (*NONE, OWN))
    named = {gene: plain_choice(name) for gene, name in said.items() if name != OWN}
    return own_genes() | {gene: GENES[gene].typed(choice) for gene, choice in named.items()}


def _begun_options(words: Sequence[str]) -> CompareOptions | None:
    """With --resume, what the comparison in that directory was begun with.

    Raises:
        CheckpointError: there is none, and no member is named to begin one with.
    """
    if "--resume" not in words or not {"--help", "-h"}.isdisjoint(words):
        return None
    from everyformer.comparison.folder import begun_with

    out = peek(words, "--out") or CompareOptions.out
    values = begun_with(expanded(out))
    if values is not None:
        begun = {**values, "out": out, "resume": False, "overwrite": False}
        return from_dict(CompareOptions, begun)
    placed, _ = arrange(words, flags_of(CompareOptions), NAMES)
    if not placed and peek(words, "--config") is None:
        raise CheckpointError(
            f"there is no comparison in {out} to resume: give its --out, or leave out --resume to "
            "begin one"
        )
    return None
