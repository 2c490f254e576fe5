"""Routing Transformer: clusters, centroids, what is and is not causal, states, an oracle."""

import pytest
import torch
import torch.nn.functional as F

import everyformer as ef
from everyformer import functional, reference
from everyformer.checks.cases import Case
from everyformer.core.choices import keep_choices, repeat_choices
from everyformer.core.errors import ConfigError, ShapeError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.core.trace import trace
from everyformer.engines.content.clustered import best_positions
from everyformer.family import info
from helpers import build_mixer, close, covering, draw, in_pieces, with_gradients
from sequence_laws.flops import count_flops
from sequence_laws.operations import Counter

ROUTINGS = ["strict", "prefix", "paper", None]


def build(causal=True, dtype=torch.float64, heads=2, **options):
    options = {"clusters": 4, "window": 5, "local_heads": 0, **options}
    return build_mixer("routing", dtype=dtype, width=16, heads=heads, causal=causal, **options)


def problem(length=37, clusters=4, size=5, seed=0):
    """q, k, v and scores of q and of k with centroids."""
    q, k, v = (draw(2, 3, length, size, seed=seed + n) for n in range(3))
    means = draw(3, clusters, size, seed=9)
    return q, k, v, q @ means.mT, k @ means.mT


@covering(
    routing=ROUTINGS, sizes=[(1, 1), (7, 3), (37, 5), (70, 9), (40, 64)], padded=[False, True]
)
def test_the_function_equals_the_definition_with_gradients(routing, sizes, padded):
    length, window = sizes
    q, k, v, q_scores, k_scores = problem(length)
    if routing in ("strict", "prefix"):
        k, k_scores = q, q_scores
    padding_mask = None
    if padded:
        padding_mask = torch.rand(2, length, generator=torch.Generator().manual_seed(1)) > 0.3
    inputs = [t.clone().requires_grad_() for t in (q, k, v)]
    how = {"window": window, "routing": routing, "padding_mask": padding_mask}
    got = functional.routing_attention(*inputs, q_scores, k_scores, **how)
    expected = reference.routing_attention(*inputs, q_scores, k_scores, **how)
    close(*(with_gradients(y, inputs) for y in (got, expected)))


@pytest.mark.parametrize("routing", ["strict", "prefix", "paper"])
def test_another_last_token_changes_earlier_outputs_only_where_a_mixer_says_so(routing):
    mixer, honest = build(clusters=4, window=16, routing=routing), routing != "paper"
    x = draw(1, 64, 16)
    other = x.clone()
    other[:, -1] = 3 * draw(16, seed=7)
    changed = (mixer(x).y - mixer(other).y)[0, :-1].abs().amax(-1) > 1e-9
    assert (mixer.non_causal_reason is None) is honest
    if honest:
        assert not changed.any()
    else:
        assert changed.float().mean() > 0.05
        with pytest.raises(UnsupportedError, match="no exact streaming form"):
            mixer.init_state(1)


@pytest.mark.parametrize("routing", ["strict", "prefix"])
def test_a_state_is_of_constant_size_and_a_token_of_constant_cost(routing):
    mixer = build(dtype=torch.float32, routing=routing, local_heads=1)
    found = []
    with torch.no_grad():
        for length in (100, 900):
            state = mixer(draw(1, length, 16).float(), state=mixer.init_state(1)).state
            one = draw(1, 1, 16).float()
            flops = count_flops(lambda o=one, s=state: mixer(o, state=s))
            found.append((state.nbytes, flops, int(state.position)))
    assert found[0][:2] == found[1][:2]
    assert (found[0][2], found[1][2]) == (100, 900)


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("padded", [False, True])
def test_who_meets_whom_is_a_choice_that_a_second_computation_repeats(routing, padded):
    q, k, v, q_scores, k_scores = problem()
    other = (problem(seed=20)[n] for n in (3, 4))
    padding_mask = torch.arange(37) < torch.tensor([[37], [30]]) if padded else None
    how = {"window": 5, "routing": routing, "padding_mask": padding_mask}
    with keep_choices() as choices:
        expected = functional.routing_attention(q, k, v, q_scores, k_scores, **how)
    assert choices
    with repeat_choices(choices):
        found = functional.routing_attention(q, k, v, *other, **how)
    close(found, expected)


