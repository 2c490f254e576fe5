"""ETC: long and global tokens, their labels, who reads whom, against plain loops."""

import math

import pytest
import torch
from torch.testing import assert_close

import everyformer as ef
from everyformer.core.errors import ConfigError, ShapeError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.genes.mixers import etc
from helpers import graphs_take_all_pairs

WIDTH, HEADS, SIZE = 12, 3, 4
OPEN = {"hard_g2l": False}
ALL_BIASES = ("query", "key", "value", "output")


def make(**options):
    torch.manual_seed(0)
    mixer = ef.create_mixer("etc", width=WIDTH, heads=HEADS, **options).double()
    for labels in (mixer.long_labels, mixer.summary_labels):
        torch.nn.init.normal_(labels.numbers)
    for module in mixer.modules():
        if isinstance(module, torch.nn.Linear) and module.bias is not None:
            torch.nn.init.normal_(module.bias)
    return mixer


def without_labels(mixer):
    for labels in (mixer.long_labels, mixer.summary_labels):
        torch.nn.init.zeros_(labels.vectors)
        torch.nn.init.zeros_(labels.numbers)
    return mixer


def tokens(*shape, seed=1):
    torch.manual_seed(seed)
    return torch.randn(*shape, WIDTH, dtype=torch.float64, requires_grad=True)


def text(*sentences, batch=1):
    """Global tokens in front, one a sentence, then sentences of so many tokens."""
    count = len(sentences)
    own = torch.arange(count).repeat_interleave(torch.tensor(sentences))
    ids = torch.cat([torch.arange(count), own]).expand(batch, -1)
    chosen = (torch.arange(ids.shape[1]) < count).expand(batch, -1)
    return Mask(global_tokens=chosen, sentences=ids)


def influence(y, x):
    """Whether anything of token i (rows) depends on token j, by the gradient: (L, L)."""
    return torch.stack(
        [
            torch.autograd.grad(y[0, i].sum(), x, retain_graph=True)[0][0].abs().sum(-1) > 0
            for i in range(y.shape[1])
        ]
    )


# what follows knows nothing of the mixer's code: one pair of tokens at a time


def label_by_hand(options, kind, other, here, there, same):
    k = options.clip
    last = 2 * k if options.direction else k
    if kind != other:
        return last + 1 + same
    if kind == "global" and not options.ordered:
        return 0 if here == there else last + 3
    right, left = min(there - here, k), min(here - there, k)
    return right if there >= here else left + (k if options.direction else 0)


def by_hand(mixer, x, mask):
    o, rows = mixer.options, []
    for b in range(x.shape[0]):
        kinds = ["long"] * x.shape[1]
        if mask.global_tokens is not None:
            kinds = ["global" if flag else "long" for flag in mask.global_tokens[b]]
        real = [True] * x.shape[1] if mask.keep is None else mask.keep[b].tolist()
        ids = [-1] * x.shape[1] if mask.sentences is None else mask.sentences[b].tolist()
        documents = [0] * x.shape[1] if mask.documents is None else mask.documents[b].tolist()
        place = [
            sum(r and kinds[j] == kinds[i] for j, r in enumerate(real[:i]))
            for i in range(len(kinds))
        ]
        for i, kind in enumerate(kinds):
            if not real[i]:
                rows.append(torch.zeros(WIDTH, dtype=x.dtype))
                continue
            side = mixer.long if kind == "long" else mixer.summary
            labels = mixer.long_labels if kind == "long" else mixer.summary_labels
            q = side.query(x[b, i]).view(HEADS, SIZE)
            scores, values = [], []
            for j, other in enumerate(kinds):
                same = ids[i] == ids[j] and ids[i] >= 0
                far = kind == other == "long" and abs(place[i] - place[j]) > o.radius
                hard = o.hard_g2l if (kind, other) == ("global", "long") else False
                hard = o.hard_l2g if (kind, other) == ("long", "global") else hard
                if not real[j] or documents[i] != documents[j] or far or (hard and not same):
                    continue
                t = label_by_hand(o, kind, other, place[i], place[j], same)
                name = other if o.sharing == "none" else "any"
                key = side.key[name](x[b, j]).view(HEADS, SIZE)
                score = (q * (key + labels.vectors[t])).sum(-1) + labels.numbers[t]
                scores.append(score / math.sqrt(SIZE))
                values.append(side.value[name](x[b, j]).view(HEADS, SIZE))
            weights = torch.stack(scores).softmax(0)
            mixed = (weights[..., None] * torch.stack(values)).sum(0).flatten()
            rows.append((mixer.out if kind == "long" else mixer.summary_out)(mixed))
    return torch.stack(rows).view_as(x)


