"""Decoding: states give what recomputing gives, and draws follow the distribution they should."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from everyformer.core.errors import ConfigError, ResourceError, ShapeError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.core.tasks import LM, PIXELS
from everyformer.family import list_members
from everyformer.generation import pixels, sampling
from everyformer.generation.config import Sampling
from everyformer.generation.sampling import draw, generate, probabilities, stream
from everyformer.models.base import Model
from helpers import build_model, shifted

LANGUAGE = [m.name for m in list_members(task=LM)]
STREAMING = [m.name for m in list_members(task=LM, abilities=("streaming",))]


def small_model(member: str, task: str = LM, **options: Any) -> Model:
    sizes = {"width": 16, "layers": 2, "heads": 2, "max_length": 24, "vocabulary": 13}
    # far from uniform, so that a small difference changes a token
    return shifted(build_model(member, task, **{**sizes, **options}))


def recomputed(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on no model is given a state."""
    for module in (sampling, pixels):
        monkeypatch.setattr(module, "initial_state", lambda model, batch: None)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn(logits: Tensor, many: int = 4000, **options: Any) -> Tensor:
    """Relative frequencies of ``many`` draws from one row of logits."""
    tokens = draw(logits.expand(many, -1), Sampling(**options), generator())
    return torch.bincount(tokens, minlength=logits.shape[-1]) / many


@pytest.mark.dear("streaming is in the laws of every member")
@pytest.mark.parametrize("choice", [{"temperature": 0.0}, {"top_k": 5, "seed": 3}])
@pytest.mark.parametrize("member", LANGUAGE)
def test_streamed_tokens_equal_recomputed_ones(member, choice, monkeypatch):
    model, prompt = small_model(member), torch.tensor([[1, 2, 3], [4, 0, 12]])
    streamed = generate(model, prompt, tokens=20, sampling=Sampling(**choice))
    recomputed(monkeypatch)
    assert torch.equal(generate(model, prompt, tokens=20, sampling=Sampling(**choice)), streamed)


@pytest.mark.dear("padding is in the laws of every member")
@pytest.mark.parametrize("places", [((0, 1), (0, 1, 2, 3, 4)), ((0, 4), (2,))])
@pytest.mark.parametrize("member", LANGUAGE)
def test_prompts_padded_anywhere_continue_as_each_alone(member, places, monkeypatch):
    model, greedy = small_model(member), Sampling(temperature=0.0)
    ids, padding_mask = torch.full((2, 5), 7), torch.zeros(2, 5, dtype=torch.bool)
    rows = [[3, 9, 1, 4, 12][: len(at)] for at in places]
    for row, at in enumerate(places):
        ids[row, list(at)], padding_mask[row, list(at)] = torch.tensor(rows[row]), True
    alone = torch.cat([generate(model, [row], tokens=8, sampling=greedy) for row in rows])
    mask = Mask(padding_mask=padding_mask)
    assert torch.equal(generate(model, ids, tokens=8, mask=mask, sampling=greedy), alone)
    recomputed(monkeypatch)
    assert torch.equal(generate(model, ids, tokens=8, mask=mask, sampling=greedy), alone)


def test_a_row_of_padding_alone_is_no_prompt() -> None:
    model, padding_mask = small_model("attention"), torch.tensor([[True, True], [False, False]])
    with pytest.raises(ShapeError, match="a prompt is empty"):
        generate(model, torch.ones(2, 2).long(), tokens=1, mask=Mask(padding_mask=padding_mask))
    with pytest.raises(UnsupportedError, match="cannot honour the mask part"):
        stream(model, torch.ones(2, 2).long(), mask=Mask(documents=torch.zeros(2, 2).long()))


def test_the_same_seed_gives_the_same_text_and_another_seed_another() -> None:
    model = small_model("aft-simple")
    texts = [generate(model, [1], tokens=12, sampling=Sampling(seed=s)) for s in (0, 0, 1)]
    assert torch.equal(texts[0], texts[1])
    assert not torch.equal(texts[0], texts[2])


