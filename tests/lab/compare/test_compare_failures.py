"""A member that fails is reported and the others go on; a directory never mixes comparisons."""

import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from small_comparisons import SMALL, Compared

from everyformer.cli import main
from everyformer.lab.compare import launchers, plan, worker
from everyformer.system.signals import GracefulStop
from everyformer.training import loop
from everyformer.training.logging import read_metrics

Compare = Callable[..., Compared]
OWN_MIXER = """
from torch import nn
from everyformer.core.outputs import MixerOutput
from everyformer.genes.mixers.base import StreamingMixer

class Halves(StreamingMixer):
    "Half of every token."
    name = "halves"
    def build(self, max_length):
        self.out = nn.Linear(self.width, self.width)
    def forward_rows(self, rows, state):
        return MixerOutput(self.out(rows.x) / 2, None, {})
"""


def breaks(member: str, how: Callable[[Any], Any]) -> Callable[..., Any]:
    """`build_run` whose result for one member goes through ``how``."""
    build = worker.build_run
    return lambda spec, data: (how if spec.member == member else (lambda m: m))(build(spec, data))


def not_a_number(model: torch.nn.Module) -> torch.nn.Module:
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    return model


def out_of_order(model: torch.nn.Module) -> torch.nn.Module:
    raise ZeroDivisionError("of all things\nwith details")


def at_an_end(model: torch.nn.Module) -> torch.nn.Module:
    sys.exit(0)


def out_of_memory(model: torch.nn.Module) -> torch.nn.Module:
    raise MemoryError


def test_a_member_that_cannot_be_built_is_reported(
    compare: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = plan.count_parameters

    def broken(config: Any) -> int:
        if config.member == "aft-simple":
            raise RuntimeError("a bug in this member")
        return count(config)

    monkeypatch.setattr(plan, "count_parameters", broken)
    done = compare("vit", "gmlp", "aft-simple", "attention", "--steps", "1")
    assert done.code == 1
    assert "'vit' has no task 'lm'" in done.row("vit")["error"]
    said = rf"^{re.escape(__file__)}, line \d+, in .*broken: RuntimeError: a bug in this member$"
    assert re.search(said, done.row("aft-simple")["error"])
    assert {done.row(m)["status"] for m in ("gmlp", "attention")} == {"done"}
    assert [row["status"] for row in done.results["rows"]] == ["done"] * 2 + ["failed"] * 2
    # the first that could be built is what the others are measured by
    assert done.row("gmlp")["parameter_ratio"] == 1
    assert "vit failed: member 'vit' has no task 'lm'" in done.out
    assert [line["status"] for line in done.table()] == ["done"] * 2 + ["failed"] * 2
    # all may fail
    done = compare("vit", "--steps", "1", out="none")
    assert done.code == 1
    assert "No member could be trained" in done.out.splitlines()[0]
    assert re.search(r"^vit +failed", done.out, re.MULTILINE)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        (not_a_number, "the loss became nan in step 1"),
        (out_of_order, "ZeroDivisionError: of all things with details (traceback in"),
        (at_an_end, "the program was ended (SystemExit: 0), which no code here may do (traceback"),
        (out_of_memory, "MemoryError"),
    ],
)
def test_a_member_that_fails_in_training_is_reported(
    how: Callable[[Any], Any], told: str, compare: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "build_run", breaks("gmlp", how))
    done = compare("gmlp", "attention", "--steps", "1")
    assert done.code == 1
    assert told in done.row("gmlp")["error"]
    # but for its options, which are flags here
    assert f"gmlp: failed: {done.row('gmlp')['error'].partition('`')[0]}" in done.err
    assert done.row("attention")["status"] == "done"
    trace = done.folder / "runs" / "gmlp-seed0" / "error.txt"
    assert trace.exists() is (how is not not_a_number)


