"""ETC: long and global tokens, their labels, who reads whom, against plain loops."""

import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

import everyformer as ef
from everyformer.core.errors import ConfigError, ShapeError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.genes.mixers import etc
from helpers import graphs_take_all_pairs, with_gradients

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


def label_by_hand(options, kind, other, here, there, same):
    k = options.clip
    last = 2 * k
    if kind != other:
        return last + 1 + same
    if kind == "global" and not options.ordered:
        return 0 if here == there else last + 3
    right, left = min(there - here, k), min(here - there, k)
    return right if there >= here else left + k


def by_hand(mixer, x, mask):
    o, rows = mixer.options, []
    for b in range(x.shape[0]):
        kinds = ["long"] * x.shape[1]
        if mask.global_tokens is not None:
            kinds = ["global" if flag else "long" for flag in mask.global_tokens[b]]
        real = [True] * x.shape[1] if mask.padding_mask is None else mask.padding_mask[b].tolist()
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
        padding_mask=torch.rand(2, length) < 0.8,
        global_tokens=torch.rand(2, length) < 0.3,
        sentences=torch.randint(-1, 3, (2, length)),
        documents=torch.tensor([7] * third + [2] * (length - third)).expand(2, -1),
    )


VARIANTS = [
    {},
    {"sharing": "sides", "hard_g2l": False},
    {"sharing": "none", "bias": ALL_BIASES},
    {"sharing": "none", "clip": 1},
    {"ordered": False, "radius": 0, "bias": ("value",)},
]


MASKS = {
    "sentences": text(7, 1, 5, batch=2),
    "one token": text(1, batch=2),
    "between, 7": between(7),
    "between, 23": between(23),
    "padding alone": Mask(padding_mask=torch.arange(9) % torch.tensor([[2], [5]]) != 1),
}


@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("kind", MASKS)
def test_outputs_and_gradients_are_those_of_plain_loops(options, kind):
    mixer, mask = make(**{"radius": 2, "clip": 3, **options}), MASKS[kind]
    x = tokens(2, (mask.padding_mask if mask.sentences is None else mask.sentences).shape[1])
    y, expected = mixer(x, mask=mask).y, by_hand(mixer, x, mask)
    assert_close(mixer.reference(x, mask=mask), expected)
    assert_close(*(with_gradients(out, [x, *mixer.parameters()]) for out in (y, expected)))


def test_sizes_and_the_start_are_those_of_the_paper():
    mixer = ef.create_mixer("etc", width=64, heads=4)
    assert (mixer.options.radius, mixer.options.clip) == (84, 12)
    for labels in (mixer.long_labels, mixer.summary_labels):
        assert labels.vectors.shape == (2 * 12 + 3, 4, 16)
        # normal with 0.5, cut at two deviations, which leaves 0.88 of it
        assert float(labels.vectors.detach().std()) == pytest.approx(0.5 * 0.8796, rel=0.05)
        assert not labels.numbers.any()


def test_long_and_global_tokens_share_what_the_options_say():
    for options, count in (({}, 5), ({"sharing": "sides"}, 8), ({"sharing": "none"}, 12)):
        mixer = ef.create_mixer("etc", width=WIDTH, heads=HEADS, **options)
        assert sum(weight.shape == (WIDTH, WIDTH) for weight in mixer.parameters()) == count


def test_dropout_takes_weights_of_both_sides_in_training_alone():
    mixer, mask = make(attention_dropout=0.5, **OPEN), text(3, 3, batch=1000)
    x = tokens(1, 8).detach().expand(1000, -1, -1)
    expected = mixer.eval()(x, mask=mask).y[0]
    found = mixer.train()(x, mask=mask).y.detach()
    off = (found.mean(0) - expected) / (found.std(0) / 1000**0.5)
    assert (found.std(0) > 0.01).all()
    assert off.abs().max() < 5


@pytest.mark.parametrize("padding", [(), (3, 12, 13), (2, 3, 12, 13), (3, 9, 13), (0,)])
def test_told_how_many_are_in_front_it_need_not_look(padding):
    mixer, x, mask = make(radius=2), tokens(2, 14), text(3, 2, 4, 1, batch=2)
    padding_mask = torch.ones(2, 14, dtype=torch.bool)
    padding_mask[0, list(padding)] = False
    known = replace(mask, padding_mask=padding_mask, prefix=4)
    assert_close(mixer(x, mask=known).y, by_hand(mixer, x, known))


@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("kind", ["padded", "between", "alone"])
def test_units_of_any_size_give_the_same(options, kind, monkeypatch):
    monkeypatch.setattr(etc, "UNIT", 3)
    mixer, x = make(**{"radius": 2, "clip": 3, **options}), tokens(2, 29)
    mask = {"between": between(29)}.get(kind)
    if kind == "padded":
        whole, padding_mask = (
            text(9, 1, 11, 4, batch=2),
            torch.arange(29) < torch.tensor([[29], [17]]),
        )
        mask = replace(whole, padding_mask=padding_mask, prefix=4)
    ways = mixer(x, mask=mask).y, mixer.reference(x, mask=mask)
    found = (with_gradients(y, [x, *mixer.parameters()]) for y in ways)
    assert_close(*found, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("prefix", [None, 4])
def test_what_stands_in_the_padding_never_matters(prefix):
    mixer, x, mask = make(radius=2), tokens(1, 14), text(3, 2, 4, 1)
    padding_mask = torch.arange(14)[None] < 12
    known = replace(mask, padding_mask=padding_mask, prefix=prefix)
    filled = x.detach().masked_fill(~padding_mask[..., None], math.nan)
    for run in (lambda t: mixer(t, mask=known).y, lambda t: mixer.reference(t, mask=known)):
        assert_close(run(filled), run(x))


@graphs_take_all_pairs
@pytest.mark.full("a compiler works", parts=3)
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
    for length, prefix in ((300, 4), (400, 4), (400, None)):
        mask, x = text(*[length // 4] * 4), tokens(1, length + 4)
        known = Mask(global_tokens=mask.global_tokens, sentences=mask.sentences, prefix=prefix)
        largest = 0
        assert_close(compiled(x, mask=known).y, mixer(x, mask=mask).y)
        assert (largest < HEADS * length**2 / 2) == (prefix is not None)


def test_without_sentences_only_open_masks_have_a_meaning():
    mixer, x = make(), tokens(1, 4)
    mask = Mask(global_tokens=torch.tensor([[True, False, False, False]]))
    with pytest.raises(UnsupportedError, match=r"give mask\.sentences"):
        mixer(x, mask=mask)
    with pytest.raises(ConfigError, match="no causal form"):
        make(causal=True)
    open_mixer = make(**OPEN)
    assert_close(open_mixer(x, mask=mask).y, by_hand(open_mixer, x, mask))


@pytest.mark.parametrize("part", ["global_tokens", "sentences"])
def test_a_mask_of_another_shape_is_refused(part):
    flags = torch.ones(1, 5, dtype=torch.bool if part == "global_tokens" else torch.long)
    with pytest.raises(ShapeError, match=part):
        make(**OPEN)(tokens(1, 4), mask=Mask(**{part: flags}))
