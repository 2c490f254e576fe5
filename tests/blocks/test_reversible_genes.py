"""Reversible stacks with the other genes: positions, memories, losses of inner layers."""

import pytest
import torch

import everyformer as ef
from everyformer.checks.cases import randomize_
from everyformer.core.mask import Mask
from everyformer.genes.positions import POSITIONS
from helpers import both_ways, covering, saved_bytes

LENGTH = 11
TOKENS = torch.randint(0, 20, (2, 3 * LENGTH), generator=torch.Generator().manual_seed(1))
TARGETS = TOKENS.roll(-1, 1)


def model(task="lm", layers=3, **options):
    torch.manual_seed(0)
    sizes = {"width": 12, "heads": 3, "layers": layers, "vocabulary": 20, "max_length": 4 * LENGTH}
    more = {"residual": "reversible", "tie": False, "dropout": 0.2, **options}
    made = ef.create_model("attention", task, **sizes, **more).double()
    randomize_(made)
    return made


def close(pair):
    torch.testing.assert_close(*pair, rtol=0, atol=1e-10)


@pytest.mark.parametrize("position", POSITIONS.names())
def test_every_position_learns_what_autograd_says(position):
    made = model(position=position)
    mask = Mask(padding_mask=torch.arange(LENGTH) >= torch.tensor([[0], [4]]))
    inputs = made.embedding(TOKENS[:, :LENGTH]).detach().requires_grad_()
    wanted = [inputs, *(w for n, w in made.named_parameters() if n != "embedding.weight")]

    def run():
        out = made(TOKENS[:, :LENGTH], targets=TARGETS[:, :LENGTH], mask=mask, embeddings=inputs)
        return torch.autograd.grad(out.loss, wanted)

    close(learned := both_ways(run))
    assert all(g.count_nonzero() for g in learned[0])


def test_positions_before_layers_are_added_to_both_halves():
    """Tables of zeros but the first are positions added to the embeddings."""
    each, once = model(position="learned-per-layer"), model(position="learned")
    each.load_state_dict(once.state_dict(), strict=False)
    for n, position in enumerate(each.stack.before):
        table = once.position.table.detach()
        position.table.data.copy_(table if n == 0 else torch.zeros_like(table))
    torch.testing.assert_close(each.eval()(TOKENS).logits, once.eval()(TOKENS).logits)


def test_frozen_positions_before_layers():
    made = model(position="learned-per-layer")
    made.stack.before[1].table.requires_grad_(False)
    made(TOKENS, targets=TARGETS).loss.backward()
    assert [p.table.grad is None for p in made.stack.before] == [False, True, False]


MEMORIES = [
    ("segment", {"slots": 6}),
    ("segment", {"slots": 6, "store": "keys"}),
    ("compressive", {"slots": 4, "compressed": 3, "rate": 3}),
    ("compressive", {"slots": 4, "compressed": 3, "rate": 3, "reconstruction": "auto-encoding"}),
    ("compressive", {"slots": 4, "compressed": 3, "rate": 3, "gradient": "one-segment"}),
    ("compressive", {"slots": 4, "compressed": 3, "rate": 3, "function": "most-used"}),
]


@pytest.mark.parametrize(("memory", "options"), MEMORIES)
def test_a_text_in_segments_learns_what_autograd_says(memory, options):
    """The second and third segment teach the projections by what they remember."""
    position = "alibi" if options.get("slots") == 6 or "function" in options else "xl-relative"
    made = model(position=position, memory=memory, memory_options=options)
    wanted = [w for w in made.parameters() if w is not made.embedding.weight]

    def run():
        state, parts = made.init_state(2), []
        for piece, targets in zip(TOKENS.split(LENGTH, 1), TARGETS.split(LENGTH, 1), strict=True):
            out = made(piece, targets=targets, state=state)
            state = out.state.detach()
            found = torch.autograd.grad(out.loss, wanted, allow_unused=True)
            parts += [out.loss, *out.losses.values(), *(g for g in found if g is not None)]
        return [*parts, *state.tensors()]

    close(both_ways(run))


def kept_for(made, **given):
    """Bytes that autograd keeps of the stack's pass, beside weights and what it was given."""
    x = made.embedding(TOKENS).detach()
    state = given.get("state")
    known = [x, *made.parameters(), *(() if state is None else state.tensors())]
    return saved_bytes(lambda: made.stack(x, **given).y, known)


@pytest.mark.parametrize("residual", ["pre", "reversible"])
def test_reading_a_memory_costs_no_activations_either(residual):
    options = {"position": "alibi", "memory": "segment", "slots": 6, "residual": residual}
    found = []
    for layers in (2, 12):
        made = model(layers=layers, **options)
        with torch.no_grad():
            state = made(TOKENS, state=made.init_state(2)).state
        found.append(kept_for(made, state=state))
    shallow, deep = found
    assert deep == shallow if residual == "reversible" else deep > 5 * shallow


def test_states_that_gradients_pass_through_keep_them():
    """Without a memory the second piece teaches the first, as in other stacks."""
    made = model(position="alibi", dropout=0.0)
    inputs = made.embedding(TOKENS[:, :LENGTH]).detach().requires_grad_()
    state = made(TOKENS[:, :LENGTH], state=made.init_state(2), embeddings=inputs).state
    rest = slice(LENGTH, 2 * LENGTH)
    loss = made(TOKENS[:, rest], targets=TARGETS[:, rest], state=state).loss
    (through,) = torch.autograd.grad(loss, inputs)
    assert through.count_nonzero()


@covering(
    options=[{"layer_losses": True}, {"lookahead": 0.5}, {}], mixer=["attention", "gmlp"],
    output=["concat", "mean"],
)  # fmt: skip
def test_losses_of_inner_layers_have_autograds_gradients(options, mixer, output):
    position = "learned-per-layer" if mixer == "attention" else "learned"
    options = {**options, "mixer": mixer, "position": position, "reversible_output": output}
    made = model(**options)

    def run():
        loss = made(TOKENS, targets=TARGETS).loss
        return [loss, *torch.autograd.grad(loss, list(made.parameters()))]

    close(both_ways(run))


@pytest.mark.parametrize("residual", ["pre", "reversible"])
def test_offering_the_outputs_of_layers_costs_no_activations_either(residual):
    options = {"position": "learned", "residual": residual}
    shallow, deep = (
        kept_for(model(layers=n, **options), taps=[f"block-output:{i}" for i in range(1, n)])
        for n in (2, 12)
    )
    assert deep == shallow if residual == "reversible" else deep > 5 * shallow
