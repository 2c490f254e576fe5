"""Feed-forward and loss in pieces along the length: the same numbers, less at a time."""

import pytest
import torch

import everyformer as ef
from everyformer.core.errors import ConfigError, GeneError
from everyformer.family import list_members
from helpers import Largest

MIXERS = [member.name for member in list_members() if member.is_mixer and member.can("causal")]
FED = [name for name in MIXERS if name not in ("gmlp", "amlp")]
SIZES = {"width": 12, "heads": 3, "layers": 2, "max_length": 24, "vocabulary": 50}


def in_turn(cases, *others):
    """Each case with one of the others, which know nothing of one another."""
    return [(case, others[n % len(others)]) for n, case in enumerate(cases)]


def build(name, task="lm", **options):
    torch.manual_seed(0)
    return ef.create_model(name, task, **SIZES, **options).double()


def gradients(model, tokens, targets, seed=3):
    torch.manual_seed(seed)
    loss = model(tokens, targets=targets).loss
    return loss.detach(), torch.autograd.grad(loss, list(model.parameters()))


def same(first, second):
    torch.testing.assert_close(first[0], second[0], rtol=0, atol=1e-12)
    for a, b in zip(first[1], second[1], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("name", "residual"), in_turn(FED, "pre", "post", "reversible"))
def test_a_feed_forward_in_pieces_changes_nothing(name, residual):
    tokens = torch.randint(0, 50, (2, 17), generator=torch.Generator().manual_seed(0))
    # dropout would draw piece by piece
    options = {"residual": residual, "tie": False, "dropout": 0.0}
    whole, chunked = (build(name, **options, feedforward_chunk=n) for n in (None, 5))
    chunked.load_state_dict(whole.state_dict())
    same(gradients(chunked, tokens, tokens), gradients(whole, tokens, tokens))
    torch.testing.assert_close(
        chunked.eval()(tokens).logits, whole.eval()(tokens).logits, rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("kind", ["gelu", "gelu-tanh", "relu", "silu", "swiglu", "geglu"])
def test_hidden_channels_of_one_piece_at_a_time(kind):
    x = torch.randn(1, 512, 12, requires_grad=True)
    options = {"expansion": 32.0, "feedforward": kind}
    found = {}
    for chunk in (None, 8):
        fed = build("attention", feedforward_chunk=chunk, **options).stack.blocks[0].feedforward
        with Largest() as seen:
            fed.float()(x)[0].sum().backward()
        found[chunk] = seen.found / 4
    assert found == {None: 512 * 12 * 32, 8: 512 * 12}


def test_pieces_with_dropout_have_the_gradient_of_their_own_masks():
    model = build("attention", feedforward_chunk=4, dropout=0.3)
    tokens = torch.randint(0, 50, (2, 11))
    weight = model.stack.blocks[0].feedforward.up.bias
    _, found = gradients(model, tokens, tokens)
    place = [w is weight for w in model.parameters()].index(True)
    moved = []
    for step in (1e-6, -1e-6):
        with torch.no_grad():
            weight[3] += step
        moved.append(gradients(model, tokens, tokens)[0])
        with torch.no_grad():
            weight[3] -= step
    torch.testing.assert_close(found[place][3], (moved[0] - moved[1]) / 2e-6, rtol=1e-5, atol=1e-9)


LOSSES = [
    *((name, "lm", {}) for name in MIXERS),
    ("attention", "lm", {"label_smoothing": 0.1, "smoothing_over": "others"}),
    ("attention", "lm", {"layer_losses": True}),
    ("learned-per-layer", "lm", {"label_smoothing": 0.1}),
    ("bert", "mlm", {}),
    ("attention", "mlm", {"head_transform": True, "head_bias": True}),
    ("transformer", "seq2seq", {}),
    ("attention", "pixels", {"image": (1, 4, 4)}),
]


@pytest.mark.parametrize(("case", "residual"), in_turn(LOSSES, "pre", "reversible"))
def test_a_loss_in_pieces_has_the_same_value_and_gradients(case, residual):
    name, task, options = case
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 50, (3, 11), generator=generator)
    targets = tokens.roll(-1, 1).masked_fill(torch.rand(3, 11, generator=generator) < 0.3, -100)
    if task == "pixels":
        tokens = torch.randint(0, 256, (3, 1, 4, 4), generator=generator).to(torch.uint8)
        targets = tokens.flatten(1).long()
    options = {**options, "residual": residual, "dropout": 0.2}
    if residual == "reversible":
        options["reversible_output"] = "mean"
    whole, chunked = (build(name, task, **options, loss_chunk=n) for n in (None, 7))
    chunked.load_state_dict(whole.state_dict())
    same(gradients(chunked, tokens, targets), gradients(whole, tokens, targets))
    out = chunked(tokens, targets=targets)
    assert out.logits.shape[:2] == (3, 0)
    zero = torch.autograd.grad(out.logits.sum() * 0, list(chunked.parameters()), allow_unused=True)
    assert any(g is not None for g in zero), "no target scored: a step must still have gradients"
    # both ways: loading counts as a step, after which centroids move
    chunked.load_state_dict(whole.state_dict())
    whole.load_state_dict(chunked.state_dict())
    first, second = chunked.eval()(tokens, targets=targets), whole.eval()(tokens, targets=targets)
    torch.testing.assert_close(first.logits, second.logits, rtol=0, atol=1e-12)
    torch.testing.assert_close(first.loss, second.loss, rtol=0, atol=1e-12)


def test_logits_of_all_tokens_are_never_made():
    torch.manual_seed(0)
    found = {}
    for chunk in (None, 8):
        model = ef.create_model(
            "attention", width=12, heads=3, layers=1, vocabulary=1000, loss_chunk=chunk
        )
        tokens = torch.randint(0, 1000, (4, 32))
        with Largest() as seen:
            model(tokens, targets=tokens).loss.backward()
        found[chunk] = seen.found / 4
    assert found[None] == 4 * 32 * 1000
    assert found[8] == 12 * 1000, "the table itself"


REFUSED = [
    ("attention", {"loss_chunk": 0}, "lm", ConfigError, "`loss_chunk` must be at least 1"),
    ("attention", {"feedforward_chunk": 0}, "lm", ConfigError, "_chunk` must be at least 1"),
    ("attention", {"loss_chunk": 4}, "classify-text", GeneError, "predicts once for a whole row"),
    ("gmlp", {"feedforward_chunk": 4}, "lm", GeneError, "`feedforward_chunk` has no meaning"),
]


@pytest.mark.parametrize(("name", "options", "task", "kind", "message"), REFUSED)
def test_pieces_without_meaning_are_refused(name, options, task, kind, message):
    with pytest.raises(kind, match=message):
        build(name, task, **options)


@pytest.mark.full("seconds each", parts=3)
def test_the_compiler_takes_pieces_too():
    model = build("attention", feedforward_chunk=4, loss_chunk=8)
    tokens = torch.randint(0, 50, (2, 11))
    torch._dynamo.reset()
    loss = torch.compile(model, backend="aot_eager")(tokens, targets=tokens).loss
    compiled = loss.detach(), torch.autograd.grad(loss, list(model.parameters()))
    same(gradients(model, tokens, tokens), compiled)