@pytest.mark.parametrize("causal", [True, False])
def test_losses_are_of_the_centroids_that_were_chosen(causal):
    mixer = build(causal).train()
    x, other = draw(1, 20, 16), draw(1, 20, 16, seed=2)
    with keep_choices() as choices:
        mixer(x)
    with repeat_choices(choices):
        found = mixer(other).losses["commitment"]
    far = mixer._project(other)[1]
    kinds = [(far.q, choices[-1])] if causal else [(far.q, choices[-2]), (far.k, choices[-1])]
    chosen = [mixer.centroids.means[torch.arange(2)[:, None], labels.long()] for _, labels in kinds]
    apart = [(t - mu).square().mean() for (t, _), mu in zip(kinds, chosen, strict=True)]
    close(found, 1e-4 * sum(apart))
    assert (mixer(other).losses["commitment"] - found).abs() > 1e-6
    assert torch.autograd.grad(found, mixer.query.weight)[0].abs().sum() > 0
    assert mixer.eval()(x).losses == build(causal, update="none").train()(x).losses == {}


def test_the_mean_distance_of_the_commitment_leaves_padding_out():
    mixer = build().train()
    x, padding_mask = draw(1, 9, 16), torch.tensor([[True] * 4 + [False] * 5])
    got = mixer(x, mask=Mask(padding_mask=padding_mask)).losses["commitment"]
    close(got, mixer(x[:, :4]).losses["commitment"])


def test_heads_beside_others_say_that_they_are_not_causal():
    leaky = ef.by_head("attention", "routing", routing={"clusters": 3, "routing": "paper"})
    mixed = ef.create_model("attention", heads=2, mixer=leaky)
    assert "whole row" in mixed.stack.blocks[0].mixer.non_causal_reason


def test_default_sizes_follow_from_the_longest_text():
    for given, expected in (
        ({"max_length": 1024}, (32, 32)),
        ({"max_length": 1000, "clusters": 8}, (8, 125)),
        ({"max_length": 1000, "window": 250}, (4, 250)),
        ({"clusters": 3, "window": 7}, (3, 7)),
        ({"max_length": 1}, (1, 1)),
    ):
        mixer = ef.create_mixer("routing", width=8, heads=2, **given)
        assert (mixer.clusters, mixer.window) == expected


def test_a_trace_shows_clusters_and_weights():
    mixer = build(local_heads=1)
    x = draw(1, 12, 16)
    with trace(mixer) as seen:
        y = mixer(x).y
    weights, clusters = seen[""]["weights"][0], seen[""]["clusters"][0]
    v = mixer.value(x).view(1, 12, 2, 8).transpose(1, 2)
    close(mixer.out((weights @ v).transpose(1, 2).flatten(2)), y)
    apart = clusters[0, 0, :, None] != clusters[0, 0]
    assert (weights[0, 1][apart] == 0).all()


@pytest.mark.parametrize(
    ("sizes", "options", "match"),
    [
        ({}, {}, "max_length"),
        ({}, {"clusters": 4}, "max_length"),
        ({"max_length": 64}, {"local_heads": 2}, "at least one routed"),
        ({"max_length": 64, "width": 2}, {}, "at least 2"),
    ],
)
def test_what_cannot_be_is_refused(sizes, options, match):
    with pytest.raises(ConfigError, match=match):
        ef.create_mixer("routing", **{"width": 8, "heads": 2, "causal": True, **sizes}, **options)


def test_calls_that_cannot_be_are_refused():
    mixer, x = build(), draw(2, 6, 16)
    with pytest.raises(UnsupportedError, match="cross"):
        mixer(x, context=x)
    q, k, v, q_scores, _ = problem()
    with pytest.raises(ShapeError, match="clusters"):
        functional.routing_attention(q, k, v, q_scores[:, :, :5], window=3)


