"""Losses of texts that are written at a threshold, and what splits of the prompts realise."""

import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

import everyformer as ef
from everyformer.core.errors import DataError
from everyformer.data.tokenizers.plain import ByteTokenizer
from everyformer.generation.config import Sampling
from everyformer.generation.sampling import generate
from everyformer.genes.depth.early_exits import exit_of, set_threshold
from everyformer.lab.exits import costs as exit_costs_module
from everyformer.lab.exits.calibration import Calibration, Prompt, drawn, drawn_prompts
from everyformer.lab.exits.costs import exit_costs, without_exits
from sequence_laws.flops import count_flops


def model() -> Any:
    torch.manual_seed(1)
    made = ef.create_model(
        "rope", vocabulary=256, width=16, heads=2, layers=4, max_length=64, depth="calm"
    )
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return made.eval()


PROMPTS = [Prompt((5, 9, 11), (7, 7, 7)), Prompt((200, 3), (1, 2, 3)), Prompt((60, 61, 62), (0,))]


def test_texts_are_written_freely_at_the_threshold() -> None:
    made = model()
    calibration = Calibration(made, PROMPTS, None, tokens=6, batch=2)
    for threshold in (0.02, 0.2, None):
        written = calibration.write(threshold)
        for prompt, text in zip(PROMPTS, written, strict=True):
            set_threshold(made, threshold)
            alone = generate(made, list(prompt.tokens), tokens=6, sampling=Sampling(temperature=0))
            assert text == tuple(alone[0].tolist())
    calibration.write(None)
    calibration.write(0.02)
    assert 1 <= calibration.depths[0.02] < calibration.depths[None] == 4


EARLY = [(1, 2, 9, 4), (65, 66), (8, 7)]


@pytest.mark.parametrize(
    ("metric", "followed", "expected"),
    [
        ("tokens", (), [0.25, 0.0, 2 / 3]),
        ("exact", (), [1.0, 0.0, 1.0]),
        # beyond the full model: 1/4 - 0, 1/2 - 1/2, and 0 - 2/3, which is no gain
        ("tokens", [(1, 2, 3, 4), (65, 67), (8, 7)], [0.25, 0.0, 0.0]),
    ],
)
def test_the_distance_of_two_texts_and_the_risk(metric, followed, expected):
    prompts = [Prompt((5,), reference) for reference in followed] or PROMPTS
    kind = ("risk",) if followed else ()
    calibration = Calibration(model(), prompts, None, metric, *kind)
    calibration._full = [(1, 2, 3, 4), (65, 66), (7, 7, 7)]
    calibration.write = lambda threshold: EARLY  # type: ignore[method-assign, assignment]
    np.testing.assert_allclose(calibration.losses(0.5), expected, atol=1e-15)


@pytest.mark.parametrize("metric", ["bleu", "chrf"])
def test_scores_of_a_text_are_sacrebleus(metric: Any) -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    texts = [tuple(b"the cat sat on the mat"), tuple(b"the cat lay on a mat")]
    calibration = Calibration(model(), PROMPTS[:2], ByteTokenizer(), metric)
    calibration._full = [texts[0], texts[0]]
    calibration.write = lambda threshold: texts  # type: ignore[method-assign, assignment]
    sentence = {"bleu": sacrebleu.sentence_bleu, "chrf": sacrebleu.sentence_chrf}[metric]
    score = sentence("the cat lay on a mat", ["the cat sat on the mat"]).score
    np.testing.assert_allclose(calibration.losses(0.5), [0.0, 1 - score / 100], atol=1e-12)


def test_prompts_do_not_overlap_and_know_what_followed() -> None:
    texts = [np.arange(50), np.arange(100, 123)]
    found = drawn_prompts(texts, 4, 3, 100, seed=0)
    assert len(found) == 7 + 3
    for prompt in found:
        whole = (*prompt.tokens, *(prompt.reference or ()))
        assert whole == tuple(range(whole[0], whole[0] + 7))
    some = [drawn_prompts(texts, 4, 3, 5, seed=seed) for seed in (0, 0, 1)]
    assert some[0] == some[1] != some[2]
    with pytest.raises(DataError, match="no text has 60 tokens"):
        drawn_prompts(texts, 40, 20, 5, seed=0)
    with pytest.raises(DataError, match="nothing behind them"):
        Calibration(model(), [Prompt((1,))], None, "tokens", "risk")


def test_all_are_drawn_alike() -> None:
    """Each pair of five as often as the nine others, within three standard errors."""
    pairs = Counter(tuple(drawn("abcde", 2, seed)) for seed in range(1000))
    assert set(pairs) == set(itertools.combinations("abcde", 2))
    assert all(abs(count - 100) < 3 * math.sqrt(1000 * 0.1 * 0.9) for count in pairs.values())
    assert drawn("abc", 9, 0) == ["a", "b", "c"]


def test_costs_count_fills_and_what_decides() -> None:
    made = model()
    calibration = Calibration(made, PROMPTS[:2], None, tokens=5, batch=32)
    costs = exit_costs(calibration, 0.0, rounds=1)
    assert (costs.layers, costs.depth) == (4, 1.0)
    assert [speed.batch for speed in costs.speeds] == [1, 2]
    assert 0 < costs.operations < costs.full_operations
    assert all(min(speed.early, speed.full, speed.plain) > 0 for speed in costs.speeds)
    plain = without_exits(made)
    set_threshold(made, None)
    tokens = torch.tensor([[4, 5, 6]])
    assert torch.equal(plain(tokens).logits, made(tokens).logits)
    assert exit_of(made).full


@pytest.mark.full("seconds each", parts=3)
def test_each_way_costs_what_it_spends_on_its_own_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The full model ends the first text at once, where the early one writes on."""
    torch.manual_seed(3)
    made: Any = ef.create_model(
        "rope", task="seq2seq", vocabulary=12, width=16, heads=2, layers=3, depth="calm"
    )
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    prompts = [Prompt((5, 9, 11, 3, 2)), Prompt((7, 3, 4)), Prompt((6, 1, 8, 8))]
    calibration = Calibration(made.eval(), prompts, None, tokens=9, batch=3)
    tokens = {t: sum(map(len, calibration.write(t))) for t in (0.0, None)}
    assert tokens[0.0] > 1.3 * tokens[None] > 0
    monkeypatch.setattr(exit_costs_module, "_in_turn", lambda ways, _: dict.fromkeys(ways, 4.0))
    costs = exit_costs(calibration, 0.0)
    flops = {t: count_flops(lambda t=t: calibration.write(t)) for t in tokens}
    assert costs.operations * tokens[0.0] == pytest.approx(flops[0.0])
    assert costs.full_operations * tokens[None] == pytest.approx(flops[None])
    for speed in costs.speeds:
        assert [4 * speed.early, 4 * speed.full, 4 * speed.plain] == [
            tokens[0.0], tokens[None], tokens[None],
        ]  # fmt: skip


def test_the_first_token_is_the_full_models_since_prompts_go_through_all_layers() -> None:
    made = model()
    calibration = Calibration(made, [Prompt((n, n + 1, 7)) for n in range(12)], None, tokens=2)
    early, full = calibration.write(0.0), calibration.write(None)
    assert [text[0] for text in early] == [text[0] for text in full]
    set_threshold(made, 0.0)
    tokens = torch.tensor([prompt.tokens for prompt in calibration.prompts])
    assert made(tokens).logits[:, -1].argmax(-1).tolist() != [text[0] for text in full]
