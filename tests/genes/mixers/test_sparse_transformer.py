"""Sparse Transformer: its sets, how heads and layers share them, limits, starts of networks."""

import math

import pytest
import torch
from torch.testing import assert_close

import everyformer as ef
from everyformer.core.errors import ConfigError
from everyformer.engines import dropout
from everyformer.engines.sparse.patterns import Columns, Near
from everyformer.engines.sparse.plan import SparsePlan, distances
from everyformer.genes.mixers.patterned import _Next
from everyformer.genes.positions.axial import Axial
from everyformer.models.build import configure
from everyformer.models.layers import build_mixers
from helpers import build_mixer, draw

WIDTH, HEADS, LENGTH = 12, 2, 64


def build(**options):
    """A mixer; summary columns are given to the pattern that has some."""
    if options.get("pattern") != "fixed":
        options.pop("columns", None)
    sizes = {"width": WIDTH, "heads": HEADS, "causal": True, "max_length": LENGTH}
    return build_mixer("sparse-transformer", **{**sizes, **options})


def layers(**options):
    sizes = {"width": 12, "heads": 2, "max_length": 64}
    return build_mixers(configure("sparse-transformer", "lm", **sizes, **options))


def sets(pattern, stride, columns=1, group=0, length=LENGTH):
    """The definitions, pair by pair, from positions that begin at 0."""
    first = torch.zeros(length, length, dtype=torch.bool)
    second = first.clone()
    last = stride - group * columns
    for i in range(length):
        for j in range(i + 1):
            if pattern == "strided":
                first[i, j] = i - j < stride
                second[i, j] = (i - j) % stride == 0
            else:
                first[i, j] = j // stride == i // stride
                second[i, j] = last - columns <= j % stride < last
    return first, second


@pytest.mark.parametrize("stride", [1, 5, 8, 64, 99])
@pytest.mark.parametrize("pattern", ["strided", "fixed"])
def test_the_sets_are_the_definitions(pattern, stride):
    chosen = {"pattern": pattern, "stride": stride, "columns": 1}
    first, second = sets(pattern, stride)
    assert torch.equal(build(**chosen).plan(LENGTH).mask(LENGTH)[0], first | second)
    by_head = build(**chosen, mode="heads").plan(LENGTH).mask(LENGTH, HEADS)
    assert torch.equal(by_head[0], first)
    assert torch.equal(by_head[-1], second)


def test_groups_of_heads_have_summary_columns_of_their_own_from_the_end_of_the_stride():
    own = {"heads": 4, "pattern": "fixed", "groups": 3, "sets": ("second",), "mode": "heads"}
    mask = build(stride=8, columns=2, **own).plan(LENGTH).mask(LENGTH, 4)
    for head in range(4):
        assert torch.equal(mask[head], sets("fixed", 8, 2, head % 3)[1])