def between(length):
    """Global tokens anywhere, holes, two documents a row, a sentence that none stands for."""
    torch.manual_seed(length)
    third = length // 3
    return Mask(
        keep=torch.rand(2, length) < 0.8,
        global_tokens=torch.rand(2, length) < 0.3,
        sentences=torch.randint(-1, 3, (2, length)),
        documents=torch.tensor([7] * third + [2] * (length - third)).expand(2, -1),
    )


VARIANTS = [
    {},
    {"sharing": "sides", "hard_g2l": False, "hard_l2g": True},
    {"sharing": "none", "bias": ALL_BIASES, "share_output": True},
    {"sharing": "none", "hard_l2g": True, "direction": False},
    {"ordered": False, "radius": 0, "bias": ("value",)},
]


MASKS = {
    "sentences": text(7, 1, 5, batch=2),
    "one token": text(1, batch=2),
    "between, 7": between(7),
    "between, 23": between(23),
    "padding alone": Mask(keep=torch.arange(9) % torch.tensor([[2], [5]]) != 1),
}


@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("kind", MASKS)
def test_outputs_and_gradients_are_those_of_plain_loops(options, kind):
    mixer, mask = make(**{"radius": 2, "clip": 3, **options}), MASKS[kind]
    x = tokens(2, (mask.keep if mask.sentences is None else mask.sentences).shape[1])
    y, expected = mixer(x, mask=mask).y, by_hand(mixer, x, mask)
    assert_close(y, expected)
    assert_close(mixer.reference(x, mask=mask), expected)
    weight = tokens(*x.shape[:2], seed=5).detach()
    inputs = [x, *mixer.parameters()]
    found = [
        torch.autograd.grad((out * weight).sum(), inputs, allow_unused=True, materialize_grads=True)
        for out in (y, expected)
    ]
    assert_close(*found)


def test_sizes_and_the_start_are_those_of_the_paper():
    mixer = ef.create_mixer("etc", width=64, heads=4)
    assert (mixer.options.radius, mixer.options.clip) == (84, 12)
    for labels in (mixer.long_labels, mixer.summary_labels):
        assert labels.vectors.shape == (2 * 12 + 3, 4, 16)
        # normal with 0.5, cut at two deviations, which leaves 0.88 of it
        assert float(labels.vectors.detach().std()) == pytest.approx(0.5 * 0.8796, rel=0.05)
        assert not labels.numbers.any()


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, 3 + 2),
        ({"share_output": True}, 3 + 1),
        ({"sharing": "sides"}, 2 * 3 + 2),
        ({"sharing": "none"}, 2 * (1 + 2 + 2) + 2),
    ],
    ids=str,
)
def test_long_and_global_tokens_share_what_the_options_say(options, count):
    mixer = ef.create_mixer("etc", width=WIDTH, heads=HEADS, **options)
    assert sum(weight.shape == (WIDTH, WIDTH) for weight in mixer.parameters()) == count


def test_dropout_takes_weights_of_both_sides_in_training_alone():
    mixer, mask = make(attention_dropout=0.5, **OPEN), text(3, 3, batch=4000)
    x = tokens(1, 8).detach().expand(4000, -1, -1)
    expected = mixer.eval()(x, mask=mask).y[0]
    found = mixer.train()(x, mask=mask).y.detach()
    off = (found.mean(0) - expected) / (found.std(0) / 4000**0.5)
    assert (found.std(0) > 0.01).all()
    assert off.abs().max() < 5


def test_with_three_distances_labels_are_those_of_the_paper():
    apart = torch.arange(6) - torch.arange(6)[:, None]
    table = make(clip=3)._distance(apart)
    assert table[0].tolist() == [0, 1, 2, 3, 3, 3]
    assert table[1].tolist() == [4, 0, 1, 2, 3, 3]
    assert table[5].tolist() == [6, 6, 6, 5, 4, 0]


def test_without_labels_and_borders_it_is_attention_over_all_tokens():
    mixer = without_labels(make(radius=9, share_output=True, bias=ALL_BIASES, **OPEN))
    plain = ef.create_mixer("attention", width=WIDTH, heads=HEADS, bias=ALL_BIASES).double()
    plain.project.weights[0].data = torch.cat(
        [part.weight for part in (mixer.long.query, mixer.long.key.any, mixer.long.value.any)]
    ).detach()
    for name in ("query", "key"):
        own = mixer.long.query if name == "query" else mixer.long.key.any
        plain.project.biases[name].data = own.bias.detach()
    plain.project.biases["value"].data = mixer.long.value.any.bias.detach()
    plain.out.load_state_dict(mixer.out.state_dict())
    x = tokens(2, 13)
    assert_close(mixer(x, mask=text(4, 1, 5, batch=2)).y, plain(x).y)


