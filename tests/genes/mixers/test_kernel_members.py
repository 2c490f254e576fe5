"""Linear attention, Performer, RFA: identities, oracles, contexts, streams, refusals."""

import pytest
import torch

import everyformer as ef
from everyformer import functional
from everyformer.core.errors import ConfigError, GeneError, ShapeError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.core.trace import trace
from helpers import build_mixer, build_model, close, draw, in_pieces, shifted

WIDTH, HEADS = 12, 3
MEMBERS = [
    ("linear", {}),
    ("performer", {}),
    ("performer", {"feature_map": "hyperbolic"}),
    ("performer", {"feature_map": "relu"}),
    ("rfa", {}),
    ("rfa", {"feature_map": "arccos"}),
]
GATED = [("rfa", {"gate": True}), ("rfa", {"gate": True, "feature_map": "arccos"})]
IDS = ["-".join([name, *(f"{k}={v}" for k, v in o.items())]) for name, o in MEMBERS + GATED]
members = pytest.mark.parametrize(("name", "options"), MEMBERS, ids=IDS[: len(MEMBERS)])
causal_members = pytest.mark.parametrize(("name", "options"), MEMBERS + GATED, ids=IDS)


def build(name, options=None, *, causal=True, dtype=torch.float64, width=WIDTH, **more):
    sizes = {"width": width, "heads": HEADS, "causal": causal}
    mixer = build_mixer(name, dtype=dtype, **sizes, **(options or {}), **more)
    return shifted(mixer, vectors=True)


def features(q_seed=1, length=17, size=5):
    """Positive features of queries and keys, and values."""
    return *(draw(2, 3, length, size, seed=q_seed + s).exp() for s in (0, 1)), draw(2, 3, length, 4)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("feature_map", "rows"), [("positive", 11), ("relu", 11), ("relu", 0)])
def test_performer_pytorch_computes_the_same_both_ways(feature_map, rows):
    """generalized_kernel without a projection is the map of the channels themselves."""
    theirs = pytest.importorskip("performer_pytorch.performer_pytorch")
    mixer = build("performer", {"feature_map": feature_map, "features": rows}, causal=False)
    x = draw(2, 9, WIDTH)
    q, k, v = mixer.project(x)
    w = mixer.random.projection[0] if rows else None
    if feature_map == "relu":
        made = [theirs.generalized_kernel(t, projection_matrix=w) for t in (q, k)]
    else:
        how = {"projection_matrix": w, "eps": 0.0}
        made = [theirs.softmax_kernel(t, is_query=t is q, **how) for t in (q, k)]
    y = theirs.linear_attention(*made, v)
    close(mixer(x).y, mixer.out(y.transpose(1, 2).flatten(2)))


@members
def test_a_context_read_once_serves_every_query(name, options):
    mixer = build(name, options, causal=False)
    x, context = draw(2, 5, WIDTH), draw(2, 9, WIDTH, seed=2)
    padding_mask = torch.ones(2, 9, dtype=torch.bool)
    padding_mask[0, 3] = padding_mask[1, 7:] = False
    for mask in (None, Mask(padding_mask=padding_mask)):
        expected = mixer.reference(x, context=context, mask=mask)
        close(mixer(x, context=context, mask=mask).y, expected)
        held = mixer.read_context(context, mask)
        steps = [mixer(x[:, t : t + 1], state=held).y for t in range(5)]
        close(torch.cat(steps, 1), expected)
        order = torch.randperm(9)
        turned = None if mask is None else Mask(padding_mask=padding_mask[:, order])
        close(mixer(x, context=context[:, order], mask=turned).y, expected)
    beams = held.reorder(torch.tensor([1, 1, 0]))
    close(mixer(x[[1, 1, 0]], state=beams).y, expected[[1, 1, 0]])
    with pytest.raises(UnsupportedError, match="packed documents"):
        mixer(x, context=context, mask=Mask(documents=torch.zeros(2, 5, dtype=torch.long)))


@causal_members
def test_a_long_stream_carries_a_state_of_one_size(name, options):
    mixer = build(name, options, dtype=torch.float32)
    x = draw(1, 3000, WIDTH, dtype=torch.float32)
    with torch.no_grad():
        y, state = in_pieces(mixer, x, [1, 1, 698, 711, 589, 999, 1])
        assert state.nbytes == mixer.init_state(1).nbytes
        exact = mixer.double()(x.double()).y
    assert int(state.position) == 3000
    torch.testing.assert_close(y.double(), exact, rtol=1e-3, atol=1e-3)


@causal_members
def test_weights_of_a_trace_are_those_of_the_output(name, options):
    mixer = build(name, options)
    x = draw(2, 9, WIDTH)
    with trace(mixer) as seen:
        y = mixer(x).y
    weights = seen[""]["weights"][0]
    v = mixer.project(x)[2]
    close(mixer.merge(weights @ v), y)
    total = weights.sum(-1)
    # rectified features may have nothing in common with those of any key seen
    close(total, (total != 0).double())
    assert (weights.triu(1) == 0).all()


MANY = [
    ("performer", {}),
    ("performer", {"feature_map": "trigonometric"}),
    ("rfa", {"temperature": 1.5}),
    ("rfa", {"feature_map": "arccos"}),
    ("rfa", {"gate": True}),
]


