"""Any mixer of ours in the place of attention in a model of Hugging Face's transformers.

    from everyformer.interop.hf_mixers import replace_attention

    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=64))
    replace_attention(model, "aft-conv", kernel=15)

Every self-attention becomes a `MixerAttention`: a mixer of the same width, heads and direction
with weights of its own. The model's masks are taken apart into padding, which every mixer honours,
and what else they hide, which a mixer honours or refuses. There is no cache of keys and values.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from everyformer.core.errors import ConfigError, UnsupportedError
from everyformer.core.mixer import Mixer
from everyformer.interop.hf_attention import HARMLESS, NAME, refuse_unknown, register
from everyformer.interop.multihead import only_output
from everyformer.interop.torch_masks import for_mixer
from everyformer.models.build import create_mixer

_KNOWN = {*HARMLESS, "position_embeddings", "layer_idx", "cycle_offset"}
"""what else models pass and no mixer needs: rotations, and slots of the cache that there is not"""
_ACROSS = "from one sequence to another, where a mixer reads one alone"


class MixerAttention(nn.Module):
    """A mixer that is called, and answers, as the attention modules of transformers do.

    Args:
        mixer: mixes one sequence with itself.
    """

    def __init__(self, mixer: Mixer) -> None:
        super().__init__()
        self.mixer, self.is_causal = mixer, mixer.causal

    def forward(
        self,
        hidden_states: Tensor,
        *rest: Any,
        attention_mask: Tensor | None = None,
        output_attentions: bool = False,
        key_value_states: Tensor | None = None,
        is_causal: bool | None = None,
        **further: Any,
    ) -> tuple[Tensor, None]:
        """The mixed sequence, and None for the weights.

        Args:
            hidden_states: (B, L, width).
            rest: a mask, where a model gives it by its place.
            attention_mask: (1 or B, 1 or heads, L, L) bool, True = may be seen.
            is_causal: the direction, where a model says it at each call.
            further: what else models pass.

        Raises:
            UnsupportedError: a cache or what else is not known, a mask that the mixer does not
                honour, weights, another sequence, another direction.
        """
        if key_value_states is not None:
            raise UnsupportedError(
                f"a module with {self.mixer.name} in its place attends {_ACROSS}: leave that one "
                "out of `layers`"
            )
        if is_causal not in (None, self.is_causal):
            raise UnsupportedError(
                f"the model asks for is_causal={is_causal}, but {self.mixer.name} took the place "
                f"of a module with is_causal={self.is_causal}: keep the attention of this model"
            )
        if output_attentions:
            raise UnsupportedError(
                f"{self.mixer.name} gives no attention weights: look inside with ef.trace(model)"
            )
        by_place = {f"argument {n}": t for n, t in enumerate(rest, 2) if t is not hidden_states}
        if attention_mask is None:
            masks = (n for n, t in by_place.items() if isinstance(t, Tensor) and t.dim() == 4)
            attention_mask = by_place.pop(next(masks, ""), None)
        refuse_unknown(
            f"{self.mixer.name} in the place of attention",
            {**by_place, **further},
            _KNOWN,
            "it fills no cache of keys and values, for which give use_cache=False, and what else "
            "this model passes to its own attention would be lost",
        )
        padding = hidden = None
        if attention_mask is not None:
            padding, hidden = self._parts(attention_mask, hidden_states)
        mask = for_mixer(self.mixer, padding, hidden, False)
        out = self.mixer(hidden_states, mask=mask if mask.parts() else None)
        return only_output(self.mixer.name, out), None

    def _parts(self, seen: Tensor, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Padding (B, L), and other pairs that are hidden (1 or B, 1 or heads, L, L), by True."""
        batch, length = x.shape[:2]
        if seen.dtype != torch.bool or seen.dim() != 4 or seen.shape[-2:] != (length, length):
            raise UnsupportedError(
                f"the mask of {self.mixer.name} in the place of attention must be bool and "
                f"(batch, 1, {length}, {length}), not {seen.dtype} {tuple(seen.shape)}: call "
                f"model.set_attn_implementation('{NAME}'), and give attention_mask as (batch, "
                "length)"
            )
        real = seen.any(dim=(1, 2))
        hidden = real[:, None, None] & ~seen
        padding = ~real.expand(batch, -1)
        if torch.compiler.is_compiling():
            return padding, hidden
        unlike = hidden.tril() if self.is_causal else hidden
        return padding if padding.any() else None, hidden if unlike.any() else None


