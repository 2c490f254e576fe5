"""Global tokens that stand for parts of a text: which parts, where they stand, what they learn."""

import math

import pytest
import torch
from torch.testing import assert_close

import everyformer as ef
from everyformer.core.errors import ConfigError, GeneError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.genes.model_options import SummaryOptions
from everyformer.models.summaries import Summaries, Summarised

STOP, LINE = 8, 9
SENTENCES = {"per": "sentence", "ends": (STOP, LINE)}
EVERY = {"per": "tokens", "every": 3}
TINY = {"width": 12, "heads": 3, "layers": 2, "vocabulary": 12, "max_length": 24, "radius": 2}


def make(task="mlm", summaries=EVERY, **options):
    torch.manual_seed(0)
    model = ef.create_model("etc", task, **{**TINY, "summaries": summaries, **options})
    return model.double().eval()


def draw(*shape, seed=1):
    return torch.randint(0, 11, shape, generator=torch.Generator().manual_seed(seed))


def divided(tokens, mask=None, **options):
    parts = Summaries(4, SummaryOptions(**options), True).divide(torch.tensor([tokens]), mask)
    real = parts.real[0]
    return parts.number[0][real].tolist(), parts.padding_mask[0].tolist()


def flags(text):
    return torch.tensor([[c == "1" for c in text]])


def test_a_part_is_so_many_real_tokens():
    assert divided([0] * 7, **EVERY) == ([0, 0, 0, 1, 1, 1, 2], [True] * 3)
    holes = Mask(padding_mask=flags("0110111"))
    assert divided([0] * 7, holes, **EVERY) == ([0, 0, 0, 1, 1], [True, True, False])
    nothing = Mask(padding_mask=flags("00000"))
    assert divided([1] * 5, nothing, **EVERY) == ([], [False] * 2)
    assert divided([1] * 5, nothing, **SENTENCES) == ([], [False])


def test_a_sentence_goes_up_to_a_run_of_its_ends():
    tokens = [1, 2, STOP, LINE, 3, STOP, STOP, 4]
    assert divided(tokens, **SENTENCES) == ([0, 0, 0, 0, 1, 1, 1, 2], [True] * 3)
    assert divided([STOP, 1], **SENTENCES) == ([0, 1], [True] * 2)
    # what is no real token ends nothing
    found = divided(tokens, Mask(padding_mask=flags("11001111")), **SENTENCES)[0]
    assert found == [0] * 5 + [1]


@pytest.mark.parametrize("options", [EVERY, SENTENCES], ids=str)
def test_a_document_begins_a_part(options):
    documents = torch.tensor([[4, 4, 4, 4, 1, 1, 1, 4]])
    number, padding_mask = divided([1] * 8, Mask(documents=documents), **options)
    expected = [0, 0, 0, 1, 2, 2, 2, 3] if options is EVERY else [0, 0, 0, 0, 1, 1, 1, 2]
    assert number == expected
    assert padding_mask == [True] * (expected[-1] + 1)


@pytest.mark.parametrize("options", [EVERY, SENTENCES], ids=str)
def test_a_mask_that_tells_sentences_is_believed(options):
    told = Mask(sentences=torch.tensor([[5, 5, 2, 2, 2, 5]]))
    assert divided([STOP] * 6, told, **options)[0] == [0, 0, 1, 1, 1, 2]


def opened(mask, **options):
    """Texts of the numbers 1, 2 ..., with -1, -2 ... for global tokens, as the layers see them."""
    summaries = Summaries(1, SummaryOptions(**options), True)
    tokens = torch.arange(1, 9)[None]
    parts = summaries.divide(tokens, mask)
    first = -torch.arange(1.0, parts.padding_mask.shape[1] + 1)[None, :, None]
    return summaries, parts, summaries.open(tokens[..., None].float(), first, parts, mask)


def test_global_tokens_stand_in_front():
    _, _, made = opened(Mask(padding_mask=flags("11111110")), **EVERY)
    assert made.x.flatten().tolist() == [-1, -2, -3, 1, 2, 3, 4, 5, 6, 7, 8]
    assert made.mask.padding_mask.tolist() == [[True] * 10 + [False]]
    assert made.mask.global_tokens.tolist() == [[True] * 3 + [False] * 8]
    assert made.mask.sentences[0, :10].tolist() == [0, 1, 2, 0, 0, 0, 1, 1, 1, 2]
    assert made.mask.prefix == 3
    # what is marked in a text stays one
    _, _, made = opened(Mask(global_tokens=flags("10000000")), **EVERY)
    assert made.mask.global_tokens.tolist() == [[True] * 4 + [False] * 7]
    assert made.mask.prefix is None


def test_global_tokens_of_a_document_stand_before_its_text():
    documents = torch.tensor([[7, 7, 7, 7, 2, 2, 9, 9]])
    _, _, made = opened(Mask(documents=documents), **EVERY)
    assert made.x.flatten().tolist() == [-1, -2, 1, 2, 3, 4, -3, 5, 6, -4, 7, 8]
    assert made.mask.documents.tolist() == [[0] * 6 + [1] * 3 + [2] * 3]
    assert made.mask.sentences.tolist() == [[0, 1, 0, 0, 0, 1, 2, 2, 2, 3, 3, 3]]
    assert made.mask.prefix is None


