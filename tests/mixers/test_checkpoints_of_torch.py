"""torch's own checkpoints, which know nothing of our layers, change no gradient of any mixer."""

import copy

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import everyformer as ef
from everyformer.core.errors import EveryformerError
from everyformer.genes.mixers import MIXERS
from helpers import build_mixer, close, draw

LENGTHS = {False: 19, True: 130}
"""of short texts, and of those that other engines take"""


@pytest.mark.dear("what draws numbers has a test of its own")
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", [n for n in MIXERS.names() if n != "by-head"])
def test_gradients_are_those_without_checkpoints(name, causal):
    options = {"causal_chunk": 16} if (name, causal) == ("linformer", True) else {}
    for dropped in ({"attention_dropout": 0.3}, {}):
        for length in LENGTHS.values():
            try:
                made = build_mixer(
                    name, width=8, heads=2, causal=causal, max_length=256, **options, **dropped
                ).train()
            except EveryformerError:
                continue  # it has no such form
            found = []
            for way in (None, False, True):
                mixer, x = copy.deepcopy(made), draw(2, length, 8).requires_grad_()
                torch.manual_seed(5)
                if way is None:
                    y = mixer(x).y
                else:
                    y = checkpoint(lambda t, m=mixer: m(t).y, x, use_reentrant=way)
                y.square().sum().backward()
                found.append([x.grad, *(p.grad for p in mixer.parameters() if p.requires_grad)])
            close(found[0], found[1])
            close(found[0], found[2])


@pytest.mark.full("the compiler works for seconds")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_compiled_stack_with_checkpoints_repeats_its_draws():
    torch.manual_seed(0)
    sizes = {"width": 8, "heads": 2, "layers": 2, "vocabulary": 9, "max_length": 64}
    model, found = ef.create_model("rfa", "lm", **sizes, dropout=0.0).train(), []
    tokens = torch.arange(34).remainder(9).view(2, 17)
    for compiled in (False, True):
        made = copy.deepcopy(model)
        made.enable_checkpointing(compiled)
        run = torch.compile(made, backend="aot_eager") if compiled else made
        torch.manual_seed(1)
        for _ in range(2):
            made.zero_grad()
            run(tokens[:, :-1], targets=tokens[:, 1:]).loss.backward()
        found.append([p.grad for p in made.parameters()])
    close(*found, 1e-5)
