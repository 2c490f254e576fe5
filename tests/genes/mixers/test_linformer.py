"""Linformer: its limits, an independent package, sharing, lengths, padding, segments, refusals."""

import math

import pytest
import torch

import everyformer as ef
from everyformer.core.dispatch import watched
from everyformer.core.errors import GeneError, ShapeError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.core.trace import trace
from everyformer.genes.mixers.linformer import slots
from everyformer.models.draft import by_layer
from helpers import Largest, build_mixer, close, draw, in_pieces, shifted, with_gradients

WIDTH, HEADS, LONGEST = 12, 3, 20
ALL_BIASES = ("query", "key", "value", "output")


def build(*, causal=False, dtype=torch.float64, max_length=LONGEST, **options):
    sizes = {"width": WIDTH, "heads": HEADS, "causal": causal, "max_length": max_length}
    return shifted(build_mixer("linformer", dtype=dtype, **sizes, **options), vectors=True)


@pytest.mark.parametrize("length", [1, 7, LONGEST])
@pytest.mark.parametrize("shared", [False, True])
def test_it_is_the_linformer_package(length, shared):
    package = pytest.importorskip("linformer")
    theirs = package.LinformerSelfAttention(WIDTH, LONGEST, k=5, heads=HEADS, share_kv=shared)
    theirs = theirs.double()
    ours = build(k=5, sharing="key-value" if shared else "headwise", bias=("output",))
    keys = theirs.to_k.weight
    # with shared keys and values the package has one W for both, too
    values = keys if shared else theirs.to_v.weight
    maps = [theirs.proj_k] if shared else [theirs.proj_k, theirs.proj_v]
    ours.load_state_dict(
        {
            "project.weights.0": torch.cat([theirs.to_q.weight, keys, values]),
            "length_map": torch.stack([m.t() for m in maps])[:, None],
            "out.weight": theirs.to_out.weight,
            "out.bias": theirs.to_out.bias,
        }
    )
    x, context = draw(2, length, WIDTH), draw(2, 6, WIDTH, seed=5)
    close(ours(x).y, theirs(x))
    close(ours(x, context=context).y, theirs(x, context=context))


def test_a_text_may_have_fewer_tokens_than_slots():
    mixer, x = build(k=LONGEST), draw(2, 7, WIDTH)
    close(mixer(x).y, mixer.reference(x))
    assert build().slots == LONGEST
    assert build(max_length=1000).slots == 256


@pytest.mark.parametrize(
    ("sharing", "numbers"),
    [("none", 2 * 2 * HEADS), ("headwise", 2 * 2), ("key-value", 2), ("layerwise", 1)],
)
def test_sharing_is_of_storage(sharing, numbers):
    sizes = {"width": WIDTH, "heads": HEADS, "layers": 2, "max_length": LONGEST, "vocabulary": 9}
    model = ef.create_model("linformer", "mlm", **sizes, k=5, sharing=sharing)
    maps = [p for name, p in model.named_parameters() if "length_map" in name]
    assert sum(p.numel() for p in maps) == numbers * 5 * LONGEST
    places = {block.mixer.length_map.data_ptr() for block in model.stack.blocks}
    assert len(places) == (1 if sharing == "layerwise" else 2)


def test_one_e_for_all_layers_is_saved_and_loaded_as_one(tmp_path):
    sizes = {"width": WIDTH, "heads": HEADS, "layers": 3, "max_length": LONGEST, "vocabulary": 9}
    model = ef.create_model("linformer", "mlm", **sizes, k=4, sharing="layerwise").eval()
    ef.save(model, tmp_path / "model")
    again = ef.load(tmp_path / "model").eval()
    assert len({id(block.mixer.length_map) for block in again.stack.blocks}) == 1
    tokens = torch.arange(8)[None]
    close(again(tokens).logits, model(tokens).logits, 0)


def test_layers_may_differ_in_k_unless_they_share():
    sizes = {"width": WIDTH, "heads": HEADS, "layers": 2, "max_length": LONGEST}
    model = ef.create_model("linformer", "mlm", **sizes, k=by_layer(8, 4))
    assert [block.mixer.slots for block in model.stack.blocks] == [8, 4]
    with pytest.raises(GeneError, match="one E for all layers"):
        ef.create_model("linformer", "mlm", **sizes, k=by_layer(8, 4), sharing="layerwise")


def test_dropout_falls_on_weights_of_slots_in_training_alone():
    mixer, x = build(k=5, attention_dropout=0.5), draw(1, 7, WIDTH)
    close(mixer(x).y, mixer(x).y, 0)
    assert (mixer.train()(x).y - mixer(x).y).abs().max() > 0.01


