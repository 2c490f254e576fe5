"""Modules of one's own: what they read is found by trying, what else they take by its name."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from sequence_laws.errors import ConfigError, ShapeError
from sequence_laws.foreign import describe
from sequence_laws.inputs import Inputs, place
from sequence_laws.subject import Subject
from sequence_laws.verdict import Inapplicable

_WIDTHS = ("d_model", "embed_dim", "hidden_size", "n_embd", "dim", "width", "input_size", "d")
_LENGTHS = (12, 16, 32, 64, 8, 128, 256)


class UnreadError(ConfigError):
    """A model takes nothing that was tried; ``first`` is what it raised at first, if any was."""

    def __init__(self, sentence: str, first: Exception | None) -> None:
        super().__init__(sentence)
        self.first = first


class Plain(Subject):
    """A module that may take a mask and a cache with its inputs, by the usual names.

    ``mask`` or ``padding_mask`` (B, L) is True at what is real. A ``cache`` or ``state`` of None
    begins,
    and what comes back is (outputs, cache), where there is one after ``return_cache=True``,
    ``use_cache=True`` or ``return_state=True``.
    """

    def __init__(self, model: nn.Module, name: str, inputs: Inputs, **known: Any) -> None:
        super().__init__(model, name, inputs, **known)
        self.mask_word = takes(model, "mask", "padding_mask", "keep")
        self.cache_word = takes(model, "cache", "state")
        asks = takes(model, "return_cache", "use_cache", "return_state")
        self.asks = {} if asks is None else {asks: True}
        if self.mask_word is not None:
            self.masks = ("right", "left", "holes")
        self.streams = self.cache_word is not None
        self.packs = takes(model, "document_ids", "documents", "segment_ids", "seq_idx") or ""
        self.labelled = takes(model, "labels") is not None

    def call(self, model: nn.Module, x: Tensor, padding_mask: Tensor | None = None) -> object:
        """One pass."""
        mask = self.real(x, padding_mask)
        given = {} if mask is None or self.mask_word is None else {self.mask_word: mask}
        return model(x, **given)

    def call_code(self, x: str, padding_mask: str | None = None) -> str:
        """The Python of it."""
        mask = self.real_code(x, padding_mask)
        given = "" if mask is None else f", {self.mask_word}={mask}"
        return f"model({x}{given}){self.place}"

    def loss(self, model: nn.Module, x: Tensor, labels: Tensor, padding_mask: Tensor) -> Tensor:
        """The entry ``loss`` of its result."""
        if not self.labelled:
            raise Inapplicable("it takes no labels")
        given = {} if self.mask_word is None else {self.mask_word: padding_mask}
        return loss_in(model(x, labels=labels, **given))

    def feed(self, model: nn.Module, x: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """Outputs, and the cache behind them.

        Raises:
            Inapplicable: it gives no pair.
        """
        result = model(x, **{str(self.cache_word): cache}, **self.asks)
        if not isinstance(result, tuple) or len(result) != 2:
            raise Inapplicable(f"with {self.cache_word}= it gives no pair of outputs and cache")
        return result

    def feed_code(self) -> list[str]:
        """The Python of it."""
        asks = "".join(f", {word}=True" for word in self.asks)
        return [f"feed = lambda x, cache: model(x, {self.cache_word}=cache{asks})"]

    def rows_of(self, cache: Any, rows: Tensor) -> Any:
        """A cache with ``reorder_cache(rows)``, or of tensors whose first dimension is rows.

        Raises:
            Inapplicable: it is neither.
        """
        if hasattr(cache, "reorder_cache"):
            cache.reorder_cache(rows)
            return cache
        leaves = tree_leaves(cache)
        if not all(isinstance(leaf, Tensor | int | None) for leaf in leaves):
            raise Inapplicable("its cache cannot be reordered")
        if any(isinstance(leaf, Tensor) and leaf.shape[:1] != rows.shape for leaf in leaves):
            raise Inapplicable(
                "rows are not the first dimension of its cache, so none were reordered"
            )
        return tree_map(lambda t: t[rows] if isinstance(t, Tensor) else t, cache)

    def rows_code(self, cache: Any) -> list[str]:
        """The Python of it."""
        if hasattr(cache, "reorder_cache"):
            return super().rows_code(cache)
        return [
            "from torch.utils._pytree import tree_map",
            "cache = tree_map(lambda t: t[rows] if torch.is_tensor(t) else t, cache)",
        ]


def loss_in(result: Any) -> Tensor:
    """The loss in what a model gave for labels.

    Raises:
        Inapplicable: there is none.
    """
    loss = result.get("loss") if isinstance(result, Mapping) else getattr(result, "loss", None)
    if not isinstance(loss, Tensor) or loss.dim():
        raise Inapplicable("for labels it gives no loss")
    return loss


def plain(
    model: nn.Module,
    name: str,
    given: Inputs | None = None,
    *,
    causal: bool | None = None,
    build: Sequence[str] = (),
    make: Callable[[], nn.Module] | None = None,
    kind: type[Subject] = Plain,
) -> Subject:
    """The subject of a module: what it reads is ``given``, or found by trying.

    Raises:
        UnreadError: it takes nothing that was tried.
        ShapeError: it gives an output neither at each position nor a row.
    """
    tried: list[tuple[Tensor, Exception]] = []
    for inputs in [given] if given is not None else [*guesses(model)]:
        for length in _LENGTHS:
            x = inputs.draw(2, length)
            claim = causal is not False
            subject = kind(model, name, inputs, causal=claim, build=build, make=make)
            denied = "; if it is to read both ways, say causal=False (--causal False)"
            subject.assumed = denied if causal is None else ""
            try:
                with torch.no_grad():
                    result = subject.call(subject.copy(torch.float32), x)
                subject.place = place(result)
                subject.run(subject.copy(torch.float32), x)
            except (ConfigError, ShapeError):
                raise
            except Exception as error:  # whatever a model says of inputs that are not its own
                tried.append((x, error))
                continue
            return subject
    ways = "`vocabulary=N` for token ids, `width=D` for features, or `inputs` of its own"
    hint = " It has no embedding and no width that is named."
    for x, first in tried[:1]:
        hint = f" Tried {_words(x)}: {describe(first)}."
    sentence = f"what {name} reads cannot be guessed: give {ways}.{hint}"
    raise UnreadError(sentence, tried[0][1] if tried else None)


def guesses(model: nn.Module) -> Iterator[Inputs]:
    """Tokens of the first embedding, then features of widths that the module names."""
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            yield Inputs(vocabulary=module.num_embeddings)
            break
    seen: set[int] = set()
    for module in model.modules():
        named = [getattr(module, name, None) for name in _WIDTHS]
        if isinstance(module, nn.Linear):
            named.append(module.in_features)
        if isinstance(module, nn.LayerNorm):
            named.append(module.normalized_shape[-1])
        for width in named:
            if type(width) is int and width > 0 and width not in seen:
                seen.add(width)
                yield Inputs(width=width)


def takes(model: nn.Module, *words: str) -> str | None:
    """The first of some words that ``forward`` has a parameter of."""
    try:
        parameters = inspect.signature(model.forward).parameters
    except (TypeError, ValueError):
        return None
    return next((word for word in words if word in parameters), None)


def _words(x: Tensor) -> str:
    kind = "features" if x.is_floating_point() else "token ids"
    return f"{kind} {tuple(x.shape)}"
