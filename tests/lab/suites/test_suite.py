"""Boards: what stands in them, what is refused, and that they go on where they were stopped."""

import csv
import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from everyformer.cli import main
from everyformer.core.errors import CheckpointError
from everyformer.core.student import mean_interval
from everyformer.data import load_dataset
from everyformer.data.config import DataConfig
from everyformer.lab.compare import launchers, worker
from everyformer.lab.suites import board as boards
from everyformer.lab.suites import page as pages
from everyformer.lab.suites import presets
from everyformer.lab.suites.config import SuiteConfig
from everyformer.lab.suites.guests import gated_delta
from everyformer.lab.suites.run import complete, prepared
from everyformer.models.build import build_model
from everyformer.system.plain import from_json
from everyformer.training.evaluate import evaluate
from everyformer.training.saved import load_model

pytestmark = pytest.mark.usefixtures("forgotten")
TINY = {"width": 16, "layers": 1, "heads": 2}
LEAKY = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, vocabulary, width):
        super().__init__()
        self.embedding, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.embedding(tokens)
        return self.head(x + x.mean(1, keepdim=True))


class Torn(Net):
    def forward(self, tokens):
        if self.training and tokens.shape[0] == 4:
            raise RuntimeError("no step can be made")
        return self.head(self.embedding(tokens))
"""


@pytest.fixture
def suite(tmp_path, monkeypatch, capsys):
    """Run `everyformer suite` with one step a training, in this process."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.chdir(tmp_path)
    for preset, settings in presets.PRESETS.items():
        small = {
            name: presets.Setting(one.data, one.skill, one.options, {"steps": 1, "batch": 4}, TINY)
            for name, one in settings.items()
        }
        monkeypatch.setitem(presets.PRESETS, preset, small)
    started = []

    def here(module, place, stop, *words):
        started.append(f"{place.parents[1].name}/{place.name}")
        return worker.main(place, *words)

    monkeypatch.setattr(launchers, "launch", here)

    def run(*words, out="made", jobs=("--jobs", "1"), rates=("--lr-grid", "1e-3")):
        started.clear()
        capsys.readouterr()
        code = main(["suite", *words, *jobs, *rates, "--out", out])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return code, said.out, said.err

    run.started = started
    return run


def made(folder="made"):
    with open(f"{folder}/board.json", encoding="utf-8") as file:
        return from_json(file.read())