@pytest.mark.parametrize("options", [EVERY, SENTENCES], ids=str)
@pytest.mark.parametrize("pooling", ["mean", "first", "last", "globals"])
def test_a_padded_text_is_classified_as_it_is_alone(options, pooling):
    model, tokens = make("classify-text", options, pooling=pooling), draw(2, 11)
    padding_mask = torch.cat([flags("00111110101"), flags("11111111111")])
    alone = torch.cat(
        [model(row[real][None]).logits for row, real in zip(tokens, padding_mask, strict=True)]
    )
    assert_close(model(tokens, mask=Mask(padding_mask=padding_mask)).logits, alone)


@pytest.mark.parametrize("options", [EVERY, SENTENCES], ids=str)
def test_packed_documents_are_read_as_if_each_were_alone(options):
    model, tokens = make("mlm", options), draw(2, 11)
    tokens[:, 5] = STOP
    documents = torch.tensor([[3] * 4 + [1] * 7, [0] * 7 + [2] * 4])
    got = model(tokens, mask=Mask(documents=documents)).logits
    for row, cut in enumerate((4, 7)):
        parts = tokens[row : row + 1].tensor_split((cut,), 1)
        assert_close(got[row : row + 1], torch.cat([model(part).logits for part in parts], 1))


def test_what_is_far_comes_through_global_tokens_alone():
    tokens = draw(1, 20)
    other = tokens.clone()
    other[0, 0] = (other[0, 0] + 1) % 8
    for summaries, reached in ((EVERY, True), ({"per": None}, False)):
        model = make("mlm", summaries)
        # no norm or feed-forward moves anything from token to token
        last = [model(text).logits[0, -1] for text in (tokens, other)]
        assert bool((last[0] != last[1]).any()) == reached


def test_the_mean_of_real_global_tokens_is_what_globals_reads():
    model, tokens = make("classify-text", pooling="globals"), draw(1, 8)
    mask = Mask(padding_mask=flags("11111000"))
    x = model.add_positions(model.embed(model.embedding, tokens), mask, None)
    _, made = model.read_text(x, tokens, mask)
    assert made.padding_mask.tolist() == [[True, True, False]]
    assert_close(model(tokens, mask=mask).logits, model.pool.head(made.y[:, :2].mean(1)))


def foretold(guess, full, padding_mask, chosen, temperature):
    """The contrastive loss, one sentence at a time."""
    places = [tuple(place) for place in padding_mask.nonzero().tolist()]
    losses = []
    for place in places:
        if not chosen[place]:
            continue
        scores = [float(guess[place] @ full[other]) / temperature for other in places]
        own = scores[places.index(place)]
        losses.append(math.log(sum(math.exp(s) for s in scores)) - own)
    return sum(losses) / len(losses)


def test_the_contrastive_loss_is_that_of_sentences_among_all_of_the_batch():
    torch.manual_seed(0)
    guess, full = torch.randn(2, 3, 4, dtype=torch.float64), torch.randn(2, 3, 4).double()
    padding_mask = torch.tensor([[True, True, True], [True, False, False]])
    chosen = torch.tensor([[True, False, True], [True, False, False]])
    options = SummaryOptions(cpc=0.25, cpc_temperature=0.5)
    guess.requires_grad_()
    loss = Summaries(4, options, True).contrast(guess, Summarised(full, padding_mask), chosen)
    assert float(loss.detach()) == pytest.approx(
        0.25 * foretold(guess.detach(), full, padding_mask, chosen, 0.5)
    )
    (gradient,) = torch.autograd.grad(loss, guess)
    assert_close((gradient != 0).any(-1), chosen)
    nothing = Summaries(4, options, True).contrast(
        guess, Summarised(full, padding_mask), chosen & False
    )
    assert nothing == 0
    assert_close(torch.autograd.grad(nothing, guess)[0], torch.zeros_like(guess))


@pytest.mark.parametrize("stop", [False, True])
def test_without_gradient_the_full_sentences_are_a_target_alone(stop):
    full = torch.randn(1, 2, 4, requires_grad=True)
    padding_mask = torch.ones(1, 2, dtype=torch.bool)
    summaries = Summaries(4, SummaryOptions(cpc=1.0, cpc_stop=stop), True)
    guess = torch.randn(1, 2, 4, requires_grad=True)
    summaries.contrast(guess, Summarised(full, padding_mask), padding_mask).backward()
    assert (full.grad is None) == stop


