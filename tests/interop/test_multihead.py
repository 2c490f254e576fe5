"""`ef.MultiheadAttention` is `torch.nn.MultiheadAttention`, and lets other members stand in it."""

import copy

import pytest
import torch
from torch import nn

import everyformer as ef
from everyformer.core.errors import ConfigError, GeneError, ShapeError, UnsupportedError

B, L, S, E, H = 3, 5, 7, 12, 3
OTHERS = {"aft-full": 9, "aft-local": 9, "aft-simple": None, "aft-conv": None, "gmlp": 9, "amlp": 9}


def pair(**options):
    """Torch's module and ours with its state dict, in float64."""
    theirs = nn.MultiheadAttention(E, H, dtype=torch.float64, **options)
    for bias in (theirs.in_proj_bias, theirs.out_proj.bias):
        if bias is not None:
            nn.init.normal_(bias)
    ours = ef.MultiheadAttention(E, H, dtype=torch.float64, **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def mask_of(kind, batch):
    """(key_padding_mask, attn_mask) in torch's convention; no query is left without a key."""
    lengths = torch.tensor([S, 4, 1])[:batch]
    padding = torch.arange(S) >= lengths[:, None]
    pairs = torch.rand(L, S) > 0.6
    pairs[:, 0] = False
    each = torch.rand(batch * H, L, S) > 0.6
    each[:, :, 0] = False
    table = {
        "none": (None, None),
        "padding": (padding, None),
        "pairs": (None, pairs),
        "pairs by head": (None, each),
        "both": (padding, pairs),
        "float": (None, torch.randn(L, S).double()),
        "float by head": (None, torch.randn(batch * H, L, S).double()),
        "float padding": (torch.randn(batch, S).double(), None),
        "two floats": (
            torch.zeros(batch, S).double().masked_fill(padding, -torch.inf),
            torch.zeros(L, S).double().masked_fill(pairs, -torch.inf),
        ),
    }
    return table[kind]


MASKS = ["none", "padding", "pairs", "pairs by head", "both", "float", "float by head",
         "float padding", "two floats"]  # fmt: skip
MODULES = [{}, {"bias": False}, {"kdim": 5, "vdim": 11}, {"add_bias_kv": True},
           {"add_zero_attn": True}, {"add_bias_kv": True, "add_zero_attn": True, "vdim": 5},
           {"add_bias_kv": True, "bias": False}]  # fmt: skip


def compared(theirs, ours, inputs, **call):
    """Outputs, weights and all gradients of one call, of both."""
    results = []
    for module in (theirs, ours):
        given = [x.clone().requires_grad_() for x in inputs]
        y, weights = module(*given, **call)
        parameters = dict(module.named_parameters())
        score = (y * torch.linspace(-1, 1, y.numel()).double().view(y.shape)).sum()
        if weights is not None:
            score = score + (weights * weights).sum()
        gradients = torch.autograd.grad(score, [*given, *parameters.values()])
        results.append((y, weights, list(parameters), gradients))
    (y, weights, names, gradients), (our_y, our_weights, our_names, our_gradients) = results
    assert names == our_names
    torch.testing.assert_close(our_y, y, rtol=0, atol=1e-12)
    torch.testing.assert_close(our_weights, weights, rtol=0, atol=1e-12)
    torch.testing.assert_close(our_gradients, gradients, rtol=0, atol=1e-11)


@pytest.mark.parametrize("options", MODULES, ids=str)
@pytest.mark.parametrize("kind", MASKS)
def test_attention_equals_torch_in_outputs_weights_and_gradients(options, kind):
    torch.manual_seed(0)
    # each kind of mask and each module meets every pair of layout and weights
    at = MASKS.index(kind) + MODULES.index(options) + MASKS.index(kind) // 3
    turned = [("mean", "each", None)[(at + n) % 3] for n in range(3)]
    for layout, weights in zip(("batch", "length", "single"), turned, strict=True):
        theirs, ours = pair(batch_first=layout == "batch", **options)
        batch = 1 if layout == "single" else B
        padding, pairs = mask_of(kind, batch)
        sizes = [(L, E), (S, theirs.kdim), (S, theirs.vdim)]
        inputs = [torch.randn(batch, *size).double() for size in sizes]
        if layout == "single":
            inputs = [x[0] for x in inputs]
            padding = None if padding is None else padding[0]
        elif layout == "length":
            inputs = [x.transpose(0, 1) for x in inputs]
        call = {"need_weights": weights is not None, "average_attn_weights": weights == "mean"}
        compared(theirs, ours, inputs, key_padding_mask=padding, attn_mask=pairs, **call)


@pytest.mark.parametrize("weights", [True, False])
def test_self_attention_and_causal_hint_equal_torch(weights):
    torch.manual_seed(0)
    theirs, ours = pair()
    mask = nn.Transformer.generate_square_subsequent_mask(L, dtype=torch.float64)
    x = torch.randn(L, B, E).double()
    for hint, given in ((True, mask), (False, mask), (False, None), (True, mask == -torch.inf)):
        expected = theirs(x, x, x, attn_mask=given, is_causal=hint, need_weights=weights)
        got = ours(x, x, x, attn_mask=given, is_causal=hint, need_weights=weights)
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


def test_dropped_weights_that_are_given_back_equal_torchs_with_the_same_seed():
    torch.manual_seed(0)
    theirs, ours = pair(dropout=0.4, batch_first=True)
    x = torch.randn(B, L, E).double()
    results = []
    for module in (theirs, ours):
        torch.manual_seed(3)
        results.append(module(x, x, x, need_weights=True))
    torch.testing.assert_close(*results)
    assert not torch.equal(results[1][0], ours.eval()(x, x, x)[0])


def test_other_weights_are_dropped_by_as_much_as_torchs():
    """Not the same ones: torch draws a number for each."""
    torch.manual_seed(0)
    theirs, ours = pair(dropout=0.4, batch_first=True)
    x, calls = torch.randn(B, L, E).double(), 600
    with torch.no_grad():
        drawn = [
            torch.stack([module(x, x, x, need_weights=False)[0] for _ in range(calls)])
            for module in (theirs, ours)
        ]
        exact = ours.eval()(x, x, x)[0]
    for found in drawn:
        error = (found.mean(0) - exact).abs() / (found.std(0) / calls**0.5)
        assert float(error.amax()) < 5
    spread = drawn[1].std(0) / drawn[0].std(0)
    assert float(spread.mean()) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("options", MODULES, ids=str)
def test_the_same_seed_gives_the_same_starting_weights_as_torch(options):
    states = []
    for cls in (nn.MultiheadAttention, ef.MultiheadAttention):
        torch.manual_seed(7)
        states.append(cls(E, H, **options).state_dict())
    assert list(states[0]) == list(states[1])
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), name


