"""BigBird: transformers' layer, tables, masks, tokens in front, streams, what is refused."""

import numpy as np
import pytest
import torch
from transformers import BigBirdConfig
from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention, BigBirdModel

import everyformer as ef
from everyformer.core.errors import ConfigError, GeneError, ShapeError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.core.trace import trace
from everyformer.engines.sparse.random_blocks import (
    Rules,
    random_edges,
    released_order,
    uniform_order,
)
from helpers import draw, graphs_take_all_pairs, shifted, with_gradients

WIDTH, HEADS = 12, 3


def build(*, causal=False, dtype=torch.float64, max_length=128, seed=0, **options):
    torch.manual_seed(0)
    sizes = {"width": WIDTH, "heads": HEADS, "causal": causal, "max_length": max_length}
    return shifted(ef.create_mixer("bigbird", **sizes, seed=seed, **options).to(dtype).eval())


def close(a, b, tolerance=1e-11):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def their_layer(length, size, count, seed):
    torch.manual_seed(0)
    config = BigBirdConfig(
        hidden_size=WIDTH, num_attention_heads=HEADS, block_size=size, num_random_blocks=count,
        max_position_embeddings=length, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return BigBirdBlockSparseAttention(config, seed=seed).double()


def their_output(theirs, x, padding_mask):
    blocked, band, rows, columns = BigBirdModel.create_masks_for_block_sparse_attn(
        padding_mask.double(), theirs.block_size
    )
    y, _ = theirs(x, band, rows, columns, blocked, blocked)
    return y


def copied(theirs, **options):
    mixer = build(block_size=theirs.block_size, bias=("query", "key", "value"), **options)
    state = mixer.state_dict()
    layers = {part: theirs.get_submodule(part) for part in ("query", "key", "value")}
    state["project.weights.0"] = torch.cat([layer.weight for layer in layers.values()])
    for part, layer in layers.items():
        state[f"project.biases.{part}"] = layer.bias
    state["out.weight"] = torch.eye(WIDTH)
    mixer.load_state_dict(state)
    return mixer


SIZES = [(64, 4, 3), (48, 4, 3), (92, 4, 9), (4096, 64, 3), (96, 4, 2)]
"""length, block size, random blocks: from a prefix, from two halves, as published"""
BACKENDS = [(*SIZES[0], "dense"), *((*sizes, "blocked") for sizes in SIZES)]
"""the square of a long text is left out"""


@pytest.mark.parametrize(("length", "size", "count", "backend"), BACKENDS)
def test_hugging_faces_layer_in_training(length, size, count, backend):
    theirs = their_layer(length, size, count, seed=5).train()
    mixer = copied(
        theirs, random="release", random_blocks=count, seed=5, max_length=length, backend=backend,
        global_blocks=(0, length // size - 1),
    )  # fmt: skip
    rows = 1 + (length < 1000)
    x, padding_mask = draw(rows, length, WIDTH).requires_grad_(), torch.ones(rows, length).bool()
    padding_mask[0, length - size - 1 :] = False
    real, given = padding_mask[..., None], Mask(padding_mask=padding_mask)
    expected, got = their_output(theirs, x, padding_mask) * real, mixer(x, mask=given).y * real
    close(got, expected, 1e-10)
    if length > 1000:
        return
    their_weights = [theirs.get_submodule(part).weight for part in ("query", "key", "value")]
    _, of_x, *first = with_gradients(expected, [x, *their_weights])
    _, found, second = with_gradients(got, [x, mixer.project.weights[0]])
    close(found, of_x, 1e-10)
    close(second, torch.cat(first), 1e-9)


def test_hugging_faces_layer_in_evaluation():
    """There all random blocks are block 0, in every row but those of global blocks."""
    theirs = their_layer(64, 4, 3, seed=5).eval()
    x, padding_mask = draw(2, 64, WIDTH), torch.ones(2, 64, dtype=torch.bool)
    expected = their_output(theirs, x, padding_mask)
    for backend in ("dense", "blocked"):
        mixer = copied(theirs, random="zeros", random_blocks=3, backend=backend)
        close(mixer(x).y, expected, 1e-10)
    assert not torch.allclose(copied(theirs, random_blocks=0)(x).y, expected, atol=1e-2)


def test_released_tables_are_those_of_numpys_numbers():
    for length, size, count in (*SIZES, (1024, 64, 3), (2048, 64, 3), (3072, 96, 4)):
        theirs = their_layer(length, size, count, seed=5).train()
        np.random.seed(5)  # noqa: NPY002, what they draw from
        blocks = length // size
        if length in (1024, 3072, 4096):
            drawn = [
                theirs._bigbird_block_rand_mask(length, length, size, size, count, last_idx=1024)
                for _ in range(HEADS)
            ]
        else:
            plan = theirs._get_rand_attn_plan(length, size, count)
            drawn = theirs._bigbird_block_rand_mask_with_head(
                length, length, size, size, HEADS, *plan
            )
        ours = released_order(HEADS, length, size, count, 5)
        assert torch.equal(ours[:, 1 : blocks - 1], torch.tensor(np.stack(drawn)))


def test_heads_layers_and_seeds_draw_their_own():
    model = ef.create_model("bigbird", "mlm", width=WIDTH, heads=HEADS, layers=2, max_length=1024)
    first, second = (block.mixer.order for block in model.stack.blocks)
    other = ef.create_mixer("bigbird", width=WIDTH, heads=HEADS, max_length=1024, seed=1).order
    assert not torch.equal(first, second)
    assert not torch.equal(first, other)
    assert not torch.equal(first[0], first[1])
    again = ef.create_model("bigbird", "mlm", width=WIDTH, heads=HEADS, layers=2, max_length=1024)
    assert torch.equal(second, again.stack.blocks[1].mixer.order)
    made = ef.create_model(
        "bigbird", "mlm", width=WIDTH, heads=HEADS, layers=2, max_length=64, block_size=4,
        random="release", random_blocks=2, seed=7,
    )  # fmt: skip
    for layer, block in enumerate(made.stack.blocks):
        assert torch.equal(block.mixer.order, released_order(HEADS, 64, 4, 2, 7 + layer))


def test_every_block_is_drawn_as_often():
    """2,000 heads, row 6 of 12: each of seven blocks in 3/7 of them, within 5 deviations."""
    order, rules = uniform_order(2000, 12, 0), Rules(1, (0, -1), False)
    drawn = random_edges(order, 3, rules, 12, torch.tensor([12]))
    shares = drawn[0, :, 6].double().mean(0)[[1, 2, 3, 4, 8, 9, 10]]
    assert (shares - 3 / 7).abs().max() < 5 * (12 / 49 / 2000) ** 0.5


def test_the_tables_of_a_loaded_model_are_read_and_stay(tmp_path):
    options = {"block_size": 4, "random_blocks": 1}
    one, two = build(**options, seed=3), build(**options, seed=4)
    x = draw(1, 60, WIDTH)
    before = two(x).y
    two.load_state_dict(one.state_dict())
    close(two(x).y, one(x).y)
    assert not torch.allclose(before, one(x).y)
    assert torch.equal(one.train()(x).y, one.eval()(x).y)
    short = one(x[:, :9]).y
    close(one(x).y, two(x).y)
    close(one(x[:, :9]).y, short)


OPTIONS = [
    {"random_blocks": 2},
    {"random_blocks": 1, "window_blocks": 5, "global_blocks": (2,)},
    {"random_blocks": 0, "global_blocks": ()},
    {"random_blocks": 2, "position": "rope"},
    {"random_blocks": 1, "position": "alibi"},
    {"random_blocks": 1, "position": "t5-relative"},
]
BOTH_WAYS = [
    {"random_blocks": 2, "form": "etc", "extra_tokens": 5},
    {"random_blocks": 2, "random": "zeros"},
    {"random_blocks": 1, "dense_blocks": 7, "global_blocks": (0, -2)},
]
CASES = [(o, n % 2 == 0) for n, o in enumerate(OPTIONS)] + [(o, False) for o in BOTH_WAYS]


@pytest.mark.parametrize(("options", "causal"), CASES)
@graphs_take_all_pairs
def test_units_and_graphs_are_the_definition(options, causal):
    """Rows of other lengths, one with holes, lengths that no block divides, gradients."""
    mixer = build(causal=causal, block_size=4, backend="blocked", **options)
    padding_mask = torch.ones(3, 61, dtype=torch.bool)
    padding_mask[0, 26:], padding_mask[2, 7], padding_mask[2, 58] = False, False, False
    x, mask = draw(3, 61, WIDTH).requires_grad_(), Mask(padding_mask=padding_mask)
    ways = [mixer(x, mask=mask).y, mixer.reference(x, mask=mask)]
    if options in (OPTIONS[0], *BOTH_WAYS[::2]):
        torch._dynamo.reset()
        ways.append(torch.compile(mixer, backend="eager", fullgraph=True)(x, mask=mask).y)
    real, inputs = padding_mask[..., None], [x, *mixer.parameters()]
    fast, literal, *graph = (with_gradients(y * real, inputs) for y in ways)
    close(fast, literal)
    for other in graph:
        close(other, literal, 1e-7)


def test_without_random_blocks_it_is_a_block_window_with_global_blocks():
    """The layout of DeepSpeed's BSLongformer, written out by itself."""
    mixer = build(block_size=4, random_blocks=0, global_blocks=(0, 5), window_blocks=5)
    block = torch.arange(41) // 4
    a, b = block[:, None], block
    globals_ = (block == 0) | (block == 5)
    expected = ((a - b).abs() <= 2) | globals_ | globals_[:, None]
    assert torch.equal(mixer.plan(41).mask(41)[0], expected)


def test_weights_of_a_trace_are_those_of_the_plan():
    mixer, x = build(block_size=3, random_blocks=1), draw(1, 40, WIDTH)
    with trace(mixer) as t:
        mixer(x)
    weights = t[""]["weights"][0]
    assert torch.equal(weights[0] > 0, mixer.plan(40).mask(40, HEADS))
    close(weights.sum(-1), torch.ones(1, HEADS, 40).double())


def test_the_state_holds_the_window_the_global_block_and_what_is_drawn_later():
    mixer = build(causal=True, block_size=4, random_blocks=1, max_length=200)
    x = draw(1, 200, WIDTH)
    with torch.no_grad():
        expected, state, plan = mixer(x).y, mixer.init_state(1), mixer.plan(200)
        shown = plan.mask(200, HEADS).any(0)
        for seen in range(1, 201):
            y, state, _ = mixer(x[:, seen - 1 : seen], state=state)
            close(y[:, 0], expected[:, seen - 1])
            needed = plan.needed(torch.arange(seen), torch.tensor([seen]))
            assert not (shown[seen:, :seen].any(0) & ~needed).any()
    assert state.keys.shape[2] < 150
    for call in (lambda: mixer(x[:, :1], state=state), lambda: mixer(draw(1, 201, WIDTH))):
        with pytest.raises(ShapeError, match="max_length=200"):
            call()


def test_tokens_in_front_carry_what_they_read_from_layer_to_layer():
    """Empty-handed windows: only what stands in front knows of other blocks."""
    sizes = {"vocabulary": 20, "width": WIDTH, "heads": HEADS, "max_length": 32, "position": None}
    options = {"block_size": 2, "window_blocks": 1, "random_blocks": 0, "form": "etc"}
    tokens = torch.randint(0, 20, (2, 32))
    other = torch.where(torch.arange(32) == 30, (tokens + 1) % 20, tokens)
    for extra, layers, knows in ((3, 2, True), (3, 1, False), (0, 4, False)):
        torch.manual_seed(0)
        model = ef.create_model(
            "bigbird", "mlm", **sizes, layers=layers, extra_tokens=extra, **options
        ).eval()
        one, two = model(tokens).logits[:, 0], model(other).logits[:, 0]
        assert torch.equal(one, two) != knows
        padding_mask = torch.ones(2, 32, dtype=torch.bool)
        padding_mask[0, 25:] = False
        padded = model(tokens, mask=Mask(padding_mask=padding_mask)).logits[:1, :25]
        close(padded, model(tokens[:1, :25]).logits, 1e-5)


def test_tokens_in_front_learn_and_are_the_same_in_all_layers():
    options = {"form": "etc", "extra_tokens": 3, "block_size": 4, "random_blocks": 1}
    sizes = {"vocabulary": 20, "width": WIDTH, "heads": HEADS, "layers": 2, "max_length": 40}
    model = ef.create_model("bigbird", "classify-text", **sizes, **options)
    model(torch.randint(0, 20, (2, 30)), targets=torch.tensor([0, 1])).loss.backward()
    assert model.stack.lead.shape == (1, 3, WIDTH)
    assert float(model.stack.lead.grad.abs().sum()) > 0
    with pytest.raises(GeneError, match="3 and 4"):
        ef.create_model("bigbird", "mlm", **sizes, **{**options, "extra_tokens": ef.by_layer(3, 4)})
    with pytest.raises(UnsupportedError, match="documents"):
        model.stack(torch.zeros(1, 4, WIDTH), mask=Mask(documents=torch.zeros(1, 4).long()))


WRONG = [
    ({"max_length": None}, GeneError, "max_length"),
    ({"seed": 2**31, "random": "release"}, ConfigError, "at most 2,147,483,647"),
    ({"block_size": 4, "global_blocks": (0, 32)}, GeneError, "32 blocks"),
    ({"block_size": 4, "global_blocks": (-33,)}, GeneError, "block -33"),
    ({"random": "release", "max_length": 130}, GeneError, "multiple of `block_size"),
    ({"random": "zeros", "position": "rope"}, GeneError, "rope"),
    ({"causal": True, "form": "etc"}, GeneError, "etc"),
    ({"causal": True, "global_blocks": (0, -1)}, GeneError, "global_blocks"),
    ({"causal": True, "random": "zeros"}, GeneError, "zeros"),
    ({"causal": True, "dense_blocks": 3}, GeneError, "dense_blocks"),
]


@pytest.mark.parametrize(("options", "error", "said"), WRONG)
def test_what_cannot_be_is_refused(options, error, said):
    with pytest.raises(error, match=said):
        build(**options)