def test_global_tokens_without_order_are_permuted_with_their_sentences():
    mixer, mask, x = make(radius=2, ordered=False), text(3, 2, 4, 1), tokens(1, 14)
    order = torch.tensor([2, 0, 3, 1, *range(4, 14)])
    moved = Mask(global_tokens=mask.global_tokens, sentences=mask.sentences[:, order])
    assert_close(mixer(x[:, order], mask=moved).y, mixer(x, mask=mask).y[:, order])
    ordered = make(radius=2)
    assert not ordered(x[:, order], mask=moved).y.allclose(ordered(x, mask=mask).y[:, order])


def test_a_layer_without_global_tokens_reaches_as_far_as_its_radius():
    mixer, x = make(radius=2), tokens(1, 11)
    place = torch.arange(11)
    reached = influence(mixer(x).y, x)
    assert_close(reached, (place - place[:, None]).abs() <= 2)


def test_two_layers_reach_everything_through_global_tokens_alone():
    mixer, mask, x = make(radius=1), text(4, 4, 4), tokens(1, 15)
    once = mixer(x, mask=mask).y
    place = torch.arange(12)
    near = (place - place[:, None]).abs()
    assert_close(influence(once, x)[3:, 3:], near <= 1)
    assert influence(mixer(once, mask=mask).y, x)[3:].all()
    alone = tokens(1, 12)
    assert_close(influence(mixer(mixer(alone).y).y, alone), near <= 2)


@pytest.mark.parametrize("hard", [True, False])
def test_a_hard_global_token_reads_long_tokens_of_its_own_sentence_alone(hard):
    mask, x = text(3, 1, 5), tokens(1, 12)
    reached = influence(make(hard_g2l=hard)(x, mask=mask).y, x)[:3]
    own = mask.sentences[0, :3, None] == mask.sentences[0, 3:]
    assert reached[:, :3].all()
    assert_close(reached[:, 3:], own if hard else torch.ones_like(own))


def test_a_hard_long_token_reads_the_global_token_of_its_own_sentence_alone():
    mask, x = text(3, 1, 5), tokens(1, 12)
    reached = influence(make(hard_l2g=True)(x, mask=mask).y, x)[3:]
    assert_close(reached[:, :3], mask.sentences[0, 3:, None] == mask.sentences[0, :3])


def test_two_texts_in_a_row_are_read_as_if_each_were_alone():
    mixer, masks = make(radius=2, clip=2), [text(3, 2), text(1, 4, 2)]
    parts = [tokens(1, mask.sentences.shape[1], seed=n) for n, mask in enumerate(masks)]
    joined = Mask(
        global_tokens=torch.cat([mask.global_tokens for mask in masks], 1),
        sentences=torch.cat([mask.sentences for mask in masks], 1),
        documents=torch.tensor([[0] * 7 + [1] * 10]),
    )
    apart = torch.cat([mixer(x, mask=m).y for x, m in zip(parts, masks, strict=True)], 1)
    assert_close(mixer(torch.cat(parts, 1), mask=joined).y, apart)


def test_outputs_move_with_a_text_that_is_moved():
    mixer, x = make(radius=2, clip=4), tokens(1, 9)
    mask = Mask(keep=torch.arange(14)[None] >= 5)
    moved = torch.cat([tokens(1, 5, seed=8), x], 1)
    assert_close(mixer(moved, mask=mask).y[:, 5:], mixer(x).y)
    # inside a text too: what stands within the radius is all that counts
    longer = torch.cat([x, x], 1)
    assert_close(mixer(longer).y[:, 11:16], mixer(x).y[:, 2:7])


def test_numbers_of_labels_are_inside_the_scale():
    mixer, x = without_labels(make(radius=0, **OPEN)), tokens(1, 2)
    mask = Mask(global_tokens=torch.tensor([[True, False]]))
    torch.nn.init.zeros_(mixer.long.query.weight)
    mixer.long_labels.numbers.data[2 * 12 + 1] = 3.0
    with ef.trace(mixer) as seen:
        mixer(x, mask=mask)
    [weights] = seen.find("weights").values()
    expected = torch.tensor([3.0 / math.sqrt(SIZE), 0.0], dtype=torch.float64).softmax(0)
    assert_close(weights[0, 0, 1], expected)


