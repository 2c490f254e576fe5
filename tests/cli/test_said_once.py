"""An option of one value that has two; models that cannot be, told before anything is spent."""

import sys

import pytest

from everyformer.cli import main
from everyformer.cli.flags import FlagGroup, without
from everyformer.cli.verbs.compare import CompareOptions


def refused(capsys, *words):
    assert main(list(words)) == 2
    [line] = [n for n in capsys.readouterr().err.splitlines() if n.startswith("everyformer: ")]
    return line


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("train gpt --length 128 256", "--length takes one value, not 128 and 256"),
        ("compare gpt --length 128 256", "--length takes one value, not 128 and 256"),
        ("compare gpt --lr 1e-2 3e-2", "--lr takes one value, not 1e-2 and 3e-2"),
        ("train gpt --width 64 --model.width 32", "--model.width is given 2 times: give it once"),
        ("compare gpt --seeds 2 --seeds=3", "--seeds is given 2 times: give it once"),
    ],
)
def test_two_values_for_one(capsys, words, sentence):
    assert sentence in refused(capsys, *words.split())


def test_several_values_are_not_two(capsys):
    assert main(["compare", "gpt", "--lr-grid", "1e-2", "3e-2", "--print-config"]) == 0
    assert "0.03" in capsys.readouterr().out


def test_words_given_now_stand_in_the_place_of_those_before():
    flags = FlagGroup(CompareOptions()).flags()
    before = ["compare", "a", "b", "--seeds", "2", "--lr-grid", "1", "2", "--width=8", "--json"]
    now = ["--seeds", "4", "--lr-grid", "3", "--model.width", "9", "--json"]
    assert without(before, now, flags) == ["compare", "a", "b"]


@pytest.mark.parametrize("verb", ["compare", "bench"])
def test_a_mistyped_member_is_told_before_torch_is_asked_for_more(capsys, monkeypatch, verb):
    for module in ("everyformer.lab.compare.compare", "everyformer.lab.bench.bench"):
        monkeypatch.setitem(sys.modules, module, None)
    assert "unknown member 'aft-cov'" in refused(capsys, verb, "attention", "aft-cov")


def test_a_model_of_a_library_that_is_not_there_ends_a_comparison(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "transformers", None)
    words = "compare attention hf:mamba --steps 1 --width 8 --layers 1 --length 8 --batch 2"
    line = refused(capsys, *words.split(), "--out", str(tmp_path / "out"))
    assert "sequence-laws[hf]" in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("verb", ["train", "compare"])
def test_without_a_compiler_nothing_begins(capsys, monkeypatch, tmp_path, verb):
    from torch._inductor import cpp_builder, exc

    def none():
        raise exc.InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", none)
    words = f"{verb} gpt --compile --steps 1 --width 8 --layers 1 --length 8 --device cpu"
    assert "needs a C++ compiler" in refused(capsys, *words.split(), "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
