"""One vocabulary: what a slip meant, files for members, options in messages."""

from pathlib import Path

import pytest
from commands import Refused, Say

from everyformer.cli import VERBS
from everyformer.cli.flags import FlagGroup
from everyformer.cli.names import in_flags
from everyformer.cli.verbs.train import NOBODY

SLIPS = [
    ("generate x --temp 1", "--temperature"),
    ("generate x --max-len 9", "--tokens"),
    ("generate x --prompt-file f", "--prompts"),
    ("train gmlp --max-len 9", "--length"),
    ("train gmlp --epochs 3", "--steps"),
    ("train gmlp --learning-rate 1", "--lr"),
    ("train gmlp --batch-size 4", "--batch"),
    ("train gmlp --n-layers 2", "--layers"),
    ("train gmlp --d_model 64", "--width"),
    ("train gmlp --output o", "--out"),
    ("train gmlp --lr-schedule cosine", "--training.schedule"),
    ("train gmlp --dropout 0.1", "--model.block.dropout"),
    ("train gmlp --training.weight_dcay 0.1", "--training.weight-decay"),
    ("train aft-local --window 4", "--mixer.window"),
    ("train gmlp --model.pix 3", "--model.pixels.order"),
    ("compare gmlp --epochs 3", "--steps"),
]


@pytest.mark.parametrize(("line", "meant"), SLIPS, ids=[line for line, _ in SLIPS])
def test_the_first_suggestion_is_what_was_meant(line, meant, refused, tree):
    told = refused(*line.split())
    assert told.startswith("unknown option '--")
    assert told.partition("; did you mean ")[2].startswith(f"'{meant}'")


def test_one_thing_has_one_name_in_all_verbs(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    pages = {verb: say(verb, "--help", "all")[1] for verb in VERBS}
    for verb in ("train", "compare"):
        for short in (
            *("data", "length", "tokenizer", "steps", "batch", "lr", "seed", "width", "layers"),
            *("heads", "out", "device", "threads", "precision", "sequences", "budget-seconds"),
        ):
            assert f"--{short} " in pages[verb].replace(",", " "), f"{verb}: {short}"
    for name, verbs in {
        "--threads ": ("train", "compare", "bench"),
        "--lengths ": ("compare", "bench", "eval"),
        "--precision ": ("train", "compare", "bench", "eval", "verify"),
        "--memory.slots ": ("eval",),
    }.items():
        for verb in verbs:
            assert name in pages[verb].replace(",", " "), f"{verb}: {name}"
    assert "--dtype" not in "".join(pages.values())


FILES = [
    ("train text.txt", "everyformer train attention --data text.txt"),
    ("train text.txt gmlp", "everyformer train gmlp --data text.txt"),
    ("train folder", "everyformer train attention --data folder"),
    ("compare text.txt", "everyformer compare attention --data text.txt"),
    ("compare gmlp text.txt aft-conv", "everyformer compare gmlp aft-conv --data text.txt"),
    ("bench table.csv", "everyformer train attention --data table.csv"),
    ("info pictures.zip", "everyformer train attention --data pictures.zip"),
    ("verify text.txt", "everyformer train attention --data text.txt"),
    ("doctor text.txt", "everyformer train attention --data text.txt"),
]


@pytest.mark.parametrize(("line", "meant"), FILES)
def test_a_file_for_a_member_is_understood(line, meant, refused, tree):
    (tree / "folder").mkdir()
    for name in ("table.csv", "pictures.zip"):
        (tree / name).write_bytes(b"x")
    told = refused(*line.split())
    given = meant.rpartition(" ")[2]
    kind = "a folder" if given == "folder" else "a file"
    assert told.startswith(f"{given} is {kind}: did you mean `{meant}`?")


def test_a_file_that_is_not_there_is_no_member_either(refused: Refused, tree: Path) -> None:
    assert "nowhere.txt looks like a file, which is not there" in refused("train", "nowhere.txt")
    assert "did you mean 'gmlp'" in refused("train", "gmpl")


MESSAGES = [
    ("train it again with a lower `lr`, a longer `warmup` or a smaller `training.clip`",
     "train it again with a lower --lr, a longer --training.warmup or a smaller --training.clip"),
    ("`training.budget_seconds` is 3", "--budget-seconds is 3"),
    ("m: `width=10` is not divisible by `heads=3`; heads that fit",
     "m: --width 10 is not divisible by --heads 3; heads that fit"),
    ("build it with `max_length=17` or more", "build it with --model.max-length 17 or more"),
    ("give `max_length=...` (the longest)", "give --model.max-length ... (the longest)"),
    ("compare with `match='width'`", "compare with --match width"),
    ("`window=3` is read with x", "--mixer.window 3 is read with x"),
    ("`mixer.window=64`", "--mixer.window 64"),
    ("choose with `data.split=group` COLUMN", "choose with --data.split group COLUMN"),
    ("leave out `from_run`", "leave out --from"),
    ("`--class_name[0]` must be", "'--class[0]' must be"),
    # values in quotes, commands, calls and names of no flag stay
    ("unknown task 'data'; did you mean 'width'?", None),
    ("put one beside it with ef.save(model, folder, tokenizer=...), lr(step) = lr * 2", None),
    ("`everyformer list` has them, `train gpt --lr 3` too", None),
    ("unknown option `windw`; `sgu_heads=3`", None),
    # two flags end in it
    ("`ending` is read", None),
    ("guard 2 <= L['tokens'].size()[1], and L['batch']", None),
]  # fmt: skip


@pytest.mark.parametrize(("said", "printed"), MESSAGES)
def test_messages_name_options_as_flags(said: str, printed: str | None) -> None:
    flags = FlagGroup(NOBODY).flags()
    flags |= dict.fromkeys(("--match", "--mixer.window", "--class", "--a.ending", "--b.ending"))
    assert in_flags(said, flags) == (said if printed is None else printed)
