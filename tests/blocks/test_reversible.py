"""Reversible stacks: the equations, the same gradients as autograd's, memory without depth."""

import copy

import pytest
import torch
from torch import nn

import everyformer as ef
from everyformer.blocks.options import BlockOptions
from everyformer.blocks.passing import AllTokens, StackRun
from everyformer.blocks.stack import Stack
from everyformer.checks.cases import randomize_
from everyformer.core.choices import choose
from everyformer.core.errors import EveryformerError, GeneError
from everyformer.core.mask import Mask
from everyformer.core.mixer import Mixer
from everyformer.core.outputs import MixerOutput
from everyformer.family import list_members
from everyformer.genes.depth.plain import Plain
from everyformer.genes.residuals.reversible import Replayed, Reversible, ReversibleOptions
from everyformer.models.build import create_mixer
from helpers import both_ways, draw, feeds, saved_bytes, with_gradients
from sequence_laws.flops import count_flops

WIDTH = 12


def make_stack(name, depth=3, output="concat", **options):
    torch.manual_seed(1)
    own = {"causal_chunk": 4, "k": 2} if name == "linformer" else {}
    sizes = {"width": WIDTH, "heads": 3, "causal": name != "etc", "max_length": 20}
    mixers = [create_mixer(name, **sizes, **own) for _ in range(depth)]
    residual = Reversible(ReversibleOptions(output))
    feed = feeds(dropout=options.get("dropout", 0.0))
    stack = Stack(mixers, WIDTH, BlockOptions(**options), residual, Plain(), feed).double()
    randomize_(stack)
    return stack