@pytest.mark.parametrize("weights", [True, False])
def test_a_query_without_keys_gives_the_output_bias_and_finite_gradients(weights):
    # torch gives NaN here with need_weights=True
    torch.manual_seed(0)
    _, ours = pair(batch_first=True)
    x = torch.randn(2, L, E).double().requires_grad_()
    padding = torch.tensor([[True] * L, [False] * L])
    y, got = ours(x, x, x, key_padding_mask=padding, need_weights=weights)
    assert torch.equal(y[0], ours.out_proj.bias.expand(L, E))
    assert got is None or not got[0].any()
    gradients = torch.autograd.grad(y.sum(), [x, *ours.parameters()])
    assert all(g.isfinite().all() for g in gradients)
    (alone,) = torch.autograd.grad(ours(x[1:], x[1:], x[1:])[0].sum(), x)
    torch.testing.assert_close(gradients[0][1], alone[1])


def test_own_options_of_attention_equal_the_mixer():
    torch.manual_seed(0)
    options = {"kv_heads": 1, "qk_norm": True, "window": 3, "softcap": 2.0, "sink": True,
               "scale": 0.7}  # fmt: skip
    ours = ef.MultiheadAttention(E, H, batch_first=True, causal=True, **options)
    mixer = ef.create_mixer(
        "attention", width=E, heads=H, causal=True, bias=("query", "key", "value", "output"),
        **options,
    )  # fmt: skip
    nn.init.normal_(ours.sink)
    nn.init.normal_(ours.in_proj_bias)
    state = {
        "project.weights.0": ours.in_proj_weight, "out.weight": ours.out_proj.weight,
        "out.bias": ours.out_proj.bias, "sink": ours.sink,
        "project.query_norm.weight": ours.query_norm.weight,
        "project.key_norm.weight": ours.key_norm.weight,
    }  # fmt: skip
    parts = ours.in_proj_bias.split(ours.sizes)
    for part, value in zip(("query", "key", "value"), parts, strict=True):
        state[f"project.biases.{part}"] = value
    mixer.load_state_dict(state)
    x = torch.randn(B, L, E)
    for weights in (True, False):
        torch.testing.assert_close(ours(x, x, x, need_weights=weights)[0], mixer(x).y)


