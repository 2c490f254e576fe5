"""Models of transformers: masks and positions by their words, caches, and each way to attend.

A name is a kind of model (``gpt2``), a class (``GPT2LMHeadModel``), or a local folder; it is built
from a small configuration (`small_configs`) with random weights, so that nothing is downloaded.
"""

import copy
import functools
import inspect
import itertools
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from sequence_laws.adapters.continued import Continued
from sequence_laws.adapters.plain import loss_in
from sequence_laws.adapters.small_configs import SMALL, small
from sequence_laws.calls import PlainCall
from sequence_laws.errors import ConfigError, nearest
from sequence_laws.extras import extra_module
from sequence_laws.foreign import cut
from sequence_laws.inputs import Inputs, first
from sequence_laws.rounding import doubled
from sequence_laws.subject import Subject

LARGEST = 8_000_000
"""parameters of a model that is built: a configuration that was not made small is refused"""
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
    ones = False
    """whether a mask of ones is given where there is none"""

    def __init__(self, model: nn.Module, name: str, inputs: Inputs, **known: Any) -> None:
        super().__init__(model, name, inputs, **known)
        if "decoder_attention_mask" in self.words:
            self.unmasked = "its decoder has a mask of its own"
        elif "attention_mask" in self.words:
            self.masks = ("right", "left", "holes")
        else:
            self.unmasked = self.lacks("it takes no mask", ("attention_mask",))
        self.unpacked = self.lacks("it takes no documents", ("position_ids",))
        self.counts_padding = "position_ids" not in self.words
        if any(_OTHER.search(word) for word in self.words):
            self.idle = OTHERS
        if self.causal and "position_ids" in self.words:
            self.packs, self.separates = "position_ids", False

    def call(self, model: nn.Module, x: Tensor, padding_mask: Tensor | None = None) -> Any:
        """One pass without a cache; positions count what is real."""
        if self.bare and padding_mask is not None and self.padding_token is not None:
            x = x.where(padding_mask, self.padding_token)
        return model(**{**self._reads(model, x), **self._told(padding_mask)})

    def plain_calls(self) -> Iterator[PlainCall]:
        """With a cache, as by default; with a mask of ones, as tokenizers give; with a mask alone,
        as collators do."""
        if "use_cache" in self.words:
            other = self.again()
            other.keeps = other.separates = True
            yield PlainCall(
                "with use_cache as by default", "pass use_cache=False", other, ("packing",)
            )
        if self.masks:
            other = self.again()
            other.ones = other.separates = True
            yield PlainCall("with a mask of ones", "pass no attention_mask", other, ("packing",))
        if self.masks and "position_ids" in self.words:
            other = self.again()
            other.bare = True
            yield PlainCall(
                "with attention_mask alone",
                "pass position_ids=(attention_mask.cumsum(1) - 1).clamp(0)",
                other,
                ("padding", "streaming"),
            )

    def call_code(self, x: str, padding_mask: str | None = None) -> str:
        """The Python of it."""
        cache = "" if self.keeps or "use_cache" not in self.words else ", use_cache=False"
        word = "input_ids" if self.inputs.vocabulary is not None else "inputs_embeds"
        ones = f"torch.ones({x}.shape[:2])" if self.ones else None
        mask = padding_mask or ones
        mask = "" if mask is None else f", attention_mask={mask}.long()"
        if padding_mask is not None and "position_ids" in self.words and not self.bare:
            mask += f", position_ids=({padding_mask}.cumsum(1) - 1).clamp(0) + {self.place_0}"
        if self.bare and padding_mask is not None and self.padding_token is not None:
            x = f"{x}.where({padding_mask}, {self.padding_token})"
        return f"model({word}={x}{cache}{mask}){self.place}"

    def _reads(self, model: Any, x: Tensor) -> dict[str, Any]:
        word = "input_ids" if self.inputs.vocabulary is not None else "inputs_embeds"
        given: dict[str, Any] = {word: x}
        if "use_cache" in self.words and not self.keeps:
            given["use_cache"] = False
        if self.ones:
            given["attention_mask"] = torch.ones(x.shape[:2], dtype=torch.long)
        return given

    def _told(self, padding_mask: Tensor | None) -> dict[str, Tensor]:
        if padding_mask is None:
            return {}
        arguments = {"attention_mask": padding_mask.long()}
        places = (padding_mask.cumsum(1) - 1).clamp(min=0)
        moved = (
            places != torch.arange(padding_mask.shape[1], device=padding_mask.device)
        ) & padding_mask
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
            starts = (
                n for n in range(4) if torch.equal(y, first(self._placed(model, x, places + n)))
            )
            return next(starts, 0)

    def loss(self, model: nn.Module, x: Tensor, labels: Tensor, padding_mask: Tensor) -> Tensor:
        """Its ``loss``."""
        if "labels" not in self.words:
            return super().loss(model, x, labels, padding_mask)
        given = {**self._reads(model, x), **self._told(padding_mask)}
        return loss_in(model(**given, labels=labels))

    def packed(self, model: nn.Module, x: Tensor, documents: Tensor) -> Any:
        """One pass, with positions that start over in each document."""
        before = torch.searchsorted(documents, documents)
        return self._placed(model, x, torch.arange(x.shape[1]) - before)

    def _placed(self, model: nn.Module, x: Tensor, places: Tensor) -> Any:
        return model(**self._reads(model, x), position_ids=places)

    def packed_code(self) -> str:
        """The Python of it."""
        places = "torch.arange(x.shape[1]) - torch.searchsorted(documents, documents)"
        return super().packed_code().replace("=documents)", f"={places})")

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
            other = self.again()
            other.model = copy.deepcopy(self.model)
            try:
                other.model.set_attn_implementation(way)  # type: ignore[operator]
            except Exception:  # it has no other way: it is tried as it is
                if way == ATTENDS[0]:
                    yield "", self
                return
            if getattr(self.model.config, "_attn_implementation", None) != way:
                other.build = (*self.build, f"model.set_attn_implementation({way!r})")
            yield f"attention {way}", other


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


