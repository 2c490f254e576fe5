"""Our softmax engine inside the models of Hugging Face's transformers.

    import everyformer.interop.hf
    model.set_attn_implementation("everyformer-attention")

`register` enters two names in both of transformers' interfaces, the one for attention and the one
for masks (without the second, a model would pass its padding on as it came):

- ``everyformer-attention``: fused where torch can, by the formula where it cannot. Grouped heads,
  sliding windows, soft-capped scores (Gemma 2), sinks (gpt-oss) and position biases (T5) are
  honoured. Weights are given back where the model passes ``output_attentions`` on.
- ``everyformer-attention-weights``: always by the formula, and always with the weights, as
  ``output_attentions=True`` wants them: transformers does not pass that wish to every attention.

A query that may see nothing gives 0. Masks are boolean in both, True = may be seen.
"""

import importlib.util
from collections.abc import Mapping, Sequence, Set
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyformer.core.errors import MissingExtraError, UnsupportedError
from everyformer.engines.softmax.attention import attention_weights, softmax_attention
from everyformer.engines.softmax.visibility import Visibility, causal_mask

NAME = "everyformer-attention"
WITH_WEIGHTS = "everyformer-attention-weights"
HARMLESS = {
    "position_ids", "cache_position",  # what depends on places is done, or of another module
    "use_cache", "return_dict", "output_hidden_states", "output_router_logits", "logits_to_keep",
    "labels", "num_items_in_batch",  # for other modules, to which a call is passed on whole
    "deterministic",  # of flash attention's gradient
}  # fmt: skip
"""words of transformers that change nothing about an attention's result"""


def register() -> None:
    """Register both names with transformers.

    Raises:
        MissingExtraError: transformers is not installed.
    """
    if importlib.util.find_spec("transformers") is None:
        raise MissingExtraError("transformers", "hf", "attention for Hugging Face models")
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    for name, function in ((NAME, attention_forward), (WITH_WEIGHTS, attention_with_weights)):
        AttentionInterface.register(name, function)
        AttentionMaskInterface.register(name, sdpa_mask)


def refuse_unknown(reader: str, passed: Mapping[str, Any], known: Set[str], advice: str) -> None:
    """Refuse what a call of transformers passes by a name that is not known, unless it is None or
    an empty collection: names change, and what was lost without a word would change the result.

    Raises:
        UnsupportedError: names it.
    """
    given = {n: v for n, v in passed.items() if v is not None and n not in known}
    unknown = [n for n, v in given.items() if not isinstance(v, Sequence | Mapping) or v]
    if unknown:
        raise UnsupportedError(f"{reader} does not know {', '.join(unknown)}: {advice}")


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    output_attentions: bool = False,
    **rest: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention of one layer, as transformers calls it.

    Args:
        module: the layer; its ``is_causal`` counts where the argument is None.
        query: (B, H, L, D). key, value: (B, H_kv, S, ...).
        attention_mask: bool (True = may be seen) or additive, broadcastable to (B, H, L, S); None
            leaves causal masking to this function.
        position_bias: added to the scaled scores.
        rest: ``softcap`` and ``s_aux`` (the sinks) count; ``sliding_window`` is in the mask
            already.

    Returns:
        (B, L, H, D_v), and the weights (B, H, L, S) if they were requested.

    Raises:
        UnsupportedError: what is not known, as a sparse pattern or a paged cache.
    """
    refuse_unknown(
        f"'{NAME}' in {type(module).__name__}",
        rest,
        {*HARMLESS, "softcap", "s_aux", "sliding_window"},
        "use the model's own attention implementation",
    )
    if is_causal is None:
        is_causal = bool(getattr(module, "is_causal", True))
    queries = query.shape[2]
    alone = attention_mask is None and is_causal and queries > 1
    if alone and key.shape[2] > queries:
        # the slots of an empty static cache behind the prompt
        key, value = key[:, :, :queries], value[:, :, :queries]
        position_bias = None if position_bias is None else position_bias[..., :queries]
    visible = Visibility(causal=alone, mask=attention_mask)
    if position_bias is not None:
        seen = causal_mask(queries, queries, query.device) if alone else attention_mask
        if seen is not None and seen.dtype == torch.bool:
            position_bias = position_bias.masked_fill(~seen, -torch.inf)
        elif seen is not None:
            position_bias = position_bias + seen
        visible = Visibility(mask=position_bias)
    scores: dict[str, Any] = {
        "scale": scaling,
        "softcap": rest.get("softcap"),
        "sink": rest.get("s_aux"),
    }
    if not output_attentions:
        y = softmax_attention(query, key, value, visible, dropout=dropout, **scores)
        return y.transpose(1, 2).contiguous(), None
    weights = attention_weights(query, key, visible, **scores)
    weights = F.dropout(weights, dropout).to(value.dtype)
    y = weights @ value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
    return y.transpose(1, 2).contiguous(), weights


def attention_with_weights(*call: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
    """`attention_forward` that always gives the weights."""
    return attention_forward(*call, **{**options, "output_attentions": True})
