"""`train`, `eval` and `generate` as a user runs them, one after the other."""

import json
import os
import re
import shlex
import signal
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import Refused, Say

from everyformer.cli.verbs.generate import _writer
from everyformer.data.config import ELSEWHERE
from everyformer.data.dataset import Dataset
from everyformer.data.tokenizers.load import load_tokenizer
from everyformer.data.tokenizers.package import HubTokenizer
from everyformer.training import loop
from everyformer.training.session import Session
from everyformer.training.step import Update

RUN_TOML = """
member = "aft-local"
[data]
source = "text.txt"
length = 16
[model]
width = 16
layers = 2
heads = 2
[position]
name = "none"
[training]
steps = 2
batch = 4
clip = "none"
threads = 1
[mixer]
window = 5
rank = "none"
"""


def config_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "config.json").read_text(encoding="utf-8"))


def test_a_whole_run_from_a_file(say: Say, tree: Path) -> None:
    (tree / "run.toml").write_text(RUN_TOML, encoding="utf-8")
    code, out, err = say("train", "--config", "run.toml", "--steps", "3")
    assert code == 0, err
    saved = config_of(tree / "runs" / "aft-local")
    assert saved["training"]["steps"] == 3
    assert saved["training"]["clip"] is None
    assert saved["model"]["position"] == {"name": None}
    assert saved["model"]["layers"] == 2
    assert saved["model"]["mixer"]["window"] == 5
    assert saved["model"]["mixer"]["rank"] is None
    assert "runs/aft-local" in out


def test_what_would_run_is_printed_and_read_again(say: Say, tree: Path) -> None:
    (tree / "run.toml").write_text(RUN_TOML, encoding="utf-8")
    code, out, err = say("train", "--config", "run.toml", "--lr", "0.5", "--print-config")
    assert (code, err) == (0, "")
    assert json.loads(out)["training"]["lr"] == 0.5
    (tree / "run.json").write_text(out, encoding="utf-8")
    assert say("train", "--config", "run.json", "--print-config")[1] == out
    assert not (tree / "runs").exists()


@pytest.mark.parametrize(
    ("words", "budget"),
    [
        ((), {"steps": None, "budget_seconds": 9.0}),
        (("--steps", "5"), {"steps": 5, "budget_seconds": None}),
        (("--training.budget_tokens=6",), {"budget_tokens": 6.0, "budget_seconds": None}),
    ],
)
def test_a_budget_on_the_command_line_replaces_that_of_the_file(words, budget, say, tree):
    (tree / "run.toml").write_text("[training]\nbudget_seconds = 9", encoding="utf-8")
    out = say("train", "gmlp", "--config", "run.toml", *words, "--print-config")[1]
    assert json.loads(out)["training"].items() >= budget.items()


@pytest.mark.parametrize(
    ("words", "chosen"),
    [
        ("longformer --mixer.window 4 8", {"window": [4, 8]}),
        ("--mixer.window 4 longformer", {"window": 4}),
        ("blockwise --mixer.groups none", {"groups": None}),
        ("image-transformer --mixer.dims 2 --mixer.tile 2 6", {"tile": [2, 6]}),
        ("--mixer.tile 2 6 image-transformer --mixer.dims 2", {"tile": [2, 6]}),
        ("bigbird --mixer.global-blocks 0 2 -1 --task mlm", {"global_blocks": [0, 2, -1]}),
    ],
)
def test_a_flag_takes_one_number_several_or_none(words, chosen, say):
    code, out, err = say("train", *words.split(), "--print-config")
    assert code == 0, err
    assert json.loads(out)["mixer"].items() >= chosen.items()


def test_the_member_may_be_named_anywhere(say: Say) -> None:
    expected = say("train", "aft-local", "--mixer.window", "3", "--compile", "--print-config")[1]
    for words in (
        "--mixer.window 3 --compile aft-local",
        "--mixer.window=3 aft-local --training.compile",
        "--training.compile --mixer.window 3 --by-layer aft-local",
    ):
        assert say("train", *words.split(), "--print-config") == (0, expected, "")


