"""Sparse Sinkhorn attention: balancing, limits, an independent package, causality, streams."""

import itertools
import math

import pytest
import torch
from torch.nn import functional as F

import everyformer as ef
from everyformer.core.choices import keep_choices, repeat_choices
from everyformer.core.errors import ConfigError, GeneError, ShapeError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.core.trace import trace
from everyformer.engines.content.balance import (
    NOTHING,
    balanced,
    balanced_reference,
    balanced_row,
    gumbel,
)
from everyformer.genes.mixers.sinkhorn.sorting import hardened
from everyformer.report.pictures import draw_pictures
from helpers import build_mixer, close, draw, shifted

WIDTH, HEADS, LONGEST = 12, 3, 40
NETS = ("linear", "mlp", "bilinear")
COMBINATIONS = ("concat", "sum-scores", "sum-out")


class Fixed(torch.nn.Module):
    """Logits that do not depend on the text: rows of one permutation, far above all others."""

    def __init__(self, order, height=60.0):
        super().__init__()
        self.logits = height * torch.eye(len(order), dtype=torch.float64)[list(order)]

    def forward(self, pooled, count):
        return self.logits.expand(len(pooled), HEADS, -1, -1)


def build(*, causal=False, dtype=torch.float64, max_length=LONGEST, block_size=4, **options):
    sizes = {"width": WIDTH, "heads": HEADS, "causal": causal, "max_length": max_length}
    mixer = build_mixer("sinkhorn", dtype=dtype, **sizes, block_size=block_size, **options)
    return shifted(mixer, vectors=True)


def attention_of(mixer):
    """Softmax attention with the mixer's own projections."""
    plain = ef.create_mixer("attention", width=WIDTH, heads=HEADS, causal=mixer.causal).double()
    plain.load_state_dict(mixer.state_dict(), strict=False)
    return plain


# balancing


def test_rows_and_columns_of_a_balanced_matrix_sum_to_one():
    p = balanced(draw(2, 3, 7, 7), 50)
    for dim in (-1, -2):
        close(p.sum(dim), torch.ones(2, 3, 7, dtype=torch.float64), 1e-4)


def test_a_low_temperature_makes_a_permutation():
    order = torch.randperm(7, generator=torch.Generator().manual_seed(3))
    logits = torch.eye(7, dtype=torch.float64)[order] + 0.1 * draw(7, 7)
    close(balanced(logits[None, None] / 0.02, 50)[0, 0], torch.eye(7)[order].double(), 1e-6)


@pytest.mark.parametrize("causal", [False, True])
def test_balancing_in_logs_is_balancing_by_divisions(causal):
    logits = draw(1, 3, 6, 6).requires_grad_()
    fast, literal = balanced(logits, 4, causal=causal), balanced_reference(logits[0], 4, causal)
    close(fast[0], literal)
    weight = draw(3, 6, 6, seed=5)
    found = [torch.autograd.grad((t * weight).sum(), logits)[0] for t in (fast[0], literal)]
    close(*found)


def test_causal_rows_are_averages_of_earlier_blocks_that_know_no_later_row():
    logits = draw(1, 2, 6, 6)
    p = balanced(logits, 5, causal=True)
    close(p[..., 1:, :].sum(-1), torch.ones(1, 2, 5, dtype=torch.float64))
    assert (p.triu() == 0).all()
    for count in range(1, 6):
        close(balanced(logits[..., :count, :count], 5, causal=True), p[..., :count, :count])


def test_causal_rows_can_be_made_one_after_the_other():
    logits, columns = draw(2, 3, 6, 6), torch.full((2, 3, 4, 6), NOTHING, dtype=torch.float64)
    whole = balanced(logits, 4, causal=True)
    for i in range(6):
        earlier = (torch.arange(6) < i).expand(2, 1, 6)
        row, columns = balanced_row(logits[:, :, i], columns, earlier)
        close(row, whole[:, :, i])


