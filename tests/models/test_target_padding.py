"""What is behind a row's last target is padding: no loss of a decoder's layers counts it."""

from typing import Any

import pytest
import torch

import everyformer as ef
from helpers import close

SPAN: dict[str, Any] = {"dynamic": True, "penalty": 3.0, "window": 8, "ramp": 2}
COUNTING = {
    "dynamic spans": ({"mixer": "adaptive-span", "position": None, **SPAN}, "span"),
    "fixed spans": ({"mixer": "adaptive-span", "position": None, "penalty": 3.0}, "span"),
    "commitment": ({"mixer": "routing"}, "commitment"),
    "of some heads": ({"mixer": ef.by_head("attention", "routing")}, "commitment"),
    "pondering": ({"depth": "universal", "depth_options": {"halting_bias": -0.5}}, "ponder"),
}  # fmt: skip


def model(**options: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"width": 12, "heads": 2, "layers": 2, "vocabulary": 9, "max_length": 16}
    plain = {"dropout": 0.0, "embedding_dropout": 0.0}
    made = ef.create_model("transformer", "seq2seq", **sizes, **plain, **options).double()
    for block in made.stack.blocks:
        mixer = block.mixer
        if getattr(mixer, "spans_of", None) is not None:
            mixer.spans_of.weight.data *= 5
    return made


@pytest.mark.parametrize("name", COUNTING)
def test_terms_of_a_decoder_are_means_over_its_real_targets(name: str) -> None:
    options, term = COUNTING[name]
    made = model(**options)
    source = torch.randint(1, 9, (2, 7))
    target = torch.randint(1, 9, (2, 6))
    target[0, 2:] = -100
    wide = torch.cat((target, torch.full((2, 3), -100)), 1)
    own = f"{term}-target"
    both = made(source, targets=target).losses
    close(made(source, targets=wide).losses[own], both[own])
    one = made(source[:1], targets=target[:1, :2]).losses
    two = made(source[1:], targets=target[1:]).losses
    close(both[own], (2 * one[own] + 6 * two[own]) / 8)
    close(both[term], (one[term] + two[term]) / 2)
    counts = made.term_counts(source, target, None)
    assert (counts[term], counts[own]) == (14, 8)