def test_a_process_that_dies_is_reported(
    compare: Compare, launched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = launchers.launch

    def dies(module: str, place: Path, stop: GracefulStop, *words: str) -> int:
        ends = {"gmlp-seed0": -signal.SIGKILL, "aft-simple-seed0": 3}
        return ends[place.name] if place.name in ends else run(module, place, stop, *words)

    monkeypatch.setattr(launchers, "launch", dies)
    done = compare("gmlp", "aft-simple", "attention", "--steps", "1", "--seeds", "2")
    assert done.code == 1
    assert done.row("gmlp")["error"] == "the process ended with signal 9 (out of memory?)"
    assert done.row("aft-simple")["error"] == "the process ended with exit code 3"
    assert done.row("attention")["status"] == "done"


def test_resume_repeats_what_failed_and_nothing_else(
    compare: Compare, launched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(worker, "build_run", breaks("gmlp", out_of_memory))
        first = compare("gmlp", "attention", "--steps", "1")
    # and a result that was cut short
    result = first.folder / "runs" / "attention-seed0" / "result.json"
    result.write_text(result.read_text(encoding="utf-8")[:100], encoding="utf-8")
    launched.clear()
    again = compare("--resume", small=False)
    assert again.code == 0, again.err
    assert sorted(launched) == ["attention-seed0", "gmlp-seed0"]
    assert again.row("attention")["quality"] == first.row("attention")["quality"]
    assert again.row("attention")["tokens_per_second"] > 0
    launched.clear()
    assert compare("--resume", small=False).code == 0
    assert launched == []


@pytest.mark.full("seconds each", parts=3)
def test_a_filled_directory_is_only_resumed_or_overwritten(
    compare: Compare, tree: Path, launched: list[str]
) -> None:
    (tree / "foreign").mkdir()
    (tree / "foreign" / "thesis.tex").write_text("years of work", encoding="utf-8")
    for words in ((), ("--resume",), ("--overwrite",)):
        told = compare("gmlp", *words, out="foreign")
        assert told.code == 2
        assert "is not empty and holds no comparison: choose another --out" in told.err
    assert (tree / "foreign" / "thesis.tex").read_text(encoding="utf-8") == "years of work"

    first = compare("gmlp", "--steps", "1")
    told = compare("gmlp", "--steps", "1")
    assert told.code == 2
    assert "give --resume to continue" in told.err
    told = compare("--resume", "--training.lr", "0.5", small=False)
    assert "started with other options (training.lr: 0.001 -> 0.5)" in told.err
    assert compare("gmlp", "--resume", "--steps", "1").code == 0
    again = compare("aft-simple", "--steps", "1", "--overwrite")
    assert again.code == 0
    assert [row["member"] for row in again.results["rows"]] == ["aft-simple"]
    assert not (first.folder / "runs" / "gmlp-seed0").exists()
    assert compare("--resume", small=False).code == 0
    # and a comparison that begins in an empty directory may be called a resumed one
    assert compare("gmlp", "--steps", "1", "--resume", out="new").code == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("gmlp", "aft-local", "--options", "aft-local.windw=3"),
         "unknown option `windw` for member 'aft-local'; did you mean 'window'"),
        (("gmlp", "--launcher", "ray"), "everyformer[ray]"),
        (("--resume",), "there is no comparison in made to resume"),
        (("--resume", "--steps", "1"), "there is no comparison in made to resume"),
        (("--resume", "--data", "text.txt"), "there is no comparison in made to resume"),
    ],
)  # fmt: skip
def test_what_cannot_be_begun_leaves_nothing(
    words: tuple[str, ...],
    told: str,
    compare: Compare,
    launched: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    done = compare(*words, small="--resume" not in words)
    assert (done.code, launched, done.folder.exists()) == (2, [], "ray" in words)
    assert told in done.err


def test_a_directory_in_use_is_refused(compare: Compare, tree: Path) -> None:
    (tree / "made").mkdir()
    with FileLock(tree / "made" / ".lock"):
        told = compare("gmlp", "--steps", "1")
    assert told.code == 2
    assert "is in use: another comparison runs in it" in told.err


def test_changed_data_is_no_equal_footing(compare: Compare, tree: Path) -> None:
    compare("gmlp", "--steps", "1")
    (tree / "text.txt").write_text("now something else entirely " * 200, encoding="utf-8")
    told = compare("--resume", small=False)
    assert told.code == 2
    assert "the data has changed since the comparison in made was started" in told.err


def test_data_that_changes_under_a_training_fails_it(
    compare: Compare, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = worker.load_dataset

    def changed(*given: Any, **more: Any) -> Any:
        (tree / "text.txt").write_text("now something else entirely " * 200, encoding="utf-8")
        return load(*given, **more)

    monkeypatch.setattr(worker, "load_dataset", changed)
    assert "has changed since the comparison" in compare("gmlp").row("gmlp")["error"]


@pytest.mark.full("two comparisons, seconds")
def test_a_comparison_goes_on_for_longer_but_not_for_less(
    compare: Compare, launched: list[str]
) -> None:
    words = ("gmlp", "attention", "--training.schedule", "constant", "--training.warmup", "0")
    compare(*words, "--steps", "4", out="whole")
    launched.clear()
    compare(*words, "--steps", "2")
    more = compare("--resume", "--steps", "4", small=False)
    assert more.code == 0, more.err
    assert launched == ["gmlp-seed0", "attention-seed0"] * 2
    assert "steps: 2 -> 4" in more.err
    assert "going on from step 2" in more.err
    assert [run["steps"] for run in more.results["runs"]] == [4, 4]
    whole = json.loads((more.folder.parent / "whole" / "results.json").read_text("utf-8"))
    losses = [[run["evaluation"]["loss"] for run in r["runs"]] for r in (whole, more.results)]
    assert losses[0] == losses[1]
    launched.clear()
    assert compare("--resume", small=False).code == 0
    assert launched == []
    for words in (("--steps", "3"), ("--budget-tokens", "1e9")):
        assert (
            "started with other options (training." in compare("--resume", *words, small=False).err
        )


@pytest.mark.parametrize("member", ["gmlp", "transformer-xl"])
def test_train_goes_on_with_a_training_of_a_comparison(
    compare: Compare, tree: Path, member: str
) -> None:
    run = compare(member, "--steps", "1").folder / "runs" / f"{member}-seed0" / "run"
    assert main(["train", "--resume", "--out", str(run), "--steps", "3"]) == 0
    assert read_metrics(run / "metrics.jsonl")[-1]["step"] == 3


def test_a_training_that_is_stopped_goes_on_with_its_comparison(
    compare: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = loop.update

    def stopped(*given: Any) -> Any:
        done = update(*given)
        os.kill(os.getpid(), signal.SIGTERM)
        return done

    with monkeypatch.context() as patch:
        patch.setattr(loop, "update", stopped)
        done = compare("gmlp", "--steps", "3")
    assert done.code == 143
    hints = re.findall(r"continue with: everyformer (.*)", done.err)
    assert hints == ["compare --resume --out made"]
    assert main(shlex.split(hints[0])) == 0
    assert done.runs("gmlp")[0]["steps"] == 3


@pytest.mark.usefixtures("forgotten")
def test_a_comparison_of_own_mixers_goes_on_by_the_words_that_are_printed(
    compare: Compare, launched: list[str], tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "mine.py").write_text(OWN_MIXER, encoding="utf-8")
    run = launchers.launch

    def stopped(module: str, place: Path, stop: GracefulStop, *words: str) -> int:
        code = run(module, place, stop, *words)
        os.kill(os.getpid(), signal.SIGTERM)
        return code

    with monkeypatch.context() as patch:
        patch.setattr(launchers, "launch", stopped)
        done = compare("halves", "gmlp", "--plugin", "mine.py:Halves", "--steps", "1")
    assert done.code == 143
    [hint] = re.findall(r"continue with: everyformer (.*)", done.err)
    monkeypatch.setenv("EVERYFORMER_PLUGINS", "")
    assert main([*shlex.split(hint), "--budget-tokens", "64"]) == 2  # another kind of budget
    assert main([*shlex.split(hint), "--steps", "2"]) == 0
    first = shlex.join(["everyformer", "compare", *SMALL, "halves", "gmlp"])  # less its --steps
    plugin = shlex.quote(str(tree / "mine.py:Halves"))
    assert done.results["command"] == f"{first} --out made --plugin {plugin} --steps 2"
