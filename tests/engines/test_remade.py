"""Results made again in the backward pass: gradients of the plain form, and what is kept."""

import weakref
from contextlib import contextmanager, nullcontext

import pytest
import torch
import torch.nn.functional as F
from tests.helpers import saved_bytes
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

import everyformer as ef
from everyformer.engines import remade
from everyformer.genes.feedforward import FEEDFORWARDS

ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu-tanh": lambda h: F.gelu(h, approximate="tanh"),
    "gelu-sigmoid": lambda h: h / (1 + torch.exp(-1.702 * h)),
    "relu": lambda h: h.clamp(min=0),
    "silu": lambda h: h / (1 + torch.exp(-h)),
    "swiglu": lambda g, h: g / (1 + torch.exp(-g)) * h,
    "geglu": lambda g, h: F.gelu(g, approximate="tanh") * h,
}


@pytest.fixture
def eager(monkeypatch):
    """Everything is worth it, and pieces are of three rows of 8 channels."""
    monkeypatch.setattr(remade, "LEAST", 1)
    monkeypatch.setattr(remade, "PIECE", 24)


@contextmanager
def never():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remade, "LEAST", 2**62)
        yield


@contextmanager
def counted():
    """How many bytes more there are after the block, on the host."""
    found = {}
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as running:
        yield found
    found["bytes"] = sum(e.self_cpu_memory_usage for e in running.events())


def feedforward(name, **options):
    torch.manual_seed(0)
    cls = FEEDFORWARDS.get(name)
    return cls(cls.Options(expansion=2.0, **options), width=4).double()


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("bias", [True, False])
def test_a_feed_forward_in_pieces_is_its_equation_once_and_twice_derived(eager, name, bias):
    layer = feedforward(name, feedforward_bias=bias)
    x = torch.randn(2, 5, 4, dtype=torch.float64, requires_grad=True)
    gate = [layer.gate] if layer.gate is not None else []

    def equation(x):
        h = ACTIVATIONS[name](*(F.linear(x, u.weight, u.bias) for u in (*gate, layer.up)))
        return F.linear(h, layer.down.weight, layer.down.bias)

    inputs = [x, *layer.parameters()]
    above = torch.randn(2, 5, 4, dtype=torch.float64)
    found = []
    for form in (lambda x: layer(x)[0], equation):
        y = form(x)
        once = torch.autograd.grad(y, inputs, above, create_graph=True)
        twice = torch.autograd.grad(sum((g**2).sum() for g in once), inputs, allow_unused=True)
        found.append([y, *once, *(g for g in twice if g is not None)])
    assert len(found[0]) > 2 * len(inputs) - 3
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)
    assert torch.autograd.gradcheck(lambda x: layer(x)[0], x)


@pytest.mark.parametrize("rate", [0.3, 0.7])
def test_pieces_drop_what_the_whole_drops(eager, rate):
    layer = feedforward("gelu", feedforward_dropout=rate)
    x, found = torch.randn(2, 5, 4, dtype=torch.float64, requires_grad=True), []
    for way in (nullcontext, never):
        with way():
            torch.manual_seed(1)
            y, _ = layer(x)
            found.append([y, *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])])
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)


MEMBERS = {
    "linear": {}, "aft-simple": {}, "longformer": {"window": 6}, "gpt": {"dropout": 0.0},
    "attention": {}, "gtrxl": {}, "performer": {}, "bert": {},
}  # fmt: skip