def test_the_callers_random_numbers_and_mode_stay_as_they_were() -> None:
    model = small_model("gmlp").train()
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    generate(model, [1], tokens=3)
    assert torch.equal(torch.rand(3), expected)
    assert model.training


@pytest.mark.parametrize("member", ["aft-simple", "rope"])
def test_without_a_number_of_tokens_it_goes_on_for_ever(member: str) -> None:
    model = small_model(member)
    tokens = list(itertools.islice(stream(model, [1, 2]), 60))
    assert len(tokens) == 60
    assert all(token.shape == (1,) for token in tokens)
    first = generate(model, [1, 2], tokens=10)
    assert torch.equal(torch.stack(tokens, 1)[:, :10], first)


def test_a_table_over_positions_ends_the_text_with_an_error() -> None:
    model = small_model("aft-full")
    made = stream(model, [1, 2])
    assert len(list(itertools.islice(made, 22))) == 22
    with pytest.raises(ShapeError, match="max_length=24"):
        list(itertools.islice(made, 5))


def test_wrong_prompts_and_options_are_refused() -> None:
    model = small_model("gmlp")
    for empty in ([], torch.empty(2, 0, dtype=torch.long)):
        with pytest.raises(ShapeError, match="the prompt is empty"):
            generate(model, empty, tokens=1)
    assert generate(model, torch.ones(3, 2).long(), tokens=0).shape == (3, 0)
    with pytest.raises(ConfigError, match="`tokens` must be 0 or more, not -1"):
        generate(model, [1], tokens=-1)
    for wrong in ({"temperature": -1.0}, {"top_k": 0}, {"top_p": 0.0}, {"top_p": 1.1}):
        with pytest.raises(ConfigError, match=f"`{next(iter(wrong))}` must be"):
            Sampling(**wrong)  # type: ignore[arg-type]


LOGITS = torch.tensor([[2.0, 0.5, 3.0, -1.0, 1.0, 0.0]])


@pytest.mark.parametrize(
    "options",
    [{"temperature": 0.5}, {"temperature": 2.0}, {"top_k": 1}, {"top_k": 4}, {"top_p": 0.05},
     {"top_p": 0.8}, {"top_k": 2, "top_p": 0.7}],
    ids=str,
)  # fmt: skip
def test_draws_follow_the_distribution(options: dict[str, Any]) -> None:
    """Which is held to Hugging Face's (test_sampling_rules)."""
    expected = probabilities(LOGITS, Sampling(**options))[0]
    found = drawn(LOGITS, **options)
    # four standard deviations of a share of 4000 draws are at most 0.032
    assert torch.allclose(found, expected, atol=0.032)
    assert not found[expected == 0].any()


def test_images_need_a_pixel_model_and_a_number() -> None:
    with pytest.raises(UnsupportedError, match="LanguageModel"):
        pixels.draw_images(small_model("gmlp"), 1)
    with pytest.raises(ConfigError, match="at least 1, not 0"):
        pixels.draw_images(small_model("gmlp", PIXELS, image=(1, 2, 2)), 0)
    with pytest.raises(ResourceError, match=r"drawing 100,000,000,000 images needs at least 2\.9"):
        pixels.draw_images(small_model("gmlp", PIXELS, image=(1, 2, 2)), 10**11)
    model = small_model("aft-simple", PIXELS, image=(2, 3, 2)).train()
    first, again, other = (pixels.draw_images(model, 3, Sampling(seed=s)) for s in (2, 2, 3))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert model.training


@pytest.mark.parametrize("prompt", [[3, 13], [[1, 2], [-1]]])
def test_a_token_beyond_the_vocabulary_is_named(prompt: Any) -> None:
    model = small_model("linear")
    strange = 13 if prompt == [3, 13] else -1
    said = f"the prompt has the token {strange}, but the model knows 13, 0 to 12: encode it"
    for writes in (stream, generate):
        with pytest.raises(ShapeError, match=said):
            writes(model, prompt, tokens=1)
