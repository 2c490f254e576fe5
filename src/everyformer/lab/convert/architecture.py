"""`HubArchitecture`: how a system's config reads as ours, and ours as its; its tensors."""

import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from everyformer.core.bounds import Amount, Count, Layers, Rate, Whole
from everyformer.core.config import converted
from everyformer.core.errors import (
    CheckpointError,
    ConfigError,
    MissingExtraError,
    UnsupportedError,
    in_quotes,
    nearest,
)
from everyformer.core.wording import join_first, shortened
from everyformer.genes.config import ModelConfig
from everyformer.genes.feedforward import FEEDFORWARD
from everyformer.lab.convert.agreement import quiet
from everyformer.lab.convert.rules import Rule
from sequence_laws.extras import extra_module

ALL_BIASES = ("query", "key", "value", "output")
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "quick_gelu": "gelu-sigmoid",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""their names of a feed-forward's activation, the usual ones first, and ours"""
THEIRS = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}


def activation(name: str) -> str:
    """Our name of a feed-forward's activation."""
    if name not in ACTIVATIONS:
        raise UnsupportedError(
            f"the activation '{name}' has no counterpart here; {nearest(name, ACTIVATIONS)}"
        )
    return ACTIVATIONS[name]


@dataclass(frozen=True)
class Entry:
    """One of our options that most systems have, whatever they call it."""

    kind: Any
    """type of theirs"""
    write: Callable[[ModelConfig], Any]
    """theirs, of our config"""
    read: Callable[[Any], Any] = lambda value: value
    """ours, of theirs"""


def feedforward(config: ModelConfig) -> Any:
    """The options of the feed-forward of ours."""
    return FEEDFORWARD.typed(config.genes["feedforward"]).options


ENTRIES = {
    "width": Entry(Count, lambda config: config.width),
    "layers": Entry(Layers, lambda config: config.layers),
    "decoder_layers": Entry(Layers, lambda config: config.decoder_layers or config.layers),
    "heads": Entry(Count, lambda config: config.heads),
    "max_length": Entry(Count, lambda config: config.tokens),
    "vocabulary": Entry(Count, lambda config: config.vocabulary),
    "token_types": Entry(Whole, lambda config: config.token_types),
    "start_token": Entry(Whole, lambda config: config.start_token),
    "end_token": Entry(Whole, lambda config: config.end_token),
    "patch": Entry(Count, lambda config: config.side),
    "expansion": Entry(Count, lambda config: round(config.width * feedforward(config).expansion)),
    "feedforward": Entry(
        str, lambda config: THEIRS.get(str(config.genes["feedforward"].name), "silu"), activation
    ),
    "norm_eps": Entry(Amount, lambda config: config.block.norm_eps),
    "dropout": Entry(Rate, lambda config: config.block.dropout),
    "embedding_dropout": Entry(Rate, lambda config: config.embedding_dropout),
    "attention_dropout": Entry(
        Rate, lambda config: config.genes["mixer"].get("attention_dropout", 0.0)
    ),
    "feedforward_dropout": Entry(
        Rate,
        lambda config: (
            config.block.dropout
            if feedforward(config).feedforward_dropout is None
            else feedforward(config).feedforward_dropout
        ),
    ),
}
Names = dict[str, str]
"""our options, and what a system calls them"""


def written(names: Names, config: ModelConfig) -> dict[str, Any]:
    """Entries of their config, of ours."""
    return {theirs: ENTRIES[ours].write(config) for ours, theirs in names.items()}


COMMON: dict[str, Any] = {
    "architectures": tuple[str, ...] | None,
    "id2label": dict[str, str] | None,
    "num_labels": Count | None,
    "tie_word_embeddings": bool | None,
    "quantization_config": dict[str, Any] | None,
    **dict.fromkeys(
        ("dtype", "torch_dtype"), Literal["float16", "bfloat16", "float32", "float64"] | None
    ),
}
"""what every system's config may say"""
ONLY: dict[str, Any] = {
    **dict.fromkeys(("is_decoder", "add_cross_attention", "tie_encoder_decoder"), False),
    **dict.fromkeys(("rope_interleaved", "use_mrope"), False),
    "problem_type": "single_label_classification",
}
"""what no config here may say otherwise"""
IDLE = re.compile(
    # records of how it was made and is used, and what its class does not read
    r"""model_type|label2id|transformers_version|_?name_or_path|_commit_hash|_num_labels|prefix|
    tokenizer_class|finetuning_task|task_specific_params|transformers\.js_config|unsloth_.*|
    _?attn_implementation\w*|is_(encoder_decoder|llama_config)|(use_)?return_dict\w*|torchscript|
    output_(past|attentions|hidden_states|scores)|use_(cache|bfloat16)|gradient_checkpointing|
    onnx_export|chunk_size_feed_forward|reorder_and_upcast_attn|tf_legacy_loss|
    (bos|eos|pad|sep|decoder_start|forced_eos)_token_id|max_sequence_length|model_max_length|
    n_ctx|n_positions|max_position_embeddings|(decoder_)?vocab_size|extra_pos_embeddings|
    attention_mode|ignore_attention_mask|normalize_(before|embedding)|add_bias_logits|
    add_final_layer_norm|static_position_embeddings|"""
    # for training, for parts that are not read, and for generation there
    r"""initializer_range|init_std|\w*layerdrop|(classifier|classif)_dropout|(summary|pooler)_\w+|
    directionality|encoder_stride|cross_attention_hidden_size|(max|min)_length|do_sample|
    early_stopping|num_(beams|beam_groups|return_sequences)|temperature|top_[kp]|typical_p|
    (diversity|repetition|length)_penalty|(encoder_)?no_repeat_ngram_size|bad_words_ids|
    remove_invalid_values""",
    re.VERBOSE,
)
"""what changes no output of any model here, unless its architecture declares it"""


