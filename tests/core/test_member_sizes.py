"""What a row says of its sizes is what its model holds."""

import dataclasses

import pytest
import torch
from torch.utils._pytree import tree_leaves

from everyformer.core.formula import letters_in, value_of
from everyformer.core.member import Cost
from everyformer.family import info, list_members
from helpers import build_model

SHORT = {"memorizing": {"M": 512}}
"""letters that are made small, so that the text fills what is held"""
OPTIONS = {"memorizing": {"size": 512}}
OFF = {
    "compressive": 0.15, "memorizing": 0.25,  # not full after 512 tokens
    "performer": 0.08, "routing": 0.04,  # features and clusters are whole numbers
    "bigbird": 0.3,  # of random blocks, those that lie in the window are held once
}  # fmt: skip
STREAMING = [m.name for m in list_members(task="lm", abilities=("streaming",))]


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        ("2 t d", 2 * 5 * 3),
        ("M (d + h)", 7 * (3 + 4)),
        ("2 d (t M / h + h)", 2 * 3 * (5 * 7 / 4 + 4)),
        ("sqrt(h) t - 1.5", 8.5),
        ("d / h log(1)", 0.0),
        ("L L", 81.0),
    ],
)
def test_a_space_is_a_product_in_formulas(formula: str, value: float) -> None:
    assert value_of(formula, {"t": 5, "d": 3, "h": 4, "M": 7, "L": 9}) == pytest.approx(value)


def test_letters_are_those_without_the_names_of_functions() -> None:
    assert letters_in("2 sqrt(K) w d") == {"K", "w", "d"}


@pytest.mark.parametrize("formula", ["not stated", "2 t d and more", "t ** d", "t if d else h", ""])
def test_what_is_no_formula_has_no_value(formula: str) -> None:
    letters = dict.fromkeys(("t", "d", "h", "and", "more"), 1.0)
    with pytest.raises((ValueError, KeyError)):
        value_of(formula, letters)
    cost = Cost(1, 1, "", formula)
    assert cost.held(t=1, d=1, h=1, layers=1) is None
    assert cost.grows is None


@pytest.mark.dear("states are of the base class, and long")
@pytest.mark.parametrize(
    ("width", "heads", "layers", "tokens"), [(64, 4, 1, 1024), (32, 8, 4, 512)]
)
@pytest.mark.parametrize("name", STREAMING)
def test_a_state_has_the_size_that_the_row_says(
    name: str, width: int, heads: int, layers: int, tokens: int
) -> None:
    cost = info(name).cost
    cost = dataclasses.replace(cost, table="0", letters={**cost.letters, **SHORT.get(name, {})})
    sizes = {"width": width, "heads": heads, "layers": layers, **OPTIONS.get(name, {})}
    model = build_model(name, vocabulary=16, max_length=tokens, dtype=torch.float32, **sizes)
    state, held = model.init_state(1), 0
    with torch.no_grad():
        for piece in torch.randint(16, (1, tokens)).split(128, dim=1):
            state = model(piece, state=state).state
            floats = [x.numel() for x in tree_leaves(state) if torch.is_floating_point(x)]
            held = max(held, sum(floats))
    said = cost.held(t=tokens, d=width, h=heads, layers=layers)
    assert said is not None
    assert held == pytest.approx(said, rel=OFF.get(name, 0.01))


@pytest.mark.dear("of the base class but for a few, which their own tests count")
@pytest.mark.parametrize("name", [m.name for m in list_members(task="lm")])
def test_weights_that_grow_with_the_square_of_the_longest_text_are_in_the_row(name: str) -> None:
    sizes, (short, long) = {"vocabulary": 16, "width": 32, "heads": 2, "layers": 2}, (256, 512)
    counts = [
        sum(p.numel() for p in build_model(name, max_length=length, **sizes).parameters())
        for length in (short, long)
    ]
    table = info(name).cost.table
    said = 2 * (value_of(table, {"L": long}) - value_of(table, {"L": short}))
    # what grows like the length itself is small beside the state
    assert abs(counts[1] - counts[0] - said) < 2 * (long - short) * 16 * 32


def test_rows_say_constant_of_the_states_that_are() -> None:
    for member in list_members(abilities=("streaming",)):
        assert ("constant" in member.cost.state) == (member.cost.grows is False), member.name
    # they read both ways, so there is no state
    assert info("linformer").cost.grows is None
    assert info("etc").cost.grows is None