@pytest.mark.parametrize("options", [EVERY, SENTENCES], ids=str)
def test_a_masked_model_foretells_in_training_alone(options):
    model = make("mlm", options | {"cpc": 0.25, "cpc_share": 0.5})
    tokens, targets = draw(4, 11), torch.full((4, 11), -100)
    targets[:, 2] = tokens[:, 2]
    inputs = tokens.masked_fill(targets >= 0, 11)
    assert set(model(inputs, targets=targets).losses) == {"task"}
    model.train()
    out = model(inputs, targets=targets)
    assert set(out.losses) == {"task", "cpc"}
    assert_close(out.loss, out.losses["task"] + out.losses["cpc"])
    out.losses["cpc"].backward()
    assert model.summaries.vector.weight.grad.abs().sum() > 0


def test_hidden_sentences_are_foretold_from_the_rest_and_compared_with_the_full_text():
    model = make("mlm", SENTENCES | {"cpc": 0.5, "cpc_temperature": 2.0}).train()
    whole = torch.tensor([[1, 2, STOP, 3, STOP, 4], [5, STOP, 6, 7, LINE, 1]])
    shown = torch.tensor([[1, 2, STOP, 11, 11, 4], [11, 11, 6, 7, LINE, 1]])
    targets = torch.full_like(whole, -100)
    # one is in a hidden sentence; the other stays a hole where the rest is shown
    targets[0, 3], targets[0, 5], shown[0, 5] = 3, 4, 11
    inputs = torch.where(targets == -100, whole, 11)
    chosen = torch.tensor([[False, True, False], [True, False, False]])
    model.summaries.choose = lambda parts: chosen
    parts = model.summaries.divide(whole, None)
    guess, full = (
        model.read_text(model.embed(model.embedding, text), text, None, parts=parts)[1].y.detach()
        for text in (shown, whole)
    )
    loss = float(model(inputs, targets=targets).losses["cpc"].detach())
    assert loss == pytest.approx(0.5 * foretold(guess, full, parts.padding_mask, chosen, 2.0))


def test_a_sentence_is_hidden_as_often_as_told():
    summaries = Summaries(4, SummaryOptions(**SENTENCES, cpc=0.5, cpc_share=0.2), True)
    parts = summaries.divide(torch.tensor([[1, STOP] * 4000 + [0, 0]]), None)
    assert float(summaries.choose(parts).float().mean()) == pytest.approx(0.2, abs=0.03)


def test_sentences_of_the_full_text_hold_for_the_hidden_one():
    model = make("mlm", SENTENCES | {"cpc": 1.0, "cpc_share": 1.0}).train()
    seen = []
    divide = model.summaries.divide

    def look(tokens, mask):
        seen.append(tokens.clone())
        return divide(tokens, mask)

    model.summaries.divide = look
    tokens = torch.tensor([[1, STOP, 2, 3]])
    targets = torch.tensor([[-100, STOP, -100, -100]])
    model(tokens.masked_fill(targets >= 0, 11), targets=targets)
    assert_close(torch.cat(seen), tokens)


BAD = {
    "a mixer without global tokens": ("attention", "mlm", {"summaries": EVERY}, "knows no global"),
    "two that differ": (
        "etc", "mlm", {"mixer": ef.by_layer("etc", "attention")}, "knows no global",
    ),
    "a class token beside": ("etc", "classify-text", {"pooling": "class"}, "pooling='globals'"),
    "globals without any": (
        "etc", "classify-text", {"pooling": "globals", "summaries": {"per": None}}, "summaries.per",
    ),
    "no ends": ("etc", "mlm", {"summaries": {"per": "sentence"}}, "needs summaries.ends"),
    "ends beyond": ("etc", "mlm", {"summaries": {"per": "sentence", "ends": (99,)}}, "token 99"),
    "a position inside": ("attention", "mlm", {"summaries": EVERY, "position": "rope"}, "no place"),
    "a position of layers": ("etc", "mlm", {"position": "learned-per-layer"}, "no place"),
    "a causal task": ("attention", "lm", {"summaries": EVERY}, "both ways"),
    "a causal classifier": (
        "attention", "classify-text", {"summaries": EVERY, "causal": True}, "both ways",
    ),
    "nothing to foretell": (
        "etc", "mlm", {"summaries": {"per": None, "cpc": 0.25}}, r"summaries\.cpc=0\.25",
    ),
    "no hidden tokens": (
        "etc", "classify-text", {"summaries": EVERY | {"cpc": 0.25}}, "task 'mlm'",
    ),
    "no tokens each": ("etc", "mlm", {"summaries": {"every": 0}}, "at least 1, not 0"),
    "no sentences hidden": ("etc", "mlm", {"summaries": {"cpc_share": 0.0}}, "cpc_share"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_combined_is_refused_when_it_is_built(case):
    member, task, options, says = BAD[case]
    sizes = {name: value for name, value in TINY.items() if name != "radius"}
    with pytest.raises((GeneError, ConfigError), match=says):
        ef.create_model(member, task, **{**sizes, **options})


def test_parts_of_a_mask_that_have_no_room_for_more_tokens_are_refused():
    with pytest.raises(UnsupportedError, match="bias"):
        make()(draw(1, 4), mask=Mask(bias=torch.zeros(4, 4)))