def hugging_face(
    name: str, sizes: Mapping[str, int] = SMALL, causal: bool | None = None
) -> Subject:
    """The subject of a kind, a class or a folder, of these ``sizes``.

    Raises:
        ConfigError: there is no such thing, or no such model can be made of it.
        MissingExtraError: transformers is not installed.
    """
    library = quiet_library("a model of transformers")
    kind, settings = _class(library, name)
    config, words = small_config(kind, settings, sizes)
    size, most = _parameters(kind, config), _largest(sizes)
    if size > most:
        raise ConfigError(
            f"a '{name}' of width {sizes['width']} would have {size:,} parameters (at most "
            f"{most:,} are expected of it): its configuration has sizes that are not known; give a "
            "function that makes it, as file.py:make"
        )

    expert = any("expert" in word for word in config.to_dict())

    def make() -> nn.Module:
        model: Any = kind(config)
        if expert:  # grouped products know no float64
            model.set_experts_implementation("eager")
        return model

    torch.manual_seed(0)
    build = [
        "import transformers",
        f"config = transformers.{type(config).__name__}(**{words!r})",
        f"model = transformers.{kind.__name__}(config)",
    ]
    if expert:
        build.append("model.set_experts_implementation('eager')")
    made = pretrained(make(), name, causal=causal, build=build, make=make)
    assert made is not None
    return made


def wanted(purpose: str) -> Any:
    """transformers, as it is installed."""
    return extra_module("transformers", "hf", purpose, of="sequence-laws")


def quiet_library(purpose: str) -> Any:
    """transformers, which then neither downloads nor warns, here and in processes started later."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    return wanted(purpose)


def _class(library: Any, name: str) -> tuple[Any, dict[str, Any] | None]:
    """A class by its name, by a kind of model, which writes where it can, or by a folder, with the
    settings that this has."""
    from transformers.models.auto import modeling_auto as auto

    writing, reading = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, auto.MODEL_MAPPING_NAMES
    if Path(name).expanduser().is_dir():
        config = library.AutoConfig.from_pretrained(Path(name).expanduser())
        named = (config.architectures or [writing.get(config.model_type)])[0]
        return getattr(library, str(named)), config.to_dict()
    found: Any = writing.get(name) or reading.get(name)
    found = found[0] if isinstance(found, tuple) else found
    kind = getattr(library, found or name, None)
    if isinstance(kind, type) and getattr(kind, "config_class", None) is not None:
        return kind, None
    if "/" in name:
        raise ConfigError(
            f"there is no folder '{name}', and nothing is downloaded: give a kind of model "
            "(hf:gpt2), a class (hf:GPT2LMHeadModel) or a local folder"
        )
    known = [*writing, *reading]
    raise ConfigError(f"transformers has no model '{name}'; {nearest(name, known)}")


def small_config(
    kind: Any, settings: dict[str, Any] | None, sizes: Mapping[str, int] = SMALL
) -> tuple[Any, dict[str, Any]]:
    """A configuration of which a model of these ``sizes`` can be built and run, and its arguments.

    Of those that are to be checked two layers are enough for most; kinds whose layers differ have
    four or six.

    Raises:
        ConfigError: none of these runs; with what the last attempt says.
    """
    settings = settings or kind.config_class().to_dict()
    error: Exception | None = None
    depths = (2, 4, 6) if sizes == SMALL else (sizes["layers"],)
    for fill, kinds, layers in itertools.product((False, True), (True, False), depths):
        try:
            words = small(settings, layers, sizes=sizes, kinds=kinds, fill=fill)
        except ConfigError:  # more kinds of layers than layers
            continue
        if "is_decoder" in settings and reads_one_way(kind.__name__, None):
            words["is_decoder"] = True
        if kind.__name__.endswith("EncoderModel") and "is_encoder_decoder" in settings:
            words["is_encoder_decoder"] = False
        try:
            config = kind.config_class(**words)
            if _parameters(kind, config) <= _largest(sizes):
                with torch.no_grad():
                    model = kind(config).eval()
                    model(torch.full((2, 12), 5), **no_cache(model))
            return config, words
        except Exception as problem:  # whatever a configuration or a model refuses
            error = problem
    says = "its layers are of more kinds than there are layers"
    says = f"{type(error).__name__}: {cut(str(error))[:200]}" if error else says
    raise ConfigError(f"no {kind.__name__} of {_told(sizes)} can be made: {says}") from error


def _told(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size:,}" for name, size in sizes.items())


def _largest(sizes: Mapping[str, int]) -> int:
    """Parameters that a model of these sizes has at most, or some of its are not known: `LARGEST`
    of a small one, of others as many times more as theirs are."""
    layers = sizes["layers"] * sizes["width"] ** 2 + sizes["vocabulary"] * sizes["width"]
    usual = SMALL["layers"] * SMALL["width"] ** 2 + SMALL["vocabulary"] * SMALL["width"]
    return max(1, layers // usual) * LARGEST


def no_cache(model: nn.Module) -> dict[str, bool]:
    """The word that a model takes for a pass that keeps nothing."""
    takes = "use_cache" in inspect.signature(model.forward).parameters
    return {"use_cache": False} if takes else {}


def _parameters(kind: Any, config: Any) -> int:
    with torch.device("meta"):
        return sum(weight.numel() for weight in kind(config).parameters())
