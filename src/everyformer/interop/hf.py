"""Our causal language models as Hugging Face models; attention of ours in Hugging Face's models.

    import everyformer.interop.hf as hf

    model = hf.EveryformerForCausalLM.wrap(ef.create_model("aft-conv", vocabulary=256))
    model.save_pretrained("folder")
    model = AutoModelForCausalLM.from_pretrained("folder")    # after this module is imported
    model.generate(tokens, attention_mask=mask, max_new_tokens=50)

``config.json`` holds our whole `ModelConfig` under ``everyformer``. In `generate` the model's
`State` is the cache; a member without an exact one reads the whole text again at each step.
Importing this module registers the model with the Auto classes, and the names of
`everyformer.interop.hf_attention` for ``set_attn_implementation``. Needs the extra ``hf``.
"""

from dataclasses import fields
from typing import Any, Self

import torch
from torch import Tensor, nn

from everyformer.core.config import from_dict, to_dict
from everyformer.core.errors import ConfigError, MissingExtraError, ShapeError, UnsupportedError
from everyformer.core.mask import Mask, document_positions, positions_of
from everyformer.core.state import StackState
from everyformer.generation.sampling import initial_state
from everyformer.genes.config import DEFAULT_LENGTH, ModelConfig
from everyformer.interop.hf_attention import NAME as NAME
from everyformer.interop.hf_attention import WITH_WEIGHTS as WITH_WEIGHTS
from everyformer.interop.hf_attention import refuse_unknown, register
from everyformer.models.build import build_model, configure
from everyformer.models.language import LanguageModel

try:
    from transformers import (
        AutoConfig,
        AutoModelForCausalLM,
        GenerationMixin,
        PreTrainedConfig,
        PreTrainedModel,
    )
    from transformers.cache_utils import Cache
    from transformers.modeling_outputs import CausalLMOutputWithPast
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
except ImportError as error:
    raise MissingExtraError("transformers", "hf", "the Hugging Face interface") from error

# "past_key_values", since transformers 5.24 "cache"
_CACHE = next(field.name for field in fields(CausalLMOutputWithPast) if "Cache" in str(field.type))


class EveryformerConfig(PreTrainedConfig):
    """A `ModelConfig` as a Hugging Face config.

    Args:
        everyformer: the model, as a `ModelConfig` or as its plain values (default: the default
            language model of member 'attention').
        options: what every Hugging Face config takes.

    Raises:
        ConfigError: an unknown field, or a model of another task than 'lm'.
    """

    model_type = "everyformer"

    def __init__(
        self, everyformer: ModelConfig | dict[str, Any] | None = None, **options: Any
    ) -> None:
        described = configure("attention") if everyformer is None else everyformer
        if isinstance(described, dict):
            described = from_dict(ModelConfig, described, "everyformer.")
        if not described.does.continues:
            raise ConfigError(
                f"this wrapper holds causal language models, task 'lm', not task '{described.task}'"
            )
        self.everyformer = to_dict(described)
        super().__init__(**{**options, "tie_word_embeddings": described.tie})

    @property
    def model_config(self) -> ModelConfig:
        """The complete description that `build_model` takes."""
        return from_dict(ModelConfig, self.everyformer)

    def to_diff_dict(self) -> dict[str, Any]:
        """The config as it is saved: the model whole, since our defaults may change."""
        return {**super().to_diff_dict(), "everyformer": self.everyformer}

    @property
    def vocab_size(self) -> int:
        return int(self.everyformer["vocabulary"])

    @vocab_size.setter
    def vocab_size(self, size: int) -> None:
        self.everyformer = {**self.everyformer, "vocabulary": size}

    hidden_size = property(lambda self: int(self.everyformer["width"]))
    num_hidden_layers = property(lambda self: int(self.everyformer["layers"]))
    num_attention_heads = property(lambda self: int(self.everyformer["heads"]))
    max_position_embeddings = property(
        lambda self: int(self.everyformer["max_length"] or DEFAULT_LENGTH)
    )


