"""Longformer: transformers' layers, one mask for all paths, limits, streams, what is refused."""

import pytest
import torch
from torch.nn import functional as F
from transformers import LEDConfig, LongformerConfig
from transformers.models.led.modeling_led import LEDEncoderAttention
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

import everyformer as ef
from everyformer.core.errors import ConfigError, ShapeError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.genes.mixers.patterned import LOOKED
from helpers import build_mixer, draw, graphs_take_all_pairs, shifted, with_gradients

WIDTH, HEADS = 12, 3
ALL = ("query", "key", "value", "output")
PARTS = ("query", "key", "value")


def build(*, causal=False, dtype=torch.float64, seed=0, **options):
    sizes = {"width": WIDTH, "heads": HEADS, "causal": causal}
    return shifted(build_mixer("longformer", seed=seed, dtype=dtype, **sizes, **options))


def flags(length, *rows):
    made = torch.zeros(len(rows), length, dtype=torch.bool)
    for row, tokens in enumerate(rows):
        made[row, list(tokens)] = True
    return made


def close(a, b, tolerance=1e-11):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def copy_in(mixer, theirs, names=PARTS):
    """Weights of three linear layers a set, by their names."""
    sets = {"project": names, "project_global": tuple(f"{name}_global" for name in names)}
    state = mixer.state_dict()
    for ours, layers in sets.items():
        linear = [theirs.get_submodule(name) for name in layers]
        state[f"{ours}.weights.0"] = torch.cat([layer.weight for layer in linear])
        for part, layer in zip(PARTS, linear, strict=True):
            state[f"{ours}.biases.{part}"] = layer.bias
    mixer.load_state_dict(state)


def their_masks(padding_mask, marked):
    """What transformers' layers take beside the tokens."""
    mask = torch.zeros(padding_mask.shape, dtype=torch.float64)
    mask = mask.masked_fill(marked, 10000.0).masked_fill(~padding_mask, -10000.0)
    return {
        "attention_mask": mask, "is_index_masked": mask < 0, "is_index_global_attn": mask > 0,
        "is_global_attn": bool((mask > 0).any()),
    }  # fmt: skip


@pytest.mark.parametrize("backend", ["dense", "blocked"])
@pytest.mark.parametrize("tokens", [((), ()), ((0,), (0, 5, 17)), ((3, 4, 5, 21), (0,))])
def test_hugging_faces_layer(tokens, backend):
    """Its weights are rounded to float32, whatever the dtype."""
    torch.manual_seed(0)
    config = LongformerConfig(
        hidden_size=WIDTH, num_attention_heads=HEADS, attention_window=[4, 8],
        attention_probs_dropout_prob=0.0, num_hidden_layers=2,
    )  # fmt: skip
    theirs = LongformerSelfAttention(config, layer_id=1).double().eval()
    mixer = build(window=8, bias=PARTS, backend=backend)
    copy_in(mixer, theirs)
    mixer.out.weight.data = torch.eye(WIDTH).double()
    x, marked = draw(2, 24, WIDTH).requires_grad_(), flags(24, *tokens)
    padding_mask = torch.ones(2, 24, dtype=torch.bool)
    padding_mask[0, 22:] = False
    for real in (padding_mask, torch.ones_like(padding_mask)):
        (expected,) = theirs(x, **their_masks(real, marked))
        got = mixer(x, mask=Mask(padding_mask=real, global_tokens=marked)).y
        close(got * real[..., None], expected * real[..., None], 1e-6)
    names = [*PARTS, *(f"{part}_global" for part in PARTS)]
    layers = [theirs.get_submodule(name).weight for name in names]
    fused = [mixer.project.weights[0], mixer.project_global.weights[0]]
    # row by row, since their gradients are NaN where rows have different numbers of global tokens
    for each in (slice(0, 1), slice(1, 2)):
        y = theirs(x[each], **their_masks(real[each], marked[each]))[0]
        _, of_x, *first = with_gradients(y, [x, *layers])
        y = mixer(x[each], mask=Mask(global_tokens=marked[each])).y
        _, found, *second = with_gradients(y, [x, *fused])
        close([found, torch.cat(second)], [of_x, torch.cat(first)], 2e-6)


def test_the_encoder_of_led():
    torch.manual_seed(0)
    config = LEDConfig(
        d_model=WIDTH, encoder_attention_heads=HEADS, attention_window=[6], encoder_layers=1,
        attention_dropout=0.0,
    )  # fmt: skip
    theirs = LEDEncoderAttention(config, layer_id=0).double().eval()
    mixer = build(window=6, bias=ALL)
    copy_in(mixer, theirs.longformer_self_attn)
    mixer.out.load_state_dict(theirs.output.state_dict())
    x, marked, padding_mask = draw(2, 18, WIDTH), flags(18, (0,), (0, 1)), torch.ones(2, 18).bool()
    expected = theirs(x, **their_masks(padding_mask, marked))[0]
    close(mixer(x, mask=Mask(global_tokens=marked)).y, expected, 1e-6)


POSITIONS = [(None, True), (None, False), ("rope", True), ("alibi", False)]
POSITIONS += [("t5-relative", True), ("shaw", False)]


@pytest.mark.parametrize(("position", "causal"), POSITIONS)
def test_units_are_the_definition_with_other_global_tokens_in_every_row(causal, position):
    """Windows and dilations by head, a length that no window divides, holes, gradients."""
    options = {"window": (6, 10, 0), "dilation": (1, 3, 1), "position": position}
    mixer = build(causal=causal, **options, backend="blocked")
    rows = ((2, 36), (0, 1, 2, 20, 21), (2, 36))
    padding_mask = torch.ones(3, 41, dtype=torch.bool)
    padding_mask[0, 38:], padding_mask[1, 5], padding_mask[2, 36] = False, False, False
    mask = Mask(padding_mask=padding_mask, global_tokens=flags(41, *rows))
    x = draw(3, 41, WIDTH).requires_grad_()
    ways = mixer(x, mask=mask).y, mixer.reference(x, mask=mask)
    real, inputs = padding_mask[..., None], [x, *mixer.parameters()]
    close(*(with_gradients(y * real, inputs) for y in ways))


