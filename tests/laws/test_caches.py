"""Caches of transformers are found by what comes back, under whatever name; a lost one is red."""

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


class Lost(Renamed):
    """What comes back is not what is read."""

    back = "memory"


class Silent(Renamed):
    """Nothing comes back, and nothing is filled that a parameter's type names."""

    def forward(self, input_ids=None, use_cache=None):
        return super().forward(input_ids, use_cache=False)


def test_a_cache_by_a_third_name_is_tried() -> None:
    assert [one.status for one in check(gpt2(Renamed), causal=True, laws=["streaming"])] == ["held"]


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
