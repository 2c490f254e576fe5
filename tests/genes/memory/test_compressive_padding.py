"""Padding takes no slot of a compressive memory: every row of a batch is what it is alone."""

import itertools

import pytest
import torch
from torch.testing import assert_close

import everyformer as ef
from everyformer.core.mask import Mask

CLOSE = {"rtol": 1e-9, "atol": 1e-10}


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


@pytest.mark.parametrize("reconstruction", ["attention", "auto-encoding"])
@pytest.mark.parametrize("function", ["conv", "dilated"])
def test_losses_are_those_of_the_rows_that_compress(function, reconstruction):
    made = mixer(function=function, reconstruction=reconstruction).train()
    text = torch.randn(1, 7, 12, generator=torch.Generator().manual_seed(3)).double()
    alone = made(text, state=made.init_state(1)).losses["compression"]
    x, padding_mask = torch.full((2, 9, 12), 1e3).double(), torch.zeros(2, 9, dtype=torch.bool)
    x[0, 1:8], padding_mask[0, 1:8], padding_mask[1, 4:6] = text[0], True, True
    padded = made(x, mask=Mask(padding_mask=padding_mask), state=made.init_state(2)).losses[
        "compression"
    ]
    # a mean over rows counts the one that compresses nothing as 0
    assert_close(2 * padded, alone, **CLOSE)
    assert alone.item() > 1e-6


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
        seen = int(state.num_tokens)
        held = state.rows.keys.shape[2]
        times = [*state.packed.times[0].tolist(), *range(seen - held, seen + size)]
        text = torch.zeros(1, times[-1] + 1, 12).double()
        padding_mask = torch.zeros(1, times[-1] + 1, dtype=torch.bool)
        text[0, times] = rows[0]
        padding_mask[0, times] = True
        out = made(x, state=state)
        shown = Mask(attention_mask=padding_mask[:, None, None])
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
    padding_mask = torch.tensor([[True] * 10, [False] * 7 + [True] * 3])
    state = made.init_state(2)
    alone = [made.init_state(1), made.init_state(1)]
    together = made(ids, mask=Mask(padding_mask=padding_mask), state=state)
    own = [made(torch.tensor([row]), state=held) for row, held in zip(rows, alone, strict=True)]
    for token in itertools.chain([1, 5], range(6)):
        for row in (0, 1):
            assert_close(together.logits[row, -1], own[row].logits[0, -1], **CLOSE)
        new = torch.tensor([[token], [token]])
        together = made(new, state=together.state)
        own = [made(new[:1], state=part.state) for part in own]