def test_balanced_for_long_causal_rows_are_the_block_just_before():
    """A lower triangle with rows and columns of one is a shift: why few iterations are made."""
    logits = draw(2, 3, 12, 12)
    shares = [
        float(balanced(logits, n, causal=True).diagonal(-1, 2, 3).mean()) for n in (1, 8, 500)
    ]
    assert shares[0] < 0.65 < 0.8 < shares[1] < 0.99 < shares[2]
    assert build(causal=True).iterations == 1
    assert build().iterations == 8


def test_blocks_that_are_not_there_take_no_part():
    logits = draw(1, 2, 6, 6)
    p = balanced(logits, 5, real=torch.tensor([[True] * 4 + [False] * 2]))
    close(p[..., :4, :4], balanced(logits[..., :4, :4], 5))
    assert (p[..., 4:, :] == 0).all()
    assert (p[..., :, 4:] == 0).all()


def test_large_logits_stay_finite_and_so_do_their_gradients():
    for causal in (False, True):
        logits = (1e5 * draw(1, 1, 5, 5, dtype=torch.float32)).requires_grad_()
        p = balanced(logits, 8, causal=causal)
        p.square().sum().backward()
        assert torch.isfinite(p).all()
        assert torch.isfinite(logits.grad).all()


def test_the_noise_is_gumbel_noise():
    torch.manual_seed(0)
    drawn = gumbel(torch.empty(200_000, dtype=torch.float64))
    assert abs(float(drawn.mean()) - 0.5772) < 0.01
    assert abs(float(drawn.var()) - math.pi**2 / 6) < 0.03


# an implementation that no one here wrote


def test_balancing_and_sorting_are_those_of_the_sinkhorn_transformer_package():
    package = pytest.importorskip("sinkhorn_transformer.sinkhorn_transformer")
    logits, blocks = draw(3, 6, 6), draw(3, 6, 4, 5, seed=2)
    p = balanced(logits[None], 7)[0]
    close(p, package.sinkhorn_sorting_operator(logits, 7))
    mixed = (p @ blocks.flatten(2)).view_as(blocks)
    close(mixed, package.reorder_buckets(blocks, p))


