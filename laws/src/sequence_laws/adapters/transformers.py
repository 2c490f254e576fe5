"""Models of transformers: masks and positions by their words, caches, and each way to attend.

A name is a kind of model (``gpt2``), a class (``GPT2LMHeadModel``), or a local folder; it is built
from a small configuration (`small_configs`) with random weights, so that nothing is downloaded.
"""

import copy
import functools
import os
import re
from collections.abc import Iterator
from typing import Any, Self

import torch
from torch import Tensor, nn

from sequence_laws.adapters.continued import Continued
from sequence_laws.calls import PlainCall
from sequence_laws.errors import ShapeError
from sequence_laws.extras import extra_module
from sequence_laws.foreign import FAILURES
from sequence_laws.inputs import Inputs, first
from sequence_laws.rounding import doubled
from sequence_laws.subject import Subject

_OTHER = re.compile(
    "encoder_(hidden|outputs)|pixel_values|input_features|shape_ids|entity_ids|global_attention"
    "|target_mapping"
)
OTHERS = re.compile(
    "encoder_attn|cross_?att|vision|visual|image|audio|multi_?modal|projector|_extend|entity"
    "|(shape|pronunciation|patch|mask|seg)_emb|w2e_|e2w_|e2e_|_global|modality|connector|r_s_bias"
)
"""parameters that read what comes from an encoder, pictures, sound or other ids, which no text
gives, and words by which these are given"""
ATTENDS = ("eager", "sdpa")


