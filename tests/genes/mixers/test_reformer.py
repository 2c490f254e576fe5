"""Reformer's attention: its limits, its causality, its states and its rounds."""

import pytest
import torch

import everyformer as ef
from everyformer.core.choices import keep_choices, repeat_choices
from everyformer.core.errors import GeneError, ShapeError
from everyformer.core.mask import Mask
from everyformer.engines.content import sorted_chunks
from everyformer.engines.content.chunk_lists import ChunkPattern
from everyformer.genes.mixers import reformer
from everyformer.genes.mixers.reformer.function import (
    dense_attention,
    keys_of,
    lsh_weights_reference,
)
from helpers import both_ways, build_mixer, draw, with_gradients

WIDTH = 12


def make(causal=True, **options):
    options = {"chunk": 4, "rounds": 3, "buckets": 6, **options}
    return build_mixer("reformer", width=WIDTH, heads=3, causal=causal, **options)


def drawn_buckets(batch, heads, rounds, length, count=5):
    generator = torch.Generator().manual_seed(length)
    return torch.randint(0, count, (batch, heads, rounds, length), generator=generator)


def both(*pattern, **flags):
    return [ChunkPattern(*pattern, causal=causal, **flags) for causal in (True, False)]


PATTERNS = [
    *both(4, 1, 0),
    *both(4, 1, 1, circular=True),
    *both(4, 0, 0),
    *both(3, 2, 1, once=True),
    *both(3, 2, 1, once=True, circular=True),
    *both(8, 3, 2, circular=True),
    *both(8, 3, 2, once=True, circular=True),
]


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: str(p.code()))
def test_given_buckets_the_tiles_are_the_softmax_over_what_the_rounds_show(pattern):
    for length, rounds in ((1, 2), (17, 3)):
        qk, v = (draw(2, 2, length, 5, seed=s).requires_grad_() for s in (1, 2))
        buckets = drawn_buckets(2, 2, rounds, length)
        padding_mask = torch.ones(2, length, dtype=torch.bool)
        padding_mask[0, length // 2 : length // 2 + 3] = False
        for real in (None, padding_mask):
            fast, slow = (
                kind.lsh_attention(qk, v, buckets, pattern, padding_mask=real, scale=0.7)
                for kind in (ef.functional, ef.reference)
            )
            torch.testing.assert_close(fast, slow, rtol=0, atol=1e-12)
            found = (with_gradients(y, (qk, v)) for y in (fast, slow))
            torch.testing.assert_close(*found, rtol=0, atol=1e-11)


def test_tiles_of_any_size_give_the_same(monkeypatch):
    pattern = ChunkPattern(4, 1, 1, circular=True)
    qk, v, buckets = draw(2, 3, 37, 5), draw(2, 3, 37, 5, seed=1), drawn_buckets(2, 3, 3, 37)
    whole = ef.functional.lsh_attention(qk, v, buckets, pattern)
    monkeypatch.setattr(sorted_chunks, "SCORES", 4 * 4 * 3 * 7)
    few = ef.functional.lsh_attention(qk, v, buckets, pattern)
    torch.testing.assert_close(few, whole, rtol=0, atol=1e-14)


def test_with_its_buckets_held_the_content_of_the_future_changes_nothing():
    mixer, x = make(), draw(1, 13, WIDTH)
    with keep_choices() as choices:
        y = mixer(x).y
    changed = torch.cat((x[:, :8], 50 * draw(1, 5, WIDTH, seed=3)), 1)
    with repeat_choices(choices):
        held = mixer(changed).y
    torch.testing.assert_close(held[:, :8], y[:, :8], rtol=0, atol=1e-12)
    free = mixer(changed).y
    assert (free[:, :8] - y[:, :8]).abs().max() > 1e-3, "borders of chunks should have moved"


@pytest.mark.parametrize(
    ("causal", "options", "honest"),
    [
        (True, {}, False),
        (True, {"max_length": 5}, False),
        (True, {"max_length": 4}, True),
        (True, {"max_length": 4, "wrap": "circular"}, True),
        (False, {}, True),
    ],
)
def test_losses_are_marked_where_later_tokens_decide_who_is_seen(causal, options, honest):
    mixer = make(causal, **options)
    assert (mixer.non_causal_reason is None) is honest
    assert ef.info("reformer").strictly_causal is not True
    if causal:
        x = draw(1, options.get("max_length", 13), WIDTH)
        changed = torch.cat((x[:, :2], 50 * draw(*x[:, 2:].shape, seed=3)), 1)
        moved = (mixer(changed).y - mixer(x).y)[:, :2].abs().max()
        assert not honest or moved < 1e-12


def test_a_text_longer_than_the_single_chunk_it_was_made_for_marks_the_losses():
    mixer = make(True, chunk=6, max_length=6)
    mixer(draw(1, 6, WIDTH))
    assert mixer.non_causal_reason is None
    state = mixer(draw(1, 4, WIDTH), state=mixer.init_state(1)).state
    mixer(draw(1, 2, WIDTH), state=state)
    assert mixer.non_causal_reason is None
    mixer(draw(1, 3, WIDTH), state=state)
    assert mixer.non_causal_reason is not None
    mixer = make(False, chunk=6, max_length=6)
    mixer(draw(1, 7, WIDTH))
    assert mixer.non_causal_reason is None


STATES = [{}, {"wrap": "circular"}, {"once": True, "wrap": "circular"}, {"once": True, "chunk": 3}]


@pytest.mark.parametrize("options", STATES, ids=str)
@pytest.mark.parametrize("padded", [False, True])
def test_a_state_gives_what_a_pass_over_the_tokens_so_far_gives(options, padded):
    mixer, x = make(**options), draw(2, 23, WIDTH)
    padding_mask = torch.ones(2, 23, dtype=torch.bool)
    if padded:
        padding_mask[0, 0] = padding_mask[0, 9] = False
    state, start = mixer.init_state(2), 0
    for piece in (7, 1, 1, 1, 2, 6, 1, 4):
        now, start = slice(start, start + piece), start + piece
        mask = Mask(padding_mask=padding_mask[:, now]) if padded else None
        y, state, _ = mixer(x[:, now], mask=mask, state=state)
        mask = Mask(padding_mask=padding_mask[:, :start]) if padded else None
        so_far = mixer(x[:, :start], mask=mask).y
        torch.testing.assert_close(y, so_far[:, now], rtol=0, atol=1e-12)
    assert state.num_tokens.tolist() == padding_mask.sum(1).tolist()
    extended = mixer.append(x, mask=Mask(padding_mask=padding_mask), state=mixer.init_state(2))
    for row in range(2):
        # padding has slots too, but nobody reads them
        one, other = (s.buckets[row][..., s.held.slots()[0][row]] for s in (extended, state))
        assert torch.equal(one, other)


def test_decoding_by_bucket_sees_the_same_buckets_then_the_latest():
    mixer = make(decode="bucket", rounds=2, chunk=2, buckets=8)
    x = draw(1, 30, WIDTH)
    state = mixer(x[:, :29], state=mixer.init_state(1)).state
    y = mixer(x[:, 29:], state=state).y
    qk, v = mixer._project(x)
    buckets = mixer._hash(qk)
    most, rows = 2 * 2 * 2, []
    for h in range(3):
        met = (buckets[0, h, :, :29] == buckets[0, h, :, 29:]).any(0)
        order = sorted(range(29), key=lambda j, met=met: (bool(met[j]), j), reverse=True)
        chosen = order[:most]
        keys = keys_of(qk[0, h, chosen])
        rows.append((qk[0, h, 29] @ keys.T).softmax(-1) @ v[0, h, chosen])
    torch.testing.assert_close(y[0, 0], mixer.out(torch.cat(rows)), rtol=0, atol=1e-12)
    wide = make(decode="bucket", rounds=3, chunk=16)
    state = wide(x[:, :20], state=wide.init_state(1)).state
    dense = dense_attention(*wide._project(x[:, :21]), wide.pattern)
    got = wide(x[:, 20:21], state=state).y
    torch.testing.assert_close(got, wide.merge(dense)[:, 20:], rtol=0, atol=1e-12)


def test_by_bucket_the_first_real_token_gets_its_own_value():
    mixer, x = make(decode="bucket"), draw(2, 6, WIDTH)
    padding_mask = torch.tensor([[False, False, False], [False, True, True]])
    state = mixer(x[:, :3], mask=Mask(padding_mask=padding_mask), state=mixer.init_state(2)).state
    y = mixer(x[:, 3:], state=state).y
    torch.testing.assert_close(y[0, 0], mixer.out(mixer.value(x[0, 3])))
    assert (y[1, 0] - mixer.out(mixer.value(x[1, 3]))).abs().max() > 1e-3


def test_evaluation_repeats_itself_and_training_draws_anew():
    mixer, x = make(), draw(1, 17, WIDTH)
    assert torch.equal(mixer(x).y, mixer(x).y)
    assert torch.equal(mixer(x).y, make()(x).y)
    mixer.train()
    torch.manual_seed(3)
    first, second = mixer(x).y, mixer(x).y
    torch.manual_seed(3)
    assert torch.equal(mixer(x).y, first)
    assert not torch.equal(first, second)


def test_rounds_of_evaluation_may_differ_from_those_of_training():
    mixer, x = make(rounds=1, evaluation_rounds=5), draw(1, 17, WIDTH)
    torch.testing.assert_close(mixer(x).y, make(rounds=5)(x).y)
    with keep_choices() as choices:
        mixer.train()(x)
        mixer.eval()(x)
    assert [c.shape[2] for c in choices] == [1, 5]


def test_dropout_has_the_gradient_of_its_own_mask_and_the_right_mean():
    qk, v = (draw(1, 2, 9, 3, seed=s).requires_grad_() for s in (1, 2))
    buckets, pattern = drawn_buckets(1, 2, 2, 9), ChunkPattern(4, 1, 0, causal=True)

    def thinned(qk, v, seed=5):
        if seed is not None:
            torch.manual_seed(seed)
        return ef.functional.lsh_attention(qk, v, buckets, pattern, dropout=0.4)

    assert torch.autograd.gradcheck(thinned, (qk, v), fast_mode=True)
    plain = ef.functional.lsh_attention(qk, v, buckets, pattern)
    torch.manual_seed(0)
    drawn = torch.stack([thinned(qk, v, None) for _ in range(300)]).detach()
    assert (drawn.std(0)[:, :, 2:] > 0).all()
    error = (drawn.mean(0) - plain).abs() / (drawn.std(0) / 300**0.5 + 1e-9)
    assert error.max() < 5


def test_buckets_may_be_given_and_are_recorded():
    mixer, x = make(), draw(2, 13, WIDTH)
    given = drawn_buckets(2, 3, 3, 13)
    with repeat_choices([given]), ef.trace(mixer) as traced:
        y = mixer(x).y
    assert torch.equal(traced[""]["buckets"][0], given)
    qk, v = mixer._project(x)
    expected = ef.reference.lsh_attention(qk, v, given, mixer.pattern)
    torch.testing.assert_close(y, mixer.merge(expected), rtol=0, atol=1e-12)
    weights = traced[""]["weights"][0]
    torch.testing.assert_close(weights, lsh_weights_reference(qk, given, mixer.pattern).detach())
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 13, dtype=torch.float64))