@pytest.mark.parametrize("causal", [False, True])
def test_clusters_of_the_whole_row_agree_with_routing_transformer(causal):
    """Its slot of memory is made invisible, its division by count + 1e-5 undone."""
    package = pytest.importorskip("routing_transformer.routing_transformer")
    size, clusters, window, length = 6, 5, 7, 30
    theirs = package.KmeansAttention(clusters, window, 3, size, causal=causal).double().eval()
    means = F.normalize(draw(3, clusters, size, seed=4), dim=-1)
    theirs.kmeans.means.copy_(means)
    theirs.kmeans.initted.fill_(True)
    q, k, v = (draw(2, 3, length, size, seed=s) for s in range(3))
    # a channel that queries alone have, by which no query finds the slot
    q[..., -1], k[..., -1] = 1.0, 0.0
    if causal:
        theirs.mem_key.data.zero_()[..., -1] = -1e6
        theirs.mem_value.data.zero_()
    expected, _ = theirs(q, k, v)
    q_scores, k_scores = (F.normalize(t, dim=-1) @ means.mT for t in (q, k))
    routing = "paper" if causal else None
    got = functional.routing_attention(q, k, v, q_scores, k_scores, window=window, routing=routing)
    asks, keys = (u.mT.topk(window, -1).indices for u in (q_scores, k_scores))
    member = torch.zeros(2, 3, clusters, length, dtype=torch.bool).scatter(3, asks, True)
    count = member.sum(2).double()
    first = keys.amin(-1)[..., None] if causal else torch.zeros(1, dtype=torch.long)
    # theirs counts a cluster in which a query sees no key as one that gives 0, ours does not
    sees = (member & (torch.arange(length) >= first)).sum(2).double()
    theirs_mean = expected * ((count + 1e-5) / sees.clamp(min=1))[..., None]
    close(got, theirs_mean)
    assert (count > 1).any()
    assert (count == 0).any()


TIES = [
    {"clusters": 2, "window": 3, "routing": "prefix"},
    {"clusters": 3, "window": 4, "routing": "paper", "local_heads": 0},
    {"clusters": 3, "window": 4},
]


@covering(own=TIES, causal=[True, False], seed=range(3))
def test_of_equal_tokens_the_first_are_chosen_wherever_they_stand(own, causal, seed):
    generator = torch.Generator().manual_seed(seed)
    mixer = Case(info("routing"), own, causal).mixer(torch.float64)
    kinds = torch.randn(3, 12, generator=generator).double()
    text = kinds[torch.randint(0, 3, (1, 23), generator=generator)]
    expected = mixer.reference(text)
    torch.testing.assert_close(mixer(text).y, expected)
    among = torch.cat((torch.randn(3, 23, 12, generator=generator).double(), text))
    torch.testing.assert_close(mixer(among).y[3:], expected)
    at = torch.randperm(31, generator=generator)[:23].sort().values
    x, padding_mask = torch.full((1, 31, 12), 9.0).double(), torch.zeros(1, 31, dtype=torch.bool)
    x[0, at], padding_mask[0, at] = text[0], True
    torch.testing.assert_close(mixer(x, mask=Mask(padding_mask=padding_mask)).y[:, at], expected)
    if causal and own.get("routing") != "paper":
        torch.testing.assert_close(in_pieces(mixer, text, [5, 1, 11, 6])[0], expected)


@pytest.mark.parametrize("count", [1, 4, 9, 40])
def test_the_first_of_equal_numbers_are_taken(count, monkeypatch):
    scores = torch.randint(0, 4, (3, 5, 40), generator=torch.Generator().manual_seed(count)).float()
    scores[0, :, 30:] = -torch.inf
    expected = (-scores).sort(dim=-1, stable=True).indices[..., :count].sort(-1).values
    assert torch.equal(best_positions(scores, count).sort(-1).values, expected)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    real = expected < 30
    found = best_positions(scores, count).sort(-1).values
    assert torch.equal(found[1:], expected[1:])
    assert torch.equal(found[0][real[0]], expected[0][real[0]])