def plainly(stack, x, **more):
    """Run the same equations with everything kept by autograd."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Replayed, "forward", StackRun.forward)
        return stack(x, **more)


def recorded(stack, x):
    """A pass without gradients whose steps are recorded, and its halves."""
    run = Replayed(list(stack.blocks), stack.residual, stack.steps)
    run.record(x.dtype)
    return run, run.loop(stack.residual.open(x), AllTokens(run))


def gradients(stack, x, y):
    return with_gradients(y, [x, *stack.parameters()])[1:]


def close(got, expected, atol=1e-10):
    torch.testing.assert_close(got, expected, rtol=0, atol=atol)


def test_one_layer_is_the_papers_equations():
    stack, x = make_stack("attention", depth=1), draw(2, 7, WIDTH)
    (block,) = stack.blocks
    y1 = x + block.mixer(block.mixer_norm(x)).y
    y2 = x + block.feedforward(block.feedforward_norm(y1))[0]
    expected = nn.functional.layer_norm(
        torch.cat((y1, y2), -1), (2 * WIDTH,), stack.norm.weight, stack.norm.bias
    )
    torch.testing.assert_close(stack(x).y, expected, rtol=0, atol=1e-12)
    mean = make_stack("attention", depth=1, output="mean")
    mean.load_state_dict(stack.blocks.state_dict(prefix="blocks."), strict=False)
    expected = nn.functional.layer_norm((y1 + y2) / 2, (WIDTH,), mean.norm.weight, mean.norm.bias)
    torch.testing.assert_close(mean(x).y, expected, rtol=0, atol=1e-12)


MIXERS = [member.name for member in list_members() if member.is_mixer]


@pytest.mark.dear("one stack rebuilds for all mixers")
@pytest.mark.parametrize("mixer", MIXERS)
def test_gradients_equal_autograds_with_dropout_on(mixer):
    stack = make_stack(mixer, dropout=0.3, drop_path=0.2).train()
    x = draw(3, 11, WIDTH).requires_grad_()
    padding_mask = torch.ones(3, 11, dtype=torch.bool)
    padding_mask[0, 7:] = False
    start = copy.deepcopy(stack.state_dict())
    for mask in (None, Mask(padding_mask=padding_mask)):
        stack.load_state_dict(start)
        torch.manual_seed(4)
        ours = stack(x, mask=mask).y
        after = torch.get_rng_state()
        got = gradients(stack, x, ours)
        assert torch.equal(torch.get_rng_state(), after)
        drawn = copy.deepcopy(stack.state_dict())
        stack.load_state_dict(start)
        torch.manual_seed(4)
        kept = plainly(stack, x, mask=mask).y
        torch.testing.assert_close(ours, kept, rtol=0, atol=0)
        close(got, gradients(stack, x, kept))
        # what a pass counts or draws for later ones is the same too
        torch.testing.assert_close(dict(stack.state_dict()), dict(drawn))


def test_steps_that_draw_nothing_between_some_that_do():
    torch.manual_seed(0)
    sizes = {"width": WIDTH, "heads": 3, "causal": True}
    mixers = [create_mixer("attention", **sizes, attention_dropout=0.4) for _ in range(3)]
    stack = Stack(mixers, WIDTH, BlockOptions(), Reversible(), Plain(), feeds()).double()
    randomize_(stack)
    x = draw(2, 7, WIDTH).requires_grad_()
    close(*both_ways(lambda: gradients(stack, x, stack(x).y)))


@pytest.mark.parametrize("layers", [1, 2])
def test_a_decoder_that_reads_an_encoder_gets_autograds_gradients(layers):
    torch.manual_seed(0)
    options = {"residual": "reversible", "reversible_output": "mean", "dropout": 0.3}
    sizes = {"width": WIDTH, "heads": 3, "layers": layers, "vocabulary": 20, "max_length": 9}
    model = ef.create_model("attention", "seq2seq", **sizes, **options).double()
    source, targets = torch.randint(0, 20, (2, 7)), torch.randint(0, 20, (2, 5))
    mask = Mask(padding_mask=torch.arange(7) < torch.tensor([[7], [4]]))

    def learned():
        loss = model(source, targets=targets, mask=mask).loss
        return torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)

    got, expected = both_ways(learned)
    assert all(g is not None and g.abs().max() > 0 for g in got)
    close(got, expected)


def test_a_bias_of_the_mask_gets_its_gradient():
    stack, x = make_stack("attention"), draw(2, 6, WIDTH)
    bias = draw(1, 3, 6, 6, seed=2).requires_grad_()

    def learned():
        return torch.autograd.grad(stack(x, mask=Mask(bias=bias)).y.square().sum(), bias)

    close(*both_ways(learned))


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-4)])
def test_the_inverse_rebuilds_the_input_of_24_layers(dtype, bound):
    stack = make_stack("attention", depth=24).to(dtype)
    x = draw(2, 9, WIDTH).to(dtype)
    with torch.no_grad():
        run, (a, b, _) = recorded(stack, x)
        for step in reversed(run.records):
            weights = step.block.weights_of(step.part).values()
            a, b = b - run.again(step, a, weights, ()).y, a
    for half in (a, b):
        assert (half - x).abs().max() < bound


def test_in_bfloat16_halves_are_rebuilt_in_float32():
    stack = make_stack("attention", depth=8).bfloat16()
    x = draw(2, 9, WIDTH).bfloat16()
    weights = list(stack.parameters())

    def learned():
        y = stack(x).y
        assert y.dtype == torch.bfloat16
        return torch.autograd.grad(y.float().square().sum(), weights, allow_unused=True)

    for a, b in zip(*both_ways(learned), strict=True):
        if a is not None:
            assert (a - b).float().norm() <= 0.02 * b.float().norm() + 1e-3


def kept_for(run, stack, x):
    """Bytes that autograd keeps for the backward pass of ``run``, weights not counted."""
    return saved_bytes(lambda: run(stack, x).y, stack.parameters())


@pytest.mark.dear("one stack rebuilds for all mixers")
@pytest.mark.parametrize("mixer", MIXERS)
def test_saved_bytes_do_not_grow_with_depth(mixer):
    x = draw(2, 16, WIDTH).requires_grad_()
    shallow, deep = (make_stack(mixer, depth=n, dropout=0.3).train() for n in (2, 16))
    ours = [kept_for(Stack.__call__, stack, x) for stack in (shallow, deep)]
    kept = [kept_for(plainly, stack, x) for stack in (shallow, deep)]
    assert ours[0] == ours[1] < kept[0] < kept[1] / 7


@pytest.mark.parametrize(("mixer", "heads", "size"), [("reformer", 3 * 4, 2), ("routing", 2, 4)])
def test_choices_that_are_kept_are_small_numbers(mixer, heads, size):
    """Bytes a layer, token and head: a bucket each round; the nearest centroid, for two uses."""
    x = draw(2, 16, WIDTH).requires_grad_()
    kept = []
    for depth in (1, 3):
        stack = make_stack(mixer, depth=depth).train()
        run, _ = recorded(stack, x)
        kept.append(sum(c.nbytes for one in run.records for c in one.choices))
    assert (kept[1] - kept[0]) / (2 * 2 * 16 * heads) == size


def test_frozen_inputs_and_frozen_layers():
    stack, x = make_stack("attention"), draw(2, 6, WIDTH)
    for weight in stack.blocks[1].parameters():
        weight.requires_grad_(False)
    stack(x).y.square().sum().backward()
    assert all(w.grad is None for w in stack.blocks[1].parameters())
    for block in (stack.blocks[0], stack.blocks[2]):
        assert all(w.grad is not None and w.grad.abs().max() > 0 for w in block.parameters())


def test_accumulation_and_hooks_of_weights():
    stack, x = make_stack("attention"), draw(4, 6, WIDTH)
    calls = []
    weight = stack.blocks[0].mixer.out.weight
    weight.register_hook(lambda g: calls.append(g) or 2 * g)
    stack(x).y.sum().backward()
    whole = {name: w.grad.clone() for name, w in stack.named_parameters()}
    assert len(calls) == 1
    stack.zero_grad()
    for part in x.split(2):
        stack(part).y.sum().backward()
    assert len(calls) == 3
    for name, w in stack.named_parameters():
        torch.testing.assert_close(w.grad, whole[name], rtol=0, atol=1e-10)


def changed_in_place(weights):
    with torch.no_grad():
        weights[-1][..., 3:4].add_(1.0)


def changed_behind_autograd(weights):
    weights[0].data = weights[0].data * 1.01


def stepped(weights, **how):
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    torch.optim.AdamW(weights, **how).step()


CHANGES = {
    "in place": changed_in_place,
    "data": changed_behind_autograd,
    "fused": lambda weights: stepped(weights, fused=True),
    "fused, one weight": lambda weights: stepped(weights[4:5], fused=True, lr=1e-5),
    "foreach": lambda weights: stepped(weights, foreach=True),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_weight_changed_before_the_backward_pass_is_an_error(change):
    stack = make_stack("attention")
    y = stack(draw(2, 6, WIDTH)).y
    CHANGES[change](list(stack.blocks.parameters()))
    with pytest.raises(EveryformerError, match="changed in place"):
        y.sum().backward()


@pytest.mark.parametrize("trained", [True, False])
def test_a_mode_set_before_the_backward_pass_is_not_that_of_the_layers_computed_again(trained):
    stack, x = make_stack("attention", dropout=0.5).train(trained), draw(2, 6, WIDTH)
    x.requires_grad_()

    def run(change):
        torch.manual_seed(3)
        y = stack.train(trained)(x).y
        if change:
            stack.train(not trained)
        return gradients(stack, x, y)

    close(run(True), run(False))
    assert stack.training is trained
    run(True)
    assert all(module.training is not trained for module in stack.modules())


def test_outputs_of_layers_are_offered_and_have_gradients():
    stack, x = make_stack("attention", output="mean"), draw(2, 6, WIDTH).requires_grad_()
    out = stack(x, taps=[f"block-output:{n}" for n in (0, 1, 3)])
    start, inner, end = out.taps.values()
    torch.testing.assert_close(start, x)
    torch.testing.assert_close(stack.norm(end), out.y)
    first = Stack(
        [stack.blocks[0].mixer], WIDTH, BlockOptions(), Reversible(), Plain(), feeds()
    ).double()
    first.blocks[0] = stack.blocks[0]
    once = StackRun([stack.blocks[0]], stack.residual, [(0,)])
    halves = once.forward(x, AllTokens(once))
    torch.testing.assert_close(inner, (halves.a + halves.b) / 2)
    assert torch.autograd.grad(inner.sum(), x)[0].abs().max() > 0


class Nearest(Mixer):
    """Adds the row of a table that is nearest: an argmax that rounding can turn; with a loss."""

    name = "nearest"

    def __init__(self):
        super().__init__()
        self.width, self.causal = WIDTH, True
        self.table = nn.Parameter(draw(5, WIDTH))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.calls = 0

    def forward(self, x, *, context=None, mask=None, state=None):
        def nearest():
            self.calls += 1
            return (x @ self.table.T).argmax(-1)

        rows = self.table[choose(nearest)]
        losses = {"commitment": (x - rows).square().mean()}
        return MixerOutput(self.out(rows * x), None, losses)


def test_what_a_mixer_chose_is_repeated_and_its_losses_come_out():
    torch.manual_seed(0)
    mixers = [Nearest() for _ in range(3)]
    stack = Stack(mixers, WIDTH, BlockOptions(), Reversible(), Plain(), feeds()).double()
    x = draw(2, 6, WIDTH).requires_grad_()

    def learned():
        out = stack(x)
        inputs, loss = [x, *stack.parameters()], out.losses["commitment"]
        return loss, *torch.autograd.grad(out.y.square().sum() + loss, inputs, allow_unused=True)

    close(*both_ways(learned))
    assert [m.calls for m in mixers] == [2, 2, 2], "once in each way"


def test_traces_record_each_layer_once():
    model = ef.create_model(
        "attention", width=WIDTH, heads=3, layers=2, residual="reversible", tie=False
    )
    tokens = torch.randint(0, 256, (1, 5))
    with ef.trace(model) as traced:
        model(tokens, targets=tokens).loss.backward()
    assert [len(kept["weights"]) for kept in traced.records.values()] == [1, 1]


def test_autocast_is_repeated():
    stack = make_stack("attention").float()
    x = draw(2, 6, WIDTH).float()
    weights = list(stack.parameters())
    with torch.autocast("cpu", torch.bfloat16):
        ours = stack(x).y
    got = torch.autograd.grad(ours.sum(), weights, allow_unused=True)
    with torch.autocast("cpu", torch.bfloat16):
        kept = plainly(stack, x).y
    close(got, torch.autograd.grad(kept.sum(), weights, allow_unused=True), atol=1e-3)
    with torch.autocast("cpu", torch.bfloat16):
        first, second = stack(x).y, plainly(stack, x).y
    found = torch.autograd.grad(second.sum(), weights, allow_unused=True)
    assert all(g is not None for g in found[:-2]), "casts made without a graph were reused"
    torch.testing.assert_close(first, second)


def test_the_compiler_gets_one_graph_with_the_same_gradients():
    stack, x = make_stack("attention", depth=2), draw(2, 6, WIDTH).requires_grad_()
    torch._dynamo.reset()
    compiled = torch.compile(stack, backend="aot_eager", fullgraph=True)
    ours, theirs = stack(x).y, compiled(x).y
    torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-10)
    close(gradients(stack, x, theirs), gradients(stack, x, ours))


@pytest.mark.parametrize("task", ["lm", "seq2seq"])
def test_operations_are_counted_those_of_the_second_computation_too(task):
    sizes = {"width": WIDTH, "heads": 3, "layers": 2, "vocabulary": 20, "max_length": 9}
    tokens, found = torch.randint(0, 20, (2, 9)), {}
    for residual, output in (("pre", "concat"), ("reversible", "mean")):
        chosen = {"reversible_output": output} if residual == "reversible" else {}
        model = ef.create_model("attention", task, residual=residual, **chosen, **sizes)
        found[residual] = count_flops(lambda m=model: m(tokens, targets=tokens).loss.backward())
    assert 1.1 * found["pre"] < found["reversible"] < 1.34 * found["pre"]


def test_halves_side_by_side_are_refused_where_nothing_reads_them():
    for task, message in (("lm", "tie=True"), ("mlm", "tie=True"), ("seq2seq", "_output='mean'")):
        with pytest.raises(GeneError, match=message):
            ef.create_model("attention", task, residual="reversible", width=WIDTH, heads=3)
