"""What lies inside a model comes out of its call by name: `everyformer.core.taps`."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import everyformer as ef
from everyformer.core.errors import ConfigError, UnknownNameError
from everyformer.core.mask import Mask
from everyformer.genes.residuals import RESIDUALS
from helpers import build_model, close, draw

SIZES: dict[str, Any] = {"width": 16, "heads": 2, "layers": 3}
TOKENS = torch.arange(18).reshape(2, 9) % 11
EVERY = [f"{name}:{n}" for n in (1, 2, 3) for name in ("attention-output", "ffn-input")]
EVERY += [f"block-output:{n}" for n in range(4)]


def stack(residual: str, **options: Any) -> Any:
    return build_model("attention", residual=residual, tie=False, **SIZES, **options).stack


def test_pre_norm_layers_are_sums_of_their_taps():
    layers = stack("pre")
    x = draw(2, 7, 16)
    taps = layers(x, taps=EVERY).taps
    close(taps["block-output:0"], x)
    for n, block in enumerate(layers.blocks, start=1):
        before, mixed = taps[f"block-output:{n - 1}"], taps[f"attention-output:{n}"]
        close(mixed, block.mixer(block.mixer_norm(before)).y)
        read = taps[f"ffn-input:{n}"]
        close(read, block.feedforward_norm(before + mixed))
        close(taps[f"block-output:{n}"], before + mixed + block.feedforward(read)[0])
    # before dropout
    layers = stack("pre", dropout=0.5).train()
    tap, first = layers(x, taps=["attention-output:1"]).taps["attention-output:1"], layers.blocks[0]
    close(tap, first.mixer(first.mixer_norm(x)).y)


def test_post_norm_feed_forwards_read_the_normed_sum():
    layers = stack("post")
    taps = layers(draw(2, 7, 16), taps=EVERY).taps
    for n, block in enumerate(layers.blocks, start=1):
        before, mixed = taps[f"block-output:{n - 1}"], taps[f"attention-output:{n}"]
        close(mixed, block.mixer(before).y)
        close(taps[f"ffn-input:{n}"], block.mixer_norm(before + mixed))


def test_steps_of_a_repeated_block_have_taps_of_their_own():
    layers = build_model("attention", width=16, heads=2, layers=1, depth="repeat").stack
    names = [f"attention-output:{n}" for n in range(1, len(layers.order) + 1)]
    taps = layers(draw(2, 7, 16), taps=names).taps
    assert len(names) > 1
    assert not any(torch.equal(taps[a], taps[b]) for a, b in pairwise(names))


@pytest.mark.parametrize(
    ("residual", "checkpointing"), [(w, n % 2) for n, w in enumerate(RESIDUALS.names())]
)
def test_gradients_pass_through_taps_as_through_outputs(residual, checkpointing):
    layers, x = stack(residual, dropout=0.2).train(), draw(2, 5, 16).requires_grad_()
    layers.checkpointing = checkpointing
    torch.manual_seed(3)
    plain = layers(x)
    torch.manual_seed(3)
    out = layers(x, taps=EVERY)
    close(out.y, plain.y)
    expected = torch.autograd.grad(plain.y.square().sum(), x)[0]
    close(torch.autograd.grad(out.y.square().sum(), x, retain_graph=True)[0], expected)
    # d/de of the tap at x + e v, by differences
    for name in ("attention-output:2", "ffn-input:3"):
        (gradient,) = torch.autograd.grad(out.taps[name].sum(), x, retain_graph=True)
        along, step = draw(2, 5, 16, seed=9), 1e-6
        ends = []
        for side in (step, -step):
            torch.manual_seed(3)
            ends.append(layers((x + side * along).detach(), taps=[name]).taps[name].sum())
        close((gradient * along).sum(), (ends[0] - ends[1]) / (2 * step), 1e-6)


TASKS: dict[str, tuple[str, dict[str, Any], Tensor, dict[str, Any]]] = {
    "lm": ("rope", {}, TOKENS, {}),
    "mlm": ("etc", {"summaries": {"per": "tokens", "every": 4}}, TOKENS, {"targets": TOKENS}),
    "classify-text": ("longformer", {"classes": 3}, TOKENS, {}),
    "classify-image": ("vit", {"classes": 3, "image": (1, 8, 8), "patch": 4}, draw(2, 1, 8, 8), {}),
    "seq2seq": ("transformer", {}, TOKENS, {"targets": TOKENS[:, :5]}),
    "pixels": ("attention", {"image": (1, 3, 3)}, TOKENS.reshape(2, 1, 3, 3).to(torch.uint8), {}),
    "super-resolution": (
        "attention",
        {"source_image": (1, 2, 2), "image": (1, 4, 4)},
        TOKENS[:, :4].reshape(2, 1, 2, 2).to(torch.uint8),
        {"targets": torch.arange(32).reshape(2, 16)},
    ),
}


@pytest.mark.parametrize("task", TASKS)
def test_models_of_every_task_offer_taps_and_change_nothing_by_it(task):
    member, options, inputs, given = TASKS[task]
    model = build_model(member, task, vocabulary=32, max_length=32, **SIZES, **options)
    wanted = ["ffn-input:-1", "attention-output:1", "block-output:0"]
    torch.manual_seed(1)
    plain = model.train()(inputs, **given)
    torch.manual_seed(1)
    out = model(inputs, **given, taps=wanted)
    assert plain.taps == {}
    assert list(out.taps) == wanted
    close(out.logits, plain.logits)
    shapes = {tuple(tap.shape) for tap in out.taps.values()}
    assert len(shapes) == 1
    assert shapes.pop()[::2] == (2, 16)


def test_streamed_taps_are_those_of_the_whole():
    model = build_model("rope", vocabulary=16, **SIZES)
    logits, whole = model(TOKENS).logits, model(TOKENS, taps=[*EVERY, "block-output:-1"]).taps
    close(model.head(model.stack.norm(whole["block-output:-1"])), logits)
    state, parts = model.init_state(2), []
    for piece in TOKENS.split((4, 1, 4), 1):
        out = model(piece, state=state, taps=EVERY)
        state = out.state
        parts.append(out.taps)
    for name in EVERY:
        close(torch.cat([part[name] for part in parts], 1), whole[name])


def test_learned_tokens_in_front_are_left_out_of_taps():
    options = {"form": "etc", "extra_tokens": 2, "block_size": 2, "random_blocks": 1}
    model = build_model("bigbird", "mlm", vocabulary=16, max_length=32, **options, **SIZES)
    taps = model(TOKENS, mask=Mask(padding_mask=TOKENS >= 0), taps=EVERY).taps
    assert {tuple(tap.shape) for tap in taps.values()} == {(2, 9, 16)}


@pytest.mark.full("the compiler works for seconds")
@pytest.mark.parametrize("residual", RESIDUALS.names())
def test_a_compiled_stack_has_the_same_taps(residual):
    layers, x = stack(residual), draw(2, 5, 16)
    found = torch.compile(layers, backend="eager", fullgraph=True)(x, taps=EVERY).taps
    close(found, layers(x, taps=EVERY).taps)


@pytest.mark.parametrize(
    ("member", "tap", "error", "said"),
    [
        ("attention", "ffn-output:1", UnknownNameError, "ffn-input"),
        ("attention", "ffn-input:4", ConfigError, "ffn-input:1 to ffn-input:3"),
        ("attention", "ffn-input:0", ConfigError, "ffn-input:1"),
        ("attention", "block-output:-5", ConfigError, "block-output:0"),
        ("attention", "block-output", ConfigError, "block-output:-1"),
        ("gmlp", "ffn-input:1", ConfigError, "attention-output:1"),
    ],
)
def test_taps_that_are_not_there_are_refused(member, tap, error, said):
    model = ef.create_model(member, "mlm", vocabulary=16, max_length=32, **SIZES)
    with pytest.raises(error, match=said):
        model(TOKENS, taps=[tap])
