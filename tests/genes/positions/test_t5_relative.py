"""T5's relative positions by their identities, and against Hugging Face's T5."""

import pytest
import torch

import everyformer as ef
from everyformer.core.errors import GeneError
from everyformer.genes.mixers.attention.reference import attention_reference
from everyformer.genes.positions.t5_relative import T5Relative
from helpers import build_mixer

SIZES = [(32, 128), (8, 12), (4, 5), (14, 100), (64, 300)]
DIRECTIONS = pytest.mark.parametrize("causal", [True, False])
DISTANCES = torch.arange(-700, 701)


def bias(position, queries, keys, dtype=torch.float32):
    """What is added to the scores of a block: (B, H, L, S)."""
    return position.by_distance(queries[:, :, None] - keys[:, None, :], dtype).transpose(0, 1)


def position(causal, buckets=32, max_distance=128, heads=3):
    torch.manual_seed(0)
    options = {"buckets": buckets, "max_distance": max_distance}
    return T5Relative(width=12, heads=heads, causal=causal, options=options)


def mixer(causal, **more):
    chosen = {"position": "t5-relative", "position_options": {"buckets": 8, "max_distance": 12}}
    sizes = {"width": 12, "heads": 3, "causal": causal}
    return build_mixer("attention", seed=1, **sizes, **chosen, **more)


@DIRECTIONS
@pytest.mark.parametrize(("buckets", "reach"), SIZES)
def test_buckets_are_those_of_t5(buckets, reach, causal):
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    find = t5.T5Attention._relative_position_bucket
    theirs = find(-DISTANCES, not causal, num_buckets=buckets, max_distance=reach)
    assert torch.equal(position(causal, buckets, reach).buckets(DISTANCES), theirs)


def test_buckets_are_the_known_ones():
    known = {0: 0, 1: 1, 15: 15, 16: 16, 18: 16, 19: 17, 32: 21, 64: 26, 113: 31, 128: 31}
    known |= {699: 31, -1: 0, -50: 0}
    both = {8: 8, 11: 8, 12: 9, 90: 14, 91: 15, -1: 17, -12: 25, -91: 31, 0: 0}
    for causal, rows in ((True, known), (False, both)):
        assert position(causal).buckets(torch.tensor([*rows])).tolist() == [*rows.values()]


@pytest.mark.parametrize(
    ("causal", "buckets", "rows"),
    [
        # distances -5 .. 5 from key to query, of which 3 is the last that differs
        (True, 4, [0, 0, 0, 0, 0, 0, 1, 2, 3, 3, 3]),
        (False, 8, [7, 7, 7, 6, 5, 0, 1, 2, 3, 3, 3]),
    ],
)
def test_the_farthest_distance_with_a_row_of_its_own(causal, buckets, rows):
    made = position(causal, buckets, 3, heads=2)
    with torch.no_grad():
        made.table.copy_(torch.arange(2 * buckets).view(buckets, 2))
    added = made.by_distance(torch.arange(-5, 6), torch.float64)
    assert added.tolist() == [[2.0 * row + head for row in rows] for head in range(2)]


@DIRECTIONS
def test_bias_is_that_of_t5(causal):
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    from transformers import T5Config

    config = T5Config(d_model=12, num_heads=3, d_kv=4, is_decoder=causal)
    theirs, ours = t5.T5Attention(config, has_relative_attention_bias=True), position(causal)
    theirs.relative_attention_bias.weight.data = ours.table.data
    keys = torch.arange(201)[None]
    torch.testing.assert_close(
        bias(ours, keys[:, 150:], keys), theirs.compute_bias(51, 201, past_seen_tokens=150)
    )


@DIRECTIONS
def test_attention_with_it_equals_the_equation(causal):
    made, x = mixer(causal), torch.randn(2, 17, 12).double()
    q, k, v = made.project(x)
    where, i = made.position, torch.arange(17)
    bias = where.table[where.buckets(i[:, None] - i)].permute(2, 0, 1)[None]
    expected = attention_reference(q, k, v, causal=causal, bias=bias)
    torch.testing.assert_close(made(x).y, made.out(expected.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize(("shared", "tables"), [(True, 1), (False, 3)])
def test_one_table_serves_all_layers_or_each_has_its_own(shared, tables, tmp_path):
    sizes = {"width": 8, "heads": 2, "layers": 3}
    model = ef.create_model("attention", position="t5-relative", shared=shared, **sizes).eval()
    kept = {id(p) for name, p in model.named_parameters() if "table" in name}
    assert len(kept) == tables
    tokens = torch.randint(0, 256, (2, 9))
    model(tokens, targets=tokens).loss.backward()
    ef.save(model, tmp_path / "model")
    loaded = ef.load(tmp_path / "model").eval()
    torch.testing.assert_close(loaded(tokens).logits, model(tokens).logits, rtol=0, atol=0)
    assert len({id(p) for name, p in loaded.named_parameters() if "table" in name}) == tables


def test_the_shared_table_comes_back_as_one_from_a_folder_of_hugging_face(tmp_path):
    hf = pytest.importorskip("everyformer.interop.hf")
    sizes = {"width": 8, "heads": 2, "layers": 2, "tie": False}
    model = ef.create_model("attention", position="t5-relative", **sizes).eval()
    hf.EveryformerForCausalLM.wrap(model).save_pretrained(tmp_path)
    loaded = hf.EveryformerForCausalLM.from_pretrained(tmp_path).eval().model
    tables = [block.mixer.position.table for block in loaded.stack.blocks]
    assert tables[0] is tables[1]
    tokens = torch.randint(0, 256, (2, 9))
    torch.testing.assert_close(loaded(tokens).logits, model(tokens).logits)


def test_heads_of_a_mixed_layer_share_the_table_too():
    heads = ef.by_head("aft-simple", "attention")
    sizes = {"width": 8, "heads": 2, "layers": 2, "position": "t5-relative"}
    model = ef.create_model("attention", mixer=heads, **sizes)
    kept = {id(p) for name, p in model.named_parameters() if "table" in name}
    assert len(kept) == 1
    tokens = torch.randint(0, 256, (2, 9))
    model(tokens, targets=tokens).loss.backward()
    gradient = next(p.grad for n, p in model.named_parameters() if "table" in n)
    assert (gradient[:, 0] == 0).all()
    assert (gradient[:9, 1] != 0).all()


def test_layers_that_differ_share_the_table_and_those_without_scores_are_refused():
    sizes = {"width": 8, "heads": 2, "layers": 3, "position": "t5-relative"}
    model = ef.create_model("attention", window=ef.by_layer(None, 4, 2), **sizes)
    assert len({id(p) for name, p in model.named_parameters() if "table" in name}) == 1
    mixers = ef.by_layer("attention", "aft-simple", "attention")
    with pytest.raises(GeneError, match=r"'t5-relative' acts on scores, but mixer 'aft-simple'"):
        ef.create_model("attention", mixer=mixers, **sizes)


def test_tables_that_cannot_be_or_are_of_the_other_direction_are_refused():
    for causal, options, message in (
        (False, {"buckets": 7}, "an even number of at least 4"),
        (True, {"buckets": 1}, "at least 2 buckets"),
        (True, {"max_distance": 16}, r"within the 16 distances"),
        (False, {"max_distance": 8}, r"within the 8 distances"),
    ):
        with pytest.raises(GeneError, match=message):
            T5Relative(width=8, heads=2, causal=causal, options=options)
    with pytest.raises(GeneError, match=r"`causal=False`, but attention has `causal=True`"):
        ef.create_mixer("attention", width=12, heads=3, causal=True, position=position(False))