def test_causal_sees_the_last_keys_when_there_are_more_keys_than_queries():
    ours = ef.MultiheadAttention(E, H, batch_first=True, causal=True)
    x = torch.randn(B, S, E)
    _, weights = ours(x[:, :L], x, x)
    assert torch.equal(weights[0] > 0, torch.ones(L, S).tril(S - L).bool())
    # a hint without a mask is an error unless the module is causal
    x = torch.randn(L, B, E)
    with pytest.raises(ConfigError, match="is_causal"):
        ef.MultiheadAttention(E, H)(x, x, x, is_causal=True)
    ours = ef.MultiheadAttention(E, H, causal=True)
    assert torch.equal(ours(x, x, x, is_causal=True)[0], ours(x, x, x)[0])


@pytest.mark.parametrize("member", OTHERS)
@pytest.mark.parametrize("causal", [True, False])
def test_other_members_are_their_mixer_in_every_layout(member, causal):
    torch.manual_seed(0)
    ours = ef.MultiheadAttention(E, H, member=member, causal=causal, max_length=OTHERS[member])
    x = torch.randn(B, L, E)
    padding = torch.arange(L) >= torch.tensor([L, 3, 1])[:, None]
    padding_mask = ef.Mask(padding_mask=~padding)
    t = x.transpose(0, 1)
    y, weights = ours(t, t, t, key_padding_mask=padding)
    assert weights is None
    torch.testing.assert_close(y.transpose(0, 1), ours.mixer(x, mask=padding_mask).y)
    floats = torch.zeros(B, L).masked_fill(padding, -torch.inf)
    assert torch.equal(ours(t, t, t, key_padding_mask=floats)[0], y)
    first = x[0]
    torch.testing.assert_close(ours(first, first, first)[0], ours.mixer(x[:1]).y[0])
    twin = ef.MultiheadAttention(E, H, member=member, causal=causal, max_length=OTHERS[member])
    twin.load_state_dict(ours.state_dict())
    assert torch.equal(twin(t, t, t)[0], ours(t, t, t)[0])
    assert torch.equal(copy.deepcopy(ours)(t, t, t)[0], ours(t, t, t)[0])


@pytest.mark.parametrize("member", OTHERS)
def test_a_mask_that_a_member_cannot_honour_is_an_error(member):
    causal = nn.Transformer.generate_square_subsequent_mask(L)
    both_ways = ef.MultiheadAttention(E, H, member=member, max_length=OTHERS[member])
    forwards = ef.MultiheadAttention(E, H, member=member, causal=True, max_length=OTHERS[member])
    x = torch.randn(L, B, E)
    for mask in (causal, causal == -torch.inf, causal.expand(B * H, L, L)):
        assert torch.equal(forwards(x, x, x, attn_mask=mask, is_causal=True)[0],
                           forwards(x, x, x)[0])  # fmt: skip
        with pytest.raises(UnsupportedError, match=r"attn_mask.*causal=True.*attention"):
            both_ways(x, x, x, attn_mask=mask, is_causal=True)
    with pytest.raises(UnsupportedError, match=r"is_causal=True.*causal=True"):
        both_ways(x, x, x, is_causal=True)
    nothing = torch.zeros(L, L, dtype=torch.bool)
    assert torch.equal(both_ways(x, x, x, attn_mask=nothing)[0], both_ways(x, x, x)[0])
    for module in (both_ways, forwards):
        with pytest.raises(UnsupportedError, match=r"attn_mask.*members that can: attention"):
            module(x, x, x, attn_mask=causal.roll(1, 0))
        with pytest.raises(UnsupportedError, match=r"key_padding_mask.*members that can"):
            module(x, x, x, key_padding_mask=torch.randn(B, L))
        with pytest.raises(UnsupportedError, match=r"same tensor.*cross form: attention"):
            module(x, x.clone(), x)


