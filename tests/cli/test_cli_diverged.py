"""A model that has diverged is refused with exit code 1, whatever is asked of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import everyformer as ef
from everyformer.core.errors import DivergedError
from everyformer.data.tokenizers.plain import ByteTokenizer
from everyformer.generation.config import Sampling
from everyformer.generation.sampling import draw

Refused = Callable[..., str]


def saved(place: Path, value: float, member: str = "aft-simple") -> str:
    """A language model of which one matrix is ``value`` everywhere."""
    model = ef.create_model(member, vocabulary=256, width=16, layers=1, heads=2, max_length=32)
    with torch.no_grad():
        model.embedding.weight.fill_(value)
    ef.save(model, place, tokenizer=ByteTokenizer())
    return str(place)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize(
    ("verb", "words"),
    [
        ("eval", ("--data", "text.txt", "--length", "16", "--json")),
        ("generate", ("--prompt", "a")),
        ("convert", ("--to", "hf", "--out", "out", "--json")),
        ("show", ("--out", "out")),
    ],
)
def test_weights_that_are_not_finite_are_refused(
    verb: str, words: tuple[str, ...], value: float, tree: Path, refused: Refused
) -> None:
    told = refused(verb, saved(tree / "model", value, "attention"), *words, code=1)
    assert "are not finite numbers (embedding.weight): its training diverged" in told
    assert not (tree / "out").exists()


def test_a_loss_that_overflows_is_refused(tree: Path, refused: Refused) -> None:
    place = saved(tree / "model", 3e38)
    for more in ((), ("--lengths", "8", "16"), ("--mode", "sliding")):
        words = (place, "--data", "text.txt", "--length", "16", "--sequences", "4", "--json", *more)
        assert "which measures nothing: its training diverged" in refused("eval", *words, code=1)


@pytest.mark.parametrize("words", [(), ("--temperature", "0"), ("--top-k", "3")])
def test_scores_that_overflow_are_refused(
    words: tuple[str, ...], tree: Path, refused: Refused, say: Callable[..., tuple[int, str, str]]
) -> None:
    place = saved(tree / "model", 3e38)
    code, _, err = say("generate", place, "--prompt", "ab", *words)
    assert code == 1
    assert "scores of what comes next are not finite numbers" in err


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_scores_must_be_finite_but_may_exclude(broken: float) -> None:
    logits = torch.tensor([[0.0, -math.inf, 1.0]])
    assert int(draw(logits, Sampling(temperature=0), torch.Generator())) == 2
    logits[0, 1] = broken
    for rows in (logits, torch.full((1, 3), -math.inf)):
        with pytest.raises(DivergedError, match="not finite"):
            draw(rows, Sampling(), torch.Generator())