def test_both_ways_the_sets_are_those_without_the_order():
    for pattern in ("strided", "fixed"):
        mixer = build(causal=False, pattern=pattern, stride=8, columns=2, mode="heads")
        mask = mixer.plan(LENGTH).mask(LENGTH, HEADS)
        i, j = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)
        if pattern == "strided":
            expected = ((i - j).abs() < 8, (i - j) % 8 == 0)
        else:
            expected = (i // 8 == j // 8, (j % 8 >= 6).expand(LENGTH, -1))
        assert torch.equal(mask[0], expected[0])
        assert torch.equal(mask[1], expected[1])


def test_a_query_of_the_second_fixed_set_before_any_summary_gives_zero_or_itself():
    chosen = {"pattern": "fixed", "stride": 8, "columns": 2, "mode": "heads", "sets": ("second",)}
    mixer, x = build(**chosen), draw(1, 20, WIDTH).requires_grad_()
    y = mixer(x).y
    assert torch.equal(y[:, :6], torch.zeros_like(y[:, :6]))
    assert (y[:, 6:] != 0).all()
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert gradient.isfinite().all()


def test_layers_take_turns_first_layer_first_set():
    made = layers(layers=5, mode="interleave", pattern="fixed", stride=8, columns=1)
    first, second = sets("fixed", 8)
    for n, mixer in enumerate(made):
        assert torch.equal(mixer.plan(LENGTH).mask(LENGTH)[0], (first, second)[n % 2])
    reach = distances([mixer.plan(LENGTH).mask(LENGTH)[0] for mixer in made[:2]]) <= 2
    assert torch.equal(reach, torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril())


def test_a_head_may_see_both_sets():
    mixer = build(heads=3, mode="heads", sets=("both", "first", "second"), stride=8)
    first, second = sets("strided", 8)
    mask = mixer.plan(LENGTH).mask(LENGTH, 3)
    for got, want in zip(mask, (first | second, first, second), strict=True):
        assert torch.equal(got, want)


def test_the_stride_is_the_square_root_of_the_text_or_a_row_of_the_picture():
    assert [build(max_length=n).stride for n in (1, 2, 64, 65, None)] == [1, 2, 8, 9, 64]
    sizes = {"width": 12, "heads": 2, "layers": 1, "image": (3, 4, 5)}
    blocks = {"order": "blocks", "tile": (2, 6)}
    for pixels, stride in (({}, 15), ({"output": "mixture"}, 5), (blocks, 8)):
        model = ef.create_model("sparse-transformer", "pixels", pixels=pixels, **sizes)
        assert model.stack.blocks[0].mixer.stride == stride


def test_states_hold_the_last_block_and_the_summaries_of_a_fixed_pattern():
    mixer = build(pattern="fixed", stride=8, columns=2, max_length=None)
    state, x = mixer.init_state(1), draw(1, 200, WIDTH)
    for t in range(200):
        state = mixer(x[:, t : t + 1], state=state).state
        # what is no longer needed goes when it is more than half
        assert state.keys.shape[2] <= 2 * (8 + 2 * (t // 8 + 1)) + 1


PUBLISHED = "sparse-transformer"
SCALE, TABLE = 0.125, 0.01


def model(**options):
    torch.manual_seed(0)
    sizes = {"width": 64, "heads": 4, "layers": 3, "max_length": 1024, "vocabulary": 500}
    return ef.create_model("sparse-transformer", init=PUBLISHED, **{**sizes, **options})


def test_every_matrix_starts_with_its_published_deviation():
    made, layers = model(), 3
    stds = {}
    for name, weight in made.named_parameters():
        if weight.dim() < 2:
            assert (weight == float(name.endswith("norm.weight"))).all(), name
            continue
        inputs = weight.shape[1]
        std = math.sqrt(SCALE / inputs)
        if name.endswith(("out.weight", "down.weight")):
            std /= math.sqrt(2 * layers)
        elif name == "embedding.weight":
            std = TABLE
        elif name.startswith("position"):
            std = TABLE / math.sqrt(2)
        elif name == "head.weight":
            std = 0.0
        stds[name] = (weight.std().item(), std)
    assert len(stds) == 4 + 4 * layers
    for name, (got, want) in stds.items():
        assert got == pytest.approx(want, rel=0.05), name


def test_places_of_pictures_are_rows_columns_and_channels_whose_tables_share_one_deviation():
    sizes = {"width": 512, "heads": 2, "layers": 1, "image": (3, 16, 16)}
    made = ef.create_model("sparse-transformer", "pixels", init=PUBLISHED, **sizes)
    assert made.position is None
    for table in (made.embedding.row, made.embedding.column, made.embedding.channel):
        assert table.weight.std().item() == pytest.approx(TABLE / math.sqrt(3), rel=0.1)
    assert made.embedding.values.weight.std().item() == pytest.approx(TABLE, rel=0.05)


@pytest.mark.parametrize("task", ["lm", "pixels", "mlm"])
def test_the_first_loss_is_the_logarithm_of_the_number_of_tokens(task):
    made, count = model(), 500
    inputs = targets = torch.randint(0, 500, (2, 30))
    if task == "mlm":
        sizes = {"width": 64, "max_length": 64, "vocabulary": 500}
        made = ef.create_model("sparse-transformer", task, init=PUBLISHED, **sizes)
    if task == "pixels":
        sizes = {"width": 64, "image": (3, 4, 4)}
        made = ef.create_model("sparse-transformer", task, init=PUBLISHED, **sizes)
        inputs, count = torch.randint(0, 256, (2, 3, 4, 4)).to(torch.uint8), 256
        targets = inputs.permute(0, 2, 3, 1).flatten(1).long()
    assert made(inputs, targets=targets).loss.item() == pytest.approx(math.log(count), rel=1e-6)


def test_a_residual_block_adds_both_branches():
    """h + a + f, a = attention(norm(h)), f = feed-forward(norm(h + a)) with x sigmoid(1.702 x)."""
    block, h = model().double().eval().stack.blocks[0], draw(2, 10, 64)
    a = block.mixer(block.mixer_norm(h)).y
    up = block.feedforward.up(block.feedforward_norm(h + a))
    f = block.feedforward.down(up * torch.sigmoid(1.702 * up))
    assert_close(block(h).y, h + a + f)


def test_dropout_is_on_branches_and_embeddings_alone(monkeypatch):
    made, seen = model(dropout=0.25, embedding_dropout=0.25, layers=1), []
    real = dropout._times
    monkeypatch.setattr(dropout, "_times", lambda x, *how: seen.append(x.numel()) or real(x, *how))
    made.train()(torch.randint(0, 500, (2, 300)))
    # the embeddings and two branches, all as wide as the model: no hidden channels, no weights
    assert seen == [2 * 300 * 64] * 3


def test_places_of_text_are_its_row_and_column_of_the_stride():
    axial = Axial(width=6, max_length=20, options={"shape": (4, 5), "combine": "sum"})
    for p, place in enumerate(axial.embed(torch.arange(20)[None])[0]):
        assert torch.equal(place, axial.tables[0][p // 5] + axial.tables[1][p % 5])
    made = model()
    assert made.stack.blocks[0].mixer.stride == len(made.position.tables[1]) == 32


@pytest.mark.parametrize(
    ("make", "options", "says"),
    [
        (build, {"pattern": "fixed", "stride": 4, "columns": 5}, "columns=5"),
        (build, {"pattern": "fixed", "stride": 8, "columns": 3, "groups": 3}, "groups=3"),
        (build, {"mode": "heads", "sets": ()}, "sets="),
        (model, {"tie": True}, "tie=False"),
        (model, {"dims": (32, 32)}, "combine='sum'"),
    ],
)
def test_what_cannot_be_is_refused(make, options, says):
    with pytest.raises(ConfigError, match=says):
        make(**options)


def test_what_the_next_queries_see_is_found_anew_where_more_keys_or_other_queries_are_asked_for():
    plan = SparsePlan.of(Near(before=3, dilation=2), Columns(period=5, first=1, last=2))
    known, whole = _Next(plan.text, 2), plan.mask(90)[0]
    for place, size in ((20, 5), (20, 15), (27, 9), (60, 50), (61, 61), (21, 4), (20, 21)):
        found = known.of(place, size)
        assert torch.equal(found[0], whole[place, place + 1 - size : place + 1])