class PreTrained(Continued):
    """A model of transformers."""

    keeps = False
    """whether a pass keeps a cache, as by default, where ``use_cache`` is taken"""
    embeds = False
    """whether it is given the embeddings of its tokens"""

    def __init__(self, model: nn.Module, name: str, inputs: Inputs, **known: Any) -> None:
        super().__init__(model, name, inputs, **known)
        if "decoder_attention_mask" in self.words:
            self.unmasked = "its decoder has a mask of its own"
        elif "attention_mask" in self.words:
            self.masks = ("right", "left", "holes")
        else:
            self.unmasked = self.lacks("it takes no mask", ("attention_mask",))
        self.unpacked = self.lacks("it takes no documents", ("position_ids",))
        self.label_word = "labels" if "labels" in self.words else None
        self.counts_padding = "position_ids" not in self.words
        self.mixed = bool(getattr(model, "_keep_in_fp32_modules_strict", None))
        if any(_OTHER.search(word) for word in self.words):
            self.idle = OTHERS
        if self.causal and "position_ids" in self.words:
            self.packs, self.separates = "position_ids", False

    def call(self, model: nn.Module, x: Tensor, padding_mask: Tensor | None = None) -> Any:
        """One pass without a cache; positions count what is real."""
        if self.bare and padding_mask is not None and self.padding_token is not None:
            x = x.where(padding_mask, self.padding_token)
        return self.given(model, x, **self.masked(padding_mask))

    def plain_calls(self) -> Iterator[PlainCall]:
        """With a cache, as by default; with a mask of ones, as tokenizers give; with a mask alone,
        as collators do."""
        documents = ("packing",) if self.packs else ()
        if "use_cache" in self.words:
            kept = self.otherwise(keeps=True, separates=True)
            yield PlainCall("with use_cache as by default", "pass use_cache=False", kept, documents)
        if self.masks:
            ones = self.otherwise(ones=True, separates=True)
            yield PlainCall("with a mask of ones", "pass no attention_mask", ones, documents)
        if self.masks and "position_ids" in self.words:
            places = "pass position_ids=(attention_mask.cumsum(1) - 1).clamp(0)"
            bare = self.otherwise(bare=True)
            yield PlainCall("with attention_mask alone", places, bare, ("padding", "streaming"))

    def call_code(self, x: str, padding_mask: str | None = None) -> str:
        """The Python of it."""
        real = self.real_code(x, padding_mask)
        given = f", **encoded(len({x}))" if self.states is not None else ""
        cache = "" if self.keeps or "use_cache" not in self.words else ", use_cache=False"
        mask = "" if real is None else f", attention_mask={real}.long()"
        if padding_mask is not None and "position_ids" in self.words and not self.bare:
            mask += f", position_ids=({padding_mask}.cumsum(1) - 1).clamp(0) + {self.place_0}"
        if self.bare and padding_mask is not None and self.padding_token is not None:
            x = f"{x}.where({padding_mask}, {self.padding_token})"
        if self.embeds:
            given = f", inputs_embeds=model.get_input_embeddings()({x}){given}"
            return f"model({given[2:]}{cache}{mask}){self.place}"
        word = "input_ids" if self.inputs.vocabulary is not None else "inputs_embeds"
        return f"model({word}={x}{given}{cache}{mask}){self.place}"

    def _reads(self, model: Any, x: Tensor) -> dict[str, Any]:
        if self.embeds:
            given = {"inputs_embeds": model.get_input_embeddings()(x)}
        else:
            given = {"input_ids" if self.inputs.vocabulary is not None else "inputs_embeds": x}
        if "use_cache" in self.words and not self.keeps:
            given["use_cache"] = False
        if self.states is not None:
            given["encoder_hidden_states"] = self.states.to(model.dtype).repeat(len(x), 1, 1)
            given["encoder_attention_mask"] = states_mask(self.states).expand(len(x), -1)
        return {**given, **self.masked(self.real(x, None))}

    def masked(self, real: Tensor | None) -> dict[str, Tensor]:
        """A mask, with positions that count what is real."""
        if real is None:
            return {}
        arguments = {"attention_mask": real.long()}
        places = (real.cumsum(1) - 1).clamp(min=0)
        moved = (places != torch.arange(real.shape[1], device=real.device)) & real
        if "position_ids" in self.words and not self.bare and bool(moved.any()):
            arguments["position_ids"] = places + self.place_0
        return arguments

    @functools.cached_property
    def place_0(self) -> int:
        """The place of the first input: 0, or behind that of padding, as RoBERTa has it."""
        model, x = self.copy(), self.inputs.draw(1, 5)
        places = torch.arange(5)[None]
        with torch.no_grad(), doubled():  # it may be asked where that is so
            y = first(model(**self._reads(model, x)))
            given = (first(self.given(model, x, position_ids=places + n)) for n in range(4))
            return next((n for n, other in enumerate(given) if torch.equal(y, other)), 0)

    def given(self, model: nn.Module, x: Tensor, **more: Any) -> Any:
        """One pass without a cache, with more words."""
        return model(**{**self._reads(model, x), **more})

    def as_graph(self, model: nn.Module) -> nn.Module:
        """The model with experts that are no loop."""
        if self._experts():
            model.set_experts_implementation("batched_mm")  # type: ignore[operator]
        return model

    def as_graph_code(self) -> list[str]:
        """The Python of it."""
        return ["model.set_experts_implementation('batched_mm')"] if self._experts() else []

    def _experts(self) -> bool:
        return getattr(self.model.config, "_experts_implementation", None) is not None

    def variants(self) -> Iterator[tuple[str, Self]]:
        """The model with each implementation of attention that it takes."""
        for way in ATTENDS:
            other = self.otherwise(model=copy.deepcopy(self.model))
            try:
                other.model.set_attn_implementation(way)
            except Exception:  # it has no other way: it is tried as it is
                if way == ATTENDS[0]:
                    yield "", self
                return
            if getattr(self.model.config, "_attn_implementation", None) != way:
                other.build = (*self.build, f"model.set_attn_implementation({way!r})")
            yield f"attention {way}", other

    def flexible(self) -> Iterator[Self]:
        """The model with flex attention, where its class takes it."""
        # the place is found now, without its compiler
        other = self.otherwise(model=copy.deepcopy(self.model), place_0=self.place_0)
        other.model.set_attn_implementation("flex_attention")
        other.build = (*self.build, "model.set_attn_implementation('flex_attention')")
        yield other

    def contexts(self) -> Iterator[tuple[str, Self]]:
        """With the states of an encoder, where it reads such."""
        if not {"encoder_hidden_states", "encoder_attention_mask"} <= self.words:
            return
        config: Any = copy.deepcopy(self.model.config)
        model, build = self.model, self.build
        if getattr(config, "add_cross_attention", True) is False:
            config.add_cross_attention = True
            torch.manual_seed(0)
            try:
                model = type(model)(config)
            except Exception:  # it has the word, and no such layers
                return
            at = next(n for n, line in enumerate(build) if line.startswith("model"))
            build = (*build[:at], "config.add_cross_attention = True", *build[at:])
        width = config.get_text_config().hidden_size
        drawn = f"torch.randn(7, {width}, generator=torch.Generator().manual_seed(2))"
        states = torch.randn(7, width, generator=torch.Generator().manual_seed(2))
        build = (
            *build,
            f"states = {drawn}.double()",
            "real = (torch.arange(7) < 5).long()",
            "encoded = lambda n: {'encoder_hidden_states': states.repeat(n, 1, 1),",
            "                     'encoder_attention_mask': real.expand(n, -1)}",
        )
        other = self.otherwise(model=model.eval(), states=states, build=build, make=None)
        try:
            other.exact(self.inputs.draw(1, self.usual()))
        except ShapeError:  # they stand before the inputs, and are no context
            return
        except FAILURES:  # which is a law's
            pass
        yield "with the states of an encoder", other

    def encodings(self) -> Iterator[tuple[str, Self]]:
        """From embeddings; with other states in the padding of an encoder."""
        if self.states is not None:
            changed = self.states + 3 * (1 - states_mask(self.states))[:, None]
            build = (*self.build, "states = states + 3 * (1 - real)[:, None]")
            words = "with other states in the padding of the encoder"
            yield words, self.otherwise(states=changed, build=build)
        if "inputs_embeds" in self.words and self.inputs.vocabulary is not None:
            yield "from inputs_embeds", self.otherwise(embeds=True)


