"""Caches of models of transformers: found by what comes back, under whatever name a release has."""

import copy
import functools
import inspect
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from sequence_laws.extras import extra_module
from sequence_laws.inputs import Inputs, beside, first
from sequence_laws.subject import Subject
from sequence_laws.verdict import Inapplicable, LawBroken


class Continued(Subject):
    """A model of transformers with its cache."""

    begins: tuple[str, dict[str, int]] | None = None
    """class and sizes of a first cache that is given to it"""
    feeds_masks = True
    cache_word = ""
    """what a cache is called, once one came back"""
    bare = False
    """whether a mask is given without positions that count what is real"""
    states: Tensor | None = None
    """(n, d) of an encoder that every row reads, of which the last two are padding"""

    def __init__(self, model: nn.Module, name: str, inputs: Inputs, **known: Any) -> None:
        super().__init__(model, name, inputs, **known)
        self.parameters = inspect.signature(model.forward).parameters
        self.words = frozenset(self.parameters)

    @property
    @abstractmethod
    def place_0(self) -> int:
        """The place of the first input: 0, or behind that of padding, as RoBERTa has it."""

    @abstractmethod
    def _reads(self, model: Any, x: Tensor) -> dict[str, Any]:
        """What it is given for inputs."""

    @property
    def padding_token(self) -> int | None:
        """What stands in padding, where tokenizers write it."""
        config: Any = self.model.config
        return getattr(config.get_text_config(), "pad_token_id", None)

    @functools.cached_property
    def streams(self) -> bool:  # type: ignore[override]
        """Whether it has ``use_cache``, or gives back what it takes again."""
        config: Any = self.model.config
        if "use_cache" in self.words or hasattr(config.get_text_config(), "use_cache"):
            return self.causal
        if self.causal:
            x, model = self.inputs.draw(1, 5), self.copy(torch.float32)
            with torch.no_grad():
                self.cache_word = self._word(model, self._reads(model, x), self.call(model, x))
        return bool(self.cache_word)

    @property
    def uncached(self) -> str:
        """Why it has no cache."""
        return f"{self.lacks('it offers no cache', ('use_cache',))}, and it takes back nothing"

    @property
    def _asks(self) -> dict[str, bool]:
        takes_any = any(p.kind is p.VAR_KEYWORD for p in self.parameters.values())
        return {"use_cache": True} if takes_any or "use_cache" in self.words else {}

    def _word(self, model: nn.Module, takes: dict[str, Any], result: Any) -> str:
        """The word of what comes back and is taken again; of words that no signature tells one
        that changes outputs."""
        back = [word for word, part in beside(result).items() if word.startswith("[")]
        names = [word[2:-2] for word in back if word[2:-2] not in ("hidden_states", "attentions")]
        known = [name for name in names if name in self.words]
        if known or not any(p.kind is p.VAR_KEYWORD for p in self.parameters.values()):
            return next(iter(known), "")
        y = first(result)
        for name in names:
            try:
                other = first(model(**takes, **{name: copy.deepcopy(result[name])}))
            except Exception:  # whatever it says of what it does not take
                continue
            if not torch.equal(other, y):
                return name
        return ""

    def feed(self, model: nn.Module, x: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """Outputs, and the cache behind them, which is what comes back by a word that is read.

        Raises:
            LawBroken: nothing comes back.
        """
        return self._fed(model, x, cache, {})

    def _fed(
        self, model: nn.Module, x: Tensor, cache: Any, told: Mapping[str, Tensor]
    ) -> tuple[Tensor, Any]:
        takes = {**self._reads(model, x), **self._asks}
        takes.pop("attention_mask", None)
        takes |= told
        cache = self._begun(model) if cache is None and self.begins else cache
        result = model(**takes, **({} if cache is None else {self.cache_word: cache}))
        self.cache_word = self.cache_word or self._word(model, takes, result)
        after = result.get(self.cache_word, cache)
        if after is None:
            # some fill one that they are given, and do not say so
            kinds = ((word, str(p.annotation)) for word, p in self.parameters.items())
            self.cache_word = next((word for word, kind in kinds if "Cache" in kind), "")
            self.begins = "DynamicCache", {}
            after = self._begun(model)
            if self.cache_word:
                result = model(**takes, **{self.cache_word: after})
            if not after.get_seq_length():
                raise LawBroken(
                    "it has use_cache, but gives no cache back that can be found: of "
                    f"{', '.join(result)} its forward takes none again"
                )
        return first(result), after

    def _begun(self, model: nn.Module) -> Any:
        kind, sizes = self.begins or ("DynamicCache", {})
        return getattr(_library(), kind)(config=model.config, **sizes)

    def feed_code(self) -> list[str]:
        """The Python of it."""
        return self._feed_code("", "")

    def _feed_code(self, given: str, told: str, x: str = "x") -> list[str]:
        kind, sizes = self.begins or ("", {})
        asks = ", use_cache=True" * bool(self._asks)
        asks += ", **encoded(len(x))" * (self.states is not None)
        given_sizes = "".join(f", {name}={size}" for name, size in sizes.items())
        made = f"transformers.{kind}(config=model.config{given_sizes})"
        return [
            f"def feed(x, cache{given}):",
            *[f"    cache = {made} if cache is None else cache"] * bool(kind),
            f"    result = model({x}, {self.cache_word}=cache{asks}{told})",
            f"    return result{self.place}, getattr(result, '{self.cache_word}', cache)",
        ]

    def feed_masked(
        self, model: nn.Module, x: Tensor, cache: Any, padding_mask: Tensor
    ) -> tuple[Tensor, Any]:
        """As `feed`, with a mask of all that was read and positions of the new inputs, which
        count what is real."""
        told = {"attention_mask": padding_mask.long()}
        if self.bare and self.padding_token is not None:
            x = x.where(padding_mask[:, -x.shape[1] :], self.padding_token)
        if "position_ids" in self.words and not self.bare:
            places = (padding_mask.cumsum(1) - 1).clamp(min=0) + self.place_0
            told["position_ids"] = places[:, -x.shape[1] :]
        return self._fed(model, x, cache, told)

    def feed_masked_code(self) -> list[str]:
        """The Python of it."""
        told = ", attention_mask=padding_mask.long()"
        if "position_ids" in self.words and not self.bare:
            places = f"((padding_mask.cumsum(1) - 1).clamp(0) + {self.place_0})"
            told += f", position_ids={places}[:, -x.shape[1]:]"
        x = "x"
        if self.bare and self.padding_token is not None:
            x = f"x.where(padding_mask[:, -x.shape[1]:], {self.padding_token})"
        return self._feed_code(", padding_mask", told, x)

    def static(self, length: int) -> Self:
        """The same with a `StaticCache`, where a `DynamicCache` comes back.

        Raises:
            Inapplicable: its class denies that it takes one.
        """
        with torch.no_grad(), self.exactly():
            x = self.widened(self.inputs.draw(1, 2))
            _, cache = self.feed(self.copy(), x, None)
        if type(cache) is not getattr(_library(), "DynamicCache", None):
            raise Inapplicable("")
        if not getattr(self.model, "_can_compile_fullgraph", True):
            raise Inapplicable("its class claims no static cache")
        return self.otherwise(begins=("StaticCache", {"max_cache_len": length}))

    def rows_of(self, cache: Any, rows: Tensor) -> Any:
        """The cache with its rows in another order, in place."""
        if not hasattr(cache, "reorder_cache"):
            raise Inapplicable("its cache cannot be reordered")
        cache.reorder_cache(rows)
        return cache

    def take_back(self, model: nn.Module, x: Tensor, cache: Any, kept: int) -> Any:
        """As any; windows and states are set before to keep what was."""
        if not getattr(cache, "is_croppable", True):
            raise Inapplicable("its cache says that it cannot be cut")
        if hasattr(cache, "activate_past_recording"):
            cache.activate_past_recording()
        return super().take_back(model, x, cache, kept)

    def record_code(self) -> list[str]:
        """The Python of it."""
        return ["cache.activate_past_recording()"]


def _library() -> Any:
    return extra_module("transformers", "hf", "a cache", of="sequence-laws")