@dataclass(frozen=True)
class HubArchitecture:
    """One system of Hugging Face's `transformers`."""

    model_type: str
    prefix: str
    """what their names begin with, and leave out in checkpoints without a head"""
    classes: dict[str, str]
    """our task -> their class, the usual one first"""
    names: Names
    """entries that stand for one option of ours each"""
    options: Callable[[dict[str, Any], str], dict[str, Any]]
    """their config and our task -> member and further options for `configure`"""
    describe: Callable[[ModelConfig], dict[str, Any]]
    """our config -> what else theirs says"""
    rules: Callable[[ModelConfig], list[Rule]]
    """which tensors correspond"""
    further: dict[str, Any]
    """types of what else their config says; what may be None may also be left out"""
    ignored: str = ""
    """pattern of buffers that hold nothing learned, and of further names of tied tensors"""
    only: Mapping[str, Any] = field(default_factory=dict)
    """values that have a counterpart, where others have none"""

    @property
    def fields(self) -> dict[str, Any]:
        """Everything that their config says, with its types."""
        return {theirs: ENTRIES[ours].kind for ours, theirs in self.names.items()} | self.further

    def read(self, config: dict[str, Any], task: str) -> dict[str, Any]:
        """Their config as member and options for `configure`."""
        named = [(ours, config[theirs]) for ours, theirs in self.names.items() if theirs in config]
        # where theirs says nothing of it, no hidden unit is dropped
        result: dict[str, Any] = {"feedforward_dropout": 0.0}
        result |= {ours: ENTRIES[ours].read(value) for ours, value in named}
        if "expansion" in result:
            # theirs are hidden channels, ours a multiple of the width
            result["expansion"] /= result["width"]
        return result | self.options(config, task)

    def write(self, config: ModelConfig) -> dict[str, Any]:
        """Our config as theirs."""
        return written(self.names, config) | self.describe(config)

    def check(self, config: dict[str, Any]) -> None:
        """Hold a config.json to `fields`.

        Raises:
            CheckpointError: something is missing, or cannot be.
        """
        for name, kind in {**COMMON, **self.fields}.items():
            try:
                converted(kind, config.get(name), name)
            except ConfigError as error:
                fault = (
                    f"says what cannot be: {in_quotes(error)}"
                    if name in config
                    else f"lacks '{name}'"
                )
                raise CheckpointError(
                    f"the config.json of this {self.model_type} checkpoint {fault}"
                ) from error

    def refuse_unknown(self, config: dict[str, Any]) -> None:
        """Raise if a config says what is not read here, changes outputs and is not its default."""

        def defaults() -> dict[str, Any]:
            with quiet(), suppress(MissingExtraError):
                auto = extra_module("transformers", "hf", "its defaults").AutoConfig
                return dict(auto.for_model(self.model_type).to_dict())
            return {}

        only = ONLY | dict(self.only)
        refuse(config, **only)
        refuse_unknown(config, {*COMMON, *self.fields, *only}, defaults)

    def task(self, config: dict[str, Any]) -> str:
        """The task of a checkpoint, by the class that its config names."""
        named = (config.get("architectures") or [None])[0]
        for task, name in self.classes.items():
            if named == name:
                return task
        if named is None or named.endswith("Model"):
            return next(iter(self.classes))
        raise UnsupportedError(
            f"a {self.model_type} checkpoint of the class {named} has no counterpart here; those "
            f"that have: {', '.join(self.classes.values())}"
        )


def refuse(config: dict[str, Any], **expected: Any) -> None:
    """Raise if an option of their config has a value that nothing here corresponds to."""
    for name, value in expected.items():
        if config.get(name, value) != value:
            raise UnsupportedError(
                f"the checkpoint has {name}={config[name]!r}, which has no counterpart here (only "
                f"{value!r} has)"
            )


def refuse_unknown(
    config: Mapping[str, Any],
    known: Collection[str],
    defaults: Callable[[], Mapping[str, Any]] = dict,
) -> None:
    """Raise if a config says what is not ``known``, may change an output and is no default."""
    left = {name: value for name, value in config.items() if value not in (None, {}, [])}
    left = {k: v for k, v in left.items() if k not in known and not IDLE.fullmatch(k)}
    usual = defaults() if left else {}
    lost = [shortened(f"{k}={v!r}", 60) for k, v in left.items() if k not in usual or v != usual[k]]
    if lost:
        raise UnsupportedError(
            f"the checkpoint's config.json says {join_first(lost, 4)}, which the import does not "
            "know, so that its outputs might be others: if it changes none, remove it there"
        )


def label_count(config: dict[str, Any]) -> int:
    """Number of classes that their config has."""
    return len(config.get("id2label") or {}) or int(config.get("num_labels", 2))


def described_labels(config: ModelConfig) -> dict[str, Any]:
    """Names for as many classes as a classifier has; nothing for other tasks."""
    if not config.does.classifies:
        return {}
    names = {str(n): f"LABEL_{n}" for n in range(config.classes)}
    return {"id2label": names, "label2id": {name: int(n) for n, name in names.items()}}
