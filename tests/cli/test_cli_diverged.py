"""A model that has diverged is refused with exit code 1, whatever is asked of it."""

import math
from pathlib import Path

import pytest
import torch
from commands import Refused

import everyformer as ef
from everyformer.core.errors import DivergedError
from everyformer.data.tokenizers.plain import ByteTokenizer
from everyformer.generation.config import Sampling
from everyformer.generation.sampling import draw
from everyformer.system.plain import from_json
from everyformer.system.sealed import read_json


def saved(place: Path, value: float, member: str = "aft-simple") -> str:
    """A language model of which one matrix is ``value`` everywhere."""
    model = ef.create_model(member, vocabulary=256, width=16, layers=1, heads=2, max_length=32)
    with torch.no_grad():
        model.embedding.weight.fill_(value)
    ef.save(model, place, tokenizer=ByteTokenizer())
    return str(place)


def test_weights_that_are_not_finite_are_refused(tree: Path, refused: Refused) -> None:
    for verb, words, value in (
        ("eval", "--data text.txt --length 16 --json", math.nan),
        ("generate", "--prompt a", math.inf),
        ("convert", "--to hf --out out --json", math.inf),
        ("show", "--out out", math.nan),
    ):
        told = refused(verb, saved(tree / "model", value, "attention"), *words.split(), code=1)
        assert "are not finite numbers (embedding.weight): its training diverged" in told
        assert not (tree / "out").exists()


def test_a_loss_that_overflows_and_scores_are_refused(tree, refused, say):
    place = saved(tree / "model", 3e38)
    for more in ((), ("--lengths", "8", "16"), ("--mode", "sliding")):
        length = () if "--lengths" in more else ("--length", "16")
        words = (place, "--data", "text.txt", *length, "--sequences", "4", "--json", *more)
        told = refused("eval", *words, code=1)
        assert "weights are finite, the largest is 3e+38, but what it computes with" in told
    for chosen in ((), ("--temperature", "0"), ("--top-k", "3")):
        code, _, err = say("generate", place, "--prompt", "ab", *chosen)
        assert (code, "scores of what comes next are not finite numbers" in err) == (1, True)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_scores_must_be_finite_but_may_exclude(broken: float) -> None:
    logits = torch.tensor([[0.0, -math.inf, 1.0]])
    assert int(draw(logits, Sampling(temperature=0), torch.Generator())) == 2
    logits[0, 1] = broken
    for rows in (logits, torch.full((1, 3), -math.inf)):
        with pytest.raises(DivergedError, match="not finite"):
            draw(rows, Sampling(), torch.Generator())


STORED = ("--retrieval.size", "2000", "--retrieval.tune", "300", "--length", "16")


@pytest.mark.full("searches weights, seconds")
def test_a_weight_that_is_found_leaves_every_token_possible(tree, say):
    """The text continues one letter that no neighbour has, where the model alone is no good."""
    (tree / "text.txt").write_text("the same again. " * 200 + "Z")
    words = (*STORED, "--data", "text.txt", "--steps", "3", "--width", "8", "--layers", "1",
             "--heads", "2")  # fmt: skip
    code, _, err = say("train", "knn-lm", *words, "--out", "run")
    assert code == 0, err
    [told] = [line for line in err.splitlines() if "n / (n + 1)" in line]
    assert f"lambda {299 / 300:.9g} is the largest that 299 tokens can speak for" in told
    kept = read_json(tree / "run" / "retrieval" / "reading.json", "everyformer-reading")
    assert kept["reading"]["weight"] == 299 / 300
    out, err = say("eval", "run", "--json")[1:]
    assert math.isfinite(from_json(out)["evaluation"]["loss"]), err


@pytest.mark.full("searches weights, seconds")
def test_a_weight_of_one_is_named_as_the_cause(tree, say, refused):
    (tree / "text.txt").write_text("the same again. " * 200 + "Z")
    words = (*STORED, "--data", "text.txt", "--steps", "2", "--width", "8", "--layers", "1",
             "--heads", "2", "--retrieval.weight", "1", "--json")  # fmt: skip
    code, out, err = say("train", "knn-lm", *words, "--out", "run")
    assert code == 0, err
    found = from_json(out)["evaluation"]
    assert (found["loss"], found["loss_interval"]) == (math.inf, None)
    assert found["perplexity"] == math.inf
    cause = "with lambda 1 the neighbours alone predict"
    assert f"that loss is inf: {cause}" in err
    for more in ((), ("--store", "run/retrieval/store", "--knn.weight", "1")):
        told = refused("eval", "run", *more, "--json", code=1)
        assert cause in told
        assert "--knn.weight" in told
        assert "diverged" not in told
    words = ("--store", "run/retrieval/store", "--knn.weight", "0.99", "--knn.k", "9")
    assert say("eval", "run", *words)[0] == 0
