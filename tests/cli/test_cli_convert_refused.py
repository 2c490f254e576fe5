"""`convert`: what cannot be converted is refused in one sentence, and nothing is written."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import Refused, Say
from foreign import TOKENIZERS, checkpoint
from safetensors.torch import load_file, save_file


def without(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        tensors = {key: value for key, value in tensors.items() if key != name}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return change


def config(**values: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        held = json.loads((folder / "config.json").read_text())
        held = {k: v for k, v in {**held, **values}.items() if v is not None}
        (folder / "config.json").write_text(json.dumps(held))

    return change


def write(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text) and None


def fifo(name: str) -> Callable[[Path], None]:
    """In the place of a file, a pipe that nobody writes into: to read it would never end."""

    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return change


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that every test has a copy of."""
    folder = tmp_path_factory.mktemp("gpt2")
    checkpoint("gpt2", folder)
    return folder


@pytest.fixture
def theirs(saved: Path, tree: Path) -> Path:
    return Path(shutil.copytree(saved, tree / "theirs"))


def nothing(folder: Path) -> None:
    pass


@pytest.mark.parametrize(
    ("change", "words", "told"),
    [
        (without("transformer.h.1.mlp.c_fc.bias"), (), "lacks transformer.h.1.mlp.c_fc.bias"),
        (lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"), (), "is a pickle, "),
        (config(model_type="gptt2"), (), "did you mean 'gpt2'"),
        (config(model_type=None), (), "names no model_type"),
        (config(model_type=["gpt2"]), (), "model type '['gpt2']' cannot be converted"),
        (config(format=["run"], model_type="no"), (), "cannot be converted"),
        (config(vocab_size=None), (), "of this gpt2 checkpoint lacks 'vocab_size'"),
        (config(n_embd=-1), (), "cannot be: 'n_embd' must be at least 1, not -1"),
        (config(n_layer=10**12), (), "'n_layer' must be at least 1 and at most 1,024"),
        (config(vocab_size=10**12), (), "of memory, but"),
        (write("config.json", '{"n_embd": NaN}'), (), "NaN is no number of JSON"),
        (write("config.json", "[" * 100_000), (), "nested too deeply"),
        (write("config.json", "[]"), (), "is not a table of options"),
        (write("config.json", '{"config": {}}'), (), "names no model_type"),
        (fifo("model.safetensors"), (), "model.safetensors is no ordinary file"),
        (fifo("tokenizer.json"), (), "tokenizer.json is no ordinary file"),
        (lambda f: (f / "config.json").unlink(), (), "holds no config.json"),
        (write("tokenizer.json", "{}"), (), "is no tokenizer of the package tokenizers"),
        (write("tokenizer_config.json", "{"), (), "tokenizer_config.json cannot be read"),
        (nothing, ("--mixer", "aft-covn"), "unknown mixer 'aft-covn'; did you mean 'aft-conv'"),
        (nothing, ("--mixer", "aft-conv", "--to", "hf"), "--mixer aft-conv"),
        (nothing, ("--to", "hf", "--type", "llama"), "cannot be written as llama"),
        (nothing, ("--to", "hf", "--type", "gpt3"), "did you mean 'gpt2'"),
        (nothing, ("--type", "gpt2"), "--type is for --to hf, not ours"),
        (nothing, ("--length", "90"), "--length is for --to longformer or bigbird or etc"),
        (nothing, ("--to", "bigbird", "--window", "8"), "--window is for --to longformer"),
        (nothing, ("--to", "longformer", "--length", "9"), "--length 9 is shorter than the 40"),
        (nothing, ("--to", "longformer", "--window", "9"), "'--window' must be even"),
        (nothing, ("--to", "etc"), "task lm"),
        (nothing, ("--average", "2"), "there are no checkpoints to average"),
        (nothing, ("--to", "tf"), "'hf-model'"),
        (nothing, ("--out", "text.txt"), "text.txt exists and is not replaced"),
        (nothing, ("--out", "text.txt/below"), "cannot write into"),
    ],
)
def test_what_cannot_be_converted_is_refused_and_nothing_is_written(
    change, words, told, refused, theirs, tree
):
    change(theirs)
    out = () if "--out" in words else ("--out", "made")
    assert told in refused("convert", "theirs", *words, *out)
    assert sorted(path.name for path in tree.iterdir()) == ["text.txt", "theirs"]


@pytest.mark.parametrize("source", ["nowhere", "text.txt"])
def test_a_source_that_is_nothing_is_refused(source: str, refused: Refused, tree: Path) -> None:
    assert "there is no folder" in refused("convert", source, "--out", "made")


def test_weights_that_are_no_numbers_are_refused(refused, theirs, tree):
    tensors = load_file(theirs / "model.safetensors")
    tensors["transformer.h.1.mlp.c_fc.bias"][3] = float("nan")
    save_file(tensors, theirs / "model.safetensors", metadata={"format": "pt"})
    told = refused("convert", "theirs", "--out", "made", code=1)
    assert "the weights in theirs are not finite numbers" in told
    assert not (tree / "made").exists()


def test_a_tokenizer_of_another_model_is_refused(refused, theirs, tree):
    checkpoint("llama", tree / "other")
    shutil.copy("theirs/tokenizer.json", "other/tokenizer.json")
    told = refused("convert", "other", "--out", "made")
    held, other = (TOKENIZERS[kind][0]().get_vocab_size() for kind in ("gpt2", "llama"))
    assert f"has {held} tokens, the model only {other}" in told


def test_extra_tensors_are_left_and_no_tokenizer_is_said(say: Say, tree: Path) -> None:
    checkpoint("llama", tree / "theirs", tokens=False)
    tensors = load_file("theirs/model.safetensors") | {"model.adapter.weight": torch.zeros(2)}
    save_file(tensors, "theirs/model.safetensors", metadata={"format": "pt"})
    Path("theirs/tokenizer.model").write_bytes(b"sentencepiece")
    code, out, err = say("convert", "theirs", "--out", "ours")
    assert code == 0, err
    assert "left: model.adapter.weight" in out
    assert "no tokenizer.json was found (tokenizer.model alone cannot be read)" in out
    assert not Path("ours/tokenizer.json").exists()


def test_without_the_package_its_extra_is_named(refused, theirs, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert "everyformer[text]" in refused("convert", "theirs", "--out", "made")