@pytest.mark.parametrize("padding", [(), (13,), (3, 12, 13), (2, 3, 12, 13), (3, 9, 13), (0,)])
def test_told_how_many_are_in_front_it_need_not_look(padding):
    mixer, x, mask = make(radius=2), tokens(2, 14), text(3, 2, 4, 1, batch=2)
    keep = torch.ones(2, 14, dtype=torch.bool)
    keep[0, list(padding)] = False
    known = Mask(keep=keep, global_tokens=mask.global_tokens, sentences=mask.sentences, front=4)
    assert_close(mixer(x, mask=known).y, by_hand(mixer, x, known))


@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("kind", ["in front", "padded", "between", "alone"])
def test_units_of_any_size_give_the_same(options, kind, monkeypatch):
    monkeypatch.setattr(etc, "UNIT", 3)
    mixer, x = make(**{"radius": 2, "clip": 3, **options}), tokens(2, 29)
    mask = text(9, 1, 11, 4, batch=2)
    if kind == "between":
        mask = between(29)
    elif kind == "alone":
        mask = None
    elif kind == "padded":
        keep = torch.arange(29) < torch.tensor([[29], [17]])
        mask = Mask(keep, global_tokens=mask.global_tokens, sentences=mask.sentences, front=4)
    weight, inputs = tokens(2, 29, seed=5).detach(), [x, *mixer.parameters()]
    found = []
    for y in (mixer(x, mask=mask).y, mixer.reference(x, mask=mask)):
        gradients = torch.autograd.grad(
            (y * weight).sum(), inputs, allow_unused=True, materialize_grads=True
        )
        found.append([y, *gradients])
    assert_close(*found, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("front", [None, 4])
def test_what_stands_in_the_padding_never_matters(front):
    mixer, x, mask = make(radius=2), tokens(1, 14), text(3, 2, 4, 1)
    keep = torch.arange(14)[None] < 12
    known = Mask(keep, global_tokens=mask.global_tokens, sentences=mask.sentences, front=front)
    filled = x.detach().masked_fill(~keep[..., None], math.nan)
    for run in (lambda t: mixer(t, mask=known).y, lambda t: mixer.reference(t, mask=known)):
        assert_close(run(filled), run(x))


@graphs_take_all_pairs
def test_a_compiler_that_knows_how_many_are_in_front_makes_no_square():
    mixer = make(radius=2)
    largest = 0

    def look(module, inputs):
        def run(*given):
            nonlocal largest
            with torch.autograd.graph.saved_tensors_hooks(seen, lambda t: t):
                return module(*given)

        return run

    def seen(tensor):
        nonlocal largest
        largest = max(largest, tensor.numel())
        return tensor

    torch._dynamo.reset()
    compiled = torch.compile(mixer, backend=look, fullgraph=True)
    for length, front in ((300, 4), (400, 4), (400, None)):
        mask, x = text(*[length // 4] * 4), tokens(1, length + 4)
        known = Mask(global_tokens=mask.global_tokens, sentences=mask.sentences, front=front)
        largest = 0
        assert_close(compiled(x, mask=known).y, mixer(x, mask=mask).y)
        assert (largest < HEADS * length**2 / 2) == (front is not None)


def test_without_sentences_only_open_masks_have_a_meaning():
    mixer, x = make(), tokens(1, 4)
    mask = Mask(global_tokens=torch.tensor([[True, False, False, False]]))
    with pytest.raises(UnsupportedError, match=r"give mask\.sentences"):
        mixer(x, mask=mask)
    open_mixer = make(**OPEN)
    assert_close(open_mixer(x, mask=mask).y, by_hand(open_mixer, x, mask))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"radius": -1}, "radius' must be at least 0"),
        ({"clip": 0}, "clip' must be at least 1"),
        ({"causal": True}, "no causal form"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_built(options, says):
    with pytest.raises(ConfigError, match=says):
        ef.create_mixer("etc", width=WIDTH, heads=HEADS, **options)


@pytest.mark.parametrize("part", ["global_tokens", "sentences", "keep", "documents"])
def test_a_mask_of_another_shape_is_refused(part):
    flags = torch.ones(1, 5, dtype=torch.bool if part in ("global_tokens", "keep") else torch.long)
    with pytest.raises(ShapeError, match=part):
        make(**OPEN)(tokens(1, 4), mask=Mask(**{part: flags}))


def test_parts_of_a_mask_that_it_does_not_know_are_refused():
    with pytest.raises(UnsupportedError, match="bias"):
        make()(tokens(1, 4), mask=Mask(bias=torch.zeros(4, 4)))
