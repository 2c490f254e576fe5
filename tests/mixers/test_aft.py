"""The four Attention-Free Transformers: identities, oracles, streams, masks, numbers."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from everyformer import functional, reference
from everyformer.core.errors import ConfigError, GeneError, ShapeError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.core.trace import trace
from everyformer.genes.mixers import MIXERS, _aft
from everyformer.genes.mixers.aft_conv import line_bias, normalised_kernel, picture_bias

WIDTH, HEADS, LONGEST = 8, 2, 40
LENGTHS = (1, 2, 7, 33)
MEMBERS = [
    ("aft-full", {"rank": 3}),
    ("aft-full", {"rank": None, "gate": "relu"}),
    ("aft-local", {"window": 4, "rank": 3}),
    ("aft-local", {"window": 5, "rank": None}),
    ("aft-local", {"window": 0, "bias": False}),
    ("aft-local", {"window": 1, "rank": 3, "gate": "identity"}),
    ("aft-simple", {}),
    ("aft-conv", {"kernel": 5}),
    ("aft-conv", {"kernel": 3, "tied": False, "reparameterise": False}),
    ("aft-conv", {"kernel": 1}),
]
IDS = ["-".join([name, *(f"{k}={v}" for k, v in o.items())]) for name, o in MEMBERS]
members = pytest.mark.parametrize(("name", "options"), MEMBERS, ids=IDS)


def build(name, options=None, *, causal=True, dtype=torch.float64, heads=HEADS, stir=True):
    torch.manual_seed(0)
    mixer = MIXERS.get(name)(
        width=WIDTH, heads=heads, causal=causal, max_length=LONGEST, options=options or {}
    )
    for parameter in mixer.parameters() if stir else ():
        parameter.data += 0.4 * torch.randn_like(parameter)
    return mixer.to(dtype)


def draw(*shape, seed=1, scale=1.0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator, dtype=torch.float64) * scale).to(dtype)


def holes(batch, length):
    """Row 0 padded left, inside and right; row 1 on the right; the others whole."""
    keep = torch.ones(batch, length, dtype=torch.bool)
    if length > 3:
        keep[0, :2] = keep[0, length // 2] = keep[0, -1] = False
        keep[1, -2:] = False
    return keep


def close(a, b, tolerance=1e-12):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


# the equation


@pytest.mark.parametrize("causal", [True, False])
def test_it_is_softmax_attention_with_a_head_a_channel(causal):
    q, k, v, w = (draw(3, 11, 6, seed=s) for s in (1, 2, 3, 4))
    w, keep = draw(11, 11, seed=4), torch.ones(3, 11, dtype=torch.bool)
    keep[1, 7:] = False
    seen = keep[:, None, None, :].expand(-1, -1, 11, -1)
    if causal:
        seen = seen & torch.ones(11, 11, dtype=torch.bool).tril()
    heads = [t.transpose(1, 2)[..., None] for t in (torch.ones_like(k), k, v)]
    bias = w.masked_fill(~seen, -math.inf)
    attended = F.scaled_dot_product_attention(*heads, attn_mask=bias, scale=1.0)
    expected = torch.sigmoid(q) * attended[..., 0].transpose(1, 2)
    got = functional.aft_full(q, k, v, w, causal=causal, mask=Mask(keep=keep))
    close(got * keep[..., None], expected * keep[..., None])


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


# limits and symmetries


@pytest.mark.parametrize("causal", [True, False])
def test_limits_between_the_four(causal):
    q, k, v = (draw(2, 13, 6, seed=s) for s in (1, 2, 3))
    w = draw(13, 13, seed=4)
    how = {"causal": causal}
    full, simple = functional.aft_full(q, k, v, w, **how), functional.aft_simple(q, k, v, **how)
    for window in (13, 50):
        close(functional.aft_local(q, k, v, w, window=window, **how), full)
    close(functional.aft_local(q, k, v, w, window=0, **how), simple)
    close(functional.aft_full(q, k, v, 0 * w, **how), simple)
    close(functional.aft_conv(q, k, v, torch.zeros(6, 3, dtype=k.dtype), **how), simple)
    kernel = draw(2, 25, seed=5)
    toeplitz = functional.aft_full(q, k, v, line_bias(kernel, 13, causal), **how)
    close(functional.aft_conv(q, k, v, kernel, **how), toeplitz)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [0, 1, 4, 40])
def test_factors_stand_for_their_product(causal, window):
    q, k, v = (draw(2, 33, 6, seed=s) for s in (1, 2, 3))
    factors = draw(2, 40, 5, seed=4), draw(2, 40, 5, seed=5)
    w = factors[0] @ factors[1].mT
    how = {"causal": causal}
    full = functional.aft_full(q, k, v, w, **how)
    close(functional.aft_full(q, k, v, factors, **how), full)
    close(reference.aft_full(q, k, v, factors, **how), full)
    local = functional.aft_local(q, k, v, w, window=window, **how)
    close(functional.aft_local(q, k, v, factors, window=window, **how), local)


def test_constants_in_a_row_of_w_or_a_channel_of_k_cancel():
    q, k, v, w = (draw(1, 9, 9, seed=s) for s in (1, 2, 3, 4))
    w = w[0]
    for causal in (True, False):
        y = functional.aft_full(q, k, v, w, causal=causal)
        shifted = functional.aft_full(q, k, v, w + 50 * draw(9, 1, seed=5), causal=causal)
        close(shifted, y, 1e-11)
        close(functional.aft_full(q, k + 50 * draw(9, seed=6), v, w, causal=causal), y, 1e-11)


@members
def test_the_average_stays_within_the_values(name, options):
    mixer = build(name, options, causal=False)
    x = draw(2, 17, WIDTH, scale=3.0)
    gate, bound = mixer.query(x), mixer.value(x).abs().amax(1, keepdim=True)
    mixer.out = torch.nn.Identity()
    y = mixer(x).y
    largest = {"sigmoid": 1.0, "relu": gate.relu(), "identity": gate.abs()}
    assert torch.all(y.abs() <= bound * largest[mixer.options.gate] + 1e-12)


def test_simple_is_blind_to_order_and_the_biased_ones_are_not():
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    x = draw(1, 12, WIDTH)
    for name, options in MEMBERS:
        mixer = build(name, options, causal=False)
        differs = (mixer(x[:, order]).y - mixer(x).y[:, order]).abs().max()
        # a kernel of one tap adds the same to every token's own key
        blind = name == "aft-simple" or options.get("window") == 0 or options.get("kernel") == 1
        assert (differs < 1e-12) if blind else (differs > 1e-4)


def test_a_picture_may_be_moved_on_a_larger_one():
    mixer = build("aft-conv", {"kernel": 3, "dims": 2}, causal=False)
    x = draw(1, 3, 4, WIDTH)
    seen = []
    for line, column in itertools.product((0, 2), (0, 3)):
        canvas, keep = torch.full((1, 5, 7, WIDTH), math.nan).double(), torch.zeros(1, 5, 7).bool()
        canvas[:, line : line + 3, column : column + 4] = x
        keep[:, line : line + 3, column : column + 4] = True
        y = mixer(canvas.flatten(1, 2), mask=Mask(keep=keep.flatten(1), grid=(5, 7))).y
        seen.append(y[keep.flatten(1)])
    for y in (*seen, mixer(x.flatten(1, 2), mask=Mask(grid=(3, 4))).y[0]):
        close(y, seen[0])


def test_a_picture_agrees_with_its_reference():
    mixer = build("aft-conv", {"kernel": 5, "dims": 2}, causal=False)
    keep = holes(2, 24)
    keep[1] = False
    x = draw(2, 24, WIDTH).requires_grad_()
    for mask in (Mask(grid=(4, 6)), Mask(grid=(4, 6), keep=keep)):
        real = 1.0 if mask.keep is None else keep[..., None].double()
        pair = [t * real for t in (mixer(x, mask=mask).y, mixer.reference(x, mask=mask))]
        close(*pair)
        inputs = [x, *mixer.parameters()]
        for a, b in zip(*(torch.autograd.grad(y.sum(), inputs) for y in pair), strict=True):
            close(a, b, 1e-10)


# streams


@members
@pytest.mark.parametrize(
    "cuts", [(0, 23), tuple(range(24)), (0, 1, 9, 10, 23), (0, 14, 15, 16, 23), (0, 8, 16, 23)]
)
@pytest.mark.parametrize("padded", [False, True])
def test_any_chunking_equals_one_pass(name, options, cuts, padded):
    mixer, x = build(name, options), draw(3, 23, WIDTH).requires_grad_()
    keep = holes(3, 23) if padded else torch.ones(3, 23, dtype=torch.bool)
    state, parts = mixer.init_state(3), []
    for a, b in itertools.pairwise(cuts):
        mask = Mask(keep=keep[:, a:b]) if padded else None
        y, state, _ = mixer(x[:, a:b], mask=mask, state=state)
        parts.append(y)
    whole = mixer(x, mask=Mask(keep=keep) if padded else None).y
    streamed = torch.cat(parts, 1) * keep[..., None]
    close(streamed, whole)
    assert torch.equal(state.seen, keep.sum(1))
    weight = draw(3, 23, WIDTH, seed=5)
    inputs = [x, *mixer.parameters()]
    pairs = (
        torch.autograd.grad((y * weight).sum(), inputs, allow_unused=True)
        for y in (streamed, whole)
    )
    for a, b in zip(*pairs, strict=True):
        if b is not None:
            close(a, b, 1e-10)


@members
def test_the_state_keeps_its_size(name, options):
    mixer, x = build(name, options), draw(2, 20, WIDTH)
    state = mixer(x, state=mixer.init_state(2)).state
    if name != "aft-full":
        assert state.nbytes == mixer.init_state(2).nbytes
    else:
        assert state.nbytes == mixer.init_state(2).nbytes + 2 * 2 * 20 * WIDTH * 8


def test_sums_of_a_half_precision_state_are_float32():
    for name in ("aft-simple", "aft-local", "aft-conv"):
        mixer = build(name, dtype=torch.bfloat16)
        state = mixer(draw(1, 5, WIDTH, dtype=torch.bfloat16), state=mixer.init_state(1)).state
        assert state.lse.dtype == state.average.dtype == torch.float32


# numbers


@members
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_float32_is_near_float64_at_any_input_size(name, options, causal, scale):
    low = build(name, options, causal=causal, dtype=torch.float32)
    x = draw(2, 33, WIDTH, scale=scale, dtype=torch.float32).requires_grad_()
    y = low(x).y
    high = build(name, options, causal=causal)
    high.load_state_dict(low.state_dict())
    expected = high.reference(x.double())
    # relative to the values; keys of size s carry an error of s times float32's rounding
    error = (y.double() - expected).abs().max() / expected.abs().max()
    assert error < 1e-6 + 1e-6 * scale
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.isfinite(gradient).all()


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


def test_conv_starts_as_simple_and_its_scale_learns_first():
    mixer = build("aft-conv", stir=False, causal=False)
    x = draw(2, 9, WIDTH)
    q, k, v = mixer.query(x), mixer.key(x), mixer.value(x)
    shared = k.repeat_interleave(WIDTH // HEADS, -1)
    y = mixer(x).y
    close(y, mixer.out(functional.aft_simple(q, shared, v)))
    y.square().sum().backward()
    assert torch.all(mixer.kernel.grad == 0)
    assert torch.all(mixer.gamma.grad != 0)
    assert torch.all(mixer.beta.grad != 0)


# compilation and pictures


@pytest.mark.full("the law `compiles` holds them to one graph")
@members
def test_one_graph_serves_other_lengths(name, options):
    for causal in (True, False):
        mixer = build(name, options, causal=causal)
        graphs = []

        def count(module, _, graphs=graphs):
            graphs.append(module)
            return module.forward

        torch._dynamo.reset()
        compiled = torch.compile(mixer, backend=count, fullgraph=True, dynamic=True)
        for length in (9, 12, 35):
            x, mask = draw(2, length, WIDTH), Mask(keep=holes(2, length))
            close(compiled(x).y, mixer(x).y)
            close(compiled(x, mask=mask).y, mixer(x, mask=mask).y)
        # one for rows without a mask, one with
        assert len(graphs) <= 2


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


def test_a_local_bias_is_zero_outside_its_window():
    for options in ({"window": 3, "rank": 2}, {"window": 3, "rank": None}):
        mixer, x = build("aft-local", options, causal=False), draw(1, 9, WIDTH)
        with trace(mixer) as seen:
            mixer(x)
        w = seen.find("position_bias")[""][0]
        near = (torch.arange(9)[:, None] - torch.arange(9)).abs() < 3
        assert torch.all(w[~near] == 0)
        assert torch.all(w[near] != 0)


# what is refused


@pytest.mark.parametrize(
    ("name", "given", "options", "error", "message"),
    [
        ("aft-full", {"max_length": None}, {}, ConfigError, "needs max_length"),
        ("aft-local", {"max_length": None}, {}, ConfigError, "needs max_length"),
        ("aft-full", {}, {"rank": 0}, ConfigError, "rank' must be at least 1"),
        ("aft-local", {}, {"window": -1}, ConfigError, "window' must be at least 0"),
        ("aft-simple", {}, {"gate": "tanh"}, ConfigError, "gate"),
        ("aft-simple", {}, {"window": 3}, ConfigError, "unknown option"),
        ("aft-conv", {}, {"kernel": 4}, ConfigError, "kernel' must be odd"),
        ("aft-conv", {}, {"dims": 3}, ConfigError, "dims' must be one of 1, 2"),
        ("aft-conv", {"causal": True}, {"dims": 2}, GeneError, "dims=2 cannot be causal=True"),
        ("aft-conv", {"heads": 3}, {}, GeneError, "not divisible by heads=3"),
    ],
)
def test_wrong_options_say_what_to_do(name, given, options, error, message):
    arguments = {"width": WIDTH, "heads": 1, "causal": False, "max_length": 9} | given
    with pytest.raises(error, match=message):
        MIXERS.get(name)(**arguments, options=options)


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
    documents = Mask(documents=torch.zeros(1, 5, dtype=torch.long))
    for name in ("aft-full", "aft-local", "aft-simple", "aft-conv"):
        mixer = build(name)
        with pytest.raises(UnsupportedError, match="documents"):
            mixer(x[:, :5], mask=documents, state=mixer.init_state(1))
        with pytest.raises(UnsupportedError, match="no exact streaming form when"):
            build(name, causal=False).init_state(1)
        with pytest.raises(UnsupportedError, match="allowed"):
            mixer(x[:, :5], mask=Mask(allowed=torch.ones(5, 5, dtype=torch.bool)))
        with pytest.raises(ShapeError, match=r"mask\.keep"):
            mixer(x[:, :5], mask=Mask(keep=torch.ones(1, 4, dtype=torch.bool)))
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


@pytest.mark.parametrize("most", [1, 3 * 50, 10_000])
def test_mean_weights_are_the_mean_over_channels_taken_at_once(most, monkeypatch):
    """Pictures took a call for every channel."""
    monkeypatch.setattr(_aft, "MOST_WEIGHTS", most)
    calls, softmax = [], torch.softmax
    monkeypatch.setattr(torch, "softmax", lambda x, dim: calls.append(x) or softmax(x, dim))
    k, w = torch.randn(2, 5, 8), torch.randn(2, 5, 5)
    out = _aft.mean_weights(k, w, True)
    assert len(calls) == {1: 8, 150: 4, 10_000: 2}[most]
    hidden = torch.ones(5, 5, dtype=torch.bool).triu(1)
    each = [
        softmax((k[..., None, :, c] + w[c // 4]).masked_fill(hidden, -torch.inf), -1)
        for c in range(8)
    ]
    assert torch.allclose(out[:, 0], sum(each) / 8, atol=1e-6)
