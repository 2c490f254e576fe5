"""Small configurations of transformers: the default of a kind of model, with its sizes made small.

Sizes keep what models ask of each other: heads times a head's size is the width, keys and values
have fewer heads where they had, layers of each kind are there. A window, a chunk or a block is
small enough that short texts go beyond it.

The sizes of a whole model may be others; what is left belongs to a width of 32.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from sequence_laws.errors import ConfigError

SIZES: tuple[tuple[str, int | str], ...] = (
    (
        r"^(hidden_size|d_model|n_embd|dim|emb(ed|edding)?_dim|embedding_size|d_latents|word_embed_proj_dim)$",
        "width",
    ),
    (
        r"^(attention_hidden_size|hidden_dim|attention_dim|out_hidden_size|hidden_size_global)$",
        "width",
    ),
    (r"(intermediate|ffn|dff|d_ff|dim_ff|ffn_hidden|feed_?forward).*$", "hidden"),
    (r"^n_inner$", "hidden"),
    (r"^(num_hidden_layers|n_layers?|num_layers|encoder_layers|decoder_layers|depth)$", "layers"),
    (r"((key_value|kv)_heads|n_kv_heads?|kv_n_heads)$", "groups"),
    (r"(attention_heads|^n_heads?|^num_heads|linear_num_heads)$", "heads"),
    (r"^(head_dim|d_kv|kv_channels|dim_head|v_head_dim|qk_head_dim|attention_head_dim)$", "head"),
    (r"(swa|global|linear|index)_.*head_dim$|_head_dim$", "head"),
    (r"^(qk_rope_head_dim|rotary_dim)$", "half"),
    (r"^qk_nope_head_dim$", "half"),
    (r"(lora_rank|_rank)$", 8),
    (
        r"(vocab_size|^n_vocab|^n_words|vocab_size_per_layer_input|hash_byte_group_vocab)$",
        "vocabulary",
    ),
    (
        r"(max_position|n_positions|n_ctx|max_seq|model_max_length|max_target|max_source)",
        "max_length",
    ),
    (
        r"^(sliding_window|sliding_window_size|window_size|attention_window|local_attention_window)",
        8,
    ),
    (r"(attention_chunk_size|chunk_length|block_size|mamba_chunk_size|^chunk_size)$", 8),
    (r"^(num_local_experts|num_experts|n_routed_experts|moe_num_experts)$", 4),
    (r"(num_experts_per_tok(en)?|moe_k|moe_top_?k|num_selected_experts)$", 2),
    (r"(n_group|topk_group|expert_group)$", 1),
    (r"(state_size|d_state|ssm_state)", 8),
    (r"(image_size)$", 32),
    (r"^(patch_size)$", 8),
    (r"(hidden_size_per_layer_input)$", 8),
    (r"(index_topk)$", 8),
    (r"(indexer?_n_heads)$", 2),
    (r"^indexer_kv_heads$", 1),
    (r"^(indexer_budget|num_latents)$", 8),
    (r"^indexer_compress_ratio$", 2),
    (r"^(qk|v)_channels$", 32),
    (r"^num_codebooks$", 1),
    (r"^n_layers_per_attn_res_block$", 1),
)
"""what the name of a setting says -> its small size, or which of the model's sizes it is; the first
that fits"""
SMALL = {"vocabulary": 128, "width": 32, "layers": 2, "heads": 4, "max_length": 128}
"""sizes of a model that is checked"""
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
KINDS: dict[str, dict[str, Any]] = {
    "bamba": {"mamba_n_heads": 8, "mamba_d_head": 8, "attn_layer_indices": [1]},
    "cohere_compass_text": {"rope_parameters": {"full_attention": _ROPE}},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0}},
    "deepseek_v4": {
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8}
    },
    "dory": {
        "num_hidden_layers": 3,
        "n_input_layers": 1,
        "n_recurrent_layers": 1,
        "n_output_layers": 1,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "dots1": {"n_shared_experts": 1},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_heads": 8, "mamba_d_head": 8},
    "funnel": {"block_sizes": [1, 1, 1], "d_head": 8, "d_inner": 64},
    "gemma3n_text": {
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "intermediate_size": 64,
        "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0],
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 8},
    "granitemoehybrid": {
        "mamba_n_heads": 8,
        "mamba_d_head": 8,
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
    },
    "hunyuan_v1_moe": {"num_experts": 4, "moe_topk": 2},
    "inkling2_loop_text": {
        "num_hidden_layers": 4,
        "layer_types": ["hybrid_sliding", "hybrid"] * 2,
        "loop_layer_index_start": 1,
        "loop_layer_index_end": 3,
        "loop_num_passes": 2,
    },
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "longcat_flash": {"qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "head_dim": 4},
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 1},
    "neomme": {"head_dim": 16},
    "qwen4_exp_text": {
        "layer_types": ["linear_attention", "indexed_attention"],
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 8,
        "indexer_compress_ratio": 2,
    },
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {
        "attn_layers": ["local", "lsh"],
        "axial_pos_shape": [8, 16],
        "axial_pos_embds_dim": [16, 16],
        "num_buckets": 4,
        "local_attn_chunk_length": 8,
        "lsh_attn_chunk_length": 8,
    },
    "xmod": {"default_language": "en_XX"},
    "xlstm": {"hidden_size": 128, "embedding_dim": 128, "num_heads": 4},
    "zamba": {
        "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
    },
    "zamba2": {"attention_hidden_size": 64, "attention_head_dim": 16},
}
"""kinds of model that ask for more"""
_TOKENS = re.compile(r"(_token_id|_token_index|_token_ids|_token|_index)$")
_EXACT = re.compile(r"^(vocab_size|n_vocab|n_words)$|max_position|n_positions|n_ctx|max_seq")
"""also where the default is less"""
_RULES = [(re.compile(pattern), size) for pattern, size in SIZES]
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")


def of_model(sizes: Mapping[str, int]) -> dict[str, int]:
    """Sizes that follow from those of a model: of a head, of half a head, of the feed-forward, and
    how many heads keys and values have."""
    width, heads = sizes["width"], sizes["heads"]
    head = max(1, width // heads)
    more = {"head": head, "half": max(1, head // 2), "groups": max(1, heads // 2)}
    # four times the width, as most have, of a model that is not made for a check alone
    return {**sizes, **more, "hidden": 64 if sizes == SMALL else 4 * width}


def small(
    settings: dict[str, Any],
    layers: int = 2,
    *,
    sizes: Mapping[str, int] = SMALL,
    kinds: bool = True,
    fill: bool = False,
) -> dict[str, Any]:
    """Arguments of a configuration that make it small, from its settings as they are by default.

    Settings that no rule knows are left to the configuration.

    Args:
        layers: how many there are, where the default has more.
        sizes: of the model.
        kinds: layers of each kind that lists name; without it such lists are left to the
            configuration, which makes them for the number of its layers.
        fill: sizes that are None by default get one, too.
    """
    made: dict[str, Any] = {}
    known = of_model(sizes) | {"layers": layers}
    heads = next((v for k, v in settings.items() if k in ("num_attention_heads", "n_head")), None)
    lists = by_layer(settings) if kinds else {}
    chosen = one_of_each([*lists.values()], layers)
    for name, value in settings.items():
        if isinstance(value, dict) and ("model_type" in value or name.endswith("_config")):
            made[name] = small(value, layers, sizes=sizes, kinds=kinds, fill=fill)
        elif name in lists:
            made[name] = [_smaller(name, value[at], known, heads) for at in chosen]
        elif fill and value is None and name == "pad_token_id":
            made[name] = 0
        elif fill and value is None and _rule(name) not in (None, "layers"):
            made[name] = _size(name, known)
        else:
            made[name] = _smaller(name, value, known, heads)
    kept = {k: v for k, v in made.items() if k not in settings or v != settings[k]}
    return kept | KINDS.get(settings.get("model_type", ""), {})


def _smaller(name: str, value: Any, known: Mapping[str, int], heads: Any) -> Any:
    """A setting, made small where it is a number and a rule knows its name."""
    if type(value) is not int or value <= 0:
        return value
    size = _size(name, known)
    if size is None and _TOKENS.search(name):
        return {"pad": 0, "bos": 1, "eos": 2}.get(name[:3], min(value, 3))
    if size is None:
        return value
    if _EXACT.search(name):
        return size
    if "key_value_heads" in name and value == heads:
        size = known["heads"]
    return min(size, value)


def _rule(name: str) -> int | str | None:
    return next((size for rule, size in _RULES if rule.search(name)), None)


def _size(name: str, known: Mapping[str, int]) -> int | None:
    size = _rule(name)
    return known[size] if isinstance(size, str) else size


def by_layer(settings: dict[str, Any]) -> dict[str, list[Any]]:
    """Lists that have an entry for each layer."""
    count = next((settings[word] for word in _LAYERS if settings.get(word)), None)
    named = ((k, v) for k, v in settings.items() if isinstance(v, (list, tuple)))
    return {k: [*v] for k, v in named if len(v) == count and len(v) > 2}


def one_of_each(lists: Sequence[Sequence[Any]], layers: int) -> list[int]:
    """Places, in order, of layers that differ in any list, and of others up to ``layers``.

    Raises:
        ConfigError: there are more kinds of layers than that.
    """
    found: dict[tuple[Any, ...], int] = {}
    for at, kind in enumerate(zip(*lists, strict=True)):
        found.setdefault(kind, at)
    most = len(lists[0]) if lists else 0
    if len(found) > layers:
        raise ConfigError(f"{len(found)} kinds of layers are more than {layers}")
    places = sorted(found.values())
    rest = [at for at in range(most) if at not in places]
    return sorted(places + rest[: layers - len(places)])
