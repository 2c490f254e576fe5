"""`everyformer suite A B ...`: what members can do, measured on probes."""

import dataclasses
import shlex
from collections.abc import Sequence

import tyro

from everyformer.cli.parsing import Line, say, take
from everyformer.core import plugins
from everyformer.core.config import part_of
from everyformer.family import names
from everyformer.lab.suites.config import SuiteConfig
from everyformer.system.console import emit
from everyformer.system.files import expanded


@dataclasses.dataclass(frozen=True)
class SuiteOptions(SuiteConfig):
    """The words of `everyformer suite`."""

    members: tyro.conf.Positional[tuple[str, ...]] = ("attention", "linear", "aft-local")
    """members (`everyformer list`), and guests that are none: lstm, mamba2, gated_delta, and whole
    models as file.py:factory, module:factory, hf:KIND; board: one member for each mechanism, and
    those guests; one may be there again, as NAME@LABEL"""
    only: str | None = None
    """PROBE/MEMBER: train this cell alone, as a job of any scheduler that shares --out; after all
    of them --resume writes the board"""
    json: bool = False
    """machine output on stdout"""


def run(words: Sequence[str]) -> int:
    """Train all cells, print the board, and say where its page is."""
    line = Line(SuiteOptions, words, "suite", names())
    options = line.parse(
        about="Measure what members can do: recall, copying, memory, states, on generated probes.",
        examples=(
            "everyformer suite attention linear gmlp --suite mqar induction",
            "everyformer suite board --out runs/board",
        ),
        default=_options_of_folder(line) or SuiteOptions(),
    )
    from everyformer.lab.suites.page import render, write_page
    from everyformer.lab.suites.run import SUITES, run_cell, run_suite

    config = part_of(SuiteConfig, options)
    # of a suite that is continued, the words that began it
    before = SUITES.first_command(expanded(config.out)) if config.resume else None
    command = before or _command(words)
    if options.only is not None:
        return run_cell(config, options.only, say=say, command=command)
    done = run_suite(config, write_page, say=say, command=command)
    if done.interrupted:
        again = plugins.command(f"suite --resume --out {shlex.quote(config.out)}")
        say(f"stopped; continue with: {again}")
        return 128 + done.interrupted
    assert done.board is not None
    if options.json:
        emit(done.board)
    else:
        print(render(done.board))
        print(f"\npage  {done.folder}/index.html")
    return 1 if any(cell["status"] == "failed" for cell in done.board["cells"]) else 0


def _command(words: Sequence[str]) -> str:
    """The command that repeats the whole."""
    rest = [word for word in words if word not in ("--resume", "--overwrite", "--json")]
    return plugins.command(shlex.join(["suite", *take(rest, "--only")[1]]))


def _options_of_folder(line: Line[SuiteOptions]) -> SuiteOptions | None:
    """With --resume, what the suite in that directory was started with.

    Raises:
        CheckpointError: there is none, and no member is named to begin one with.
    """
    if "--resume" not in line.words or line.helps:
        return None
    from everyformer.lab.suites.run import SUITES

    out = line.peek("out") or SuiteOptions.out
    return SUITES.started(SuiteOptions, out, named=bool(line.placed() or line.path))