def test_a_board_holds_what_its_comparisons_found(suite):
    code, out, _ = suite("attention", "linear", "--suite", "mqar", "state:parity", "--seeds", "2")
    assert code == 0
    board = made()
    assert list(board["probes"]) == ["mqar", "state:parity"]
    assert "folder" not in board["environment"]  # nobody else's machine has it
    assert len(suite.started) == 8
    for name in board["probes"]:
        place = f"made/{name.replace(':', '-')}/results.json"
        with open(place, encoding="utf-8") as file:
            rows = {row["member"]: row for row in json.load(file)["rows"]}
        for member, row in rows.items():
            cell = boards.cell_of(board, name, member)
            assert cell["values"] == row["values"]
            assert cell["letters"] == "".join(row["letters"])
    with open("made/board.csv", newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [(x["probe"], x["member"], x["seed"]) for x in lines[:3]] == [
        ("mqar", "attention", "0"), ("mqar", "attention", "1"), ("mqar", "linear", "0"),
    ]  # fmt: skip
    page = Path("made/index.html").read_text(encoding="utf-8")
    for text in ("attention", "linear", "mqar", "state:parity", "--seeds 2"):
        assert text in page
        assert text in out or text == "--seeds 2"
    assert "http" not in page.replace("http://www.w3.org", "")


def test_rates_are_chosen_by_one_stream_and_judged_by_another(suite):
    rates = ("--lr-grid", "1e-4", "3e-1")
    suite("attention", "--suite", "mqar", "--seeds", "1", rates=rates)
    cell = boards.cell_of(made(), "mqar", "attention")
    losses = {one["lr"]: one["loss"] for one in cell["tried"]}
    assert cell["lr"] == min(losses, key=losses.get)
    folder = "attention-seed0" + ("" if cell["lr"] == 1e-4 else "-lr0.3")
    model = load_model(f"made/mqar/runs/{folder}/run").eval()
    options = presets.MINI["mqar"].options
    found = {
        stream: evaluate(
            model, load_dataset(DataConfig(source="mqar", options=(*options, f"held_out={stream}")))
        )
        for stream in ("validation", "test")
    }
    assert cell["values"] == [found["test"]["accuracy"]]
    assert losses[cell["lr"]] != found["test"]["loss"]
    assert cell["macro"] == pytest.approx(found["test"]["macro_answers"])
    assert cell["rows"] == found["test"]["whole_rows"]


def test_of_rates_that_reach_the_accuracy_at_which_runs_end_the_first_is_kept(suite):
    short = presets.PRESETS["mini"]["mqar"].training
    short |= {"steps": 2, "evaluate_every": 1, "stop_at": 0.0}
    for rates in (("1e-4", "3e-1"), ("3e-1", "1e-4")):
        suite("attention", "--suite", "mqar", "--overwrite", rates=("--lr-grid", *rates))
        cell = boards.cell_of(made(), "mqar", "attention")
        assert len({one["loss"] for one in cell["tried"]}) == 2
        assert cell["lr"] == float(rates[0])


def test_cells_that_have_no_number_say_why(suite):
    with open("mine.py", "w", encoding="utf-8") as file:
        file.write(LEAKY)
    words = ("etc", "attention", "mine.py:Net", "mine.py:Torn")
    code, out, _ = suite(*words, "--suite", "mad:recall", "state:parity", "--seeds", "1")
    board = made()
    cells = {
        (name, member): boards.cell_of(board, name, member)
        for name in board["probes"]
        for member in words
    }
    assert code == 1
    assert cells["mad:recall", "etc"]["status"] == "cannot"
    assert "member 'etc' has no task 'lm'" in cells["mad:recall", "etc"]["error"]
    # what is asked is no input, so one that sees both sides is asked too
    assert cells["state:parity", "etc"]["accuracy"] is not None
    assert cells["mad:recall", "mine.py:Net"]["status"] == "leaks"
    assert f"{cells['mad:recall', 'mine.py:Net']['accuracy']:.1%}* " in out
    assert f"{cells['mad:recall', 'attention']['accuracy']:.1%}~ " in out
    assert cells["mad:recall", "mine.py:Torn"]["status"] == "failed"
    assert "no step can be made" in cells["mad:recall", "mine.py:Torn"]["error"]
    assert cells["mad:recall", "attention"]["status"] == "floor"
    with open("made/board.csv", newline="", encoding="utf-8") as file:
        lines = [x for x in csv.DictReader(file) if x["member"] == "mine.py:Torn"]
    assert [(x["seed"], x["accuracy"], x["status"]) for x in lines] == 2 * [("", "", "failed")]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["attention", "--suite", "mqr"],
            "the preset mini has no probe 'mqr'; did you mean 'mqar'",
        ),
        (["atention"], "unknown member 'atention'"),
        (["attention", "--only", "mqar/linear", "--suite", "mqar"], "the suite has no cell"),
        (["--resume"], "there is no suite in made to resume"),
    ],
)
def test_what_does_not_exist_is_named(suite, words, sentence):
    code, _, err = suite(*words)
    assert code == 2
    assert sentence in err
    assert not suite.started


def test_presets_members_and_seeds_do_not_meet_in_a_folder(suite, monkeypatch):
    assert suite("attention", "--suite", "mqar", "--seeds", "1")[0] == 0
    monkeypatch.setitem(presets.PRESETS, "paper", presets.PRESETS["mini"])
    more = {"--preset": "paper", "--seeds": "2", "--times": "2"}
    for word, value in more.items():
        code, _, err = suite("--resume", word, value, rates=())
        assert code == 2
        assert f"the suite in made was started with other options ({word[2:]}: " in err
    assert "give --resume to continue the suite in it" in suite("attention")[2]
    os.mkdir("other")
    open("other/mine.txt", "w").close()
    assert "holds no suite" in suite("attention", out="other")[2]


