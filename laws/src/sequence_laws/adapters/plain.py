"""Modules of one's own: what they read is found by trying, a cache by what comes back, what else
they take by its name."""

import contextlib
import functools
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Self

import torch
from torch import Tensor, nn

from sequence_laws.adapters.attending import ways
from sequence_laws.adapters.beside import Beside
from sequence_laws.adapters.caches import Way, find
from sequence_laws.adapters.masks import ADDED, FORMS, masking, sides
from sequence_laws.adapters.reordered import reordered, reordered_code, row_dims
from sequence_laws.foreign import FAILURES
from sequence_laws.inputs import Inputs, beside, first, place, seed
from sequence_laws.signatures import DECODER_MASKS, DOCUMENTS, LABELS, POSITIONS, parameters, takes
from sequence_laws.subject import Subject
from sequence_laws.verdict import Inapplicable, LawBroken

KEEPS = ("use_cache", "return_cache")
"""flags by which a pass keeps a cache, or not"""
PADDING = re.compile("mask|length")
"""names of what may tell padding"""
NEW = "[:, -x.shape[1]:]"
"""of a mask of all that was read, that of what is new"""


class Plain(Subject):
    """A module that may take a mask and a cache with its inputs.

    A mask (B, L) is taken by its name, in the form that is found (`adapters.masks`). A cache is
    what comes back beside outputs, by default or after a flag that is True, and is taken again
    (`adapters.caches.find`).
    """

    beside = Beside()
    """what else it is given"""
    flags: Mapping[str, bool] = MappingProxyType({})
    """what a pass without a cache is given by its words"""

    def __init__(self, model: nn.Module, name: str, inputs: Inputs, **known: Any) -> None:
        super().__init__(model, name, inputs, **known)
        self.label_word = takes(model, *LABELS)

    def furnished(self, beside: Beside) -> Self:
        """The same, which is given something next to its inputs."""
        more = {"mask_words": DECODER_MASKS} if beside.own else {}
        before = self.beside.build()
        build = (*(line for line in self.build if line not in before), *beside.build())
        return self.otherwise(beside=beside, build=build, **more)

    def given(self, model: nn.Module, x: Tensor, **more: Any) -> Any:
        """Result of one pass with what else it is given, and ``more``."""
        more = {**self.beside.given(model, x), **more}
        own = self.beside.own
        return model(**{own: x}, **more) if own else model(x, **more)

    @functools.cached_property
    def masking(self) -> tuple[str, str] | None:
        """Word and form of its mask."""
        return masking(self)

    @functools.cached_property
    def masks(self) -> tuple[str, ...]:  # type: ignore[override]
        """Where padding may stand."""
        return self._sides[0]

    @property
    def refused(self) -> str:  # type: ignore[override]
        """What it says of the others."""
        return self._sides[1]

    @functools.cached_property
    def _sides(self) -> tuple[tuple[str, ...], str]:
        return ((), "") if self.masking is None else sides(self)

    @functools.cached_property
    def untried(self) -> str:  # type: ignore[override]
        """Parameters by which padding may be told."""
        words = (k for k in parameters(self.model) if k not in self.beside.fixed)
        if self.beside.own:
            words = (k for k in words if k.startswith(("decoder_", "tgt")))
        return " and ".join(k for k in words if PADDING.search(k))

    @property
    def adds(self) -> bool:  # type: ignore[override]
        """Whether its mask is added to scores."""
        return self.masking is not None and self.masking[1] == ADDED

    @functools.cached_property
    def packs(self) -> str:  # type: ignore[override]
        """Word of documents, or of positions by which it counts as it does without them."""
        word = takes(self.model, *DOCUMENTS, *POSITIONS) or ""
        if word in POSITIONS:
            try:
                x = self.inputs.draw(2, self.usual())
                places = torch.arange(x.shape[1]).expand(2, -1)
                with torch.no_grad(), self.exactly():
                    seed(0)
                    result = self.given(self.copy(), self.widened(x), **{word: places})
                off = (self.outputs(result, x) - self.exact(x)).abs().max()
                counts = float(off) <= self.bound(x)
            except (Inapplicable, *FAILURES):  # whatever it says of positions that are not its own
                counts = False
            if not counts:
                self.unpacked = (
                    f"{word} 0, 1, 2 ... are not as none: no documents were told by them"
                )
                return ""
        return word

    @property
    def separates(self) -> bool:  # type: ignore[override]
        """Whether it is told documents themselves."""
        return self.packs not in POSITIONS

    def masked(self, real: Tensor | None) -> dict[str, Tensor]:
        """The mask as it is given."""
        if real is None or self.masking is None:
            return {}
        word, form = self.masking
        return {word: FORMS[form](real)}

    def masked_code(self, real: str | None) -> str:
        """The Python of it."""
        if real is None or self.masking is None:
            return ""
        word, form = self.masking
        return f", {word}={form.format(real)}"

    @functools.cached_property
    def way(self) -> Way | Inapplicable:
        """How a cache is given, or why there is none."""
        way = find(self)
        if isinstance(way, Way):
            self.taken = way.taken
        else:
            self.uncached_as = way.status
        return way

    @property
    def streams(self) -> bool:  # type: ignore[override]
        """Whether there is a cache that it takes again."""
        return isinstance(self.way, Way)

    @property
    def uncached(self) -> str:
        """Why there is none."""
        return str(self.way)

    def call(self, model: nn.Module, x: Tensor, padding_mask: Tensor | None = None) -> object:
        """One pass."""
        labels = {str(self.label_word): x} if self.labelled else {}
        return self.given(
            model, x, **self.flags, **labels, **self.masked(self.real(x, padding_mask))
        )

    def call_code(self, x: str, padding_mask: str | None = None) -> str:
        """The Python of it."""
        mask = self.masked_code(self.real_code(x, padding_mask))
        flags = "".join(f", {word}={value}" for word, value in self.flags.items())
        labels = f", {self.label_word}={x}" * self.labelled
        return f"model({self.beside.inner(x)}{flags}{labels}{mask}){self.place}"

    def loss_code(
        self, x: str, labels: str, padding_mask: str | None = None, documents: bool = False
    ) -> str:
        """The Python of it, also where labels are given for outputs."""
        code, word = super().loss_code(x, labels, padding_mask, documents), self.label_word
        if word not in self.beside.fixed:
            return code
        given = f"**given({x})"
        return code.replace(f", {word}={labels}", "").replace(
            given, f"{given} | {{{word!r}: {labels}}}"
        )

    def encodings(self) -> Iterator[tuple[str, Self]]:
        """With flags of a cache, True and False; with labels, where no outputs read them."""
        for flag in (word for word in KEEPS if word in parameters(self.model)):
            for value in (True, False):
                other = self.otherwise(flags={flag: value})
                yield f"with {flag}={value}", other.at_its_place()
        word = self.label_word
        if word is None or word in self.beside.fixed or self.inputs.vocabulary is None:
            return
        other, x = self.otherwise(labelled=True), self.inputs.draw(2, self.usual())
        with contextlib.suppress(*FAILURES), torch.no_grad():  # of labels of another shape
            seed(0)
            one = first(other.call(other.copy(torch.float32), x))
            seed(0)
            labels = {word: self.inputs.other(x)}
            two = first(self.given(self.copy(torch.float32), x, **labels))
            if not torch.equal(one, two):  # they are inputs, as of a decoder that is told its past
                return
        yield f"with {word}", other.at_its_place()

    def at_its_place(self) -> Self:
        """The same, which knows where outputs are in what it gives now."""
        with contextlib.suppress(*FAILURES), torch.no_grad():  # which whoever calls it will meet
            x = self.inputs.draw(2, self.usual())
            self.place = place(self.call(self.copy(torch.float32), x))
        return self

    def variants(self) -> Iterator[tuple[str, Any]]:
        """The model with each way to attend that it knows by a word."""
        return ways(self)

    def feed(self, model: nn.Module, x: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """Outputs, and the cache behind them.

        Raises:
            LawBroken: there is none.
        """
        return self._fed(model, x, cache, {})

    def _fed(
        self, model: nn.Module, x: Tensor, cache: Any, given: Mapping[str, Any]
    ) -> tuple[Tensor, Any]:
        if isinstance(self.way, Inapplicable):
            raise self.way
        word, asks, _, back, _ = self.way
        cached = {} if cache is None else {word: cache}
        result = self.given(model, x, **cached, **asks, **given)
        after = beside(result)
        if back not in after:
            behind = "behind none" if cache is None else "behind one"
            raise LawBroken(f"{behind} of {x.shape[1]} inputs no {word} comes back")
        return first(result), after[back]

    def feed_code(self, masked: bool = False) -> list[str]:
        """The Python of it."""
        if isinstance(self.way, Inapplicable):
            return []
        word, asks, outputs, back, _ = self.way
        flags = "".join(f", {flag}=True" for flag in asks)
        mask = self.masked_code(f"padding_mask{self._part}") if masked else ""
        given = ", padding_mask" * masked
        none = getattr(parameters(self.model).get(word), "default", None)
        begun = "cache" if none is None else f"{none!r} if cache is None else cache"
        return [
            f"def feed(x, cache{given}):",
            f"    result = model({self.beside.inner('x')}, {word}={begun}{flags}{mask})",
            f"    return result{outputs}, result{back}",
        ]

    def feed_masked(
        self, model: nn.Module, x: Tensor, cache: Any, padding_mask: Tensor
    ) -> tuple[Tensor, Any]:
        """As `feed`, with a mask of all that was read, or of what is new, as the model takes it."""
        part = padding_mask[:, -x.shape[1] :] if self._part else padding_mask
        return self._fed(model, x, cache, self.masked(part))

    @property
    def feeds_masks(self) -> bool:  # type: ignore[override]
        """Whether it takes a mask behind a cache."""
        return bool(self.masks) and self._part is not None

    def feed_masked_code(self) -> list[str]:
        """The Python of it."""
        return self.feed_code(masked=True)

    @functools.cached_property
    def _parts(self) -> dict[str, bool]:
        """Of which inputs a mask may be given with a cache, "" of all that were read, or of the
        new ones (`NEW`), and whether outputs are right with one of ones."""
        length = self.usual()
        x, half, found = self.inputs.draw(2, length), length // 2, dict[str, bool]()
        wide, ones = self.widened(x), torch.ones(2, length, dtype=torch.bool)
        for part, start in (("", 0), (NEW, half)):
            masks = map(self.masked, (ones[:, :half], ones[:, start:]))
            try:
                with torch.no_grad(), self.exactly():
                    model, cache = self.copy(), None
                    for piece, given in zip((wide[:, :half], wide[:, half:]), masks, strict=True):
                        seed(0)
                        y, cache = self._fed(model, piece, cache, given)
                    off = (self.outputs(y, x[:, half:]) - self.exact(x)[:, half:]).abs().max()
            except FAILURES:  # whatever it says of another mask
                continue
            found[part] = float(off) <= self.bound(x)
        return found

    @functools.cached_property
    def _part(self) -> str | None:
        """That of `_parts` with which outputs are right, else all that were read if there are
        outputs at all."""
        right = [part for part, holds in self._parts.items() if holds]
        return next(iter(right), "" if "" in self._parts else None)

    @functools.cached_property
    def feeds_new(self) -> Self | None:
        """The same that is given a mask of what is new alone, where it takes both."""
        return self.otherwise(_part=NEW) if [*self._parts.values()] == [True, True] else None

    def rows_of(self, cache: Any, rows: Tensor) -> Any:
        """A cache with ``reorder_cache(rows)``, or of tensors that have rows in some dimension.

        Raises:
            Inapplicable: it is neither.
        """
        if hasattr(cache, "reorder_cache"):
            cache.reorder_cache(rows)
            return cache
        return reordered(cache, self._row_dims, rows)

    @functools.cached_property
    def _row_dims(self) -> list[int | None]:
        return row_dims(self)

    def rows_code(self, cache: Any) -> list[str]:
        """The Python of it."""
        if hasattr(cache, "reorder_cache"):
            return super().rows_code(cache)
        return reordered_code(cache, self._row_dims)