def steps(member, options, steps=1, precision=None):
    torch.manual_seed(0)
    sizes = {"width": 12, "heads": 3, "layers": 2, "vocabulary": 20, "max_length": 30}
    task = "mlm" if member == "bert" else "lm"
    model = ef.create_model(member, task, **sizes, **options)
    model = model if precision else model.double()
    tokens = torch.randint(20, (2, 30))
    state = {"state": model.init_state(2)} if member == "gtrxl" else {}
    cast = torch.autocast("cpu", torch.bfloat16) if precision else nullcontext()
    torch.manual_seed(1)
    with cast:
        loss = model(tokens, targets=tokens.roll(1, 1), **state).loss
    loss.backward()
    return [loss, *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("member", MEMBERS)
def test_a_model_learns_as_it_does_when_all_is_kept(eager, member):
    found = []
    for way in (nullcontext, never):
        with way():
            found.append(steps(member, MEMBERS[member]))
    torch.testing.assert_close(*found, rtol=0, atol=1e-11)


@pytest.mark.parametrize("residual", ["pre", "post", "gated"])
def test_layers_that_keep_their_inputs_alone_keep_no_more(residual, monkeypatch):
    monkeypatch.setattr(remade, "LEAST", 1)
    torch.manual_seed(0)
    sizes = {"width": 16, "heads": 2, "layers": 4, "vocabulary": 8, "residual": residual}
    model = ef.create_model("linear", "lm", **sizes).double()
    model.enable_checkpointing()
    tokens, found = torch.randint(8, (2, 64)), []
    for way in (nullcontext, never):
        with way():
            with counted() as alive:
                loss = model(tokens, targets=tokens).loss
            found.append([loss, *torch.autograd.grad(loss, list(model.parameters())), alive])
    # the norm after the last layer is made again in one of them
    assert found[0].pop()["bytes"] <= found[1].pop()["bytes"]
    torch.testing.assert_close(*found, rtol=0, atol=1e-11)


@pytest.mark.parametrize("member", ["linear", "aft-simple", "longformer"])
def test_half_precision_learns_as_it_does_when_all_is_kept(eager, member):
    found = []
    for way in (nullcontext, never):
        with way():
            found.append(steps(member, {}, precision="bfloat16"))
    torch.testing.assert_close(*found, rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("autocast", [True, False])
def test_sums_over_rows_are_not_taken_in_half_precision(eager, autocast):
    layer = feedforward("gelu")
    x = (torch.rand(1, 4000, 4, dtype=torch.float64) + 1).requires_grad_()
    [exact] = torch.autograd.grad(layer(x)[0].sum(), layer.down.weight)
    layer, x = (layer.float(), x.float()) if autocast else (layer.bfloat16(), x.bfloat16())
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y, _ = layer(x)
    [found] = torch.autograd.grad(y.sum(), layer.down.weight)
    torch.testing.assert_close(found.double(), exact, rtol=0.03, atol=0)


@pytest.mark.parametrize(
    ("member", "inside"),
    [
        # heads and sums besides: each number is of (B, L, width) tensors a layer keeps in its mixer
        ("aft-simple", 5),  # sigma(Q), K, V, log-sums, averages
        ("longformer", 4),  # Q, K, V, averages
        ("linear", 4),  # the same
    ],
)
def test_a_step_keeps_streams_hidden_channels_and_what_mixers_average(member, inside):
    torch.manual_seed(0)
    layers, width, vocabulary = 2, 64, 16
    length = remade.LEAST // width  # the shortest that is worth it, whose pieces are smaller
    model = ef.create_model(
        member, "lm", width=width, heads=2, layers=layers, vocabulary=vocabulary, position=None
    )
    tokens = torch.randint(vocabulary, (1, length))
    kept = saved_bytes(
        lambda: model(tokens, targets=tokens).loss, [*model.parameters(), *model.buffers()]
    )
    # two streams, 4 times as many hidden channels; after the layers a stream and the logits
    streams = layers * (2 + 4 + inside) + 1
    expected = 4 * length * (streams * width + vocabulary)
    assert expected <= kept < 1.06 * expected


def test_others_see_what_is_kept_and_may_keep_it_elsewhere(eager):
    norm = nn.LayerNorm(4).double()
    x = torch.randn(2, 5, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    seen = []

    def make():
        z = remade.noted(norm, x * 1)
        with remade.remade(z):
            return F.linear(z, weight).sin() + F.linear(z, weight + 1)

    plain = torch.autograd.grad(
        (F.linear(norm(x), weight).sin() + F.linear(norm(x), weight + 1)).sum(), [x, weight]
    )
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: (seen.append(t.untyped_storage().nbytes()), t.clone())[1], lambda t: t.clone()
    ):
        y = make()
    torch.testing.assert_close(torch.autograd.grad(y.sum(), [x, weight], retain_graph=True), plain)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), [x, weight]), plain)
    again = checkpoint(lambda _: make(), x, use_reentrant=False)
    torch.testing.assert_close(torch.autograd.grad(again.sum(), [x, weight]), plain)


def test_it_is_made_once_a_backward_pass_and_let_go(eager):
    x, weight = torch.randn(2, 5, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    made = []

    def f(x):
        z = x.sin()
        made.append(weakref.ref(z))
        return z

    z = remade.noted(f, x)
    with remade.remade(z):
        y = F.linear(z, weight) * F.linear(z, weight + 1)
    del z
    assert made[0]() is None
    for count in (2, 3):
        y.sum().backward(retain_graph=True)
        assert len(made) == count
        assert all(z() is None for z in made)


def test_what_is_kept_may_not_be_changed(eager):
    x = torch.randn(2, 5, 4, requires_grad=True)
    weight = torch.randn(4, 4, requires_grad=True)
    z, other = remade.noted(torch.sin, x), x * 2
    with remade.remade(z):
        y = F.linear(z, weight) * other
    other.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_what_was_changed_since_it_was_made_is_kept_itself(eager):
    x = torch.randn(2, 5, 4, requires_grad=True)
    weight = torch.randn(4, 4, requires_grad=True)
    z = remade.noted(torch.cos, x)
    with remade.remade(z):
        y = F.linear(z.mul_(2), weight)
    [found] = torch.autograd.grad(y.sum(), [weight])
    torch.testing.assert_close(found, (2 * x.cos()).flatten(0, 1).sum(0).expand(4, 4))


def test_a_graph_of_a_step_is_whole_and_transforms_go_through(eager):
    layer = feedforward("gelu").float()
    x = torch.randn(2, 5, 4)
    compiled = torch.compile(
        lambda x: layer(x)[0].square().sum(), backend="aot_eager", fullgraph=True
    )
    x.requires_grad_()
    torch.testing.assert_close(
        torch.autograd.grad(compiled(x), x), torch.autograd.grad(layer(x)[0].square().sum(), x)
    )
    by_func = torch.func.grad(lambda x: layer(x)[0].square().sum())(x.detach())
    torch.testing.assert_close(by_func, torch.autograd.grad(layer(x)[0].square().sum(), x)[0])
    rows = torch.func.vmap(lambda x: layer(x[None])[0][0])(x)
    torch.testing.assert_close(rows, layer(x)[0])
    exported = torch.export.export(layer, (x.detach(),)).module()
    torch.testing.assert_close(exported(x)[0], layer(x)[0])


@pytest.mark.parametrize("x", [-30.0, -1.0, 0.0, 2.0])
def test_the_slope_of_elu_features(x):
    from everyformer.genes.mixers.linear import elu_features

    x = torch.full((1, 1, 3, 2), x, dtype=torch.float64, requires_grad=True)
    [slope] = torch.autograd.grad(elu_features(x).sum(), x)
    torch.testing.assert_close(slope, x.detach().clamp(max=0).exp(), rtol=1e-14, atol=0)
