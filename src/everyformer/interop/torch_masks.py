"""Masks in the convention of `torch.nn`, where True (or -inf) hides, as ours.

Shapes are checked here as well. A float mask of zeros and -inf says no more than a boolean one: the
layers of `torch.nn` make every mask into one of that kind before they pass it on.
"""

import math

import torch
from torch import Tensor

from everyformer.core.errors import ShapeError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.core.mixer import Mixer
from everyformer.engines.softmax.visibility import causal_mask
from everyformer.family import list_members
from everyformer.genes.mixers import MIXERS


def check_padding(mask: Tensor | None, batch: int, keys: int) -> None:
    """Refuse a ``key_padding_mask`` that is not (batch, keys), bool or float."""
    if mask is None:
        return
    _check_kind("key_padding_mask", mask)
    if mask.shape != (batch, keys):
        raise ShapeError(
            f"key_padding_mask must have one entry a key, ({batch}, {keys}) (unbatched: ({keys},))"
            f", not {tuple(mask.shape)}"
        )


def by_head(mask: Tensor | None, batch: int, heads: int, pairs: tuple[int, int]) -> Tensor | None:
    """``attn_mask`` (L, S) or (batch * heads, L, S) as (1 or batch, 1 or heads, L, S)."""
    if mask is None:
        return None
    _check_kind("attn_mask", mask)
    if mask.shape == pairs:
        return mask[None, None]
    if mask.shape == (batch * heads, *pairs):
        return mask.unflatten(0, (batch, heads))
    raise ShapeError(
        f"attn_mask must be {pairs} or {(batch * heads, *pairs)}, (queries, keys) once or for each "
        f"row and head, not {tuple(mask.shape)}"
    )


def both(padding: Tensor | None, pairs: Tensor | None) -> Mask:
    """The two masks for a member that takes ``padding_mask``, ``attention_mask`` and ``bias``.

    Args:
        padding: (B, S) of `check_padding`. pairs: (B or 1, H or 1, L, S) of `by_head`.
    """
    padding_mask = attention_mask = bias = None
    if padding is not None:
        if padding.dtype == torch.bool:
            padding_mask = ~padding
        else:
            bias = padding[:, None, None]
    if pairs is not None:
        if pairs.dtype == torch.bool:
            attention_mask = ~pairs
        else:
            bias = pairs if bias is None else bias + pairs
    return Mask(padding_mask=padding_mask, attention_mask=attention_mask, bias=bias)


def for_mixer(mixer: Mixer, padding: Tensor | None, pairs: Tensor | None, hint: bool) -> Mask:
    """The two masks for any mixer: what it cannot honour and does not do anyway is an error.

    Args:
        padding, pairs: as in `both`. hint: the call's ``is_causal``.

    Raises:
        UnsupportedError: names the mask and the members that honour it. In a compiled graph, where
            values are not known yet, it is an assertion of the graph instead.
    """
    if pairs is not None and not {"attention_mask", "bias"} <= mixer.supported_masks:
        _demand_nothing_new(mixer, pairs)
        pairs = None
    elif hint and not mixer.causal and pairs is None:
        raise UnsupportedError(
            f"is_causal=True, but this {mixer.name} is bidirectional and no attn_mask was given: "
            "build it with causal=True"
        )
    if padding is None or "bias" in mixer.supported_masks:
        return both(padding, pairs)
    if "padding_mask" not in mixer.supported_masks:
        raise UnsupportedError(
            f"{mixer.name} cannot honour key_padding_mask; {_able('padding_mask')}"
        )
    if padding.dtype != torch.bool:
        hidden = padding == -math.inf
        _demand(
            (hidden | (padding == 0)).all(),
            f"{mixer.name} can hide keys but not weigh them: key_padding_mask must be bool, or "
            "hold nothing but 0 and -inf",
            "bias",
        )
        padding = hidden
    return both(padding, pairs)


def _demand_nothing_new(mixer: Mixer, pairs: Tensor) -> None:
    """Only a mask that hides no pair which the member shows may be left to the member."""
    changed = pairs if pairs.dtype == torch.bool else pairs != 0
    message = f"this bidirectional {mixer.name} cannot honour attn_mask; if it is the causal one, "
    message += "build it with `causal=True`"
    if mixer.causal:
        changed = changed & causal_mask(pairs.shape[-2], pairs.shape[-1], pairs.device)
        message = f"this causal {mixer.name} cannot honour attn_mask beyond the causal triangle"
    _demand(~changed.any(), message, "attention_mask")


def _demand(holds: Tensor, message: str, part: str) -> None:
    if torch.compiler.is_compiling():
        torch._assert_async(holds, message)
    elif not bool(holds):
        raise UnsupportedError(f"{message}; {_able(part)}")


def _able(part: str) -> str:
    """Members that honour this part of a mask."""
    names = [
        m.name for m in list_members() if m.is_mixer and part in MIXERS.get(m.name).supported_masks
    ]
    return f"members that can: {', '.join(names)}"


def _check_kind(name: str, mask: Tensor) -> None:
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise ShapeError(
            f"{name} must be bool (True = hidden) or float (added to the scores), not {mask.dtype}"
        )