def found(values, shortcut, leaks=None):
    """Results of a comparison with one member, as far as a cell reads them."""
    mean = sum(values) / len(values)
    row = {
        "member": "gmlp", "status": "done", "quality": mean, "interval": mean_interval(values),
        "values": values, "baseline": shortcut, "leaks": leaks, "letters": ["a"], "lr": 0.1,
    }  # fmt: skip
    evaluation = {"macro_answers": mean, "whole_rows": 0.0, "accuracy": mean}
    run = {"member": "gmlp", "status": "done", "seconds": 1.0, "evaluation": evaluation}
    runs = [run | {"lr": 0.1, "seed": seed} for seed in range(len(values))]
    return {"metric": "answers", "rows": [row], "runs": runs}


@pytest.mark.parametrize(
    ("values", "leaks", "status"),
    [
        ([0.55, 0.56, 0.57], None, "done"),
        # above it in the mean, but not surely
        ([0.50, 0.56, 0.62], None, "floor"),
        ([0.40, 0.41, 0.42], None, "floor"),
        ([0.90, 0.91, 0.92], "sees what is to come", "leaks"),
    ],
)
def test_a_number_counts_if_its_interval_is_above_the_shortcut(values, leaks, status):
    [cell] = boards._cells("mqar", found(values, 0.5, leaks), ("gmlp",))
    assert cell["status"] == status
    assert cell["accuracy"] == pytest.approx(sum(values) / 3)


def test_guests_are_built_whatever_genes_members_are_given():
    config = SuiteConfig(members=("rope", "lstm"), preset="paper")
    column = prepared(
        complete(config), "mad:memorization", presets.PAPER["mad:memorization"], print
    )
    rope, lstm = column.ready
    # of the program: no bias but the output's, which is a table of its own
    layer = 2 * 128 + 4 * 128 * 128 + 3 * 128 * 352
    assert rope.parameters == 2 * 256 * 128 + 256 + 2 * layer + 128
    assert lstm.error is None
    assert lstm.parameters == 2 * 256 * 128 + 256 + 2 * 8 * (128 * 128 + 128)


def test_zoologys_example_has_dropout_where_its_program_has_it():
    column = prepared(
        complete(SuiteConfig(("gpt",), preset="paper")), "mqar", presets.PAPER["mqar"], print
    )
    model, training = column.ready[0].config, column.comparison.training
    assert (model.embedding_dropout, model.block.dropout) == (0.1, 0.0)
    assert model.genes["mixer"].options["attention_dropout"] == 0.1
    assert (training.steps, training.evaluate_every, training.min_lr_ratio) == (31_300, 313, 0.0)
    assert (training.betas, training.clip, training.stop_at) == ((0.9, 0.999), None, 0.99)


def printed(values, names=None, data="mad:memorization", number=0.788):
    """A paper's board of `rope` on a probe, with these accuracies by setting and seed."""
    names = names or [n for n, s in presets.PAPER.items() if s.data == data]
    known = {"data": data, "published": {"rope": number}}
    both = zip(names, values, strict=True)
    return {
        "preset": "paper",
        "members": ["rope"],
        "probes": dict.fromkeys(names, known),
        "cells": [{"probe": n, "member": "rope", "values": v} for n, v in both],
    }


