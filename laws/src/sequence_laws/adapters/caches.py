"""Caches of modules of one's own: found by what comes back beside outputs and is taken again."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from sequence_laws.errors import ConfigError
from sequence_laws.foreign import FAILURES
from sequence_laws.inputs import beside, first, place, seed
from sequence_laws.signatures import CACHES, named, parameters
from sequence_laws.subject import Subject
from sequence_laws.verdict import Inapplicable

ASKS = ("return_cache", "use_cache", "return_state")
"""flags after which a cache comes back; others are tried behind these"""
NAMED = re.compile("(^|(?<!hidden)_)(cache|caches|kv|past|state|states|carry)(_|$)")
"""names of a cache, whether it continues rightly or not"""
MEANT = re.compile("^h$|(^|_)(h0|hx|hidden|hiddens|buffer|buffers)(_|$)")
"""names of one, where what comes back has the structure of what was given"""
OTHERS = re.compile(
    "mask|keep|label|target|document|segment|seq_idx|position|hidden_states|encoder"
)
"""names of something else"""
FLAGS = re.compile("^(return|use|output|with|need|detach|input)_")
"""names of flags"""
PLACES = re.compile("start|offset|pos|past|step|index|length")
"""names of the number of inputs before"""
MOST = 60
"""passes that a search may take"""


class Way(NamedTuple):
    """A way to give a cache and to get the next."""

    word: str
    """parameter that takes it"""
    asks: Mapping[str, bool]
    """flags that ask for it"""
    outputs: str
    """place of the outputs in what comes back"""
    back: str
    """place of the cache"""
    taken: str = ""
    """why it is taken for one, though it does not continue rightly, where its name alone does not
    say so"""


def find(subject: Subject) -> Way | Inapplicable:
    """The way to feed a model, or why there is none.

    A parameter whose name is a cache's, or that of what came back, is taken for one. Of any other
    what came back must continue a text, by several inputs or by one, as one pass does; where it
    moves outputs and does not, it is one if its name and structure say so, else that is not known.
    """
    has = parameters(subject.model)
    optional = {k: p.default for k, p in [*has.items()][1:] if p.default is not p.empty}
    empty = (k for k, value in optional.items() if value is None or value in ((), [], {}))
    takers = [k for k in empty if not (OTHERS.search(k) or FLAGS.search(k))]
    takers.sort(key=lambda k: (k not in CACHES, not NAMED.search(k)))
    sentence = f"it offers no cache: of {named(subject.model)} none takes one"
    length = next((n for n in subject.lengths() if n >= 5), None)
    rest = any(p.kind is p.VAR_KEYWORD for p in has.values())
    if not takers and not rest:
        return Inapplicable(sentence)
    if length is None:  # there is no text that comes in pieces
        word = next(filter(NAMED.search, takers), None)
        return Inapplicable(sentence) if word is None else Way(word, {}, "[0]", "[1]")
    flags = [k for k, value in optional.items() if value is False or value is None]
    flags.sort(key=lambda k: not FLAGS.search(k))
    search = _Search(subject, length, flags)
    by_name = [k for k in takers if NAMED.search(k)]
    others = [k for k in takers if k not in by_name]
    known = [k for k in flags if k in ASKS]
    numbers = [k for k, v in optional.items() if not isinstance(v, bool)]
    rounds = [(by_name, False)] * bool(by_name) + [(others, rest)] * bool(others or rest)
    for words, any_name in rounds:
        for group in known, [""], [k for k in flags if k not in ASKS]:
            for flag in group:
                if found := search.tried(words, {flag: True} if flag else {}, any_name):
                    return found
            if search.likely:
                reasons = (search.otherwise(way, numbers) for way in search.likely[:4])
                reason = next(filter(None, reasons), "")
                return Inapplicable(reason) if reason else search.likely[0]
    if subject.causal and (doubt := search.doubt(numbers)):
        return doubt
    return Inapplicable(f"{sentence}, and {search.came_back()}")


class _Search:
    """Passes over a short text in two pieces."""

    def __init__(self, subject: Subject, length: int, flags: list[str]) -> None:
        self.subject, self.model, self.half = subject, subject.copy(), length // 2
        x = subject.inputs.draw(2, length)
        self.y, self.bound, self.x = subject.exact(x), subject.bound(x), subject.widened(x)
        self.more = [k for k in flags if k not in ASKS and NAMED.search(k)]
        self.has = parameters(subject.model)
        self.came: dict[str, None] = {}
        self.always: set[tuple[str, str]] = set()
        """what comes back without a flag"""
        self.likely: list[Way] = []
        """ways that are one by their name, and do not continue rightly; first those that run"""
        self.ran: list[Way] = []
        """others that run and do not continue rightly"""
        self.passes = 0

    def tried(self, words: list[str], asks: dict[str, bool], any_name: bool) -> Way | None:
        """The way that continues rightly after some flags, and others whose name is a cache's, by
        ``words`` or, where a model takes ``any_name``, by that of what came back."""
        result = self.call(self.x[:, : self.half], asks)
        for back, part in _beside(result).items():
            name, shape = back.strip("[].'"), (back, _shape(part))
            self.came[back] = None
            if asks and shape in self.always:
                continue
            self.always |= set() if asks else {shape}
            unnamed = [k for k in (name, *CACHES) if any_name and k.isidentifier()]
            for word in sorted(dict.fromkeys([*words, *unnamed]), key=lambda k: k != name):
                sure = word in self.has and (bool(NAMED.search(word)) or word == name)
                more = [k for k in self.more if k not in (word, *asks)] if sure else []
                for extra in ({}, *({k: True} for k in more)):
                    way = Way(word, {**asks, **extra}, place(result), back)
                    right = self.continues(way, sure)
                    if right:
                        return way
                    if sure and not extra:
                        self.likely.insert(len(self.likely) if right is None else 0, way)
                    if right is False and not sure:
                        self.ran.append(way)
        return None

    def call(self, x: Tensor, given: Mapping[str, Any]) -> Any:
        """What a pass gives; None where it fails, or where there were too many."""
        self.passes += 1
        if self.passes > MOST:
            return None
        with torch.no_grad(), self.subject.exactly():
            seed(0)
            try:
                return self.subject.given(self.model, x, **given)
            except FAILURES:  # whatever it says of what is no cache
                return None

    def continues(self, way: Way, sure: bool) -> bool | None:
        """Whether outputs behind a cache are those of one pass, of several inputs or, of what is
        not ``sure``, of one; None where there are none."""
        ran = None
        for end in (self.x.shape[1], self.half + 1)[: 1 if sure else 2]:
            right = self.right(way, self.x[:, self.half : end], self.y[:, self.half : end], {})
            if right:
                return True
            ran = ran if right is None else False
        return ran

    def right(self, way: Way, x: Tensor, y: Tensor, more: Mapping[str, Any]) -> bool | None:
        """Whether the last outputs of ``x`` behind a first piece are ``y``; None if there are
        none."""
        backs = _beside(self.call(self.x[:, : self.half], way.asks))
        if way.back not in backs:
            return None
        result = self.call(x, {way.word: backs[way.back], **way.asks, **more})
        try:
            off = (first(result)[:, -y.shape[1] :].reshape(y.shape) - y).abs().max()
        except FAILURES:  # outputs of another shape
            return None
        return bool(off <= self.bound)

    def otherwise(self, way: Way, numbers: list[str]) -> str:
        """Why a cache is not tried that is given the whole text again, of which it reads what is
        new alone, or is told where it is."""
        self.passes = 0
        head, one = slice(0, self.half), slice(self.half, self.half + 1)
        whole = torch.cat((self.subject.inputs.other(self.x[:, head]), self.x[:, one]), 1)
        if self.right(way, whole, self.y[:, one], {}):
            return f"its {way.word} is given the whole text again, which comes in no pieces"
        for word in numbers:
            if PLACES.search(word) and self.right(
                way, self.x[:, one], self.y[:, one], {word: self.half}
            ):
                return f"its {way.word} goes on where {word} says, which is not tried"
        return ""

    def doubt(self, numbers: list[str]) -> Way | Inapplicable | None:
        """Of ways that run and do not continue rightly: one that is a cache by its name and
        structure, or what is found of one that moves outputs; None where none does."""
        self.passes, found = 0, None
        for way in self.ran:
            for end in (self.half + 1, self.x.shape[1]):
                x, y = self.x[:, self.half : end], self.y[:, self.half : end]
                begun, alone = (self.call(part, way.asks) for part in (self.x[:, : self.half], x))
                given = _beside(begun).get(way.back)
                before = _structure(given)  # of one that may be changed in place
                behind = self.call(x, {way.word: given, **way.asks})
                try:
                    moved = float((first(behind) - first(alone)).abs().max())
                    off = float((first(behind).reshape(y.shape) - y).abs().max())
                    early = first(begun).reshape(self.y[:, : self.half].shape)
                    causal = (early - self.y[:, : self.half]).abs().max() <= self.bound
                except FAILURES:  # outputs of another shape
                    continue
                if moved <= self.bound:
                    continue
                if reason := self.otherwise(way, numbers):
                    return Inapplicable(reason)
                after = _structure(_beside(behind).get(way.back))
                # behind one input, so that none of its sizes is that of what is new
                if MEANT.search(way.word) and causal and len(y[0]) == 1 and _grows(before, after):
                    return way._replace(
                        taken=f" with {way.word}, taken for a cache by its name and by {way.back}, "
                        "which has its structure"
                    )
                found = found or Inapplicable(
                    f"whether {way.word} is a cache is not known: given {way.back} behind "
                    f"{self.half} inputs it moves the next outputs by {moved:.2g}, which are off "
                    f"by {off:.2g} from those of one pass; named cache or state it is judged, "
                    f"named encoder_{way.word} it is none",
                    "undecided",
                )
        return found

    def came_back(self) -> str:
        """What came back beside outputs."""
        back = ", ".join(self.came)
        return f"none continues by {back}" if back else "nothing but outputs comes back"


def _beside(result: Any) -> dict[str, Any]:
    try:
        return {} if result is None else beside(result)
    except ConfigError:  # no outputs
        return {}


def _structure(part: Any) -> tuple[Any, list[Any]]:
    """Of containers, with shapes and types of what is in them."""
    leaves, containers = tree_flatten(part)
    return containers, [tuple(t.shape) if isinstance(t, Tensor) else type(t) for t in leaves]


def _grows(before: tuple[Any, list[Any]], after: tuple[Any, list[Any]]) -> bool:
    """Whether a structure is that of before, with sizes that are equal or larger."""

    def goes_on(a: Any, b: Any) -> bool:
        if isinstance(a, type) or isinstance(b, type):
            return bool(a == b)
        return len(a) == len(b) and all(m <= n for m, n in zip(a, b, strict=True))

    return before[0] == after[0] and all(map(goes_on, before[1], after[1]))


def _shape(part: Any) -> str:
    """Shapes and types in it."""
    return repr(tree_map(lambda t: t.shape if isinstance(t, Tensor) else type(t), part))
