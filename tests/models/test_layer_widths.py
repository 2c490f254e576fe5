"""All layers of a model are as wide as it is: options that make one of another width are refused
when it is built, and taken where a mixer stands alone."""

import dataclasses
from typing import Any

import pytest
import torch

import everyformer as ef
from everyformer.checks.cases import small_model
from everyformer.core.errors import GeneError
from everyformer.core.trials import WIDTH
from everyformer.family import list_members
from everyformer.genes import GENES

SIDES = ("query", "key", "value", "output")
MEMBERS = [
    member
    for member in list_members()
    if any(
        option.name == "widths"
        for option in dataclasses.fields(GENES["mixer"].options(member.genes["mixer"].name))
    )
]


def widths(side: str, channels: int) -> dict[str, Any]:
    return {"widths": {side: channels}}


def test_the_option_is_found() -> None:
    assert {"attention", "bert", "alibi", "transformer-xl", "calm"} <= {m.name for m in MEMBERS}


@pytest.mark.dear("one function refuses for all")
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.name)
def test_a_layer_of_another_width_is_refused(member: Any, side: str) -> None:
    expected = rf"^`mixer\.widths\.{side}` must be `width={WIDTH}` in a layer, not 7: "
    with pytest.raises(GeneError, match=expected):
        small_model(member, mixer_options=widths(side, 7))
    model, inputs, targets = small_model(member, mixer_options=widths(side, WIDTH))
    assert model(inputs, targets=targets, **model.extra_inputs(inputs)).loss.isfinite()


@pytest.mark.parametrize("side", SIDES)
def test_so_is_one_that_reads_an_encoder_or_holds_some_heads(side: str) -> None:
    sizes: dict[str, Any] = {"width": 8, "heads": 2, "layers": 1, "vocabulary": 9, "max_length": 5}
    with pytest.raises(GeneError, match=rf"`cross\.widths\.{side}` must be `width=8`"):
        ef.create_model("transformer", "seq2seq", cross_options=widths(side, 7), **sizes)
    split = ef.by_head("attention", "aft-simple", attention=widths(side, 7))
    with pytest.raises(GeneError, match=rf"`own\.attention\.widths\.{side}` must be `width=8`"):
        ef.create_model("attention", mixer=split, **sizes)


@pytest.mark.parametrize(("side", "channels"), [("query", 8), ("output", 7)])
def test_alone_a_mixer_may_be_of_any_width(side: str, channels: int) -> None:
    mixer = ef.create_mixer("attention", width=8, heads=2, **widths(side, 7))
    x = torch.ones(2, 5, 7 if side == "query" else 8)
    context = torch.ones(2, 3, 8)
    assert mixer(x, context=context).y.shape == (2, 5, channels)
