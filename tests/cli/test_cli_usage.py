"""Wrong usage and wrong configuration: one sentence on stderr that names the thing, exit code 2."""

import json
import sys
from pathlib import Path

import pytest
import tyro
from commands import Refused

from everyformer.cli import main
from everyformer.cli.flags import FlagGroup, without
from everyformer.cli.verbs import train
from everyformer.cli.verbs.compare import CompareOptions
from everyformer.core.errors import ConfigError


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("trian",), "unknown verb 'trian'; did you mean 'train'"),
        (("list", "--taks", "lm"), "unknown option '--taks'; did you mean '--task'?"),
        (("list", "--task", "lmm"), "unknown task 'lmm'; did you mean 'lm'"),
        (("list", "--task", "regres"), "'regres'; did you mean 'regress' or 'regress-text'"),
        (("list", "extra"), "unexpected word 'extra'"),
        (("info",), "name a member, or several"),
        (("train",), "name the member to train: three are above, `everyformer list --task lm`"),
        (("train", "gmpl"), "unknown member 'gmpl'; did you mean 'gmlp'"),
        (("train", "gmlp", "gpt"), "unexpected word 'gpt'"),
        (("train", "gmlp", "--stps", "5"), "did you mean '--steps'"),
        (("train", "aft-local", "--windw=5"), "'--mixer.window'"),
        (("train", "gmlp", "--zzz", "5"), "unknown option '--zzz'; see everyformer train --help"),
        (("train", "gmlp", "--steps", "many"), "--steps/--training.steps takes none|INT"),
        (("train", "bigbird", "--mixer.global-blocks", "a"), "takes none|{[INT [INT ...]]}, not"),
        (("train", "image-transformer", "--mixer.tile", "2"), "none|{INT INT}, not ['2']"),
        (("train", "gmlp", "--steps"), "--steps needs a value"),
        (("train", "gmlp", "--training.schedule", "cosin"), "('cosine', 'linear'"),
        (("train", "gmlp", "--tokenizer", "words"), "unknown tokenizer 'words'"),
        (("train", "gmlp", "--budget-seconds", "1", "--budget-tokens=2"), "leave one of them out"),
        (("train", "gmlp", "--mixer", "x.txt"), "unknown mixer 'x.txt'"),
        (("train", "gmlp", "--position", "rop"), "unknown position 'rop'; did you mean 'rope'"),
        (("train", "--resume"), "--resume needs to know the run: give --out"),
        (("train", "gmlp", "--config", "no.toml"), "cannot read the config file no.toml"),
        (("eval",), "RUN"),
        (("eval", "runs/none"), "there is no run at runs/none"),
        (("generate", "runs/none", "--top-k", "0"), "'--top-k' must be at least 1, not 0"),
        (("compare", "gmpl"), "unknown member 'gmpl'; did you mean 'gmlp'"),
        (("compare", "gmlp", "gmlp"), "members named twice: gmlp"),
        (("compare", "gmlp", "--resume", "--overwrite"), "contradict each other"),
        (("compare", "gmlp", "--lr-grid", "0.1", "-1"), "'--lr-grid[1]' must be above 0"),
        (("compare", "gmlp", "--options", "gpt.dropout=0"), "member.option=value"),
        (("train", "gpt", "--length", "128", "256"), "takes one value, not 128 and 256"),
        (("compare", "gpt", "--length", "128", "256"), "--length takes one value, not 128 and 256"),
        (("compare", "gpt", "--lr", "1e-2", "3e-2"), "--lr takes one value, not 1e-2 and 3e-2"),
        (("train", "gpt", "--width", "64", "--model.width", "32"), "--model.width is given 2"),
        (("compare", "gpt", "--seeds", "2", "--seeds=3"), "--seeds is given 2 times: give it once"),
        (("verify", "--laws", "chunks"), "the law 'chunks' is called 'streaming' now"),
        (("bench", "gmlp", "--lengths"), "nothing to measure"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_words_are_named_with_a_mend(words, told, refused, tree):
    assert told in refused(*words)
    assert [path.name for path in tree.iterdir()] == ["text.txt"]


def test_a_word_meanwhile_is_no_part_of_the_refusal(refused, monkeypatch):
    quiet, read = refused("train", "gmlp", "--steps", "many"), tyro.cli

    def slow(*args, **options):
        print("everyformer train is at work (4 s)", file=sys.stderr)
        return read(*args, **options)

    monkeypatch.setattr(tyro, "cli", slow)
    assert refused("train", "gmlp", "--steps", "many") == quiet


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("member = 'gmlp'\nstepz = 3", "unknown option 'stepz'"),
        ("member = 'gmlp'\n[trainin]\nsteps = 3", "'trainin'; did you mean 'training'"),
        ("member = 'gmlp'\n[training]\nstep = 3", "'training.step'; did you mean 'steps'"),
        ("member = 'gmlp'\n[training]\nsteps = '3'", "'training.steps' must be int | None"),
        ("member = 'aft-local'\n[mixer]\nwindw = 3", "'mixer.windw'; did you mean 'window'"),
        ("member = 'gmlp'\n[data]\nlength = 1", "'data.length' must be at least 2, not 1"),
        ("member = 'gmlp'\ntraining = 3", "training"),
        ("member = 'gmpl'", "unknown member 'gmpl'; did you mean 'gmlp'"),
        ("member = ", "is not valid TOML"),
        ("\udcff", "is not valid TOML"),
    ],
)
def test_a_wrong_config_file_says_where(text: str, told: str, refused: Refused, tree: Path) -> None:
    (tree / "run.toml").write_bytes(text.encode(errors="surrogateescape"))
    assert told in refused("train", "--config", "run.toml")