def replace_attention(
    model: nn.Module, member: str, *, layers: Sequence[int] | None = None, **options: Any
) -> list[str]:
    """Put a fresh mixer in the place of every self-attention of a transformers model, in place.

    Args:
        model: a decoder or an encoder of transformers, whose width and heads the mixers have.
        member: a mixer's name (`everyformer list --mixers`).
        layers: numbers of the layers that get one (default: all); the others keep attention.
        options: of `create_mixer`: the mixer's own, and ``position``, ``heads``, ``max_length``
            (default: the model's ``max_position_embeddings``).

    Returns:
        The names of the modules that were replaced.

    Raises:
        UnsupportedError: the model attends across sequences, no attention is found in it, or its
            attention modules do more than a mixer would do in their place.
        UnknownNameError, ConfigError, GeneError: as `create_mixer` raises them.
    """
    register()
    result = _attentions(model)
    every = range(len(result))
    numbers = every if layers is None else layers
    if not numbers or any(type(number) is not int or number not in every for number in numbers):
        raise ConfigError(
            f"`layers={layers}`, but {type(model).__name__} has the layers 0 to {len(result) - 1}: "
            "choose among them"
        )
    chosen = [result[index] for index in sorted(set(numbers))]
    kinds = {type(module) for _, module in chosen}
    # of several alike, one may hold a table for all
    for module in (module for _, module in result if type(module) in kinds):
        unlike = _unlike_a_mixer(module)
        if unlike is not None:
            raise UnsupportedError(
                f"{type(module).__name__} in {type(model).__name__} {unlike}: put "
                "everyformer.create_mixer in by hand, next to what is to stay"
            )
    replacements = [MixerAttention(_mixer(module, member, options)) for _, module in chosen]
    whole: Any = model
    whole.set_attn_implementation(NAME)
    if whole.config._attn_implementation not in (NAME, "sdpa"):  # both have masks of flags
        raise UnsupportedError(
            f"{type(model).__name__} keeps an attention implementation of its own, whose masks a "
            "mixer does not read: put everyformer.create_mixer in by hand"
        )
    for (name, module), new in zip(chosen, replacements, strict=True):
        like = next(module.parameters())
        model.set_submodule(name, new.to(like.device, like.dtype).train(module.training))
    generation = getattr(whole, "generation_config", None)
    for config in (whole.config, whole.config.get_text_config(), generation):
        if config is not None:
            config.use_cache = False
    return [name for name, _ in chosen]


def _attentions(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Every self-attention of a model, by its name: what says whether it is causal.

    A decoder of Bart's kind that is used alone has modules beside, for an encoder's states: they
    stay.

    Raises:
        UnsupportedError: there is none, or one that reads another sequence.
    """
    config: Any = getattr(model, "config", None)
    named = ((n, m) for n, m in model.named_modules() if not n.endswith("encoder_attn"))
    results = [(name, m) for name, m in named if hasattr(m, "is_causal")]
    kind = type(model).__name__
    across = any(getattr(m, "is_cross_attention", "Cross" in type(m).__name__) for _, m in results)
    if across or getattr(config, "is_encoder_decoder", False):
        raise UnsupportedError(
            f"{kind} attends {_ACROSS}: use "
            f"set_attn_implementation('{NAME}') there, or a decoder or an encoder"
        )
    if any(isinstance(m, MixerAttention) for _, m in results):
        raise UnsupportedError(
            f"mixers of everyformer are in {kind} already: build the model again to put in others"
        )
    if not results or not hasattr(model, "set_attn_implementation"):
        raise UnsupportedError(
            f"no self-attention is found in {kind}: give a model of transformers whose attention "
            "modules have `is_causal`, or put everyformer.create_mixer in by hand"
        )
    return results


def _unlike_a_mixer(module: nn.Module) -> str | None:
    """Reason why a mixer cannot stand in the place of an attention module; None where it can."""
    config: Any = module.config
    if getattr(module, "is_decoder", False) and not module.is_causal:
        return "is a decoder's, but has is_causal=False, so that a mixer would see the future"
    lost = [
        name.removesuffix(".weight")
        for name, weight in module.named_parameters()
        # norms of queries and keys go with attention, one of the stream follows what was added
        if (name.lower().endswith("norm.weight") and name[0] not in "qk"
            and weight.shape == (config.hidden_size,))
        # experts
        or weight.dim() > 2
    ]  # fmt: skip
    lost += [name for name, part in module.named_modules() if isinstance(part, nn.Embedding)]
    return f"does more than attention: its {lost[0]} would be lost" if lost else None


def _mixer(module: nn.Module, member: str, options: dict[str, Any]) -> Mixer:
    """A mixer with the sizes and the direction of an attention module."""
    config: Any = module.config
    sizes = {
        "width": config.hidden_size,
        "heads": config.num_attention_heads,
        "causal": bool(module.is_causal),
        "max_length": getattr(config, "max_position_embeddings", None),
    }
    return create_mixer(member, **{**sizes, **options})
