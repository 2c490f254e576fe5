"""Caches of transformers are found by what comes back, under whatever name; a lost one is red."""

import subprocess
import sys
from inspect import signature

import pytest
import torch

from sequence_laws import check

transformers = pytest.importorskip("transformers")

from sequence_laws.adapters.hugging_face import hugging_face  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of transformers
[THEIRS] = {"cache", "past_key_values"} & {
    *signature(transformers.GPT2LMHeadModel.forward).parameters
}


def gpt2(kind: type) -> torch.nn.Module:
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64}
    return kind(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).eval()


class Renamed(transformers.GPT2LMHeadModel):
    """A third name: ``past`` is read, and comes back."""

    back = "past"

    def forward(self, input_ids=None, use_cache=None, past=None):
        out = super().forward(input_ids, use_cache=use_cache, **{THEIRS: past})
        return {self.back if name == THEIRS else name: value for name, value in out.items()}


class Untold(transformers.GPT2LMHeadModel):
    """No signature tells the name."""

    def forward(self, input_ids=None, use_cache=None, **words):
        out = super().forward(input_ids, use_cache=use_cache, **{THEIRS: words.get("past")})
        return {"past" if name == THEIRS else name: value for name, value in out.items()}


class NoFlag(transformers.GPT2LMHeadModel):
    """Nothing asks for a cache: it comes back."""

    def forward(self, input_ids=None, past=None):
        out = super().forward(input_ids, use_cache=True, **{THEIRS: past})
        return {"past" if name == THEIRS else name: value for name, value in out.items()}


class Lost(Renamed):
    """What comes back is not what is read."""

    back = "memory"


class Silent(Renamed):
    """Nothing comes back, and nothing is filled that a parameter's type names."""

    def forward(self, input_ids=None, use_cache=None):
        return super().forward(input_ids, use_cache=False)


@pytest.mark.parametrize("kind", [Renamed, Untold, NoFlag])
def test_a_cache_by_a_third_name_is_tried(kind: type) -> None:
    [told] = check(gpt2(kind), causal=True, laws=["streaming"])
    assert told.status == "held", told.detail
    assert "8 splits" in told.detail


class Fixed(transformers.GPT2LMHeadModel):
    """Others than of a `DynamicCache` with one of a fixed size."""

    def forward(self, input_ids=None, use_cache=None, **words):
        out = super().forward(input_ids, use_cache=use_cache, **words)
        if isinstance(words.get(THEIRS), transformers.StaticCache):
            out.logits = 1.01 * out.logits
        return out


class Refuses(transformers.GPT2LMHeadModel):
    def forward(self, input_ids=None, use_cache=None, **words):
        if isinstance(words.get(THEIRS), transformers.StaticCache):
            raise ValueError("no static cache here")
        return super().forward(input_ids, use_cache=use_cache, **words)


class Denies(Fixed):
    _can_compile_fullgraph = False


@pytest.mark.parametrize(
    ("kind", "status", "says"),
    [
        (
            transformers.GPT2LMHeadModel,
            "held",
            "8 splits, of one input at a time and more; a static",
        ),
        (Fixed, "failed", "that end at 1, 2, 3, 4, 5 with a static cache (outputs"),
        (Refuses, "held", "a static cache is refused: "),
        (Denies, "held", "its class claims no static cache"),
    ],
)
def test_a_static_cache_gives_what_one_pass_gives_or_is_refused(kind, status, says) -> None:
    [told] = check(gpt2(kind), causal=True, laws=["streaming"])
    assert told.status == status, told.detail
    assert says in told.detail
    if status == "failed":
        shown = []
        program = told.reproduction.replace("...", "made")
        made = gpt2(kind)
        exec(program, {"made": made, "transformers": transformers, "print": shown.append})
        assert float(shown[0]) > 1e-4


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("MistralForCausalLM", "15 splits, of one input at a time and more; a static cache"),
        ("Gemma2ForCausalLM", "15 splits, of one input at a time and more; a static cache"),
        ("GPTNeoForCausalLM", "its class claims no static cache"),
    ],
)
def test_windows_of_classes_are_gone_around(name: str, words: str) -> None:
    [told] = check(hugging_face(name), laws=["streaming"])
    assert told.status == "held", told.detail
    assert words in told.detail


def test_places_of_roberta_count_padding_behind_a_cache_that_is_given_a_mask_alone() -> None:
    """roberta:154 adds what the cache has read, padding and all; with position_ids it holds."""
    [told] = check(hugging_face("RobertaForCausalLM"), laws=["streaming"])
    assert told.status == "failed_by_default"
    assert told.detail.startswith("with attention_mask alone output 4 of a row with two padding")
    ran = subprocess.run(
        [sys.executable, "-c", told.reproduction], capture_output=True, text=True, check=True
    )
    assert float(ran.stdout.removeprefix("tensor(").partition(",")[0].rstrip(")\n")) > 0.01


def test_a_class_without_a_cache_is_named_with_what_was_looked_for() -> None:
    [told] = check(hugging_face("OpenAIGPTLMHeadModel"), laws=["streaming"])
    assert told.status == "exempt"
    assert told.detail.startswith("it offers no cache: of (input_ids, attention_mask, ")
    assert told.detail.endswith(" none is use_cache, and it takes back nothing")


@pytest.mark.parametrize("kind", [Lost, Silent])
def test_use_cache_without_a_cache_that_can_be_found_breaks_the_law(kind: type) -> None:
    [told] = check(gpt2(kind), causal=True, laws=["streaming"])
    assert told.status == "failed"
    assert "it has use_cache, but gives no cache back that can be found" in told.detail


# (class, what the law says of it): the same in each version of transformers that is tried; those
# that are `EACH` time: found in the outputs, filled where it is given, and none
SAYS = {
    "GPT2LMHeadModel": "held",
    "LlamaForCausalLM": "held",
    "BertGenerationDecoder": "held",
    "GraniteMoeForCausalLM": "held",  # use_cache is none of its words, but of its configuration
    "RwkvForCausalLM": "failed",  # `state`
    "MambaForCausalLM": "failed",  # `cache_params`, later `cache`
    "RecurrentGemmaForCausalLM": "failed",  # fills the one that it is given, gives none back
    "OpenAIGPTLMHeadModel": "exempt",
}


EACH = ("GPT2LMHeadModel", "RecurrentGemmaForCausalLM", "OpenAIGPTLMHeadModel")
REST = [pytest.param(n, marks=pytest.mark.full("3 s each")) for n in SAYS if n not in EACH]


@pytest.mark.parametrize("name", [*EACH, *REST])
def test_the_law_is_tried_where_it_was(name: str) -> None:
    [told] = check(hugging_face(name), laws=["streaming"])
    assert told.status == SAYS[name]
    assert "no cache back" not in told.detail
