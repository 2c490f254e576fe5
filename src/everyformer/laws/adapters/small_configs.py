"""Small configurations of transformers: the default of a kind of model, with its sizes made small.

Sizes keep what models ask of each other: heads times a head's size is the width, keys and values
have fewer heads where they had, layers of each kind are there. A window, a chunk or a block is
small enough that short texts go beyond it.
"""

import re
from typing import Any

LAYERS = -1
"""stands for a number of layers"""
SIZES: tuple[tuple[str, int], ...] = (
    (r"^(hidden_size|d_model|n_embd|dim|embed_dim|embedding_size|word_embed_proj_dim)$", 32),
    (r"^(attention_hidden_size|hidden_dim|attention_dim|out_hidden_size|hidden_size_global)$", 32),
    (r"(intermediate|ffn|dff|d_ff|dim_ff|ffn_hidden|feed_?forward).*$", 64),
    (r"^n_inner$", 64),
    (r"^(num_hidden_layers|n_layers?|num_layers|encoder_layers|decoder_layers|depth)$", LAYERS),
    (r"^(num_(key_value|kv)_heads|n_kv_heads?|num_global_key_value_heads)$", 2),
    (r"(attention_heads|^n_heads?|^num_heads|linear_num_heads)$", 4),
    (r"^(head_dim|d_kv|kv_channels|dim_head|v_head_dim|qk_head_dim|attention_head_dim)$", 8),
    (r"(swa|global|linear|index)_.*head_dim$|_head_dim$", 8),
    (r"^(qk_rope_head_dim|rotary_dim)$", 4),
    (r"^qk_nope_head_dim$", 4),
    (r"(lora_rank|_rank)$", 8),
    (r"^(vocab_size|n_vocab|vocab_size_per_layer_input)$", 128),
    (r"(max_position|n_positions|n_ctx|max_seq|model_max_length|max_target|max_source)", 128),
    (
        r"^(sliding_window|sliding_window_size|window_size|attention_window|local_attention_window)",
        8,
    ),
    (r"(attention_chunk_size|chunk_length|block_size|mamba_chunk_size|^chunk_size)$", 8),
    (r"^(num_local_experts|num_experts|n_routed_experts|moe_num_experts)$", 4),
    (r"(num_experts_per_tok|moe_k|moe_top_?k|num_selected_experts)$", 2),
    (r"(n_group|topk_group)$", 1),
    (r"(state_size|d_state|ssm_state)", 8),
    (r"(image_size)$", 32),
    (r"^(patch_size)$", 8),
    (r"(hidden_size_per_layer_input)$", 8),
    (r"(index_topk)$", 8),
    (r"(index_n_heads)$", 2),
)
"""what the name of a setting says -> its small size; the first that fits"""
KINDS: dict[str, dict[str, Any]] = {
    "bamba": {"mamba_n_heads": 8, "mamba_d_head": 8},
    "blt": {"encoder_hash_byte_group_vocab": 128},
    "dots1": {"n_shared_experts": 1},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 8},
    "granitemoehybrid": {"mamba_n_heads": 8, "mamba_d_head": 8},
    "longcat_flash": {"qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "head_dim": 4},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 1},
    "reformer": {
        "is_decoder": True,
        "attn_layers": ["local", "lsh"],
        "axial_pos_shape": [8, 16],
        "axial_pos_embds_dim": [16, 16],
        "num_buckets": 4,
        "local_attn_chunk_length": 8,
        "lsh_attn_chunk_length": 8,
    },
    "roc_bert": {"shape_vocab_size": 128, "pronunciation_vocab_size": 128},
    "xlm": {"n_words": 128, "emb_dim": 32},
    "xmod": {"default_language": "en_XX"},
    "xlstm": {"num_heads": 4, "qk_dim_factor": 0.5, "v_dim_factor": 1.0},
    "zamba": {"num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1},
}
"""kinds of model that ask for more"""
_TOKENS = re.compile(r"_token(_id|_index)?s?$")
_RULES = [(re.compile(pattern), size) for pattern, size in SIZES]


def small(settings: dict[str, Any], layers: int = 2) -> dict[str, Any]:
    """Arguments of a configuration that make it small, from its settings as they are by default.

    Settings that no rule knows are left to the configuration, lists of layers too, which it makes
    for the number of its layers.
    """
    made: dict[str, Any] = {}
    heads = next((v for k, v in settings.items() if k in ("num_attention_heads", "n_head")), None)
    for name, value in settings.items():
        if isinstance(value, dict) and "model_type" in value:
            made[name] = small(value, layers)
        elif type(value) is int and value > 0:
            if _TOKENS.search(name):
                made[name] = {"pad": 0, "bos": 1, "eos": 2}.get(name[:3], min(value, 3))
                continue
            size = next((size for rule, size in _RULES if rule.search(name)), None)
            if size == LAYERS:
                made[name] = min(layers, value)
            elif size is not None:
                all_heads = "key_value_heads" in name and value == heads
                made[name] = min(4 if all_heads else size, value)
    return made | KINDS.get(settings.get("model_type", ""), {})