@pytest.mark.parametrize(
    ("values", "end"),
    [
        # 0.75, 0.79, 0.83 by seed: 0.691 to 0.889
        (6 * [[0.75, 0.79, 0.83]], "79.0% (69.1% to 88.9% over 3 seeds): replicated"),
        # each far off, in the mean of settings by seed as above
        (3 * [[0.55, 0.59, 0.63], [0.95, 0.99, 1.03]], "over 3 seeds): replicated"),
        (6 * [[0.89, 0.90, 0.91]], "90.0% (87.5% to 92.5% over 3 seeds): not replicated"),
        (6 * [[0.79]], "here no interval"),
        (5 * [[0.78, 0.79]] + [[]], "here no interval"),
    ],
)
def test_a_printed_number_is_held_against_the_interval_over_seeds(values, end):
    [sentence] = boards.verdicts(printed(values))
    assert sentence.startswith("mad:memorization, rope: published 78.8%")
    assert sentence.endswith(end)


@pytest.mark.parametrize(("last", "end"), [(0.992, ": replicated"), (0.989, ": not replicated")])
def test_a_number_at_which_training_stops_is_reached_by_every_seed(last, end):
    [sentence] = boards.verdicts(printed([[0.9925, 0.9921, last]], data="mqar", number=0.99))
    assert sentence.endswith(end)


def test_a_part_of_the_settings_has_no_verdict():
    [sentence] = boards.verdicts(printed([[0.78, 0.79]], ["mad:memorization"]))
    assert "over 6 settings" in sentence
    assert sentence.endswith("over 1 of them: no verdict")
    assert [*presets.chosen("paper", ("mad:memorization",))] == [
        n for n in presets.PAPER if n.startswith("mad:memorization")
    ]
    assert [*presets.chosen("mini", ("state", "mqar"))] == ["mqar", "state:parity", "state:s3"]


def test_a_board_of_another_version_is_not_read(suite, monkeypatch):
    _, out, _ = suite("attention", "--suite", "mqar", "--seeds", "1")
    assert "One member alone; not learned by any: mqar." in out
    path = Path("made/board.json")
    assert boards.read_board(path)["members"] == ["attention"]
    monkeypatch.setattr(boards, "VERSION", boards.VERSION + 1)
    with pytest.raises(CheckpointError, match="is a board of version 1 of the probes"):
        boards.read_board(path)


def test_a_suite_that_was_stopped_goes_on(suite, monkeypatch):
    run = launchers.launch

    def stopped(module, place, stop, *words):
        if len(suite.started) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            return 143
        return run(module, place, stop, *words)

    words = ("attention", "--suite", "mqar", "induction", "--seeds", "2")
    with monkeypatch.context() as patch:
        patch.setattr(launchers, "launch", stopped)
        code, _, err = suite(*words)
    assert code == 143
    assert "stopped; continue with: everyformer suite --resume --out made" in err
    assert [*made()["probes"]] == ["mqar"]
    first = [*suite.started]
    assert suite("--resume", rates=())[0] == 0
    assert len(suite.started) == 2
    assert not {*first} & {*suite.started}
    assert [*made()["probes"]] == ["mqar", "induction"]
    assert made()["command"].startswith("everyformer suite attention --suite mqar induction")


def test_a_board_foretells_the_order_of_a_longer_training():
    """By hand: ranks 0, 1, 2.5, 2.5 and 1, 0, 3, 2."""
    members = ["a", "b", "c", "d"]

    def board(*values):
        cells = [
            {"probe": "mqar", "member": member, "accuracy": value}
            for member, value in zip(members, values, strict=True)
        ]
        cells += [{"probe": "needle", "member": m, "accuracy": 0.5} for m in members]
        return {"members": members, "probes": {"mqar": {}, "needle": {}}, "cells": cells}

    found = boards.foretold(board(0.1, 0.2, 0.9, 0.9), board(0.4, 0.3, 0.8, 0.7))
    assert found == {"mqar": pytest.approx(3.5 / (4.5 * 5) ** 0.5), "needle": None}


