"""Padding takes no slot of a compressive memory: every row of a batch is what it is alone."""

import itertools

import pytest
import torch
from torch.testing import assert_close

import everyformer as ef
from everyformer.core.mask import Mask
from helpers import covering

FUNCTIONS = ("conv", "mean", "max", "dilated", "most-used")
CLOSE = {"rtol": 1e-9, "atol": 1e-10}
SEGMENTS = (
    ([0, 1, 2, 3, 4, 5], [1, 4]),
    ([2, 3], [0, 2, 3, 5]),
    ([], [0, 1, 2, 3, 4, 5]),
    ([1], [3, 4]),
    ([0, 1, 2, 3, 4, 5], [0, 5]),
    ([5], [1, 2, 3]),
)
"""where the real tokens of each of two rows stand in segments of six"""


def mixer(**options):
    torch.manual_seed(0)
    sizes = {"width": 12, "heads": 3, "causal": True}
    own = {"slots": 3, "compressed": 4, "rate": 2} | options
    made = ef.create_mixer(
        "attention", memory="compressive", memory_options=own, position="t5-relative",
        position_options={"buckets": 32, "max_distance": 64}, **sizes,
    )  # fmt: skip
    for weight in made.parameters():
        torch.nn.init.normal_(weight, std=0.4)
    return made.double()


def segments(seed=0):
    """Texts of both rows segment by segment, and the batches that hold them beside padding."""
    generator = torch.Generator().manual_seed(seed)
    for places in SEGMENTS:
        texts = [torch.randn(1, len(at), 12, generator=generator).double() for at in places]
        x, keep = torch.full((2, 6, 12), 1e3).double(), torch.zeros(2, 6, dtype=torch.bool)
        for row, (text, at) in enumerate(zip(texts, places, strict=True)):
            x[row, at], keep[row, at] = text[0], True
        yield texts, x, keep


@covering(distance=["index", "time"], function=FUNCTIONS, training=[False, True])
def test_rows_of_unequal_length_overflow_as_each_alone(function, distance, training):
    made = mixer(function=function, distance=distance).train(training)
    state, alone = made.init_state(2), [made.init_state(1), made.init_state(1)]
    for texts, x, keep in segments():
        out = made(x, mask=Mask(keep=keep), state=state)
        state = out.state
        for row, text in enumerate(texts):
            if text.shape[1]:
                own = made(text, state=alone[row])
                alone[row] = own.state
                assert_close(out.y[row, keep[row]], own.y[0], **CLOSE)
    assert [len(held.packed.x[0]) for held in alone] == [4, 4]


@pytest.mark.parametrize("reconstruction", ["attention", "auto-encoding"])
@pytest.mark.parametrize("function", ["conv", "dilated"])
def test_losses_are_those_of_the_rows_that_compress(function, reconstruction):
    made = mixer(function=function, reconstruction=reconstruction).train()
    text = torch.randn(1, 7, 12, generator=torch.Generator().manual_seed(3)).double()
    alone = made(text, state=made.init_state(1)).losses["compression"]
    x, keep = torch.full((2, 9, 12), 1e3).double(), torch.zeros(2, 9, dtype=torch.bool)
    x[0, 1:8], keep[0, 1:8], keep[1, 4:6] = text[0], True, True
    padded = made(x, mask=Mask(keep=keep), state=made.init_state(2)).losses["compression"]
    # a mean over rows counts the one that compresses nothing as 0
    assert_close(2 * padded, alone, **CLOSE)
    assert alone.item() > 1e-6


@pytest.mark.parametrize("distance", ["index", "time"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_document_that_ends_leaves_no_slot_taken(function, distance):
    made = mixer(function=function, distance=distance)
    generator = torch.Generator().manual_seed(5)
    x, later = (torch.randn(1, n, 12, generator=generator).double() for n in (9, 6))
    ids = torch.tensor([[1] * 4 + [2] * 5])
    packed = made(x, mask=Mask(documents=ids), state=made.init_state(1))
    alone = made(x[:, 4:], state=made.init_state(1))
    assert_close(packed.y[:, 4:], alone.y, **CLOSE)
    for _ in range(3):
        packed, alone = (made(later, state=part.state) for part in (packed, alone))
        assert_close(packed.y, alone.y, **CLOSE)


@pytest.mark.parametrize("sizes", [(12, 1, 1), (9, 4, 2), (20, 2, 6)])
def test_rows_that_were_used_most_are_as_far_as_they_are(sizes):
    """Against attention over the very rows that are held, each at its own position."""
    made = mixer(function="most-used", distance="time", slots=1, compressed=3)
    plain = ef.create_mixer(
        "attention", width=12, heads=3, causal=True, position="t5-relative",
        position_options={"buckets": 32, "max_distance": 64},
    ).double()  # fmt: skip
    plain.load_state_dict(made.state_dict(), strict=False)
    generator, state = torch.Generator().manual_seed(4), made.init_state(1)
    for size in sizes:
        x = torch.randn(1, size, 12, generator=generator).double()
        rows = torch.cat((state.packed.x, state.rows.keys[:, 0], x), 1)
        seen = int(state.seen)
        held = state.rows.keys.shape[2]
        times = [*state.packed.times[0].tolist(), *range(seen - held, seen + size)]
        text = torch.zeros(1, times[-1] + 1, 12).double()
        keep = torch.zeros(1, times[-1] + 1, dtype=torch.bool)
        text[0, times] = rows[0]
        keep[0, times] = True
        out = made(x, state=state)
        shown = Mask(allowed=keep[:, None, None])
        assert_close(out.y, plain.reference(text, mask=shown)[:, -size:], **CLOSE)
        state = out.state


def test_splitting_prompts_by_length_changes_no_token():
    torch.manual_seed(0)
    made = ef.create_model(
        "compressive", vocabulary=9, width=12, heads=3, layers=2, slots=2, compressed=2, rate=2,
    ).double().eval()  # fmt: skip
    for weight in made.parameters():
        weight.data.add_(torch.randn_like(weight) * 0.4)
    rows = [[1, 2, 3, 4, 5, 6, 7, 8, 1, 2], [3, 1, 4]]
    ids = torch.tensor([rows[0], [0] * 7 + rows[1]])
    keep = torch.tensor([[True] * 10, [False] * 7 + [True] * 3])
    state = made.init_state(2)
    alone = [made.init_state(1), made.init_state(1)]
    together = made(ids, mask=Mask(keep=keep), state=state)
    own = [made(torch.tensor([row]), state=held) for row, held in zip(rows, alone, strict=True)]
    for token in itertools.chain([1, 5], range(6)):
        for row in (0, 1):
            assert_close(together.logits[row, -1], own[row].logits[0, -1], **CLOSE)
        new = torch.tensor([[token], [token]])
        together = made(new, state=together.state)
        own = [made(new[:1], state=part.state) for part in own]