def test_packed_texts_have_their_own_global_tokens():
    mixer, x, ids = build(window=2), draw(1, 12, WIDTH), torch.tensor([[0] * 5 + [1] * 7])
    marked = flags(12, (0, 7))
    packed = mixer(x, mask=Mask(documents=ids, global_tokens=marked)).y
    for part in (slice(0, 5), slice(5, 12)):
        alone = mixer(x[:, part], mask=Mask(global_tokens=marked[:, part])).y
        close(packed[:, part], alone)


@graphs_take_all_pairs
def test_compiled_with_flags_it_is_the_same():
    torch._dynamo.reset()
    mixer, x = build(window=4), draw(2, 300, WIDTH)
    mask = Mask(global_tokens=flags(300, (0,), (1, 9)))
    compiled = torch.compile(mixer, backend="eager", fullgraph=True)
    close(compiled(x, mask=mask).y, mixer(x, mask=mask).y)


@pytest.mark.parametrize("causal", [True, False])
def test_windows_keep_their_gaps_and_global_tokens_see_and_are_seen(causal):
    mixer = build(causal=causal, window=4, global_tokens=(6,), dilation=2)
    i, j = torch.arange(13)[:, None], torch.arange(13)
    apart = i - j
    expected = (apart.abs() <= 4) & (apart % 2 == 0) | (j == 6) | (i == 6)
    expected = expected & (apart >= 0) if causal else expected
    assert torch.equal(mixer.plan(13).mask(13)[0], expected)


def test_every_token_global_is_attention_by_the_global_projections():
    mixer, x = build(window=2), draw(2, 9, WIDTH)
    q, k, v = mixer.project_global(x)
    expected = mixer.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
    close(mixer(x, mask=Mask(global_tokens=torch.ones(2, 9, dtype=torch.bool))).y, expected)


def test_a_causal_one_without_global_tokens_has_one_set_of_projections():
    assert build(causal=True).project_global is None
    assert build(causal=True, global_tokens=1).project_global is not None
    with pytest.raises(UnsupportedError, match="one set of projections"):
        build(causal=True).copy_projections()


def test_the_state_of_a_long_text_holds_the_window_and_the_global_tokens():
    mixer, x = build(causal=True, window=8, global_tokens=2), draw(1, 300, WIDTH)
    with torch.no_grad():
        expected, state = mixer(x).y, mixer.init_state(1)
        for first in (*range(0, 100, 50), *range(100, 300)):
            last = first + (50 if first < 100 else 1)
            y, state, _ = mixer(x[:, first:last], state=state)
            close(y, expected[:, first:last])
    assert state.local.keys.shape[2] <= 2 * (8 // 2 + 2) + LOOKED
    assert state.whole.keys.shape[2] == 2


def test_flags_of_another_shape_or_beside_a_state_are_refused():
    with pytest.raises(ShapeError, match="global_tokens"):
        build()(draw(2, 9, WIDTH), mask=Mask(global_tokens=flags(8, (), ())))
    mixer, x = build(causal=True, global_tokens=1), draw(1, 4, WIDTH)
    with pytest.raises(UnsupportedError, match="option global_tokens"):
        mixer(x, mask=Mask(global_tokens=flags(4, (0,))), state=mixer.init_state(1))


@pytest.mark.parametrize("pooling", ["class", "first"])
def test_the_token_that_a_classifier_reads_is_global(pooling):
    """One layer with empty windows: only a global token knows of the others."""
    torch.manual_seed(0)
    model = ef.create_model(
        "longformer", "classify-text", vocabulary=20, width=WIDTH, heads=HEADS, layers=1, window=0,
        pooling=pooling,
    ).eval()  # fmt: skip
    tokens = torch.randint(0, 20, (2, 9))
    padding_mask = torch.ones(2, 9, dtype=torch.bool)
    padding_mask[0, :2] = padding_mask[0, 7:] = False
    other = torch.where(torch.arange(9) == 5, (tokens + 1) % 20, tokens)
    mask = Mask(padding_mask=padding_mask)
    assert not torch.allclose(model(tokens, mask=mask).logits, model(other, mask=mask).logits)
    alone = model(tokens[:1, 2:7]).logits
    close(model(tokens, mask=mask).logits[:1], alone, 1e-5)
    nowhere = Mask(padding_mask=padding_mask, global_tokens=torch.zeros(2, 9, dtype=torch.bool))
    same = torch.equal(model(tokens, mask=nowhere).logits, model(other, mask=nowhere).logits)
    assert same == (pooling == "first")


WRONG = [
    ({"window": 7}, "must be even"),
    ({"window": -2}, "even"),
    ({"window": (4, 4)}, "heads=3"),
    ({"dilation": (1, 2)}, "heads=3"),
    ({"global_tokens": -1}, "at least 0"),
    ({"global_tokens": (2, 40), "max_length": 40}, "max_length=40"),
]


@pytest.mark.parametrize(("options", "said"), WRONG)
def test_what_cannot_be_is_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        build(**options)


@pytest.mark.parametrize("options", [{"window": 0}, {"window": 10_000}, {"global_tokens": 50}])
def test_empty_windows_and_ones_beyond_the_text_work(options):
    for length in (1, 2, 7):
        mixer, x = build(**options), draw(2, length, WIDTH)
        close(mixer(x).y, mixer.reference(x))
