"""Caches of modules of one's own: found by what comes back beside outputs and is taken again."""

import itertools
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from sequence_laws.calls import CACHES, named, parameters
from sequence_laws.errors import ConfigError
from sequence_laws.foreign import FAILURES
from sequence_laws.inputs import beside, seed
from sequence_laws.subject import Subject

ASKS = ("return_cache", "use_cache", "return_state")
"""flags after which a cache comes back; others are tried behind these"""
NAMED = re.compile("(^|_)(cache|caches|kv|past|state|states|mems|carry)(_|$)")
"""names of a cache, whether it continues rightly or not"""
OTHERS = re.compile("mask|keep|label|target|document|segment|seq_idx|position|hidden_st|encoder")
"""names of something else"""
MOST = 60
"""passes that a search may take"""


class Way(NamedTuple):
    """A way to give a cache and to get the next."""

    word: str
    """parameter that takes it"""
    asks: Mapping[str, bool]
    """flags that ask for it"""
    back: str
    """its place in what comes back"""


def find(subject: Subject) -> Way | str:
    """The way to feed a model, or why there is none.

    A parameter whose name is a cache's, or that of what came back, is taken for one. Of any other
    what came back must continue a text, by several inputs or by one, as one pass does.
    """
    has = parameters(subject.model)
    optional = {k: p.default for k, p in [*has.items()][1:] if p.default is not p.empty}
    empty = (k for k, value in optional.items() if value is None or value in ((), [], {}))
    takers = [k for k in empty if not OTHERS.search(k)]
    takers.sort(key=lambda k: (k not in CACHES, not NAMED.search(k)))
    if any(p.kind is p.VAR_KEYWORD for p in has.values()):
        takers += [k for k in CACHES if k not in takers]
    sentence = f"it offers no cache: of {named(subject.model)} none takes one"
    length = next((n for n in subject.lengths() if n >= 5), None)
    if not takers:
        return sentence
    if length is None:  # there is no text that comes in pieces
        return Way(takers[0], {}, "[1]") if NAMED.search(takers[0]) else sentence
    flags = [k for k, value in optional.items() if value is False or k in takers]
    search = _Search(subject, length)
    known, others = [k for k in flags if k in ASKS], [k for k in flags if k not in ASKS]
    for group in known, [""], others:
        for flag in group:
            asks = {flag: True} if flag else {}
            found = search.tried(takers, asks, [k for k in others if NAMED.search(k)])
            if found is not None:
                return found
        if search.likely is not None:
            return search.likely
    back = ", ".join(sorted({back for back, _ in search.came}))
    return f"{sentence}, and " + (
        f"none continues with what comes back ({back})"
        if back
        else "nothing but outputs comes back"
    )


class _Search:
    """Passes over a short text in two pieces."""

    def __init__(self, subject: Subject, length: int) -> None:
        self.subject, self.model, self.half = subject, subject.copy(), length // 2
        x = subject.inputs.draw(2, length)
        self.y, self.bound, self.x = subject.exact(x), subject.bound(x), subject.widened(x)
        self.came: set[tuple[str, str]] = set()
        self.likely: Way | None = None
        """a way that is one by its name, and does not continue rightly"""
        self.passes = 0

    def tried(self, takers: list[str], asks: dict[str, bool], more: list[str]) -> Way | None:
        """The way that continues rightly after some flags: with one of ``more``, if need be."""
        backs = self.beside(asks)
        fresh = [back for back, part in backs.items() if (back, _shape(part)) not in self.came]
        self.came |= {(back, _shape(part)) for back, part in backs.items()}
        for back, word in itertools.product(fresh, takers):
            for extra in [{}, *({k: True} for k in more if k not in {word, *asks})]:
                way = Way(word, {**asks, **extra}, back)
                if self.continues(way):
                    return way
                if NAMED.search(word) or back.strip("[].'") == word:
                    self.likely = self.likely or Way(word, asks, back)
        return None

    def beside(self, asks: Mapping[str, Any]) -> dict[str, Any]:
        """What comes back behind the first piece."""
        try:
            return beside(self.call(self.x[:, : self.half], asks))
        except ConfigError:  # no outputs
            return {}

    def call(self, x: Tensor, given: Mapping[str, Any]) -> Any:
        """What a pass gives; outputs alone where it fails, or where there were too many."""
        self.passes += 1
        nothing = x.new_zeros(2, 1, 1)
        if self.passes > MOST:
            return nothing
        with torch.no_grad(), self.subject.exactly():
            seed(0)
            try:
                return self.model(x, **given)
            except FAILURES:  # whatever it says of what is no cache
                return nothing

    def continues(self, way: Way) -> bool:
        """Whether outputs behind a cache are those of one pass, of several inputs or of one."""
        for end in (self.x.shape[1], self.half + 1):
            backs = self.beside(way.asks)
            if way.back not in backs:
                return False
            given = {way.word: backs[way.back], **way.asks}
            x = self.x[:, self.half : end]
            try:
                y = self.subject.outputs(self.call(x, given), x)
                off = float((y - self.y[:, self.half : end]).abs().max())
            except FAILURES:  # outputs of another shape
                continue
            if off <= self.bound:
                return True
        return False


def _shape(part: Any) -> str:
    """Shapes and types in it."""
    return repr(tree_map(lambda t: t.shape if isinstance(t, Tensor) else type(t), part))