def test_a_reversible_stack_hashes_once_and_has_autograds_gradients(monkeypatch):
    torch.manual_seed(0)
    sizes = {"width": WIDTH, "heads": 3, "layers": 3, "max_length": 32, "vocabulary": 20}
    options = {"chunk": 4, "rounds": 2, "buckets": 6, "dropout": 0.3, "attention_dropout": 0.3}
    model = ef.create_model("reformer", **sizes, **options).double()
    tokens = torch.randint(0, 20, (2, 19))
    calls = []
    real = reformer.lsh_buckets
    monkeypatch.setattr(reformer, "lsh_buckets", lambda *a: calls.append(1) or real(*a))

    def gradients():
        loss = model(tokens, targets=tokens).loss
        return torch.autograd.grad(loss, list(model.parameters()))

    torch.testing.assert_close(*both_ways(gradients), rtol=0, atol=1e-10)
    assert len(calls) == 2 * 3


def test_what_cannot_be_is_refused():
    for buckets, message in ((5, "even numbers"), (None, "give `max_length")):
        with pytest.raises(GeneError, match=message):
            make(buckets=buckets)
    with pytest.raises(ShapeError, match="buckets must be"):
        ef.functional.lsh_attention(
            draw(1, 2, 5, 4), draw(1, 2, 5, 4), drawn_buckets(1, 2, 1, 6), ChunkPattern(4)
        )
