"""Llama and systems of its form (Mistral, Qwen2): RMSNorm, rotations, SwiGLU, grouped heads."""

import math
from functools import partial
from typing import Any

from everyformer.core.bounds import Count, Positive, Rate, Whole
from everyformer.core.config import from_dict, to_dict
from everyformer.core.errors import UnsupportedError
from everyformer.genes.config import ModelConfig
from everyformer.genes.positions.rope_scaling import RopeScaling
from everyformer.lab.convert.architecture import (
    ALL_BIASES,
    HubArchitecture,
    feedforward,
    refuse,
    refuse_unknown,
)
from everyformer.lab.convert.rules import Rule, in_layers, linked
from everyformer.models.draft import by_layer

LAYER = {
    "mixer_norm": "input_layernorm",
    "mixer.project": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mixer.out": "self_attn.o_proj",
    "feedforward_norm": "post_attention_layernorm",
    "feedforward.gate": "mlp.gate_proj",
    "feedforward.up": "mlp.up_proj",
    "feedforward.down": "mlp.down_proj",
}
SCALINGS: dict[str, dict[str, str]] = {
    "linear": {"factor": "factor"},
    "dynamic": {"factor": "factor"},
    "yarn": {
        name: name for name in ("factor", "attention_factor", "beta_fast", "beta_slow", "truncate")
    },
    "llama3": {
        "factor": "factor",
        "low_frequency": "low_freq_factor",
        "high_frequency": "high_freq_factor",
    },
    "longrope": {
        "factor": "factor",
        "attention_factor": "attention_factor",
        "short": "short_factor",
        "long": "long_factor",
    },
}
"""kinds of scaling that both sides have: our options and theirs"""
NAMES = {
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "max_length": "max_position_embeddings",
    "vocabulary": "vocab_size",
    "expansion": "intermediate_size",
    "norm_eps": "rms_norm_eps",
}
KINDS = ("full_attention", "sliding_attention")
"""their kinds of layers: without a window and with one"""
FURTHER: dict[str, Any] = {
    **dict.fromkeys(("head_dim", "num_key_value_heads", "sliding_window"), Count | None),
    **dict.fromkeys(("rope_parameters", "rope_scaling"), dict[str, Any] | None),
    **dict.fromkeys(("attention_bias", "mlp_bias", "use_sliding_window"), bool | None),
    "original_max_position_embeddings": Count | None,
    "max_window_layers": Whole | None,
    "layer_types": tuple[str, ...] | None,
    "rope_theta": Positive | None,
    "attention_dropout": Rate | None,
}
OF_ALL = {
    *("rope_theta", "rope_type", "type", "partial_rotary_factor", "mscale", "mscale_all_dim"),
    "original_max_position_embeddings",
}
"""rotary parameters that are read of every kind of scaling"""


def _options(config: dict[str, Any], task: str) -> dict[str, Any]:
    width, count = config["hidden_size"], config["num_attention_heads"]
    shared = config.get("num_key_value_heads") or count
    rotary = config.get("rope_parameters") or config.get("rope_scaling") or {}
    size = config.get("head_dim") or width // count
    bias: tuple[str, ...] = ALL_BIASES if config.get("attention_bias") else ()
    if config["model_type"] == "qwen2":
        bias = ALL_BIASES[:3]
    windows = _windows(config)
    return {
        "member": "rope",
        "kv_heads": None if shared == count else shared,
        "feedforward": "swiglu",
        "feedforward_bias": bool(config.get("mlp_bias")),
        "norm": "rmsnorm",
        "bias": bias,
        "widths": {"key_dim": size} if size * count != width else {},
        "window": windows[0] if len(set(windows)) == 1 else by_layer(*windows),
        "base": float(rotary.get("rope_theta", config.get("rope_theta", 10000.0))),
        "scaling": _scaling(rotary, config),
        "tie": config.get("tie_word_embeddings", False),
        "attention_dropout": config.get("attention_dropout", 0.0),
    }


def _windows(config: dict[str, Any]) -> list[int | None]:
    """The window of each layer; None where a layer sees all that came before."""
    window, count = config.get("sliding_window"), config["num_hidden_layers"]
    if config["model_type"] == "mistral":
        return [window] * count
    if config["model_type"] != "qwen2" or not config.get("use_sliding_window"):
        return [None] * count
    full = config.get("max_window_layers", 28)
    kinds = config.get("layer_types") or [KINDS[layer >= full] for layer in range(count)]
    if len(kinds) != count or not {*kinds} <= {*KINDS}:
        raise UnsupportedError(
            f"the checkpoint has {count} layers and layer_types={list(kinds)!r}; those that have a "
            f"counterpart here are one of {' and '.join(KINDS)} for each layer"
        )
    return [window if kind == KINDS[True] else None for kind in kinds]