def test_a_finished_run_goes_on_without_being_described_again(say, trained, refused):
    run = trained("aft-local", "--mixer.window", "3", "--training.ema", "0.9")
    code, out, err = say("train", "--resume", "--out", str(run), "--steps", "5")
    assert code == 0, err
    assert "going on from step 3" in err
    assert "5 steps" in out
    saved = config_of(run)
    assert saved["model"]["mixer"]["window"] == 3
    assert saved["training"]["ema"] == 0.9
    assert say("train", "aft-local", "--resume", "--out", str(run))[0] == 0
    assert "trains aft-local, not gmlp" in refused("train", "gmlp", "--resume", "--out", str(run))
    assert "is not empty: give --resume" in refused(
        "train", "gmlp", "--data", "text.txt", "--out", str(run), "--length", "16"
    )
    told = refused("train", "--resume", "--out", str(run), "--width", "32")
    assert "started with another model" in told
    assert "width" in told
    assert "there is no run in nowhere" in refused("train", "--resume", "--out", "nowhere")


def test_a_run_that_has_an_option_without_meaning_goes_on_and_is_measured(
    trained, say, refused, monkeypatch
):
    """Runs of before these options were refused; what is said again is."""
    with monkeypatch.context() as before:
        for option in ("mask_rate", "colour"):
            before.setitem(ELSEWHERE, option, "")
        run = str(trained("gmlp", "--data.mask-rate", "0.4", "--data.colour", "rgb"))
    assert say("eval", run)[0] == 0
    goes_on = ("train", "--resume", "--out", run, "--steps", "5")
    assert say(*goes_on)[0] == 0
    assert "--data.size has no meaning for the task lm: it is for pictures" in refused(
        *goes_on, "--data.size", "8"
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_run_says_how_to_go_on_and_does(number, code, say, tree, monkeypatch):
    update = loop.update

    def stopped(session: Session, dataset: Dataset) -> Update:
        done = update(session, dataset)
        if session.state.steps == 2:
            os.kill(os.getpid(), number)
        return done

    words = ("--data", "text.txt", "--length", "16", "--width", "16", "--layers", "1")
    train = ("train", "gmlp", *words, "--batch", "4", "--steps", "4", "--training.threads", "1")
    monkeypatch.setattr(loop, "update", stopped)
    given, out, err = say(*train, "--out", "cut it")
    assert (given, out) == (code, "")
    [printed] = re.findall(r"continue with: everyformer (.*)", err)
    monkeypatch.undo()
    monkeypatch.chdir(tree)
    assert say(*shlex.split(printed))[0] == 0
    assert say(*train, "--out", "whole")[0] == 0
    last = [
        [json.loads(line) for line in (tree / run / "metrics.jsonl").read_text().splitlines()][-1]
        for run in ("cut it", "whole")
    ]
    assert last[0] == last[1]


def test_a_loss_that_is_no_number_is_a_failed_job(refused: Refused, tree: Path) -> None:
    words = ("--data", "text.txt", "--length", "16", "--width", "16", "--layers", "1")
    wild = ("--lr", "1e30", "--training.clip", "none", "--training.evaluate-every", "1")
    told = refused("train", "gmlp", *words, *wild, "--batch", "4", "--out", "wild", code=1)
    assert "became nan" in told
    assert (tree / "wild" / "metrics.jsonl").exists()


def test_evaluation_is_that_of_the_run_or_of_other_data(say, trained, tree, refused):
    run = trained("gmlp", "--tokenizer", "chars")
    code, out, err = say("eval", str(run), "--json")
    own = json.loads(out)
    assert code == 0
    assert "held out" in err
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert own["evaluation"]["loss"] == pytest.approx(last["evaluation"]["loss"], rel=1e-6)
    (tree / "other.txt").write_text("brown trees sleep " * 40, encoding="utf-8")
    other = say("eval", "--batch", "3", "--data", "other.txt", str(run), "--json")[1]
    assert json.loads(other)["evaluation"]["loss"] != own["evaluation"]["loss"]
    lines = dict(line.split(None, 1) for line in say("eval", str(run))[1].splitlines())
    assert lines["loss"].startswith(f"{own['evaluation']['loss']:.6g}   95% interval")
    assert "'--batch' must be at least 1" in refused("eval", str(run), "--batch", "0")
    told = refused("eval", str(run), "--data", "copy", "--data.symbols", "5", "--length", "16")
    assert "different tokens" in told
    assert "cannot serve the task lm" in refused("eval", str(run), "--data", "digits")


@pytest.mark.parametrize("lr", ["1e-4", "1"])
def test_the_last_step_and_the_best_are_told_apart(lr: str, say: Say, tree: Path) -> None:
    (tree / "run.toml").write_text(RUN_TOML, encoding="utf-8")
    words = ("--steps", "3", "--lr", lr, "--training.warmup", "0", "--training.evaluate-every", "1")
    code, out, err = say("train", "--config", "run.toml", "--out", "run", *words)
    assert code == 0, err
    rows = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    losses = {row["step"]: row["evaluation"]["loss"] for row in rows if "evaluation" in row}
    best = min(losses, key=lambda step: losses[step])
    assert best == (1 if lr == "1" else 3), "the case of this learning rate"
    told = dict(re.split(r"\s+", line, maxsplit=1) for line in out.splitlines())
    assert (told["step"], told["loss"]) == ("3", f"{losses[3]:.6g}")
    later = f"step {best}, loss {losses[best]:.6g}: eval, predict and generate take that one"
    assert told.get("best") == (later if best != 3 else None)
    code, out, err = say("eval", "run", "--json")
    assert f"the weights of step {best} are measured\n" in err
    assert json.loads(out)["step"] == best
    assert json.loads(out)["evaluation"]["loss"] == pytest.approx(losses[best])
    assert "the weights of" not in say("eval", "run", "--average", "1")[2]


def test_the_curve_over_lengths_is_the_evaluation_at_each(say, trained, refused):
    run = str(trained("alibi"))
    code, out, _ = say("eval", run, "--lengths", "48", "8", "16", "--json")
    assert code == 0
    found = json.loads(out)
    assert [one["window"] for one in found["evaluations"]] == [8, 16, 48]
    alone = json.loads(say("eval", run, "--length", "48", "--json")[1])
    assert found["evaluations"][2]["loss"] == pytest.approx(alone["evaluation"]["loss"], rel=1e-6)
    assert Path(found["figure"]).stat().st_size > 1000
    sliding = ("--lengths", "16", "--mode", "sliding", "--stride", "4", "--out", "curve.svg")
    printed = say("eval", run, *sliding)[1]
    assert printed.splitlines()[-1] == "curve.svg"
    assert "</svg>" in Path("curve.svg").read_text(encoding="utf-8")
    assert "--out" in refused("eval", run, "--out", "curve.svg")
    for words in (("--bleu",), ("--beam", "2")):
        assert "translations" in refused("eval", run, "--lengths", "8", *words)
    # the verb tells what it measured before the table ends it
    learned = str(trained("learned"))
    assert "--model.max-length 16" in say("eval", learned, "--lengths", "16", "32")[2]


def test_generation_continues_and_repeats_itself(say, trained, refused):
    run = str(trained("aft-full", "--tokenizer", "chars"))
    words = ("generate", run, "--prompt", "the ", "--tokens", "8")
    code, out, err = say(*words)
    assert code == 0
    assert out.startswith("the ")
    assert len(out.rstrip("\n")) == 12
    assert "with a state" in err
    assert say(*words)[1] == out
    texts = {say(*words, "--seed", str(seed))[1] for seed in range(4)}
    assert len(texts) > 1
    assert say(*words[:-1], "0")[1] == "the \n"
    assert "the prompt is empty" in refused("generate", run, "--prompt", "")
    assert "'--tokens' must be at least 0" in refused("generate", run, "--tokens", "-1")


@pytest.mark.full("trains and writes to a table's end, seconds")
def test_a_text_that_outgrows_the_table_is_refused_before_its_first_byte(
    say, trained, refused, tree
):
    run = str(trained("aft-full"))
    words = ("generate", run, "--prompt", "the ", "--tokens")
    # the last token that is drawn takes no place
    fits = 16 - len("the ") + 1
    assert len(say(*words, str(fits))[1].rstrip("\n")) > len("the ")
    for more in (str(fits + 1), "500", "none"):
        told = refused(*words, more)
        assert "16 positions" in told
        assert f"give --tokens {fits} or fewer" in told
        assert "--position rope" in told
    assert f"{fits} tokens are made" in say(*words[:-1])[2]
    assert "give a shorter prompt" in refused("generate", run, "--prompt", "the " * 5)
    (tree / "lines.txt").write_text("a\nthe tree", encoding="utf-8")
    lines = ("generate", run, "--prompts", "lines.txt", "--tokens")
    assert "give --tokens 9 or fewer" in refused(*lines, "10")
    assert say(*lines, "9")[0] == 0
    kept = ("generate", run, "--state", "kept.state", "--tokens", "5")
    assert say(*kept, "--prompt", "the ")[0] == 0
    assert "8 tokens are made" in say(*kept[:-2])[2]


def test_bytes_are_written_when_a_character_is_whole() -> None:
    tokenizer = load_tokenizer({"kind": "bytes"})
    pieces: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout.write", pieces.append)
        write = _writer(tokenizer)
        for byte in "aé".encode():
            write(byte, False)
        write(0xE2, False)
        write(None, True)
    assert pieces == ["a", "", "é", "", "\ufffd"]


@pytest.mark.parametrize("form", ["byte-level", "metaspace", "wordpiece", "ctc"])
def test_a_long_text_is_written_whole_though_little_of_it_is_decoded_again(form: str) -> None:
    package = pytest.importorskip("tokenizers")
    words = ["naïve", "ca", "##fé", "日", "##本", ".", "▁a", "▁naïve", "é", "a", "##'s", "it"]
    inner = package.Tokenizer(package.models.WordLevel({w: n for n, w in enumerate(words)}, "a"))
    inner.decoder = {
        "metaspace": package.decoders.Metaspace(),
        "wordpiece": package.decoders.WordPiece(),
        # of equal tokens side by side it writes one
        "ctc": package.decoders.CTC(cleanup=False),
    }.get(form, package.decoders.ByteLevel())
    if form == "byte-level":
        bytewise = sorted(package.pre_tokenizers.ByteLevel.alphabet())
        table = {w: n for n, w in enumerate([*bytewise, "Ġa"])}
        inner = package.Tokenizer(package.models.BPE(table, [("Ġ", "a")]))
        inner.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = package.decoders.ByteLevel()
    tokenizer = HubTokenizer(inner.to_str(), inner.get_vocab_size(), end=None, mask=None)
    if form == "byte-level":
        before, *ids = inner.encode("a naïve 日本 café a " * 40).ids
    else:
        drawn = torch.Generator().manual_seed(1)
        before, *ids = torch.randint(len(words), (300,), generator=drawn).tolist()
    pieces: list[str] = []
    most = 0
    decode = tokenizer.decode

    def counted(tokens: list[int]) -> str:
        nonlocal most
        most = max(most, len(tokens))
        return decode(tokens)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout.write", pieces.append)
        patch.setattr(tokenizer, "decode", counted)
        write = _writer(tokenizer, [before])
        for token in ids:
            write(token, False)
        write(None, True)
    assert "".join(pieces) == tokenizer.decode_after([before], ids)
    assert len(pieces) > len(ids) / 2
    assert most < 40


def test_bad_data_is_named_and_leaves_nothing_behind(tree: Path, refused: Refused) -> None:
    (tree / "empty.txt").write_text("", encoding="utf-8")
    (tree / "short.txt").write_text("short", encoding="utf-8")
    (tree / "junk.bin.txt").write_bytes(bytes(range(256)) * 40)
    (tree / "images" / "a").mkdir(parents=True)
    (tree / "images" / "a" / "1.png").write_bytes(b"\x89PNG no picture")
    with zipfile.ZipFile(tree / "evil.zip", "w") as archive:
        archive.writestr("../evil.txt", "x" * 1000)
    before = sorted(tree.iterdir())
    for source in ("missing.txt", "empty.txt", "short.txt", "junk.bin.txt", "images", "evil.zip"):
        for verb in (("train", "gmlp"), ("compare", "gmlp", "attention")):
            told = refused(*verb, "--data", source, "--out", "made")
            assert source.partition(".")[0] in told
    assert [p for p in sorted(tree.iterdir()) if p.name != "cache"] == before


def test_a_run_is_replaced_only_where_that_is_said(say: Say, tree: Path) -> None:
    words = ("train", "gmlp", "--data", "text.txt", "--length", "16", "--width", "16")
    words += ("--layers", "1", "--out", "made")
    assert say(*words, "--steps", "2")[0] == 0
    (tree / "made" / "notes.txt").write_text("mine", encoding="utf-8")
    code, _, err = say(*words, "--steps", "1")
    assert code == 2
    assert "--overwrite to replace it" in err
    code, _, err = say(*words, "--resume", "--overwrite")
    assert code == 2
    assert "contradict" in err
    assert (tree / "made" / "notes.txt").exists()
    assert say(*words, "--steps", "1", "--overwrite")[0] == 0
    assert not (tree / "made" / "notes.txt").exists()
    rows = (tree / "made" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert max(json.loads(row)["step"] for row in rows) == 1
    (tree / "other").mkdir()
    (tree / "other" / "notes.txt").write_text("mine", encoding="utf-8")
    code, _, err = say(*words[:-1], "other", "--overwrite")
    assert code != 0
    assert "is not a run" in err
    assert (tree / "other" / "notes.txt").exists()
