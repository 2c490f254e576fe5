"""Reading and writing folders in the form of `transformers`: config.json and safetensors.

Only safetensors are read: a pickle can run anything when it is opened.
"""

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from torch import Tensor

from everyformer.blocks.options import BlockOptions
from everyformer.core.config import affects, from_dict, to_dict
from everyformer.core.errors import CheckpointError, ConfigError, UnsupportedError, nearest
from everyformer.core.wording import join_first, join_names
from everyformer.data.tokenizers.base import Tokenizer
from everyformer.genes import GENES
from everyformer.genes.config import ModelConfig
from everyformer.genes.mixers.attention.options import AttentionOptions
from everyformer.lab.convert.agreement import build_theirs, compare, fill
from everyformer.lab.convert.architecture import HubArchitecture
from everyformer.lab.convert.bert import BERT_LIKE
from everyformer.lab.convert.decision_transformer import DECISION_TRANSFORMER, OURS
from everyformer.lab.convert.folder import (
    dequantised,
    find_folder,
    read_config,
    read_folder,
)
from everyformer.lab.convert.gpt2 import GPT2
from everyformer.lab.convert.llama import LLAMA_LIKE
from everyformer.lab.convert.marian import MARIAN
from everyformer.lab.convert.rules import Report, take_all
from everyformer.lab.convert.tokenizer import export_tokenizer
from everyformer.lab.convert.vit import VIT
from everyformer.models.base import Model
from everyformer.models.build import build_model, configure
from everyformer.system.files import expanded, write_text, written_whole
from everyformer.system.plain import to_json

ARCHITECTURES: dict[str, HubArchitecture] = {
    known.model_type: known
    for known in (GPT2, *BERT_LIKE, VIT, MARIAN, *LLAMA_LIKE, DECISION_TRANSFORMER)
}


class Imported(NamedTuple):
    """An imported model, and the account of its tensors."""

    model: Model
    report: Report


def import_checkpoint(
    source: str | Path,
    *,
    mixer: str | None = None,
    dtype: torch.dtype | None = None,
    **options: Any,
) -> Imported:
    """A checkpoint of `transformers` as a model of this library, in evaluation mode.

    Args:
        source: a folder with config.json and safetensors, or a name on the Hugging Face hub.
        mixer: takes the place of attention in every layer; its weights are fresh.
        dtype: of all weights (default: what config.json says, else one that holds all of them).
        options: of `create_model`, on top of what the checkpoint says.

    Without another mixer or options, and up to 200 million parameters, the outputs of both are
    compared where transformers is installed; the report says by how much they differ, or why not.

    Positions count a row's real tokens, on whichever side its padding is, as those of RoBERTa and
    Longformer there; BERT, BigBird, GPT-2 and Marian of transformers count padding on the left
    too, where ``position_ids`` do not say otherwise.

    Raises:
        CheckpointError: nothing to read there, pickles only, tensors missing or of other sizes.
        UnsupportedError: a system, class or option that has no counterpart here, or is not known;
            weights quantised by a method other than fp8; outputs that do not agree.
    """
    folder = find_folder(source)
    theirs = read_config(folder)
    known = architecture(theirs.get("model_type"))
    known.check(theirs)
    # what says nothing is as good as left out
    theirs = {name: value for name, value in theirs.items() if value is not None}
    known.refuse_unknown(theirs)
    task = known.task(theirs)
    described = known.read(theirs, task)
    of_attention = {f.name for f in dataclasses.fields(AttentionOptions)}
    if mixer is not None:
        described = {k: v for k, v in described.items() if k not in of_attention} | {"mixer": mixer}
    config = _configured(described, task, options)
    model = build_model(config)
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    tensors, notes = read_folder(folder)
    stored_dtype = dtype or getattr(
        torch, theirs.get("dtype") or theirs.get("torch_dtype") or "", None
    )
    tensors = dequantised(tensors, theirs, stored_dtype)
    if not any(name.startswith(known.prefix) for name in tensors):
        # of a checkpoint without a head
        tensors = {known.prefix + name: value for name, value in tensors.items()}
    rules = known.rules(config)
    if mixer is not None:
        rules = [rule for rule in rules if not any(".mixer." in name for name in rule.ours)]
    filled, report = take_all(rules, tensors, shapes, known.ignored)
    # further names of tensors that are there already
    weights = model.state_dict(keep_vars=True)
    by_storage = {weights[name].data_ptr(): value for name, value in filled.items()}
    tied = {name: by_storage.get(value.data_ptr()) for name, value in weights.items()}
    filled = {name: value for name, value in tied.items() if value is not None} | filled
    report.made = [name for name in report.made if name not in filled]
    report.notes += notes
    fill(model, filled, stored_dtype, report)
    if mixer is not None or options or OURS in theirs:
        report.notes.append("not compared with transformers, since it is to be another model")
    else:
        name = known.classes[task]
        build = partial(build_theirs, name, theirs, tensors)
        compare(model, f"transformers' {name}", build, report)
    return Imported(model, report)