@pytest.mark.parametrize(
    ("error", "words", "options"),
    [
        (UnsupportedError, "kdim", {"member": "aft-simple", "kdim": 5}),
        (UnsupportedError, "add_zero_attn", {"member": "aft-simple", "add_zero_attn": True}),
        (UnsupportedError, "add_bias_kv", {"member": "aft-simple", "add_bias_kv": True}),
        (UnsupportedError, "dropout", {"member": "aft-simple", "dropout": 0.1}),
        (UnsupportedError, "bias", {"member": "gmlp", "bias": False, "max_length": 9}),
        (ConfigError, "max_length", {"member": "aft-full"}),
        (ConfigError, "did you mean 'aft-simple'", {"member": "aft-simpl"}),
        (UnsupportedError, "not a mixer", {"member": "gpt"}),
        (ConfigError, "kdim and vdim", {"widths": {}}),
        (ConfigError, "softcap", {"softcapp": 2.0}),
        (GeneError, "kv_heads", {"kv_heads": 2}),
        (GeneError, "window", {"window": (1, 2)}),
    ],
)
def test_arguments_without_a_use_are_errors(error, words, options):
    with pytest.raises(error, match=words):
        ef.MultiheadAttention(E, H, **options)


@pytest.mark.parametrize(
    ("words", "call"),
    [
        (r"key_padding_mask must have", {"key_padding_mask": torch.zeros(B, L + 1).bool()}),
        (r"key_padding_mask must be bool", {"key_padding_mask": torch.zeros(B, L).long()}),
        (r"attn_mask must be \(5, 5\)", {"attn_mask": torch.zeros(L, L + 1)}),
        (r"attn_mask must be bool", {"attn_mask": torch.zeros(L, L).int()}),
        (r"must be \(length, batch, channels\)", {"key": torch.zeros(L, B, E + 1)}),
        (r"as many values as keys", {"value": torch.zeros(L - 1, B, E)}),
    ],
)
def test_shapes_and_types_that_do_not_fit_are_errors(words, call):
    x = torch.randn(L, B, E)
    with pytest.raises(ShapeError, match=words):
        ef.MultiheadAttention(E, H)(**{"query": x, "key": x, "value": x, **call})


@pytest.mark.full("the compiler takes seconds")
@pytest.mark.parametrize("member", ["attention", "aft-local", "gmlp"])
def test_one_graph_with_masks_checked_inside_it(member):
    torch._dynamo.reset()
    causal = nn.Transformer.generate_square_subsequent_mask(L)
    ours = ef.MultiheadAttention(E, H, batch_first=True, member=member, causal=True, max_length=9)
    compiled = torch.compile(ours, fullgraph=True, backend="eager")
    x = torch.randn(B, L, E)
    padding = torch.zeros(B, L).masked_fill(torch.rand(B, L) > 0.7, -torch.inf)
    for call in ({}, {"key_padding_mask": padding}, {"attn_mask": causal, "is_causal": True}):
        got, expected = compiled(x, x, x, **call), ours(x, x, x, **call)
        torch.testing.assert_close(got[0], expected[0])
    if member != "attention":
        with pytest.raises(RuntimeError, match="cannot honour attn_mask"):
            compiled(x, x, x, attn_mask=causal.roll(1, 0), is_causal=True)


@pytest.mark.parametrize("member", ["attention", "aft-local", "gmlp"])
def test_bfloat16_autocast_is_near_float32(member):
    torch.manual_seed(0)
    ours = ef.MultiheadAttention(E, H, member=member, max_length=9)
    x = torch.randn(L, B, E)
    padding = torch.arange(L) >= torch.tensor([L, 3, 1])[:, None]
    for mask in (padding, torch.zeros(B, L).masked_fill(padding, -torch.inf)):
        exact = ours(x, x, x, key_padding_mask=mask, need_weights=False)[0]
        with torch.autocast("cpu", torch.bfloat16):
            y = ours(x, x, x, key_padding_mask=mask, need_weights=False)[0]
        assert y.dtype == torch.bfloat16
        assert (y - exact).abs().max() < 0.03 * exact.abs().max()
