"""Linear layers that others put something in the place of: adapters, quantised ones, hooks."""

import pytest
import torch
from torch import Tensor, nn

from everyformer.checks.cases import small_model
from everyformer.engines.projections import applied
from everyformer.family import info, list_members

MEMBERS = list_members()


class Adapted(nn.Module):
    """A layer with an adapter of low rank beside it, which begins with nothing."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner
        self.down = nn.Linear(inner.in_features, 1, bias=False, dtype=inner.weight.dtype)
        self.up = nn.Linear(1, inner.out_features, bias=False, dtype=inner.weight.dtype)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x) + self.up(self.down(x))
        return y


@pytest.mark.dear("projections are of the base class")
@pytest.mark.parametrize("member", MEMBERS, ids=lambda row: row.name)
def test_adapters_in_place_of_linear_layers_are_read(member):
    model, inputs, targets = small_model(member)
    more = model.extra_inputs(inputs)
    before = model.eval()(inputs, targets=targets, **more).loss
    tied = {id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters()}
    places = [
        (parent, name, layer)
        for parent in model.modules()
        for name, layer in parent.named_children()
        if type(layer) is nn.Linear and id(layer.weight) not in tied
    ]
    for parent, name, layer in places:
        setattr(parent, name, Adapted(layer))
    after = model(inputs, targets=targets, **more).loss
    torch.testing.assert_close(after, before, rtol=0, atol=1e-6)
    model.train()(inputs, targets=targets, **more).loss.backward()
    grads = {
        f"{type(parent).__name__}.{name}": getattr(parent, name).up.weight.grad
        for parent, name, _ in places
    }
    assert grads
    assert [name for name, grad in grads.items() if grad is None] == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["xl-relative", "transformer-xl", "rfa", "linear"])
def test_quantised_linear_layers_are_read(name):
    """In whole texts and in steps, whose tables by distance are remembered; hooks run."""
    model = small_model(info(name))[0].eval()
    seen, encoders = [], [m for n, m in model.named_modules() if n.endswith("position.encode")]
    for module in encoders:
        module.register_forward_hook(lambda *_: seen.append(1))
    model(torch.arange(9)[None])
    assert len(seen) == len(encoders) == (2 if "xl" in name else 0)
    whole = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    tokens = torch.arange(9)[None]
    with torch.no_grad():
        expected, state = whole(tokens).logits, whole.init_state(1)
        for n in range(9):
            out = whole(tokens[:, n : n + 1], state=state)
            state = out.state
        # what a layer reads is rounded to 256 values of its own range in every call, so that a step
        # and a whole text differ by as much as either differs from the model
        torch.testing.assert_close(out.logits[:, 0], expected[:, -1], rtol=0, atol=0.15)
        torch.testing.assert_close(expected, model(tokens).logits, rtol=0, atol=0.3)


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_in_half_precision_is_applied_in_the_dtype_of_what_it_reads(bias):
    layer = nn.Linear(5, 3, bias=bias).bfloat16()
    x = torch.randn(4, 5)
    y = applied(layer, x)
    expected = x.double() @ layer.weight.double().T + (layer.bias.double() if bias else 0)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y.double(), expected, rtol=0, atol=1e-6)