class EveryformerCache(Cache):
    """A model's `State` instead of a key-value cache; empty before the first call."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.state: StackState | None = None
        self.length = 0
        """tokens read, padding included"""

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        if self.state is not None:
            self.state = self.state.reorder(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.state is not None:
            rows = torch.arange(self.state.num_tokens.shape[0], device=self.state.num_tokens.device)
            self.state = self.state.reorder(rows.repeat_interleave(repeats))

    def reset(self) -> None:
        self.state, self.length = None, 0

    def crop(self, tokens_to_remove: int) -> None:
        raise UnsupportedError(
            "a state cannot forget its last tokens; keep the state of the moment to return to "
            "(`cache.state` is never changed in place)"
        )


class EveryformerForCausalLM(PreTrainedModel, GenerationMixin):
    """A `LanguageModel` with the methods of a Hugging Face model; ``model`` is ours, unchanged."""

    config_class = EveryformerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _tied_weights_keys = {"model.head.weight": "model.embedding.weight"}  # noqa: RUF012
    # a state has no way back, which assisted generation would need
    _is_stateful = True

    def __init__(self, config: EveryformerConfig) -> None:
        super().__init__(config)
        self.model = build_model(config.model_config)
        if not isinstance(self.model, LanguageModel):
            raise UnsupportedError(
                f"'{self.model.config.member}' is a whole model of your own, which is read from "
                "outside, and this wrapper holds models of this library: write it as a program or "
                "for ONNX"
            )
        self._tied_weights_keys = {**type(self)._tied_weights_keys, **self._shared_names()}
        self.hollow = next(self.model.parameters()).is_meta
        self.post_init()

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        # transformers leaves out all where the embeddings are not tied
        tied: dict[str, str] = super().get_expanded_tied_weights_keys(all_submodels)
        return tied | self._shared_names()

    def _shared_names(self) -> dict[str, str]:
        """Further names of what several layers share (a table of positions), and the first."""
        names: dict[int, str] = {}
        blocks = self.model.stack.named_parameters("model.stack", remove_duplicate=False)
        further = {name: names.setdefault(id(weight), name) for name, weight in blocks}
        return {name: first for name, first in further.items() if name != first}

    @classmethod
    def wrap(cls, model: LanguageModel) -> Self:
        """A Hugging Face model around ``model`` itself, nothing copied."""
        with torch.device("meta"):
            wrapped = cls(EveryformerConfig(model.config))
        wrapped.model, wrapped.hollow = model, False
        return wrapped.train(model.training)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: EveryformerCache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        return_dict: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: int | Tensor | None = None,
        cache: EveryformerCache | None = None,
        **further: Any,
    ) -> CausalLMOutputWithPast | tuple[Tensor, ...]:
        """Logits of every next token, and the model's own loss where ``labels`` are given.

        Args:
            input_ids: (B, L) tokens. inputs_embeds: (B, L, width) instead of them.
            attention_mask: (B, L) or, behind a cache, (B, past + L); 1 = real.
            position_ids: what is counted here anyway, or positions that restart where another
                packed document begins.
            past_key_values, cache: two names of one: tokens are read behind those that it has
                seen; it is brought up to date. use_cache: makes one where none is given.
            logits_to_keep: give the logits of so many last tokens alone; 0 gives all.
            labels: (B, L), -100 = not scored, moved by one here. In training early exits,
                predictions of other layers and what else the model adds to its loss count too.
            num_items_in_batch: scored labels of the whole batch where this is a piece of it: the
                loss, every term of it, is weighed by the piece's share of them.
            further: ``token_type_ids`` of 0 and ``cache_position``, which say nothing new.

        Raises:
            ShapeError, UnsupportedError: masks and positions that do not fit; pictures of the
                inside, which ``ef.trace`` gives; what is not known.
        """
        types = further.get("token_type_ids")
        known = {"cache_position", *(() if types is None or types.any() else ("token_type_ids",))}
        refuse_unknown(type(self).__name__, further, known, "leave it out")
        if output_attentions or output_hidden_states:
            raise UnsupportedError(
                "output_attentions and output_hidden_states are not offered: look inside with "
                "ef.trace(model.model)"
            )
        if (input_ids is None) == (inputs_embeds is None):
            raise ConfigError("give either input_ids or inputs_embeds")
        embeddings = None
        if inputs_embeds is not None:
            embeddings = inputs_embeds * self.model.config.embedding_scale
            input_ids = inputs_embeds.new_zeros(inputs_embeds.shape[:2], dtype=torch.long)
        assert input_ids is not None
        if cache is not None and past_key_values is not None:
            raise ConfigError("cache and past_key_values are two names of one: give one of them")
        cache, state = past_key_values if cache is None else cache, None
        if cache is not None:
            if not isinstance(cache, EveryformerCache):
                raise UnsupportedError(
                    f"{_CACHE} must be an EveryformerCache, not {type(cache).__name__}"
                )
            state = cache.state or self.model.init_state(input_ids.shape[0])
        elif use_cache:
            state = initial_state(self.model, input_ids.shape[0])
            cache = None if state is None else EveryformerCache()
        mask = _mask(input_ids, attention_mask, position_ids, state)
        if isinstance(logits_to_keep, Tensor):
            raise UnsupportedError("logits_to_keep must be a number of last tokens, not places")
        last = logits_to_keep or None
        if last is not None and labels is not None:
            raise ConfigError("labels score every token: leave logits_to_keep out")
        targets = None if labels is None else nn.functional.pad(labels[:, 1:], (0, 1), value=-100)
        out = self.model(
            input_ids, targets=targets, mask=mask, state=state, embeddings=embeddings, last=last
        )
        if cache is not None:
            cache.state, cache.length = out.state, cache.length + input_ids.shape[1]
        loss = out.loss
        if targets is not None and num_items_in_batch is not None:
            # of all terms alike, so that pieces of a batch add up to it
            loss = loss * ((targets != -100).sum() / num_items_in_batch)
        named: dict[str, Any] = {_CACHE: cache}
        result = CausalLMOutputWithPast(loss=loss, logits=out.logits, **named)
        return result.to_tuple() if return_dict is False else result

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.model.embedding = value

    def get_output_embeddings(self) -> nn.Module:
        return self.model.head

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        self.model.head = new_embeddings

    @property
    def is_activation_checkpointing(self) -> bool:
        return self.model.stack.checkpointing

    def activation_checkpointing_enable(
        self,
        activation_checkpointing_kwargs: Any = None,
        every_n_layers: int = 1,
        offload: bool = False,
    ) -> None:
        """Keep only the layers' inputs for the backward pass; torch's own settings do not apply."""
        if every_n_layers != 1 or offload:
            raise UnsupportedError(
                "activations are recomputed for every layer and not offloaded: leave "
                "every_n_layers and offload at their defaults"
            )
        self.model.enable_checkpointing()

    def activation_checkpointing_disable(self) -> None:
        self.model.enable_checkpointing(False)

    # the names in earlier transformers 5
    def gradient_checkpointing_enable(
        self, gradient_checkpointing_kwargs: Any = None, **options: Any
    ) -> None:
        self.activation_checkpointing_enable(gradient_checkpointing_kwargs, **options)

    gradient_checkpointing_disable = activation_checkpointing_disable

    @torch.no_grad()
    def initialize_weights(self) -> None:
        """Give weights that a checkpoint did not bring the values that our models start with."""
        missing = {
            name: weight
            for name, weight in self.model.state_dict(keep_vars=True).items()
            if not (weight.is_meta or getattr(weight, "_is_hf_initialized", False))
        }
        if not self.hollow or not missing:
            return
        fresh = build_model(self.config.model_config).state_dict()
        for name, weight in missing.items():
            weight.copy_(fresh[name])

    def _prepare_cache_for_generation(
        self,
        generation_config: Any,
        model_kwargs: dict[str, Any],
        generation_mode: Any,
        batch_size: int,
        max_cache_length: int,
    ) -> Any:
        """A state instead of a key-value cache; without one, `generate` reads all text again."""
        chosen = generation_config.cache_implementation
        if chosen not in (None, "dynamic"):
            raise UnsupportedError(
                f"cache_implementation='{chosen}' is a kind of key-value cache; this model carries "
                "its own state: leave the option out"
            )
        if not generation_config.use_cache or model_kwargs.get(_CACHE) is not None:
            return
        if initial_state(self.model, 1) is None:
            generation_config.use_cache = False
        else:
            model_kwargs[_CACHE] = EveryformerCache()


def _mask(
    tokens: Tensor, attention_mask: Tensor | None, positions: Tensor | None, state: Any
) -> Mask | None:
    """Hugging Face's mask and positions as ours; None where all tokens are real."""
    batch, length = tokens.shape
    mask = None
    if attention_mask is not None:
        if attention_mask.dim() != 2 or attention_mask.shape[1] < length:
            raise ShapeError(
                f"attention_mask must be ({batch}, {length}) or, behind a cache, longer, not "
                f"{tuple(attention_mask.shape)}"
            )
        padding_mask = attention_mask[:, -length:].bool()
        # in a graph the values are not known, and a mask of ones changes nothing
        if torch.compiler.is_compiling() or not padding_mask.all():
            mask = Mask(padding_mask=padding_mask)
    if positions is None:
        return mask
    if torch.compiler.is_compiling():
        if state is not None:
            return mask
        # their values are not known: each real token at 0 may begin another document
        real_tokens = None if mask is None else mask.padding_mask
        begins = positions == 0 if real_tokens is None else (positions == 0) & real_tokens
        return Mask(padding_mask=real_tokens, documents=begins.long().cumsum(1).expand(batch, -1))
    num_tokens = None if state is None else state.num_tokens
    counted = positions_of(batch, length, mask, num_tokens, tokens.device).expand(batch, -1)
    expanded = positions.expand(batch, -1)
    real = torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask.padding_mask
    if expanded.shape == counted.shape and torch.equal(expanded[real], counted[real]):
        return mask
    if expanded.shape == counted.shape and state is None and mask is None:
        documents = (expanded == 0).long().cumsum(1)
        if torch.equal(document_positions(documents), expanded):
            return Mask(documents=documents)
    raise UnsupportedError(
        "position_ids must count the real tokens of a row from 0, or restart at 0 where another "
        "packed document begins (without padding or a cache); leave them out"
    )


# by it their Trainer tells causal models, whose labels its smoothing moves by one
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[EveryformerConfig.model_type] = EveryformerForCausalLM.__name__
AutoConfig.register(EveryformerConfig.model_type, EveryformerConfig, exist_ok=True)
AutoModelForCausalLM.register(EveryformerConfig, EveryformerForCausalLM, exist_ok=True)
register()