def export_checkpoint(
    model: Model,
    folder: str | Path,
    model_type: str | None = None,
    *,
    tokenizer: Tokenizer | None = None,
) -> Report:
    """Write ``model`` as a folder that `transformers` loads.

    Args:
        folder: does not exist, or is empty.
        model_type: gpt2, bert, roberta, vit, marian, llama ...; default: the first whose
            checkpoints can say all that this model is.
        tokenizer: written too, where transformers has a form for it (not bytes and characters).

    Raises:
        UnsupportedError: none can; says what each cannot, the nearest first.
        CheckpointError: the folder holds something, which is not replaced.
    """
    folder = expanded(folder).absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CheckpointError(f"{folder} exists and is not replaced: choose another path")
    known = counterpart(model.config, [architecture(model_type)] if model_type is not None else ())
    tensors, report = given(model, known, model.config)
    config = {
        "model_type": known.model_type,
        "architectures": [known.classes[model.config.task]],
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        **known.write(model.config),
    }
    separator = None if tokenizer is None else tokenizer.separator
    if model.config.does.continues:
        # the ids that theirs would have by default are other tokens here
        config = {"bos_token_id": None, "eos_token_id": separator, **config}
    elif separator is not None:
        config.setdefault("eos_token_id", separator)
    with written_whole(folder) as temporary:
        save_file(tensors, temporary / "model.safetensors", metadata={"format": "pt"})
        write_text(temporary / "config.json", to_json(config, indent=2) + "\n")
        if tokenizer is not None:
            hides = model.config.does.predicts == "hidden" and tokenizer.mask is None
            mask = model.config.vocabulary - 1 if hides else None
            export_tokenizer(tokenizer, temporary, model.config.tokens, mask)
    return report


def given(
    model: Model, known: HubArchitecture, config: ModelConfig
) -> tuple[dict[str, Tensor], Report]:
    """Their tensors, of a model of ours or one whose ``config`` says the same, and the account."""
    weights = model.state_dict()
    rules = [rule for rule in known.rules(config) if rule.holds(weights)]
    tensors = {name: value for rule in rules for name, value in rule.give(weights).items()}
    storages = {weights[name].data_ptr() for rule in rules for name in rule.ours}
    fresh = [name for rule in rules if rule.skip for name in rule.theirs]
    left = [name for name, value in weights.items() if value.data_ptr() not in storages]
    return tensors, Report(list(tensors), fresh, left)


def architecture(model_type: Any) -> HubArchitecture:
    """The system called ``model_type``.

    Raises:
        UnsupportedError: unknown here; offers the nearest.
    """
    if not isinstance(model_type, str) or model_type not in ARCHITECTURES:
        raise UnsupportedError(
            f"checkpoints of the model type '{model_type}' cannot be converted; "
            f"{nearest(str(model_type), ARCHITECTURES)}"
        )
    return ARCHITECTURES[model_type]