def test_a_board_is_told_apart_from_the_same_by_other_seeds():
    """By hand: differences .1 .1 .06 are t = 6.5, .1 .1 .09 are t = 29; two degrees of freedom
    want 4.3 of one pair and 14.1 of each of the ten in a column of five."""

    def board(**values):
        cells = [{"probe": "mqar", "member": name, "values": each} for name, each in values.items()]
        shared = {"times": 1, "seeds": 3, "hours": 0, "environment": {}, "command": "made"}
        return {"members": [*values], "probes": {"mqar": {}}, "cells": cells, **shared}

    first = board(
        a=[0.5, 0.5, 0.5], b=[0.5, 0.4, 0.3], c=[0.7, 0.72, 0.71], d=[], e=[0.4, 0.3, 0.2]
    )
    again = board(a=[0.6, 0.6, 0.56], b=[0.5, 0.4, 0.3], c=[0.8, 0.82, 0.8], d=[0.5], e=[])
    assert boards.twins(first, again) == [(True, False), (False, False), (True, True)]
    said = pages._again(first, again)
    assert "5 members on 1 probes: of 3 twins 1 (33.3%) are told apart by the tests of" in said
    assert said.endswith("2 (66.7%) by a test of the two alone.")


def test_cells_may_be_jobs_of_a_scheduler(suite):
    words = ("attention", "linear", "--suite", "mqar", "--seeds", "1")
    for member in ("linear", "attention"):
        assert suite(*words, "--only", f"mqar/{member}")[0] == 0
        assert suite.started == [f"mqar/{member}-seed0"]
    # a job that says no more than where keeps the words that began it
    assert suite("--resume", "--only", "mqar/linear", rates=())[0] == 0
    assert suite("--resume", rates=())[0] == 0
    assert suite.started == []
    assert made()["command"].startswith("everyformer suite attention linear --suite mqar")
    assert [cell["member"] for cell in made()["cells"]] == ["attention", "linear"]


def test_a_board_may_be_made_by_other_seeds(suite):
    suite("attention", "--suite", "mqar", "--seeds", "2", "--seed", "3")
    assert sorted(suite.started) == ["mqar/attention-seed3", "mqar/attention-seed4"]
    assert made()["seed"] == 3
    code, _, err = suite("--seed", "0", "--resume", rates=())
    assert code == 2
    assert "started with other options (seed: 3" in err


@pytest.mark.full("processes, seconds")
def test_trainings_run_side_by_side(suite):
    code, _, err = suite("attention", "--suite", "mqar", "--seeds", "2", jobs=("--jobs", "2"))
    assert code == 0
    assert suite.started == []
    assert len(made()["cells"][0]["values"]) == 2
    assert "training for" not in err


def test_members_that_see_a_part_see_a_part_of_the_shortest_rows():
    """Else a window would be attention by another name."""
    members = ("attention", "bigbird", "longformer", "routing", "sparse-transformer")
    name, seen = "mad:recall", {}
    column = prepared(complete(SuiteConfig(members=members)), name, presets.MINI[name], print)
    length = column.parts[0][0].length
    for one in column.ready:
        model = build_model(replace(one.config, layers=1)).eval()
        x = torch.randint(8, (1, length))
        read = torch.nn.functional.one_hot(x, model.config.vocabulary).float().requires_grad_()
        model.embed = lambda table, inputs, *more, read=read: read @ table.weight
        [moved] = torch.autograd.grad(model(x).logits[0, -1].square().sum(), read)
        seen[one.member] = int((moved[0].abs().sum(1) > 0).sum())
    assert seen.pop("attention") == length == 15
    assert max(seen.values()) < length


def test_gates_of_the_gated_delta_rule_remember_at_the_start():
    """Of steps of 1.3, as transformers has them, nearly all forget the eighth token back."""
    torch.manual_seed(0)
    named = dict(gated_delta(8, 128, 1, 32).named_parameters())
    bias, decay = (
        named[f"model.model.layers.0.linear_attn.{name}"] for name in ("dt_bias", "A_log")
    )
    step = bias.detach().exp().log1p()
    assert ((step > 0.00099) & (step < 0.101)).all()
    assert step.log().std() > 1
    assert ((-8 * decay.detach().exp() * step).exp() > 0.01).float().mean() > 0.7