def test_a_context_is_read_once_and_its_padding_never():
    mixer = build(k=6, bias=ALL_BIASES)
    x, context = draw(2, 5, WIDTH), draw(2, 11, WIDTH, seed=3)
    padding_mask = torch.ones(2, 11, dtype=torch.bool)
    padding_mask[1, [0, 4, 9, 10]] = False
    y = mixer(x, context=context, mask=Mask(padding_mask=padding_mask)).y
    close(y[1:], mixer(x[1:], context=context[1:, padding_mask[1]]).y)
    close(y, mixer.reference(x, context=context, mask=Mask(padding_mask=padding_mask)))
    noise = torch.where(padding_mask[..., None], context, math.nan)
    close(mixer(x, context=noise, mask=Mask(padding_mask=padding_mask)).y, y)
    held = mixer.read_context(context, Mask(padding_mask=padding_mask))
    close(torch.cat([mixer(part, state=held).y for part in x.split(2, 1)], 1), y)
    twice = (context, context.clone())
    close(mixer(x, context=twice, mask=Mask(padding_mask=padding_mask)).y, y)


def test_the_weights_of_slots_can_be_looked_at():
    mixer, x = build(k=5), draw(1, 7, WIDTH)
    with trace(mixer) as seen:
        mixer(x)
    weights = seen.find("slot_weights")[""]
    assert weights.shape == (1, HEADS, 7, 5)
    close(weights.sum(-1), torch.ones(1, HEADS, 7, dtype=torch.float64))


def test_the_state_keeps_slots_for_segments_and_no_more():
    with torch.no_grad():
        _, state = in_pieces(build(causal=True, causal_chunk=4, k=2), draw(1, 33, WIDTH), 1)
    assert state.slot_keys.shape == (1, HEADS, 33 // 4 * 2, WIDTH // HEADS)


@pytest.mark.parametrize(("chunk", "k", "length"), [(4, 3, 300), (1, 1, 150), (33, 5, 290)])
def test_segments_of_long_texts_are_columns_of_a_plan(chunk, k, length, monkeypatch):
    mixer = build(causal=True, causal_chunk=chunk, k=k)
    x = draw(2, length, WIDTH).requires_grad_()
    found = []
    for limit, engines in ((length + chunk, set()), (0, {"sparse attention"})):
        monkeypatch.setattr(slots, "AT_ONCE", limit)
        with watched() as ways:
            found.append(with_gradients(mixer(x).y, [x, *mixer.parameters()]))
        assert {way.engine for way in ways} & {"sparse attention"} == engines
    close(*found)
    part = x[:1, : 2 * chunk + 1]
    close(mixer(part).y, mixer.reference(part))


def test_long_texts_make_no_tensor_of_all_scores():
    mixer = build(causal=True, causal_chunk=16, dtype=torch.float32)
    x = draw(1, 4096, WIDTH, dtype=torch.float32).requires_grad_()
    with Largest() as largest:
        mixer(x).y.sum().backward()
    scores = HEADS * 4096 * (4096 // 16 * 4) * 4
    assert largest.found < scores / 10


def test_weights_of_long_texts_are_dropped(monkeypatch):
    monkeypatch.setattr(slots, "AT_ONCE", 0)
    mixer = build(causal=True, causal_chunk=4, attention_dropout=0.5).train()
    x = draw(1, 290, WIDTH)
    assert not torch.equal(mixer(x).y, mixer(x).y)
    close(mixer.eval()(x).y, mixer(x).y)


@pytest.mark.parametrize(
    ("sizes", "error", "says"),
    [
        ({"causal": True}, GeneError, "no causal form"),
        ({"causal_chunk": 4}, GeneError, "causal=True"),
        ({"max_length": None}, GeneError, "needs max_length"),
        ({"k": LONGEST + 1}, GeneError, "`k` of at most 20, or a larger `max_length`"),
        ({"causal": True, "causal_chunk": 4, "k": 5}, GeneError, "larger `causal_chunk`"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_built(sizes, error, says):
    with pytest.raises(error, match=says):
        build(**sizes)


def test_what_cannot_be_read_or_written_is_refused():
    mixer, segments = build(), build(causal=True, causal_chunk=4)
    x = draw(1, 5, WIDTH)
    with pytest.raises(ShapeError, match="max_length=20"):
        mixer(draw(1, 21, WIDTH))
    with pytest.raises(UnsupportedError, match="its own text"):
        segments(x, context=x)
    with pytest.raises(UnsupportedError, match="no task 'lm'"):
        ef.create_model("linformer", "lm")