def _their_windows(model_type: str, config: ModelConfig) -> dict[str, Any]:
    """Windows by their config: one for all layers, or beside layers without."""
    window = config.genes["mixer"].options.get("window")
    windows = config.schedule.get("window", (window,) * config.layers)
    widest = max((window for window in windows if window is not None), default=None)
    if model_type == "mistral":
        return {"sliding_window": widest}
    if model_type != "qwen2" or widest is None:
        return {}
    kinds = [KINDS[window is not None] for window in windows]
    return {"use_sliding_window": True, "sliding_window": widest, "layer_types": kinds}


def _describe(model_type: str, config: ModelConfig) -> dict[str, Any]:
    mixer, position = config.genes["mixer"].options, config.genes["position"].options
    widths = mixer.get("widths") or {}
    scaling = _their_scaling(config)
    return {
        "num_key_value_heads": mixer.get("kv_heads") or config.heads,
        "head_dim": widths.get("key_dim") or config.width // config.heads,
        "hidden_act": "silu",
        "mlp_bias": feedforward(config).feedforward_bias,
        "attention_bias": bool(mixer.get("bias")),
        "rope_theta": position.get("base", 10000.0),
        "rope_parameters": {"rope_theta": position.get("base", 10000.0), **scaling},
        # what transformers read before version 5
        **({} if scaling["rope_type"] == "default" else {"rope_scaling": scaling}),
        "tie_word_embeddings": config.tie,
        "attention_dropout": mixer.get("attention_dropout", 0.0),
        **_their_windows(model_type, config),
    }


def _scaling(rotary: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """Their rotary parameters as options of `RopeScaling`; what they leave out as they fill it."""
    kind = rotary.get("rope_type", rotary.get("type", "default"))
    refuse_unknown(rotary, OF_ALL | {*SCALINGS.get(str(kind), {}).values()})
    refuse({k: v for k, v in rotary.items() if v is not None}, partial_rotary_factor=1.0)
    if kind == "default":
        return {}
    if kind not in SCALINGS:
        raise UnsupportedError(
            f"the checkpoint scales its rotary positions by '{kind}', which has no counterpart "
            f"here; those that have: default, {', '.join(SCALINGS)}"
        )
    longest = config["max_position_embeddings"]
    original = config.get("original_max_position_embeddings")
    original = original or rotary.get("original_max_position_embeddings") or longest
    result = ((ours, rotary.get(theirs)) for ours, theirs in SCALINGS[kind].items())
    scaling: dict[str, Any] = {
        "kind": kind,
        **{ours: value for ours, value in result if value is not None},
    }
    scaling.setdefault("factor", longest / original)
    if kind != "linear":
        scaling["original_length"] = longest if kind == "dynamic" else original
    above, below = rotary.get("mscale"), rotary.get("mscale_all_dim")
    if kind == "yarn" and "attention_factor" not in scaling and above and below:
        grown = 0.1 * math.log(max(scaling["factor"], 1))
        scaling["attention_factor"] = (grown * above + 1) / (grown * below + 1)
    return scaling


def _their_scaling(config: ModelConfig) -> dict[str, Any]:
    """`RopeScaling` as their rotary parameters."""
    chosen = from_dict(RopeScaling, config.genes["position"].get("scaling") or {})
    if chosen.kind not in SCALINGS:
        return {"rope_type": "default"}
    values = to_dict(chosen)
    scaling = {theirs: values[ours] for ours, theirs in SCALINGS[chosen.kind].items()}
    if chosen.kind not in ("linear", "dynamic"):
        scaling["original_max_position_embeddings"] = chosen.original_length
    return {"rope_type": chosen.kind, **{k: v for k, v in scaling.items() if v is not None}}


def _rules(config: ModelConfig) -> list[Rule]:
    mixer = config.genes["mixer"].options
    size = (mixer.get("widths") or {}).get("key_dim") or config.width // config.heads
    shared = (mixer.get("kv_heads") or config.heads) * size
    pairs = {"embedding": "model.embed_tokens", "stack.norm": "model.norm"}
    pairs |= {} if config.tie else {"head": "lm_head"}
    sizes = (config.heads * size, shared, shared)
    return linked(pairs) + in_layers(config.layers, "model.layers", LAYER, sizes=sizes)


LLAMA_LIKE = tuple(
    HubArchitecture(
        model_type=name.lower(),
        prefix="model.",
        classes={"lm": f"{name}ForCausalLM"},
        names=NAMES,
        options=_options,
        describe=partial(_describe, name.lower()),
        rules=_rules,
        further=FURTHER,
        only={"hidden_act": "silu", "pretraining_tp": 1},
        ignored=r"rotary_emb\.inv_freq$|^lm_head\.weight$",
    )
    for name in ("Llama", "Mistral", "Qwen2")
)
