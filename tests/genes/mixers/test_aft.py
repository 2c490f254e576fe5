"""The four Attention-Free Transformers: identities, oracles, streams, masks, numbers."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from everyformer import functional
from everyformer.core.errors import ConfigError, GeneError, ShapeError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.core.trace import trace
from everyformer.genes.mixers import MIXERS
from everyformer.genes.mixers.aft_conv import line_bias, normalised_kernel, picture_bias
from helpers import draw, in_pieces, with_gradients

WIDTH, HEADS, LONGEST = 8, 2, 40
MEMBERS = [
    ("aft-full", {"rank": 3}),
    ("aft-full", {"rank": None, "gate": "relu"}),
    ("aft-local", {"window": 4, "rank": 3}),
    ("aft-local", {"window": 5, "rank": None}),
    ("aft-local", {"window": 0, "bias": False}),
    ("aft-local", {"window": 1, "rank": 3, "gate": "identity"}),
    ("aft-simple", {}),
    ("aft-conv", {"kernel": 5}),
    ("aft-conv", {"kernel": 1}),
]
IDS = ["-".join([name, *(f"{k}={v}" for k, v in o.items())]) for name, o in MEMBERS]
members = pytest.mark.parametrize(("name", "options"), MEMBERS, ids=IDS)


def build(name, options=None, *, causal=True, dtype=torch.float64, heads=HEADS, randomize_=True):
    torch.manual_seed(0)
    mixer = MIXERS.get(name)(
        width=WIDTH, heads=heads, causal=causal, max_length=LONGEST, options=options or {}
    )
    for parameter in mixer.parameters() if randomize_ else ():
        parameter.data += 0.4 * torch.randn_like(parameter)
    return mixer.to(dtype)


def holes(batch, length):
    """Row 0 padded left, inside and right; row 1 on the right; the others whole."""
    padding_mask = torch.ones(batch, length, dtype=torch.bool)
    if length > 3:
        padding_mask[0, :2] = padding_mask[0, length // 2] = padding_mask[0, -1] = False
        padding_mask[1, -2:] = False
    return padding_mask


def close(a, b, tolerance=1e-12):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("grid", [None, (3, 4)])
def test_conv_is_softmax_attention_with_a_bias_a_head(grid):
    q, v, k = draw(2, 12, 6), draw(2, 12, 6, seed=2), draw(2, 12, 2, seed=3)
    kernel = draw(2, 5, seed=4) if grid is None else draw(2, 3, 3, seed=4)
    w = line_bias(kernel, 12, False) if grid is None else picture_bias(kernel, grid)
    heads = k.transpose(1, 2)[..., None], v.unflatten(-1, (2, 3)).transpose(1, 2)
    ones = torch.ones_like(heads[0])
    attended = F.scaled_dot_product_attention(ones, *heads, attn_mask=w, scale=1.0)
    expected = torch.sigmoid(q) * attended.transpose(1, 2).flatten(2)
    close(functional.aft_conv(q, k, v, kernel, grid=grid), expected)


def copied(ours, theirs):
    ours.query, ours.key, ours.value = theirs.to_q, theirs.to_k, theirs.to_v
    ours.out = theirs.project
    return ours


@pytest.mark.filterwarnings("ignore:Converting a tensor")
def test_aft_pytorch_computes_the_same():
    theirs = pytest.importorskip("aft_pytorch")
    x = draw(2, 9, WIDTH, dtype=torch.float32)
    full = theirs.AFTFull(max_seqlen=LONGEST, dim=WIDTH, hidden_dim=WIDTH)
    options = {"rank": None}
    ours = copied(build("aft-full", options, causal=False, dtype=torch.float32), full)
    ours.position.table.data = full.wbias.data[None]
    close(ours(x).y, full(x), 1e-6)

    simple = theirs.AFTSimple(max_seqlen=LONGEST, dim=WIDTH, hidden_dim=WIDTH)
    ours = copied(build("aft-simple", causal=False, dtype=torch.float32), simple)
    close(ours(x).y, simple(x), 1e-6)

    local = theirs.AFTLocal(max_seqlen=LONGEST, dim=WIDTH, hidden_dim=WIDTH, s=3)
    q, k, v = local.to_q(x), local.to_k(x), local.to_v(x)
    got = functional.aft_local(q, k, v, local.wbias, window=3)
    close(local.project(got), local(x), 1e-6)


def test_a_picture_may_be_moved_on_a_larger_one():
    mixer = build("aft-conv", {"kernel": 3, "dims": 2}, causal=False)
    x = draw(1, 3, 4, WIDTH)
    seen = []
    for line, column in itertools.product((0, 2), (0, 3)):
        canvas, real = torch.full((1, 5, 7, WIDTH), math.nan).double(), torch.zeros(1, 5, 7).bool()
        canvas[:, line : line + 3, column : column + 4] = x
        real[:, line : line + 3, column : column + 4] = True
        real = real.flatten(1)
        seen.append(mixer(canvas.flatten(1, 2), mask=Mask(padding_mask=real, grid=(5, 7))).y[real])
    for y in (*seen, mixer(x.flatten(1, 2), mask=Mask(grid=(3, 4))).y[0]):
        close(y, seen[0])


def test_a_picture_agrees_with_its_reference():
    mixer = build("aft-conv", {"kernel": 5, "dims": 2}, causal=False)
    padding_mask = holes(2, 24)
    padding_mask[1] = False
    x = draw(2, 24, WIDTH).requires_grad_()
    for mask in (Mask(grid=(4, 6)), Mask(grid=(4, 6), padding_mask=padding_mask)):
        real = 1.0 if mask.padding_mask is None else padding_mask[..., None].double()
        pair = [t * real for t in (mixer(x, mask=mask).y, mixer.reference(x, mask=mask))]
        close(*pair)
        close(*(with_gradients(y, [x, *mixer.parameters()]) for y in pair), 1e-10)


@members
def test_gradients_pass_single_tokens_as_they_pass_a_text(name, options):
    mixer, x = build(name, options), draw(2, 7, WIDTH).requires_grad_()
    pair = in_pieces(mixer, x, 1)[0], mixer(x).y
    close(*(with_gradients(y, [x, *mixer.parameters()]) for y in pair), 1e-10)


def test_sums_of_a_half_precision_state_are_float32():
    for name in ("aft-simple", "aft-local", "aft-conv"):
        mixer = build(name, dtype=torch.bfloat16)
        state = mixer(draw(1, 5, WIDTH, dtype=torch.bfloat16), state=mixer.init_state(1)).state
        assert state.lse.dtype == state.average.dtype == torch.float32


@members
def test_autocast_changes_little(name, options):
    mixer, x = build(name, options, dtype=torch.float32), draw(2, 33, WIDTH, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y = mixer(x).y
        stepped = mixer(x[:, :5], state=mixer.init_state(2))
        again = mixer(x[:, 5:], state=stepped.state).y
    assert y.dtype == torch.bfloat16
    close(y.float(), mixer(x).y, 0.1)
    close(again.float(), mixer(x).y[:, 5:], 0.1)


def test_gradcheck_of_a_normalised_kernel():
    raw, gamma, beta = (draw(*s).requires_grad_() for s in ((2, 5), (2,), (2,)))
    torch.autograd.gradcheck(normalised_kernel, (raw, gamma, beta), fast_mode=True)
    constant = torch.ones(2, 3, 3, dtype=torch.float64, requires_grad=True)
    w = normalised_kernel(constant, gamma, beta)
    assert torch.isfinite(torch.autograd.grad(w.square().sum(), constant)[0]).all()


@members
@pytest.mark.parametrize("causal", [True, False])
def test_the_weights_shown_are_those_applied(name, options, causal):
    mixer, x = build(name, {**options, "gate": "identity"}, causal=causal), draw(2, 9, WIDTH)
    with trace(mixer) as seen:
        mixer(x)
    weights, w = (seen.find(n)[""] for n in ("weights", "position_bias"))
    assert weights.shape == (2, 1, 9, 9)
    close(weights.sum(-1), torch.ones(2, 1, 9).double())
    if causal:
        assert torch.all(weights.triu(1) == 0)
    keys = mixer.key(x)
    each = keys.repeat_interleave(WIDTH // keys.shape[-1], -1)
    ones, places = torch.ones_like(each), torch.eye(9, dtype=torch.float64)
    columns = [
        functional.aft_full(ones, each, place[:, None].expand(2, 9, WIDTH), w,
                            causal=causal, gate="identity").mean(-1)
        for place in places
    ]  # fmt: skip
    close(weights[:, 0], torch.stack(columns, -1))


@pytest.mark.parametrize(
    ("name", "given", "options", "error", "message"),
    [
        ("aft-full", {"max_length": None}, {}, ConfigError, "needs max_length"),
        ("aft-local", {"max_length": None}, {}, ConfigError, "needs max_length"),
        ("aft-conv", {"causal": True}, {"dims": 2}, GeneError, "`dims=2` cannot be `causal=True`"),
        ("aft-conv", {"heads": 3}, {}, GeneError, "not divisible by `heads=3`"),
    ],
)
def test_wrong_options_say_what_to_do(name, given, options, error, message):
    arguments = {"width": WIDTH, "heads": 1, "causal": False, "max_length": 9} | given
    with pytest.raises(error, match=message):
        MIXERS.get(name)(**arguments, options=options)


FUNCTIONS = {
    "full": lambda x, **how: functional.aft_full(x, x, x, draw(6, 6), **how),
    "factors": lambda x, **how: functional.aft_full(x, x, x, (draw(6, 2), draw(6, 2)), **how),
    "local": lambda x, **how: functional.aft_local(x, x, x, draw(6, 6), window=2, **how),
    "simple": lambda x, **how: functional.aft_simple(x, x, x, **how),
    "conv": lambda x, **how: functional.aft_conv(x, x, x, draw(2, 3), **how),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_averages_of_no_rows_or_no_tokens_are_empty(name):
    for shape, causal in itertools.product([(0, 5, 4), (2, 0, 4)], [True, False]):
        x = draw(*shape).requires_grad_()
        y = FUNCTIONS[name](x, causal=causal)
        assert y.shape == torch.autograd.grad(y.sum(), x)[0].shape == shape


def test_wrong_calls_say_what_to_do():
    x, full = draw(1, 41, WIDTH), build("aft-full")
    with pytest.raises(ShapeError, match="max_length=40"):
        full(x)
    state = full(x[:, :40], state=full.init_state(1)).state
    with pytest.raises(ShapeError, match="max_length=40"):
        full(x[:, 40:], state=state)
    local = build("aft-local")
    state = local(x[:, :40], state=local.init_state(1)).state
    with pytest.raises(ShapeError, match="max_length=40"):
        local(x[:, 40:], state=state)
    picture = build("aft-conv", {"kernel": 3, "dims": 2}, causal=False)
    with pytest.raises(ShapeError, match="picture's shape"):
        picture(x)
    with pytest.raises(ShapeError, match="does not hold 41 tokens"):
        picture(x, mask=Mask(grid=(5, 8)))
    q = draw(1, 5, 6)
    documents = Mask(documents=torch.zeros(1, 4, dtype=torch.long), grid=(2, 2))
    with pytest.raises(UnsupportedError, match="cannot honour the mask part"):
        functional.aft_simple(q[:, :4], q[:, :4], q[:, :4], mask=documents)
    with pytest.raises(UnsupportedError, match="cannot honour the mask part"):
        functional.aft_conv(q[:, :4], q[:, :4], q[:, :4], draw(2, 3, 3), mask=documents)
    with pytest.raises(ShapeError, match="w must be"):
        functional.aft_full(q, q, q, draw(4, 4))
    with pytest.raises(ShapeError, match="factors of w"):
        functional.aft_local(q, q, q, (draw(5, 2), draw(4, 2)), window=2)
    with pytest.raises(ShapeError, match="q and v must be"):
        functional.aft_simple(q, q, draw(1, 4, 6))
    with pytest.raises(ShapeError, match="kernel must be"):
        functional.aft_conv(q, q, q, draw(2, 4))
    with pytest.raises(ShapeError, match="do not divide by 4 heads"):
        functional.aft_conv(q, q, q, draw(4, 3))
