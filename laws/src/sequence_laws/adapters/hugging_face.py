"""Models of transformers by name, built small: a kind, a class, a local folder, or all classes."""

import inspect
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sequence_laws.adapters.small_configs import SMALL, small
from sequence_laws.adapters.transformers import pretrained, quiet_library, reads_one_way
from sequence_laws.confined import needs_cuda
from sequence_laws.errors import ConfigError, nearest
from sequence_laws.foreign import cut
from sequence_laws.libraries import Library
from sequence_laws.subject import Subject

LARGEST = 8_000_000
"""parameters of a model that is built: a configuration that was not made small is refused"""


def hugging_face(
    name: str,
    sizes: Mapping[str, int] = SMALL,
    causal: bool | None = None,
    trust: bool = False,
) -> Subject:
    """The subject of a kind, a class or a folder, of these ``sizes``.

    Args:
        trust: whether code that a folder brings is run.

    Raises:
        ConfigError: there is no such thing, or no such model can be made of it.
        MissingExtraError: transformers is not installed.
    """
    library = quiet_library("a model of transformers")
    kind, settings = _class(library, name, trust)
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
    if not hasattr(library, kind.__name__):  # of a folder's own code
        own = f"'{kind.__module__.rpartition('.')[2]}.{kind.__name__}', {name!r}"
        build = [
            "from transformers import AutoConfig",
            "from transformers.dynamic_module_utils import get_class_from_dynamic_module as load",
            f"config = type(AutoConfig.from_pretrained({name!r}, trust_remote_code=True))",
            f"model = load({own})(config(**{words!r}))",
        ]
    if expert:
        build.append("model.set_experts_implementation('eager')")
    made = pretrained(make(), name, causal=causal, build=build, make=make)
    assert made is not None
    return made


def _class(library: Any, name: str, trust: bool) -> tuple[Any, dict[str, Any] | None]:
    """A class by its name, by a kind of model, which writes where it can, or by a folder, with the
    settings that this has."""
    from transformers.models.auto import modeling_auto as auto

    writing, reading = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, auto.MODEL_MAPPING_NAMES
    if (folder := Path(name).expanduser()).is_dir():
        own = _own_code(folder)
        if own and not trust:
            raise ConfigError(
                f"the folder '{name}' brings code of its own (auto_map in its config.json: "
                f"{', '.join(own.values())}), which runs with --trust alone: read it before"
            )
        config = library.AutoConfig.from_pretrained(folder, trust_remote_code=trust)
        if own:
            from transformers.dynamic_module_utils import get_class_from_dynamic_module as load

            words = ("AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoModel")
            kind: Any = load(next(own[word] for word in words if word in own), str(folder))
            kind.config_class = type(config)
            return kind, config.to_dict()
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


def _own_code(folder: Path) -> dict[str, str]:
    """Classes of a folder's own code, by what transformers calls them."""
    file = folder / "config.json"
    known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    own: dict[str, str] = known.get("auto_map") or {}
    return own


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
    says = needs_cuda(error) or says
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


def groups() -> dict[str, list[str]]:
    """Classes that write text, those that read it both ways, and both."""
    quiet_library("a board of transformers")
    from transformers.models.auto import modeling_auto as auto

    every = [
        [*auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()],
        [*auto.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES.values()],
        [*auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES.values()],
    ]
    writing, *reading = ([n[0] if isinstance(n, tuple) else n for n in one] for one in every)
    encoders = [*reading[0], *reading[1]]
    chosen = {"causal": writing, "encoders": encoders, "all": [*writing, *encoders]}
    return {word: [*dict.fromkeys(names)] for word, names in chosen.items()}


IMPORTS = (
    "transformers.conversion_mapping",
    "transformers.modeling_layers",
    "transformers.models.auto.modeling_auto",
)
LIBRARY = Library("hf", groups, hugging_face, ("transformers", "fla-core"), IMPORTS)
