"""Checkpoints of layers: the gradients of what was computed, whatever a mixer draws again."""

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
    plain = ef.create_model(name, dropout=0.2, residual="pre", **sizes, **options).double()
    thrifty = copy.deepcopy(plain)
    thrifty.enable_checkpointing()
    tokens = torch.randint(0, 50, (2, 11))
    mask = Mask(padding_mask=torch.arange(11) < torch.tensor([[11], [7]]))
    found = []
    for model in (plain, thrifty):
        torch.manual_seed(3)
        loss = model(tokens, targets=tokens, mask=mask).loss
        # twice, as two losses of one graph may ask
        torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
        found.append(torch.autograd.grad(loss, list(model.parameters())))
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)
    buffers = (dict(model.named_buffers()) for model in (plain, thrifty))
    torch.testing.assert_close(*buffers, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize(
    "name", ["attention", pytest.param("rfa", marks=pytest.mark.full("the compiler takes seconds"))]
)
def test_the_compiler_takes_checkpoints_and_repeats_what_is_drawn(name):
    torch.manual_seed(0)
    plain = ef.create_model(name, width=12, heads=3, layers=1, vocabulary=50, dropout=0.0)
    tokens, found = torch.randint(0, 50, (2, 11)), []
    thrifty = copy.deepcopy(plain)
    thrifty.enable_checkpointing()
    torch._dynamo.reset()
    for model, run in ((plain, plain), (thrifty, torch.compile(thrifty, backend="aot_eager"))):
        torch.manual_seed(1)
        for _ in range(2):
            loss = run(tokens, targets=tokens).loss
            found.append(torch.autograd.grad(loss, list(model.parameters())))
    torch.testing.assert_close(found[:2], found[2:], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("memory", ["segment", "compressive"])
def test_layers_that_read_a_memory_keep_their_inputs_alone(memory):
    torch.manual_seed(0)
    sizes = {"width": 12, "heads": 3, "layers": 4, "vocabulary": 50, "position": "alibi"}
    plain = ef.create_model("attention", memory=memory, slots=6, dropout=0.2, **sizes).double()
    thrifty = copy.deepcopy(plain)
    thrifty.enable_checkpointing()
    tokens, found, kept = torch.randint(0, 50, (2, 33)), [], []
    for model in (plain, thrifty):
        torch.manual_seed(3)
        state, sizes_kept = model.init_state(2), []

        def pack(t, into=sizes_kept):
            into.append(t.untyped_storage().nbytes())
            return t

        parts = []
        for piece in tokens.split(11, 1):
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
                out = model(piece, targets=piece, state=state)
            state = out.state.detach()
            grads = torch.autograd.grad(out.loss, list(model.parameters()), allow_unused=True)
            parts += [g for g in grads if g is not None]
        found.append([*parts, *state.tensors()])
        kept.append(sum(sizes_kept))
    assert kept[1] < kept[0] / 3
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)
