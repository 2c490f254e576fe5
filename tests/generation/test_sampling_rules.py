"""Rules of sampling: Hugging Face's distributions, ends by row, padded batches, modern switches."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import everyformer as ef
from everyformer.cli import main
from everyformer.core.errors import ConfigError, ShapeError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.core.outputs import ModelOutput
from everyformer.core.tasks import LM, PIXELS
from everyformer.data.tokenizers.load import fit_tokenizer
from everyformer.data.tokenizers.plain import ByteTokenizer
from everyformer.family import list_members
from everyformer.generation.config import Sampling
from everyformer.generation.pixels import draw_images
from everyformer.generation.sampling import ENDED, _Rows, generate, penalised, probabilities, stream
from everyformer.models.base import Model
from helpers import build_model, covering, shifted

BYTES = ByteTokenizer()


def small_model(member: str, **options: Any) -> Model:
    sizes = {"width": 16, "layers": 2, "heads": 2, "max_length": 40, "vocabulary": 13}
    return shifted(build_model(member, LM, **{**sizes, **options}))


class Scripted(Model):
    """A 'model' whose row b says ``script[b]`` one token after the other, whatever it reads."""

    def __init__(self, script: Tensor) -> None:
        super().__init__(ef.create_model("aft-simple", LM, width=4, heads=1, layers=1).config)
        self.script, self.calls = script, []

    def forward(self, inputs: Tensor, **given: Any) -> Any:
        # a row is told by its first token, the step by its length
        self.calls.append(inputs[:, 0].tolist())
        row, step = inputs[:, 0], inputs.shape[1] - 1
        logits = torch.zeros(*inputs.shape, self.config.vocabulary)
        logits[torch.arange(len(row)), -1, self.script[row, step]] = 50.0
        return ModelOutput(logits, None, {}, None)

    def init_state(self, *arguments: Any, **options: Any) -> Any:
        raise UnsupportedError("a script has no state")


def said(*texts: str) -> tuple[Scripted, Tensor]:
    """A scripted model and its prompt: a token a row."""
    longest = max(len(text.encode()) for text in texts)
    script = torch.tensor([list(text.encode().ljust(longest, b"~")) for text in texts])
    return Scripted(script), torch.arange(len(texts))[:, None]


def texts_of(made: Tensor) -> list[str]:
    return [bytes(t for t in row if t != ENDED).decode() for row in made.tolist()]


@covering(
    temperature=[0.3, 1.0, 2.5], top_k=[None, 1, 4], top_p=[None, 0.3, 0.9, 1.0],
    penalty=[1.0, 1.7, 0.6],
)  # fmt: skip
def test_the_distribution_is_that_of_huggingface(temperature, top_k, top_p, penalty):
    transformers = pytest.importorskip("transformers")
    made = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(5, 11, generator=made, dtype=torch.float64)
    text = torch.randint(0, 11, (5, 4), generator=made)
    scores = logits.clone()
    if penalty != 1:
        scores = transformers.RepetitionPenaltyLogitsProcessor(penalty)(text, scores)
    scores = transformers.TemperatureLogitsWarper(temperature)(text, scores)
    if top_k is not None:
        scores = transformers.TopKLogitsWarper(top_k)(text, scores)
    if top_p is not None:
        scores = transformers.TopPLogitsWarper(top_p)(text, scores)
    had = torch.zeros(5, 11, dtype=torch.bool).scatter(1, text, True)
    chosen = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    ours = probabilities(penalised(logits, had, penalty), chosen)
    torch.testing.assert_close(ours, scores.softmax(-1), rtol=0, atol=1e-12)


def test_greedy_is_the_distribution_on_the_likeliest() -> None:
    logits = torch.randn(4, 7)
    found = probabilities(logits, Sampling(temperature=0))
    assert torch.equal(found.argmax(-1), logits.argmax(-1))
    assert torch.equal(found.sum(-1), torch.ones(4))


def test_the_smallest_number_of_tokens_is_that_of_huggingface() -> None:
    transformers = pytest.importorskip("transformers")
    logits, ids = torch.randn(2, 9), torch.zeros(2, 3, dtype=torch.long)
    texts = _Rows(ids, None, 9, Sampling(end_token=4, min_tokens=2), None)
    theirs = transformers.MinNewTokensLengthLogitsProcessor(3, 2, 4)
    text = ids
    for _ in range(4):
        assert torch.equal(texts.ruled(logits), theirs(text, logits))
        texts.add(torch.tensor([1, 1]))
        text = torch.cat((text, torch.ones(2, 1, dtype=torch.long)), 1)


@pytest.mark.parametrize("member", ["gpt", "aft-local"])
def test_greedy_text_with_a_penalty_equals_scores_by_hand(member: str) -> None:
    model, prompt = small_model(member), [[3, 5], [7, 7, 1]]
    rule = Sampling(temperature=0, repetition_penalty=1.8)
    found = generate(model, prompt, tokens=9, sampling=rule)
    for row, start in zip(found.tolist(), prompt, strict=True):
        text = list(start)
        for _ in range(9):
            scores = model(torch.tensor([text])).logits[0, -1].tolist()
            for token in set(text):
                scores[token] *= 1.8 if scores[token] < 0 else 1 / 1.8
            text.append(max(range(13), key=scores.__getitem__))
        assert row == text[len(start) :]


def test_padding_is_not_taken_for_a_repetition() -> None:
    ids = torch.tensor([[9, 9, 5], [1, 2, 3]])
    padding_mask = torch.tensor([[False, False, True], [True] * 3])
    texts = _Rows(ids, padding_mask, 11, Sampling(repetition_penalty=2.0), None)
    assert texts.had is not None
    assert [row.nonzero().flatten().tolist() for row in texts.had] == [[5], [1, 2, 3]]


def test_each_row_ends_with_its_own_end_token_and_is_worked_on_no_more() -> None:
    model, prompt = said("ab.cde", "wxyz.v", "......")
    rule = Sampling(temperature=0, end_token=ord("."))
    made = generate(model, prompt, tokens=6, sampling=rule)
    assert texts_of(made) == ["ab.", "wxyz.", "."]
    assert made.shape == (3, 5)
    assert model.calls == [[0, 1, 2], [0, 1], [0, 1], [1], [1]]


@pytest.mark.parametrize(
    ("stop", "least", "expected"),
    [
        (("\n\n",), 0, ["one\n\n", "a\nb\nc\n\n"]),
        (("\n",), 0, ["one\n", "a\n"]),
        (("ne", "c"), 0, ["one", "a\nb\nc"]),
        (("東",), 0, ["one\n\ntwo 東", "a\nb\nc\n\nd~~~~"]),
        (("\n",), 4, ["one\n", "a\nb\n"]),
    ],
)
def test_a_text_ends_as_soon_as_it_is_long_enough_and_holds_a_stop_string(stop, least, expected):
    model, prompt = said("one\n\ntwo 東", "a\nb\nc\n\nd")
    rule = Sampling(temperature=0, stop=stop, min_tokens=least)
    assert texts_of(generate(model, prompt, tokens=12, sampling=rule, tokenizer=BYTES)) == expected


def test_the_prompt_does_not_stop_what_follows_it() -> None:
    model = small_model("rope", vocabulary=256)
    prompt = [list(b"a\n\n")]
    rule = Sampling(temperature=0, stop=("\n\n",))
    assert generate(model, prompt, tokens=1, sampling=rule, tokenizer=BYTES).shape == (1, 1)
    assert len(list(stream(model, prompt, tokens=5, sampling=rule, tokenizer=BYTES))) > 1


@pytest.mark.parametrize("tokenizer", ["chars", "bpe:270"])
def test_stop_strings_are_found_in_every_kind_of_token(tokenizer: str) -> None:
    text = "the cat, the dog; the end of naïve 東京 talk. the cat"
    made = fit_tokenizer(tokenizer, [text * 4])
    tokens = made.encode(text)
    for stop in ("dog", "; t", "naïve", "京", "cat, the d", "talk"):
        rule = Sampling(stop=(stop,))
        texts = _Rows(torch.zeros(1, 1, dtype=torch.long), None, 400, rule, made)
        ended = next(
            n for n, token in enumerate(tokens, 1) if not len(texts.add(torch.tensor([token])))
        )
        assert stop in made.decode(tokens[:ended])
        assert stop not in made.decode(tokens[: ended - 1])


@pytest.mark.dear("padding is in the laws of every member")
@pytest.mark.parametrize("member", [m.name for m in list_members(task=LM, abilities=("padding",))])
def test_prompts_of_different_length_and_ends_equal_prompts_alone(member: str) -> None:
    prompts = [[5, 6], [1, 2, 3, 4, 0], [7], [8, 8, 2]]
    # an end token that cuts at least one row and leaves another; some draws write but one token
    ends: list[int] = []
    for seed in range(9):
        model = small_model(member, seed=seed)
        free = generate(model, prompts, tokens=10, sampling=Sampling(temperature=0))
        if ends := [int(t) for t in free.flatten() if (free != t).all(1).any()]:
            break
    end = ends[0]
    rule = Sampling(temperature=0, end_token=end, repetition_penalty=1.1)
    together = generate(model, prompts, tokens=10, sampling=rule)
    for row, prompt in zip(together, prompts, strict=True):
        alone = generate(model, prompt, tokens=10, sampling=rule)[0]
        assert torch.equal(row[: len(alone)], alone)
        assert (row[len(alone) :] == ENDED).all()


def test_lists_and_a_padded_tensor_are_the_same_prompt() -> None:
    model = small_model("gpt")
    padding_mask = torch.tensor([[False, True, True], [True, True, True]])
    ids = torch.tensor([[12, 5, 6], [1, 2, 3]])
    for seed in (0, 1):
        rule = Sampling(seed=seed, top_p=0.9)
        first = generate(model, [[5, 6], [1, 2, 3]], tokens=6, sampling=rule)
        mask = Mask(padding_mask=padding_mask)
        assert torch.equal(generate(model, ids, tokens=6, sampling=rule, mask=mask), first)
    with pytest.raises(ShapeError, match="a prompt is empty"):
        generate(model, [[1], []], tokens=1)


def test_rules_that_cannot_be_kept_are_refused() -> None:
    for options, message in (
        ({"repetition_penalty": 0.0}, "`repetition_penalty` must be above 0"),
        ({"repetition_penalty": float("nan")}, "`repetition_penalty` must be above 0"),
        ({"stop": ("",)}, "`stop` holds an empty text"),
        ({"end_token": -1}, "`end_token` must be at least 0"),
        ({"min_tokens": -2}, "`min_tokens` must be at least 0"),
    ):
        with pytest.raises(ConfigError, match=message):
            Sampling(**options)
    model = small_model("gpt")
    with pytest.raises(ConfigError, match="stop strings need the tokenizer"):
        generate(model, [1], tokens=1, sampling=Sampling(stop=("a",)))
    with pytest.raises(ConfigError, match="`end_token` is 13, but the model has 13 tokens"):
        generate(model, [1], tokens=1, sampling=Sampling(end_token=13))
    pixels = ef.create_model("aft-simple", PIXELS, width=8, heads=2, layers=1, image=(1, 2, 2))
    with pytest.raises(ConfigError, match="`stop` is for texts"):
        draw_images(pixels, 1, Sampling(stop=("a",)))


def test_prompts_on_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVERYFORMER_CACHE", str(tmp_path / "cache"))
    Path("text.txt").write_text("one two\n\nthree " * 60, encoding="utf-8")
    Path("prompts.txt").write_text("one\ntwo t\n", encoding="utf-8")
    sizes = ("--width", "16", "--layers", "1", "--heads", "2", "--length", "32", "--batch", "4")
    short = ("--steps", "2", "--training.threads", "1", "--out", "lm")
    assert (
        main(("train", "rope", "--data", "text.txt", "--tokenizer", "chars", *sizes, *short)) == 0
    )

    def said(*words: str) -> str:
        capsys.readouterr()
        assert main(("generate", "lm", "--tokens", "6", "--temperature", "0", *words)) == 0
        return capsys.readouterr().out

    alone = [said("--prompt", text).removesuffix("\n") for text in ("one", "two t")]
    for words in (("--prompt", "one", "--prompt", "two t"), ("--prompts", "prompts.txt")):
        rows = [json.loads(line) for line in said(*words).splitlines()]
        assert [row["prompt"] + row["text"] for row in rows] == alone
    made = alone[0].removeprefix("one")
    letter = made[1].replace("\n", "\\n")
    assert said("--prompt", "one", "--stop", letter) == f"one{made[: made.index(made[1]) + 1]}\n"
    for words, told in (
        (("--prompt", "a", "--prompts", "prompts.txt"), "leave one of them out"),
        (("--prompt", "é"), "which the training text never had"),
        (("--prompt", "one", "--prompt", ""), "prompt 2 of 2 is empty"),
    ):
        assert main(("generate", "lm", *words)) == 2
        assert told in capsys.readouterr().err