@pytest.mark.parametrize("cut", [2, 5])
def test_sortcut_is_that_of_the_sinkhorn_transformer_package(cut):
    """Their SortCut with the simple sort net's P set to ours."""
    package = pytest.importorskip("sinkhorn_transformer.sinkhorn_transformer")
    mixer, x = build(sort_net="bilinear", sortcut=cut), draw(2, 20, WIDTH)
    with trace(mixer) as seen:
        y = mixer(x).y
    p = seen.find("sort")[""].flatten(0, 1)
    # their own block is read beside the sorted ones unless queries and keys differ in blocks
    sizes = {"kv_bucket_size": 4, "n_sortcut": cut}
    theirs = package.SinkhornAttention(20, WIDTH, WIDTH // HEADS, HEADS, 20, **sizes)

    class Ours(torch.nn.Module):
        def forward(self, q, k, topk):
            return p

    theirs.sort_net = Ours()
    heads = theirs.double()(*mixer.project(x))
    close(mixer.out(heads.transpose(1, 2).flatten(2)), y)


# limits


def test_own_blocks_twice_are_local_attention():
    mixer, x = build(), draw(2, 12, WIDTH)
    mixer.sorter = Fixed(range(3), height=800.0)
    blocks = attention_of(mixer)(x.reshape(6, 4, WIDTH)).y.reshape(2, 12, WIDTH)
    close(mixer(x).y, blocks)


@pytest.mark.parametrize("length", [1, 3, 4])
def test_one_block_is_attention(length):
    mixer, x = build(), draw(2, length, WIDTH)
    close(mixer(x).y, attention_of(mixer)(x).y)


@pytest.mark.parametrize("length", [12, 11, 9])
def test_sortcut_of_all_blocks_is_attention_in_whatever_order(length):
    for order in itertools.permutations(range(3)):
        mixer, x = build(sortcut=3, hard=True), draw(2, length, WIDTH)
        mixer.sorter = Fixed(order)
        close(mixer(x).y, attention_of(mixer)(x).y)


def test_a_mixture_adds_attention():
    for causal in (False, True):
        both, alone = build(causal=causal, mixture=True), build(causal=causal)
        alone.load_state_dict(both.state_dict())
        x = draw(2, 11, WIDTH)
        close(both(x).y - alone(x).y, attention_of(both)(x).y)


def test_a_hard_row_is_one_block_and_has_the_gradient_of_the_soft_row():
    p = balanced(draw(1, 2, 5, 5), 3).requires_grad_()
    hard, weight = hardened(p), draw(1, 2, 5, 5, seed=4)
    assert set(hard.unique().tolist()) == {0.0, 1.0}
    assert (hard.sum(-1) == 1).all()
    close(torch.autograd.grad((hard * weight).sum(), p)[0], weight)


def test_the_one_block_is_a_choice_that_a_second_computation_repeats():
    p, other = (balanced(draw(1, 2, 5, 5, seed=s), 3) for s in (1, 2))
    with keep_choices() as choices:
        expected = hardened(p)
    with repeat_choices(choices):
        close(hardened(other), expected, 0)
    assert (hardened(other) != expected).any()


# causality


@pytest.mark.parametrize("net", NETS)
def test_the_rows_of_p_know_nothing_behind_the_first_token_of_their_block(net):
    mixer, x = build(causal=True, sort_net=net), draw(1, 18, WIDTH)
    other = x.clone()
    other[:, 9:] = 3 * draw(1, 9, WIDTH, seed=8)
    made = []
    for text in (x, other):
        with trace(mixer) as seen:
            mixer(text)
        made.append(seen.find("sort")[""])
    close(made[0][:, :, :3], made[1][:, :, :3], 0)
    assert (made[0][:, :, 3:] - made[1][:, :, 3:]).abs().max() > 1e-3


@pytest.mark.parametrize("combine", COMBINATIONS)
@pytest.mark.parametrize("net", NETS)
def test_no_output_has_a_gradient_to_a_later_token(net, combine):
    mixer = build(causal=True, sort_net=net, combine=combine, mixture=True)
    x = draw(1, 14, WIDTH).requires_grad_()
    y = mixer(x).y
    for t in range(14):
        (gradient,) = torch.autograd.grad(y[:, t].sum(), x, retain_graph=True)
        assert (gradient[:, t + 1 :] == 0).all()
    assert (gradient[:, :4] != 0).any()


# streams


@pytest.mark.parametrize("combine", COMBINATIONS)
@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("hard", [False, True])
def test_rows_of_different_ages_go_on_together(net, combine, hard):
    mixer = build(
        causal=True, sort_net=net, combine=combine, hard=hard, mixture=hard, bias=("key",)
    )
    x = draw(3, 23, WIDTH)
    keep = torch.ones(3, 23, dtype=torch.bool)
    keep[1, :5] = keep[2, 3:14] = False
    state, parts = mixer.init_state(3), []
    for first, last in itertools.pairwise((0, 1, 2, 4, 9, 10, 23)):
        out = mixer(x[:, first:last], mask=Mask(keep=keep[:, first:last]), state=state)
        parts.append(out.y)
        state = out.state
    y = torch.cat(parts, 1)
    assert state.seen.tolist() == [23, 18, 12]
    for b in range(3):
        close(y[b, keep[b]], mixer(x[b : b + 1, keep[b]]).y[0])


def test_a_text_without_padding_is_read_token_by_token():
    mixer = build(causal=True, sort_net="bilinear", max_length=None)
    x, state, parts = draw(2, 41, WIDTH), mixer.init_state(2).reserve(50), []
    with torch.inference_mode():
        for token in x.split(1, 1):
            y, state, _ = mixer(token, state=state)
            parts.append(y)
        close(torch.cat(parts, 1), mixer(x).y)


# sharing, noise, pictures


def test_layers_may_share_their_sort_net():
    sizes = {"width": WIDTH, "heads": HEADS, "layers": 3, "max_length": LONGEST}
    for shared in (False, True):
        model = ef.create_model("sinkhorn", **sizes, block_size=4, shared_sort=shared)
        nets = {id(block.mixer.sorter) for block in model.stack.blocks}
        assert len(nets) == (1 if shared else 3)


def test_noise_is_for_training_alone():
    mixer, quiet = build(), build(gumbel=False)
    x = draw(1, 12, WIDTH)
    close(mixer(x).y, mixer(x).y, 0)
    assert (mixer.train()(x).y - mixer(x).y).abs().max() > 1e-3
    close(quiet.train()(x).y, quiet(x).y, 0)


@pytest.mark.parametrize("combine", ["concat", "sum-scores"])
@pytest.mark.parametrize("causal", [False, True])
def test_the_weights_that_are_shown_make_the_output(causal, combine):
    mixer, x = build(causal=causal, combine=combine), draw(1, 11, WIDTH)
    if causal:
        mixer.null.data[1] = 0
    with trace(mixer) as seen:
        y = mixer(x).y
    weights = seen.find("weights")[""]
    assert weights.shape == (1, HEADS, 11, 11)
    values = mixer.project(x)[2]
    close(mixer.out((weights @ values).transpose(1, 2).flatten(2)), y)


@pytest.mark.parametrize("causal", [False, True])
def test_sort_matrices_are_drawn_where_there_is_more_than_one_block(causal):
    sizes = {"width": WIDTH, "heads": HEADS, "layers": 2, "max_length": LONGEST, "block_size": 4}
    model = ef.create_model("sinkhorn", "lm" if causal else "mlm", vocabulary=9, **sizes)
    tokens = torch.arange(30)[None] % 9
    (figure,) = draw_pictures(model, tokens, "sort").values()
    assert "sorted in" in figure.get_label()
    assert "nan" not in figure.get_label()
    with pytest.raises(UnsupportedError, match="no sort to show"):
        draw_pictures(model, tokens[:, :4], "sort")


def test_p_learns_through_the_softness_of_its_blocks():
    mixer = build(hard=True)
    mixer(draw(1, 12, WIDTH)).y.square().sum().backward()
    assert mixer.sorter.weights[0].grad.abs().max() > 0


# refusals


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"causal": True, "sortcut": 2}, GeneError, "causal=False"),
        ({"max_length": None}, GeneError, "bilinear"),
        ({"block_size": 0}, ConfigError, "at least 1"),
        ({"iterations": 0}, ConfigError, "at least 1"),
        ({"tau": 0.0}, ConfigError, "tau' must be above 0"),
        ({"sortcut": 2, "combine": "sum-out"}, ConfigError, "no own block"),
        ({"sort_net": "bilinear", "shared_sort": True}, ConfigError, "no weights"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_built(options, error, says):
    with pytest.raises(error, match=says):
        build(**options)


def test_what_cannot_be_read_is_refused():
    mixer, x = build(causal=True), draw(1, 5, WIDTH)
    with pytest.raises(ShapeError, match="max_length=40"):
        mixer(draw(1, 41, WIDTH))
    state = mixer(draw(1, 40, WIDTH), state=mixer.init_state(1)).state
    with pytest.raises(ShapeError, match="max_length=40"):
        mixer(x, state=state)
    with pytest.raises(UnsupportedError, match="cross form"):
        mixer(x, context=x)
    with pytest.raises(UnsupportedError, match="bidirectional"):
        build().init_state(1)
    with pytest.raises(ShapeError, match="one flag per token"):
        mixer(x, mask=Mask(keep=torch.ones(1, 4, dtype=torch.bool)))


def test_padding_behind_a_text_is_as_if_it_were_not_there():
    mixer, x = build(), draw(1, 10, WIDTH)
    padded = F.pad(x, (0, 0, 0, 9), value=math.nan)
    keep = torch.arange(19)[None] < 10
    close(mixer(padded, mask=Mask(keep=keep)).y[:, :10], mixer(x).y)