def test_a_step_in_reserved_room_writes_one_member_and_leaves_older_states_as_they_are():
    """Rings are made again when their free slots are used up, once in so many steps."""
    mixer = build(clusters=8, window=4, local_heads=1).eval()
    xs = draw(3, 40, 16).split(1, 1)
    with torch.no_grad():
        state, plain = mixer.init_state(3).reserve(40), mixer.init_state(3)
        copied, held = [], []
        for x in xs:
            with Counter() as counter:
                out = mixer(x, state=state)
            expected = mixer(x, state=plain)
            close(out.y, expected.y)
            copied.append(counter.written > expected.state.nbytes)
            held.append((state, plain))
            state, plain = out.state, expected.state
        assert copied == [n % 4 == 0 for n in range(40)]
        # from every state again, and twice, in an order that is not that of the text
        for old, other in [*held[::-3], *held]:
            for x in (xs[0], xs[7]):
                again, expected = mixer(x, state=old), mixer(x, state=other)
                close(again.y, expected.y)
                further = (mixer(xs[3], state=s.state).y for s in (again, expected))
                close(*further)


@pytest.mark.parametrize("local", [0, 1])
def test_rows_of_different_lengths_step_as_each_alone(local):
    """Rows end, or begin later, beside rows that go on."""
    mixer = build(clusters=2, window=3, local_heads=local).eval()
    padding_mask = torch.rand(3, 50, generator=torch.Generator().manual_seed(3)) < 0.7
    x = draw(3, 50, 16)
    with torch.no_grad():
        for reserved in (False, True):
            state = mixer.init_state(3)
            state, ys = state.reserve(9) if reserved else state, []
            for n in range(50):
                real = Mask(padding_mask=padding_mask[:, n : n + 1])
                out = mixer(x[:, n : n + 1], mask=real, state=state)
                ys.append(out.y)
                state = out.state
                if n == 30:
                    state = state.reorder(torch.tensor([0, 1, 2]))
            close(torch.cat(ys, 1), mixer(x, mask=Mask(padding_mask=padding_mask)).y)
            assert torch.equal(state.num_tokens, padding_mask.sum(1))


@pytest.mark.full("the compiler works for seconds")
@pytest.mark.filterwarnings("ignore::everyformer.core.dispatch.AllPairsWarning")
@pytest.mark.parametrize(
    ("routing", "causal"),
    [("strict", False), ("prefix", True), ("prefix", False), ("paper", True), ("paper", False)],
)
def test_one_program_serves_texts_shorter_and_longer_than_a_cluster(routing, causal):
    mixer = build(causal, routing=routing).eval()
    length = torch.export.Dim("length", min=2, max=32)
    program = torch.export.export(
        mixer, (draw(2, 9, 16),), dynamic_shapes={"x": {1: length}}
    ).module()
    for tokens in (2, 4, 5, 6, 17, 32):
        x = draw(2, tokens, 16, seed=tokens)
        close(program(x).y, mixer(x).y)


@pytest.mark.full("the compiler works for seconds")
def test_steps_with_and_without_a_graph_go_on_from_each_other():
    mixer = build(routing="prefix").eval()
    x = draw(2, 23, 16)

    torch._dynamo.reset()
    compiled = torch.compile(mixer, backend="eager", fullgraph=True)
    with torch.no_grad():
        whole = mixer(x).y
        state, ys = mixer.init_state(2), []
        for first, last, graph in [(0, 3, True), (3, 5, True), (5, 6, False), (6, 9, True)]:
            out = (compiled if graph else mixer)(x[:, first:last], state=state)
            ys, state = [*ys, out.y], out.state
        ys.append(mixer(x[:, 9:], state=state).y)
    close(torch.cat(ys, 1), whole)
