"""Beam search: exact where it can be exhaustive, greedy where it has one beam, equal to others'."""

import itertools
import math
import tempfile

import pytest
import torch

from everyformer.core.errors import ResourceError
from everyformer.core.mask import Mask
from everyformer.generation.beam import Hypothesis, beam_search
from everyformer.generation.config import BeamConfig
from helpers import build_model, shifted

VOCABULARY, END, START = 4, 3, 2


def small(member="transformer", **options):
    sizes = {"width": 8, "heads": 2, "layers": 1, "max_length": 12} | options
    ends = {"vocabulary": VOCABULARY, "start_token": START, "end_token": END}
    model = build_model(member, "seq2seq", dtype=torch.float32, **ends, **sizes)
    return shifted(model, 0.7).double().requires_grad_(False)


def log_probability(model, source, target):
    prefix = torch.tensor([[START, *target[:-1]]])
    logits = model(source, prefix=prefix).logits.log_softmax(-1)
    return sum(float(logits[0, t, token]) for t, token in enumerate(target))


def exhaustive(model, source, longest, search):
    """Every target that ends within ``longest`` tokens, best first; none holds the start."""
    found = []
    for length in range(1, longest + 1):
        inner = [t for t in range(VOCABULARY) if t not in (START, END)]
        for body in itertools.product(inner, repeat=length - 1):
            logp = log_probability(model, source, [*body, END])
            found.append(Hypothesis(logp / search.normaliser(length), body))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.0, -0.5])
@pytest.mark.parametrize("penalty", ["gnmt", "length"])
def test_a_beam_as_wide_as_all_targets_finds_the_best_of_all(alpha, penalty):
    model = small()
    source = torch.tensor([[0, 1]])
    search = BeamConfig(beam=81, alpha=alpha, penalty=penalty, extra=2)
    expected = exhaustive(model, source, 4, search)
    [found] = beam_search(model, source, search=search)
    for one, other in zip(found[:10], expected[:10], strict=True):
        assert one.score == pytest.approx(other.score, abs=1e-10)
        assert one.tokens == other.tokens


def test_one_beam_is_greedy_decoding():
    for seed in range(5):
        model = small(seed=seed)
        source = torch.tensor([[0, 1, 1]])
        [[found]] = beam_search(model, source, search=BeamConfig(beam=1, extra=5))
        prefix, greedy = [START], []
        while len(greedy) < 8:
            token = int(model(source, prefix=torch.tensor([prefix])).logits[0, -1].argmax())
            if token == END:
                break
            greedy.append(token)
            prefix.append(token)
        assert found.tokens == tuple(greedy)
        assert found.ended == (len(greedy) < 8)


@pytest.mark.parametrize(("member", "beam"), [("transformer", 3), ("aft-local", 1), ("gmlp", 3)])
def test_a_padded_batch_finds_what_every_sentence_finds_alone(member, beam):
    model, search = small(member), BeamConfig(beam=beam, extra=4)
    lengths, longest = (2, 5, 1, 3), 5
    source = torch.randint(0, 3, (4, longest))
    together = beam_search(model, source, Mask.from_lengths(torch.tensor(lengths), longest), search)
    for n, length in enumerate(lengths):
        [alone] = beam_search(model, source[n : n + 1, :length], search=search)
        assert [h.tokens for h in together[n]] == [h.tokens for h in alone]
        for one, other in zip(together[n], alone, strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-10)


def test_scores_are_those_of_teacher_forcing_and_states_change_nothing(monkeypatch):
    model, source = small(layers=2), torch.randint(0, 3, (2, 4))
    search = BeamConfig(beam=3, extra=3)
    found = beam_search(model, source, search=search)
    for n, hypotheses in enumerate(found):
        for hypothesis in hypotheses:
            target = [*hypothesis.tokens, END][: None if hypothesis.ended else -1]
            logp = log_probability(model, source[n : n + 1], target)
            assert hypothesis.score == pytest.approx(
                logp / search.normaliser(len(target)), abs=1e-10
            )
    monkeypatch.setattr("everyformer.generation.beam.initial_state", lambda model, rows: None)
    again = beam_search(model, source, search=search)
    assert [[h.tokens for h in hs] for hs in again] == [[h.tokens for h in hs] for hs in found]


@pytest.mark.parametrize(("end", "length", "ended"), [(50.0, 0, True), (-math.inf, 5, False)])
def test_a_target_ends_at_its_first_step_or_is_cut_off_and_says_so(end, length, ended):
    model = small()
    model.head.weight.data.zero_()
    bias = torch.zeros(VOCABULARY, dtype=torch.float64)
    bias[END] = end
    model.head.bias = torch.nn.Parameter(bias)
    [[best, *_]] = beam_search(model, torch.tensor([[0, 1]]), search=BeamConfig(beam=2, extra=3))
    assert (len(best.tokens), best.ended) == (length, ended)


@pytest.mark.parametrize(("alpha", "beam"), [(0.0, 4), (1.0, 2), (1.0, 4)])
def test_beam_search_equals_marian_of_transformers(alpha, beam):
    transformers = pytest.importorskip("transformers")
    from everyformer.lab.convert import import_checkpoint

    torch.manual_seed(0)
    config = transformers.MarianConfig(
        vocab_size=23, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, pad_token_id=22,
        eos_token_id=0, decoder_start_token_id=22, forced_eos_token_id=None, max_length=None,
        activation_function="relu", scale_embedding=True, max_position_embeddings=40, dropout=0.0,
    )  # fmt: skip
    theirs = transformers.MarianMTModel(config).double().eval()
    for weight in theirs.parameters():
        if weight.dim() > 1 and weight.requires_grad:
            torch.nn.init.normal_(weight, std=0.6)
    torch.nn.init.normal_(theirs.model.shared.weight, std=0.25)
    theirs.final_logits_bias.normal_()
    theirs.final_logits_bias[0, 0] += 1.5
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours = import_checkpoint(folder).model.double()
    source, prefix = torch.randint(1, 22, (12, 6)), torch.randint(1, 22, (12, 5))
    with torch.no_grad():
        expected = theirs(input_ids=source, decoder_input_ids=prefix).logits
        # both make the waves in float32, by other steps
        got = ours(source, prefix=prefix).logits
        torch.testing.assert_close(got, expected, rtol=0, atol=2e-6)
    made = theirs.generate(
        source, num_beams=beam, length_penalty=alpha, max_new_tokens=12, do_sample=False,
        early_stopping="never" if alpha else False,
    )  # fmt: skip
    search, alike = BeamConfig(beam=beam, alpha=alpha, penalty="length", extra=6), 0
    for row, [best, *_] in zip(
        made[:, 1:].tolist(), beam_search(ours, source, search=search), strict=True
    ):
        body = row[: row.index(0)] if 0 in row else row
        # theirs lets what was cut off at the longest length compete with what has ended
        if best.ended == (0 in row):
            assert best.tokens == tuple(body)
            alike += 1
    assert alike >= 8


def test_a_beam_that_fits_into_no_memory_is_refused_before_it_begins():
    model = build_model("transformer", "seq2seq", dtype=torch.float32, width=8, heads=2, layers=1)
    with pytest.raises(ResourceError, match="a beam of 100,000,000,000 for each of 3 sentences"):
        beam_search(model, torch.zeros(3, 4, dtype=torch.long), search=BeamConfig(beam=10**11))