@pytest.mark.parametrize(("name", "options"), MANY)
def test_with_many_rows_the_weights_of_a_trace_are_those_of_the_kernel(name, options):
    mixer, x = build(name, {"features": 40000, **options}), draw(1, 9, WIDTH) / 2
    padding_mask = torch.ones(1, 9, dtype=torch.bool)
    padding_mask[0, 0] = padding_mask[0, 4] = False
    with trace(mixer) as seen:
        mixer(x, mask=Mask(padding_mask=padding_mask))
    made, exact = seen[""]["weights"][0], seen[""]["exact"][0]
    assert (made - exact).abs().max() < 0.02
    assert (exact - exact.mean(1, keepdim=True)).abs().max() > 0.04
    # a row's seven real tokens stand first
    assert (exact[0, :, :, 7:] == 0).all()


def test_training_redraws_and_evaluation_does_not():
    mixer = build("performer", {"redraw": 2}, dtype=torch.float32).train()
    x = draw(1, 9, WIDTH, dtype=torch.float32)
    first, second, third = (mixer(x).y for _ in range(3))
    assert not torch.equal(first, second)
    assert torch.equal(second, third)
    with pytest.raises(UnsupportedError, match=r"call eval\(\)"):
        mixer(x, state=mixer.init_state(1))
    mixer.eval()
    assert torch.equal(mixer(x).y, mixer(x).y)
    again = build("performer", {"redraw": 2}, dtype=torch.float32)
    again.load_state_dict(mixer.state_dict())
    assert torch.equal(again(x).y, mixer(x).y)


@pytest.mark.parametrize("name", ["linear", "performer", "rfa"])
def test_training_s_cross_attention_reads_a_context_with_one_draw(name):
    sizes = {"width": 12, "heads": 3, "layers": 1, "vocabulary": 20}
    model = build_model("transformer", "seq2seq", cross=name, **sizes).train()
    inputs = torch.randint(1, 20, (2, 7), generator=torch.Generator().manual_seed(0))
    loss = model(inputs, targets=inputs, mask=Mask(padding_mask=inputs > 3)).loss
    loss.backward()
    assert torch.isfinite(loss)
    cross = model.stack.blocks[0].cross
    assert cross.project.weights[0].grad.abs().sum() > 0


@pytest.mark.parametrize("name", ["performer", "rfa"])
def test_rotations_before_the_features_see_distances_alone(name):
    """On average over draws; with many rows nearly so for one."""
    torch.manual_seed(0)
    mixer = ef.create_mixer(
        name, width=8, heads=2, causal=True, position="rope", features=20000
    ).eval()
    x = draw(1, 9, 8, dtype=torch.float32) / 2
    state = mixer.init_state(1)
    moved = type(state)(state.num_tokens + 50, state.sums, state.level)
    y = mixer(x).y
    assert (mixer(x, state=moved).y - y).abs().max() < 0.05 * y.abs().max()
    still = ef.create_mixer(name, width=8, heads=2, causal=True, features=20000).eval()
    still.load_state_dict(mixer.state_dict())
    assert (still(x).y - y).abs().max() > 0.05 * y.abs().max()


@pytest.mark.parametrize(
    ("name", "sizes", "options", "error", "match"),
    [
        ("rfa", {"causal": False}, {"gate": True}, GeneError, "gate=True.*causal"),
        ("rfa", {}, {"pool": 2}, ConfigError, "pool=2"),
        ("rfa", {}, {"position": "alibi"}, GeneError, "never forms"),
        ("performer", {}, {"position": "t5-relative"}, GeneError, "never forms"),
        ("performer", {}, {"features": 0}, ConfigError, "at least one"),
        ("performer", {}, {"feature_map": "trigonometric", "eps": 0.1}, ConfigError, "signed"),
        ("linear", {}, {"position": "rope"}, GeneError, "takes no position"),
        ("linear", {}, {"attention_dropout": 0.1}, ConfigError, "no matrix of weights"),
        ("linear", {"heads": 5}, {}, GeneError, "heads"),
    ],
)
def test_what_cannot_be_is_refused(name, sizes, options, error, match):
    with pytest.raises(error, match=match):
        ef.create_mixer(name, **{"width": 12, "heads": 3, "causal": True, **sizes}, **options)


def test_calls_that_cannot_be_are_refused():
    with pytest.raises(ConfigError, match=r"linear forms no matrix.*`dropout` of the model"):
        ef.create_model("linear", attention_dropout=0.1)
    x = draw(2, 6, WIDTH)
    with pytest.raises(UnsupportedError, match=r"gate=True.*reads no context"):
        build("rfa", {"gate": True})(x, context=x)
    rotated = build("rfa", width=24, position="rope")
    with pytest.raises(UnsupportedError, match="position=None"):
        rotated(draw(2, 6, 24), context=draw(2, 6, 24))
    q, k, v = features()
    with pytest.raises(ShapeError, match="of one length when causal"):
        functional.linear_attention(q[:, :, :3], k, v, causal=True)
    with pytest.raises(ConfigError, match="causal=True"):
        functional.linear_attention(q, k, v, gate=torch.zeros(2, 3, 17))
