"""Losses that are means over what is not rows: slices of a batch add up to the batch."""

import pytest
import torch
from torch import Tensor
from training_stand_ins import tiny_text

import everyformer as ef
from everyformer.data.batch import Batch
from everyformer.training.carry import TextCarry
from everyformer.training.parallel.world import World
from everyformer.training.step import backward

WORLD = World(torch.device("cpu"))
ROWS, STEPS = 6, 3


def model(reconstruction: str) -> torch.nn.Module:
    torch.manual_seed(0)
    made = ef.create_model(
        "compressive", width=8, heads=2, layers=2, vocabulary=11, slots=4, compressed=3, rate=2,
        dropout=0.0, embedding_dropout=0.0, reconstruction=reconstruction,
    )  # fmt: skip
    for parameter in made.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return made.double().train()


def segments() -> list[Batch]:
    """Of uneven rows."""
    padding_mask = torch.arange(8) < torch.tensor([8, 7, 8, 8, 2, 6])[:, None]
    whole = (tiny_text(8, 301).segment(step, ROWS) for step in range(STEPS))
    return [
        Batch(b.inputs, b.targets.masked_fill(~padding_mask, -100), padding_mask) for b in whole
    ]


def functions_gradients(made: torch.nn.Module) -> dict[str, Tensor]:
    """Of the parameters that the loss of the compression alone moves."""
    return {
        name: p.grad.clone()
        for name, p in made.named_parameters()
        if getattr(p, "apart", False) and p.grad is not None
    }


@pytest.mark.parametrize("reconstruction", ["attention", "auto-encoding"])
@pytest.mark.parametrize("slices", [2, 6])
def test_slices_change_no_loss_of_a_compression(reconstruction: str, slices: int):
    whole, parts = (model(reconstruction) for _ in range(2))
    state, carry = whole.init_state(ROWS), TextCarry(parts, WORLD)
    for batch in segments():
        whole.zero_grad()
        out = whole(batch.inputs, targets=batch.targets, mask=batch.mask, state=state)
        out.loss.backward()
        state = out.state.detach()
        parts.zero_grad()
        found = backward(parts, batch, WORLD, slices=slices, carry=carry)
        assert found["compression"] == pytest.approx(out.losses["compression"].item(), rel=1e-10)
        assert found["compression"] > 1e-4
        expected = functions_gradients(whole)
        assert len(expected) >= 4
        for name, gradient in functions_gradients(parts).items():
            torch.testing.assert_close(gradient, expected[name], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("pooling", ["class", "mean"])
@pytest.mark.parametrize("slices", [2, 4])
def test_slices_of_texts_to_be_classified_weigh_by_the_tokens_that_are_read(pooling, slices):
    """With a token of its own in front of every text, that counts too."""

    def classifier() -> torch.nn.Module:
        torch.manual_seed(0)
        made = ef.create_model(
            "routing", "classify-text", width=8, heads=2, layers=2, vocabulary=11, max_length=12,
            classes=3, pooling=pooling, clusters=2, window=4,
        )  # fmt: skip
        return made.double().train()

    tokens = torch.randint(0, 11, (4, 9), generator=torch.Generator().manual_seed(4))
    padding_mask = torch.arange(9) < torch.tensor([9, 1, 2, 5])[:, None]
    batch = Batch(tokens, torch.tensor([0, 2, 1, 1]), padding_mask)
    plain, parts = classifier(), classifier()
    out = plain(batch.inputs, targets=batch.targets, mask=batch.mask)
    out.loss.backward()
    found = backward(parts, batch, WORLD, slices=slices)
    assert found == pytest.approx({n: t.item() for n, t in out.losses.items()}, rel=1e-10)
    assert found["commitment"] > 1e-6
    for (name, a), b in zip(plain.named_parameters(), parts.parameters(), strict=True):
        torch.testing.assert_close(b.grad, a.grad, rtol=1e-9, atol=1e-12, msg=name)