def test_a_config_file_may_begin_with_a_mark_and_says_each_option_once(refused, say, tree):
    marked = b"\xef\xbb\xbfmember = 'gmlp'\nwidth = 8"
    (tree / "run.toml").write_bytes(marked)
    words = ("--data", "text.txt", "--length", "16", "--print-config")
    code, out, err = say("train", "--config", "run.toml", *words)
    assert (code, json.loads(out)["model"]["width"]) == (0, 8), err
    (tree / "run.json").write_text('{"training": {"steps": 5, "steps": 7}}')
    told = refused("train", "gmlp", "--config", "run.json", *words)
    assert "run.json is not valid JSON: 'steps' stands twice in a table" in told


def test_a_file_with_another_members_genes_is_refused(refused, say, tree):
    sizes = ("--width", "8", "--heads", "2", "--layers", "1")
    words = ("--data", "text.txt", "--length", "16", "--print-config")
    code, out, err = say("train", "gpt", *sizes, *words)
    assert code == 0, err
    (tree / "gpt.json").write_text(out)
    told = refused("train", "aft-conv", "--config", "gpt.json")
    assert "gpt.json describes gpt and its genes, and the command names aft-conv" in told
    # sizes alone belong to no member
    (tree / "sizes.toml").write_text("member = 'gpt'\nwidth = 8\nheads = 2\nlayers = 1")
    code, out, err = say("train", "aft-conv", "--config", "sizes.toml", *words)
    assert (code, json.loads(out)["mixer"]["name"]) == (0, "aft-conv"), err


def test_members_that_cannot_be_say_why(refused: Refused, tree: Path) -> None:
    common = ("--data", "text.txt", "--length", "16", "--layers", "1")
    told = refused("train", "gmlp", "--position", "rope", *common)
    assert "position 'rope'" in told
    assert "mixer 'gmlp'" in told
    told = refused("train", "attention", "--width", "10", "--heads", "3", *common)
    assert "--width 10 is not divisible by --heads 3; heads that fit: 1, 2, 5, 10" in told
    assert "vit" in refused("train", "vit", *common)
    assert not (tree / "runs").exists()


def test_a_fault_of_ours_is_one_sentence_too(refused, monkeypatch):
    ours: dict[str, object] = {"__name__": "everyformer.broken"}
    exec("def broken(words):\n    raise ZeroDivisionError('of all things')", ours)
    monkeypatch.setattr(train, "run", ours["broken"])
    told = refused("train", "gmlp", code=1)
    assert told.startswith("ZeroDivisionError: of all things (a fault of everyformer or")
    assert "--debug" in told
    with pytest.raises(ZeroDivisionError, match="of all things"):
        main(["train", "gmlp", "--debug"])

    def interrupted(words: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "run", interrupted)
    assert refused("train", "gmlp", code=130) == "interrupted"
    monkeypatch.undo()
    with pytest.raises(ConfigError):
        main(["train", "--debug"])


def test_words_given_now_stand_in_the_place_of_those_before() -> None:
    flags = FlagGroup(CompareOptions()).flags()
    before = ["compare", "a", "b", "--seeds", "2", "--lr-grid", "1", "2", "--width=8", "--json"]
    now = ["--seeds", "4", "--lr-grid", "3", "--model.width", "9", "--json"]
    assert without(before, now, flags) == ["compare", "a", "b"]


@pytest.mark.parametrize("verb", ["compare", "bench"])
def test_a_mistyped_member_is_told_before_torch_is_asked_for_more(verb, refused, monkeypatch):
    for module in ("everyformer.lab.compare.compare", "everyformer.lab.bench.bench"):
        monkeypatch.setitem(sys.modules, module, None)
    assert "unknown member 'aft-cov'" in refused(verb, "attention", "aft-cov")


SMALL = ("--steps", "1", "--width", "8", "--layers", "1", "--length", "8")


@pytest.mark.parametrize("verb", ["train", "compare"])
def test_without_a_compiler_nothing_begins(verb, refused, monkeypatch, tree):
    from torch._inductor import cpp_builder, exc

    def none() -> None:
        raise exc.InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", none)
    words = (verb, "gpt", "--compile", "--data", "text.txt", *SMALL, "--device", "cpu")
    assert "needs a C++ compiler" in refused(*words, "--out", "out")
    # nor without the library of a model
    monkeypatch.setitem(sys.modules, "transformers", None)
    words = ("compare", "attention", "hf:mamba", "--data", "text.txt", *SMALL, "--out", "out")
    assert "sequence-laws[hf]" in refused(*words)
    assert not (tree / "out").exists()