def counterpart(config: ModelConfig, among: Sequence[HubArchitecture] = ()) -> HubArchitecture:
    """The first system whose config says all that ours does (default: of all for the task)."""
    able = among or [a for a in ARCHITECTURES.values() if config.task in a.classes]
    tried: list[tuple[int, str, str]] = []
    for known in able:
        if config.task not in known.classes:
            raise UnsupportedError(
                f"{known.model_type} has no class for the task '{config.task}', only for "
                f"{', '.join(known.classes)}"
            )
        try:
            lost = _lost(config, known)
        except ConfigError as error:
            # a value of ours that no config of theirs may have
            tried.append((sys.maxsize, known.model_type, f"has no such model ({error})"))
            continue
        if not lost:
            return known
        tried.append((len(lost), known.model_type, f"cannot say {join_first(lost, 4)}"))
    if not tried:
        raise UnsupportedError(f"no known system has the task '{config.task}'")
    tried.sort()
    kinds = [kind for _, kind, _ in tried]
    reasons = "; ".join(f"{kind} {reason}" for _, kind, reason in tried)
    raise UnsupportedError(
        f"this {config.member} cannot be written as {join_names(kinds, 'or')}: "
        f"{reasons}; train one with what stands in brackets, or write another form (`to`)"
    )


def _configured(described: Mapping[str, Any], task: str, options: Mapping[str, Any]) -> ModelConfig:
    """The config of what they describe; embeddings are scaled where they say so."""
    values = {"scale_embedding": False, **described}
    for name, value in options.items():
        tables = isinstance(value, dict) and isinstance(values.get(name), dict)
        values[name] = {**values[name], **value} if tables else value
    return configure(values.pop("member"), task, **values)


def _lost(config: ModelConfig, known: HubArchitecture) -> list[str]:
    """Options that their config would lose: those that do not come back from it as they were."""
    there = {"model_type": known.model_type, **known.write(config)}
    described = known.read(there, config.task)
    back = _plain(_configured(described, config.task, {}))
    ours = _plain(config)
    return [
        f"`{name}={ours.get(name)!r}` (only {back.get(name)!r})"
        for name in sorted(ours.keys() | back.keys())
        if ours.get(name) != back.get(name)
    ]


def _plain(config: ModelConfig) -> dict[str, Any]:
    """A config as flat values, defaults filled in, what changes no output left out."""
    values = to_dict(config)
    values["max_length"] = config.tokens
    values["scale_embedding"] = config.embedding_scale != 1.0
    values["decoder_layers"] = config.decoder_layers or config.layers
    schedule = dict(values["schedule"])
    same = {
        name: values_of_layers[0]
        for name, values_of_layers in schedule.items()
        if len({str(v) for v in values_of_layers}) == 1
    }
    values["schedule"] = {
        name: values_of_layers for name, values_of_layers in schedule.items() if name not in same
    }
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if name == "block":
            flat |= _telling(BlockOptions, value, "block.")
        elif name in GENES:
            flat[name] = value.pop("name")
            options = value | same if name == "mixer" else value
            kind = GENES[name].options(flat[name])
            flat |= _telling(kind, to_dict(from_dict(kind, options)), f"{name}.")
        else:
            flat |= _telling(ModelConfig, {name: value})
    if flat["mixer"] == "attention":
        flat["mixer.kv_heads"] = flat["mixer.kv_heads"] or config.heads
        widths = flat["mixer.widths"].items()
        flat["mixer.widths"] = {key: channels for key, channels in widths if channels is not None}
    if not config.does.classifies:
        del flat["classes"]
    parts = flat.get("mixer.bias") or []
    flat["mixer.bias"] = sorted(parts) if isinstance(parts, list | tuple) else parts
    return flat


def _telling(kind: type, values: dict[str, Any], before: str = "") -> dict[str, Any]:
    """The ``values`` of an options class that change an output of a finished model."""
    return {
        before + name: value
        for name, value in values.items()
        if affects(kind, name) in ("weights", "results")
    }