def states_mask(states: Tensor) -> Tensor:
    """(n,), 1 at states of an encoder that are no padding."""
    return (torch.arange(len(states)) < len(states) - 2).long()


def pretrained(model: nn.Module, name: str, **known: Any) -> Subject | None:
    """The subject of a live model of transformers."""
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "get_text_config"):
        return None
    if known.get("causal") is None:
        known["causal"] = reads_one_way(type(model).__name__, config)
    text = config.get_text_config()
    special = [
        value
        for key, value in text.to_dict().items()
        if key.endswith("token_id") and type(value) is int and 0 <= value < text.vocab_size // 2
    ]
    inputs = Inputs(vocabulary=text.vocab_size, first=max(special, default=-1) + 1)
    subject = PreTrained(model, name, inputs, **known)
    with torch.no_grad():
        result = subject.call(subject.copy(torch.float32), inputs.draw(1, 8))
    subject.place = ".logits" if hasattr(result, "logits") else ".last_hidden_state"
    return subject


def reads_one_way(name: str, config: Any) -> bool:
    """True if a class claims to be causal: it writes, and its configuration does not deny it."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as WRITING

    ends = ("ForCausalLM", "LMHeadModel", "DoubleHeadsModel")
    known = (one if isinstance(one, tuple) else (one,) for one in WRITING.values())
    writes = name.endswith(ends) or any(name in names for names in known)
    denied = any(getattr(config, word, True) is False for word in ("is_decoder", "causal"))
    return writes and not denied and getattr(config, "attn_type", "uni") != "bi"  # XLNet's word


def wanted(purpose: str) -> Any:
    """transformers, as it is installed."""
    return extra_module("transformers", "hf", purpose, of="sequence-laws")


def quiet_library(purpose: str) -> Any:
    """transformers, which then neither downloads nor warns, here and in processes started later."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    return wanted(purpose)
