"""What all positions have in common, as one table: order and shifts.

Each row is a position with options that matter on 13 tokens, whether it sees distances alone, and
how it is made blind, if it can be.
"""

import pytest
import torch

import everyformer as ef
from everyformer.checks.cases import randomize_
from everyformer.core.errors import GeneError
from everyformer.core.mask import Mask
from everyformer.genes.positions import POSITIONS
from helpers import build_model

LENGTH = 13
RELATIVE, ABSOLUTE = True, False


def zeros(position):
    for parameter in position.parameters():
        torch.nn.init.zeros_(parameter)


def same_numbers(position):
    torch.nn.init.constant_(position.table, 0.7)


def no_alpha(position):
    torch.nn.init.zeros_(position.alpha)


TABLE = [
    ("sinusoidal", {}, ABSOLUTE, None),
    ("learned", {}, ABSOLUTE, zeros),
    ("learned-per-layer", {}, ABSOLUTE, zeros),
    ("axial", {}, ABSOLUTE, zeros),
    ("axial", {"shape": (8, 4, 2), "dims": (2, 4, 6)}, ABSOLUTE, zeros),
    ("rope", {}, RELATIVE, None),
    ("rope", {"scaling": {"kind": "linear", "factor": 3.0}}, RELATIVE, None),
    ("rope", {"layout": "interleaved"}, RELATIVE, None),
    ("alibi", {}, RELATIVE, None),
    ("alibi", {"slopes": (0.0, 0.0, 0.0)}, RELATIVE, zeros),
    ("t5-relative", {"buckets": 8, "max_distance": 9}, RELATIVE, same_numbers),
    ("shaw", {"clip": 4}, RELATIVE, zeros),
    ("shaw", {"clip": (2, 5), "per_head": True}, RELATIVE, zeros),
    ("shaw", {"clip": 0}, RELATIVE, lambda position: None),
    ("xl-relative", {}, RELATIVE, zeros),
    ("xl-relative", {"clamp": 6}, RELATIVE, zeros),
    ("xl-relative", {"distances": "learned", "reach": 6}, RELATIVE, zeros),
    ("da-transformer", {}, RELATIVE, no_alpha),
]
NAMES = [f"{name} {options}" for name, options, *_ in TABLE]
ROWS = pytest.mark.parametrize(("name", "options", "relative", "blind"), TABLE, ids=NAMES)
BLINDED = [row for row in TABLE if row[3] is not None]


def model(name, options, task="lm"):
    made = build_model(
        "attention", task, width=12, heads=3, layers=2, vocabulary=20, max_length=4 * LENGTH,
        position=name, position_options=options, tie=False,
    )  # fmt: skip
    randomize_(made)
    return made


def positions_in(made):
    inside = [block.mixer.position for block in made.stack.blocks]
    before = [] if made.stack.before is None else list(made.stack.before)
    return [p for p in (made.position, *before, *inside) if p is not None]


def text(batch=2):
    generator = torch.Generator().manual_seed(3)
    return torch.randint(0, 20, (batch, LENGTH), generator=generator)


def test_the_table_has_every_position():
    assert {name for name, *_ in TABLE} == set(POSITIONS.names())


@pytest.mark.parametrize(("name", "options", "relative", "blind"), BLINDED)
def test_made_blind_it_is_equivariant_to_order_and_before_it_is_not(name, options, relative, blind):
    made, tokens = model(name, options, "mlm"), text()
    order = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(1))
    if options not in ({"clip": 0}, {"slopes": (0.0, 0.0, 0.0)}):
        assert (made(tokens[:, order]).logits - made(tokens).logits[:, order]).abs().max() > 1e-3
    for position in positions_in(made):
        blind(position)
    torch.testing.assert_close(made(tokens[:, order]).logits, made(tokens).logits[:, order])


@ROWS
@pytest.mark.parametrize("holes", [False, True])
def test_a_common_shift_changes_nothing_where_distances_alone_are_seen(
    name, options, relative, blind, holes
):
    made, tokens = model(name, options), text()
    padding_mask = torch.ones(2, LENGTH, dtype=torch.bool)
    padding_mask[0, :2] = padding_mask[1, 5] = False
    mask = Mask(padding_mask=padding_mask) if holes else None
    start = made.init_state(2, dtype=torch.float64)
    moved = start.map(lambda t, _: t + 17 if t.dtype == torch.long and t.dim() == 1 else t)
    first = made(tokens, mask=mask, state=start).logits[padding_mask]
    second = made(tokens, mask=mask, state=moved).logits[padding_mask]
    if relative:
        torch.testing.assert_close(second, first)
    else:
        assert (second - first).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["shaw", "xl-relative", "da-transformer", "alibi", "rope"])
@pytest.mark.parametrize("mixer", ["aft-simple", "aft-conv", "gmlp"])
def test_mixers_that_compare_nothing_refuse_positions_inside(name, mixer):
    with pytest.raises(GeneError, match=f"position '{name}' acts on .* but mixer '{mixer}' has"):
        ef.create_model("attention", mixer=mixer, position=name, width=8, heads=2)
