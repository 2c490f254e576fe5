"""How a model is called: one pass, a cache, a loss, a file, and how these are written in Python."""

import functools
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from sequence_laws.foreign import FAILURES, describe
from sequence_laws.inputs import parts_of, reach
from sequence_laws.signatures import CACHES, DOCUMENTS, LABELS, MASKS, POSITIONS, named
from sequence_laws.verdict import Inapplicable, Status


class PlainCall(NamedTuple):
    """A call that is made by whoever does not know the one that a law makes."""

    words: str
    """what it is: "with a mask of ones" """
    right: str
    """what to do instead: "pass no attention_mask" """
    subject: Any
    """a `Subject` that is called so"""
    laws: tuple[str, ...] = ()
    """laws that are tried with it whatever its outputs are; others are where these differ"""


class Call:
    """How a model is called, as `Subject` says."""

    masks: tuple[str, ...] = ()
    """where padding may stand: "right", "left", "holes"; (): none is taken"""
    refused: str = ""
    """what it says of padding elsewhere, which it refuses"""
    mask_words: Sequence[str] = MASKS
    """by which a mask is taken"""
    untried: str = ""
    """names by which padding may be told that is given by none of them"""
    adds: bool = False
    """whether its mask is added to scores, so that one of ones and zeros hides nothing"""
    ones: bool = False
    """whether a mask of ones is given where there is none"""
    streams: bool = False
    """whether `feed` continues a cache"""
    uncached_as: Status = "exempt"
    """status of streaming where it does not"""
    taken: str = ""
    """words on why it is thought to, where its word alone does not say so"""
    feeds_masks: bool = False
    """whether `feed_masked` does, with a mask"""
    packs: str = ""
    """word by which it is told of documents that stand side by side in a row; "": by none"""
    separates: bool = True
    """whether it claims to keep them apart: of positions that start over not all models do"""
    label_word: str | None = None
    """by which it takes labels"""
    labelled: bool = False
    """whether it is given its inputs as labels, too"""
    loss_place: str = ".loss"
    """of the loss in what it gives for labels"""
    mixed: bool = False
    """whether its library keeps parts of it in float32 where the rest is in bfloat16"""
    doubles: bool = True
    """whether it computes in the dtype of its inputs and weights, and with gradients"""

    strict: bool = False
    """whether it claims more: one graph for any length, also of a step with its cache; numbers in
    float16, and of rows that are nothing but padding; losses of a training that was resumed; random
    numbers of torch alone"""
    exports: bool = True
    """whether one that is `strict` is also exported, for lengths from 2 to 32"""
    claims: Mapping[str, tuple[float, float]] = MappingProxyType({})
    """between which powers of the length what `cost` counts grows, by its name there"""
    spans: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024, 2048)
    """lengths of which the two longest that it takes tell its cost"""
    wide: torch.dtype = torch.float64
    """dtype in which ways to the same numbers are compared"""

    counts_padding: bool = False
    """whether its positions count from the first column, real or not, and nothing says otherwise,
    so that padding on the left moves a row"""
    assumed: str = ""
    """words on how to deny that it is causal, where neither its kind nor anybody said so"""

    idle: re.Pattern[str] | None = None
    """names of parameters that its inputs do not reach, since they read others"""
    idles: str = "read what no text gives (an encoder, pictures, sound)"
    """that in words"""

    depth: Literal["quick", "usual", "deep"] = "usual"
    """how far laws look: `quick` in one way, `deep` also where that takes long"""
    exempts: Mapping[str, str] = MappingProxyType({})
    """laws that do not apply to its kind, and why"""

    model: nn.Module
    place: str

    def lacks(self, what: str, words: Sequence[str]) -> str:
        """Why it does not do something: parameters that it has, and words that were looked for."""
        return f"{what}: of {named(self.model)} none is {' or '.join(words)}"

    @functools.cached_property
    def unmasked(self) -> str:
        """Why it takes no mask."""
        if self.untried:
            own = "derive from `Subject` to say how"
            return f"whether {self.untried} tells what is padding is not known: {own}"
        return self.lacks("it takes no mask", self.mask_words)

    @functools.cached_property
    def uncached(self) -> str:
        """Why it has no cache that `feed` could continue."""
        return self.lacks("it offers no cache", CACHES)

    @functools.cached_property
    def unpacked(self) -> str:
        """Why it takes no documents."""
        return self.lacks("it takes no documents", DOCUMENTS)

    def call(self, model: nn.Module, x: Tensor, padding_mask: Tensor | None = None) -> Any:
        """Result of the model for inputs, of which ``padding_mask`` (B, L) are no padding."""
        return model(x)

    def given(self, model: nn.Module, x: Tensor, **more: Any) -> Any:
        """Result of the model for inputs and what else is given by its words."""
        return model(x, **more)

    def call_code(self, x: str, padding_mask: str | None = None) -> str:
        """The Python of `run`: an expression that is a tensor."""
        return f"model({x}){self.place}"

    def plain_calls(self) -> Iterator[PlainCall]:
        """Calls by defaults, with a mask of ones, or with what helpers of its library give, which
        its users make where the laws call it otherwise."""
        if self.masks:
            yield PlainCall("with a mask of ones", "pass no mask", self.otherwise(ones=True))

    def otherwise(self, **flags: Any) -> Any:
        """The same subject with other values of attributes: another way to call its model."""
        other = self.again()
        vars(other).update(flags)
        return other

    def again(self) -> Any:
        """The same, which remembers nothing of how its model was."""
        raise NotImplementedError

    def real(self, x: Tensor, padding_mask: Tensor | None) -> Tensor | None:
        """The mask that is given."""
        if padding_mask is None and self.ones:
            return torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        return padding_mask

    def real_code(self, x: str, padding_mask: str | None) -> str | None:
        """The Python of it."""
        if padding_mask is None and self.ones:
            return f"torch.ones({x}.shape[:2]).bool()"
        return padding_mask

    def feed(self, model: nn.Module, x: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """Outputs of the next inputs, and the cache behind them; None begins.

        Raises:
            Inapplicable: the model has no cache.
        """
        raise Inapplicable(self.uncached)

    def feed_code(self) -> list[str]:
        """The Python of `feed`: lines that define ``feed(x, cache)``."""
        return []

    def feed_masked(
        self, model: nn.Module, x: Tensor, cache: Any, padding_mask: Tensor
    ) -> tuple[Tensor, Any]:
        """`feed` of rows in which something is padding: ``padding_mask`` (B, past + L) is of all
        that was read and of ``x``."""
        raise NotImplementedError

    @property
    def feeds_new(self) -> Any:
        """The same whose `feed_masked` gives a mask of what is new alone, where it takes both; or
        None."""
        return None

    def feed_masked_code(self) -> list[str]:
        """The Python of it: lines that define ``feed(x, cache, padding_mask)``."""
        return []

    def static(self, length: int) -> Any:
        """The same with a cache of a fixed size, for ``length`` inputs, if there is such a kind.

        Raises:
            Inapplicable: it refuses one; with an empty sentence where there is no such kind.
        """
        raise Inapplicable("")

    def rows_of(self, cache: Any, rows: Tensor) -> Any:
        """A cache whose row n is what row ``rows[n]`` was.

        Raises:
            Inapplicable: the model has no way to do that.
        """
        raise Inapplicable("its cache cannot be reordered")

    def rows_code(self, cache: Any) -> list[str]:
        """The Python of it, of a ``cache`` like this one and ``rows``."""
        return ["cache.reorder_cache(rows)"]

    def reset(self, cache: Any, rows: Tensor) -> Any:
        """A cache of which ``rows`` (B,) have seen nothing.

        Raises:
            Inapplicable: the model has no way to do that.
        """
        raise Inapplicable("no row of its cache can start over")

    def counted(self, cache: Any) -> list[int]:
        """Inputs that each row of a cache has seen, as it says; [] where it does not."""
        return []

    def take_back(self, model: nn.Module, x: Tensor, cache: Any, kept: int) -> Any:
        """The cache after inputs that it was given and that were cut off again behind the first
        ``kept``.

        Raises:
            Inapplicable: the cache has no ``crop``, or refuses the number that is kept.
        """
        if not hasattr(cache, "crop"):
            raise Inapplicable("its cache was not cut: it has no crop")
        _, cache = self.feed(model, x, cache)
        number = crop_of(cache, kept, x.shape[1])
        try:
            cache.crop(number)
        except FAILURES as error:
            if number != kept:
                raise
            words = f"its cache was not cut: crop({number}) is refused: {describe(error)}"
            raise Inapplicable(words) from error
        return cache

    def record_code(self) -> list[str]:
        """The Python that readies ``cache`` to be cut: none."""
        return []

    def masked(self, real: Tensor | None) -> dict[str, Tensor]:
        """A mask by its word."""
        return {}

    def loss(
        self,
        model: nn.Module,
        x: Tensor,
        labels: Tensor,
        padding_mask: Tensor | None = None,
        documents: Tensor | None = None,
    ) -> Tensor:
        """Loss of labels (B, L).

        Raises:
            Inapplicable: it takes no labels, or gives no loss that is known as such.
        """
        word = self.label_word
        if word is None:
            raise Inapplicable(self.lacks("it takes no labels", LABELS))
        told = self.masked(padding_mask)
        told |= {} if documents is None else self.documented(documents)

        def given(labels: Tensor | None) -> Any:
            return self.given(model, x, **{word: labels}, **told)

        result = given(labels)
        where = loss_place(result, lambda: given(None))
        if where is None:
            raise Inapplicable(f"for {word} it gives no loss that is known as such")
        self.loss_place = where
        loss: Tensor = reach(result, where)
        return loss.reshape(())

    def loss_code(
        self, x: str, labels: str, padding_mask: str | None = None, documents: bool = False
    ) -> str:
        """The Python of it."""
        called = self.packed_code() if documents else self.call_code(x, padding_mask)
        called = called.removesuffix(self.place)[:-1]
        return f"{called}, {self.label_word}={labels}){self.loss_place}"

    def stored(self, made: nn.Module, other: nn.Module) -> nn.Module:
        """A model as it comes from its file, read into an ``other``."""
        file = io.BytesIO()
        torch.save(made.state_dict(), file)
        file.seek(0)
        other.load_state_dict(torch.load(file, weights_only=True))
        return other

    def packed(self, model: nn.Module, x: Tensor, documents: Tensor) -> Any:
        """Result of the model for rows in which several documents (B, L), by number, stand."""
        return self.given(model, x, **self.documented(documents))

    def documented(self, documents: Tensor) -> dict[str, Tensor]:
        """Their numbers, or positions that start over in each, by its word."""
        if self.packs in POSITIONS:
            documents = torch.arange(documents.shape[1]) - torch.searchsorted(documents, documents)
        return {self.packs: documents}

    def packed_code(self) -> str:
        """The Python of it, of ``x`` and ``documents``."""
        told, called = "documents", self.call_code("x").removesuffix(self.place)
        if self.packs in POSITIONS:
            told = "torch.arange(x.shape[1]) - torch.searchsorted(documents, documents)"
        return f"{called[:-1]}, {self.packs}={told}){self.place}"

    def as_graph(self, model: nn.Module) -> nn.Module:
        """The model in the form in which it can be captured, which computes the same."""
        return model

    def as_graph_code(self) -> list[str]:
        """The Python of it."""
        return []


def crop_of(cache: Any, kept: int, more: int) -> int:
    """What ``crop`` is given to cut off all behind the first ``kept``: their number, or, of a cache
    of transformers, which refuses that by now, the negative number of ``more``."""
    theirs = any(kind.__module__.startswith("transformers.") for kind in type(cache).__mro__)
    return -more if theirs else kept


def loss_place(result: Any, bare: Callable[[], Any]) -> str | None:
    """The `place` of the loss in what a model gives for labels: by its name, or that of the one
    number there, where a call without labels, ``bare``, gives none. None: it is not known."""
    named, numbers = _numbers(result)
    if named or len(numbers) != 1 or _numbers(bare())[1]:
        return next(iter(named), None)
    return numbers[0]


def _numbers(result: Any) -> tuple[list[str], list[str]]:
    """Places of what may be a loss: by their names, and all."""
    every = [
        where
        for where, part in parts_of(result).items()
        if isinstance(part, Tensor)
        and part.is_floating_point()
        and (part.dim() == 0 or part.shape == (1,))
    ]
    return [where for where in every if where in (".loss", "['loss']")], every
