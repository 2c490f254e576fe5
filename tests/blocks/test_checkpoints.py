"""Checkpoints of layers: the gradients of what was computed, whatever a mixer draws anew."""

import copy

import pytest
import torch

import everyformer as ef
from everyformer.core.mask import Mask
from everyformer.family import list_members

MIXERS = [
    (member.name, {}) for member in list_members() if member.is_mixer and member.can("causal")
]
DRAWN = [("rfa", {"pool": 6}), ("rfa", {"gate": True}), ("performer", {"redraw": 1})]


@pytest.mark.parametrize(("name", "options"), MIXERS + DRAWN)
def test_gradients_and_what_is_drawn_are_those_without_checkpoints(name, options):
    torch.manual_seed(0)
    sizes = {"width": 12, "heads": 3, "layers": 2, "max_length": 24, "vocabulary": 50}
    plain = ef.create_model(name, dropout=0.2, wiring="pre", **sizes, **options).double()
    thrifty = copy.deepcopy(plain)
    thrifty.enable_checkpointing()
    tokens = torch.randint(0, 50, (2, 11))
    mask = Mask(keep=torch.arange(11) < torch.tensor([[11], [7]]))
    found = []
    for model in (plain, thrifty):
        torch.manual_seed(3)
        loss = model(tokens, targets=tokens, mask=mask).loss
        # twice, as two losses of one graph may ask
        torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        found.append(torch.autograd.grad(loss, list(model.parameters())))
    for expected, got in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
    for (_, expected), (_, got) in zip(plain.named_buffers(), thrifty.named_buffers(), strict=True):
        assert torch.equal(got, expected)


def test_the_compiler_takes_checkpoints():
    torch.manual_seed(0)
    model = ef.create_model("attention", width=12, heads=3, layers=2, vocabulary=50)
    tokens = torch.randint(0, 50, (2, 11))
    expected = torch.autograd.grad(model(tokens, targets=tokens).loss, list(model.parameters()))
    model.enable_checkpointing()
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager")
    got = torch.autograd.grad(compiled(tokens, targets=tokens).loss, list(model.parameters()))
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)
