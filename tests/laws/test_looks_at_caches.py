"""Each look of the law of streaming by a model that it alone finds wrong, beside a right one."""

import copy
import re
from typing import Any

import pytest
import torch
from test_each_look import Look, Sums, both, instead, nothing
from torch import Tensor, nn

from sequence_laws import caches, check, streaming
from sequence_laws.adapters import subject_of
from sequence_laws.adapters.plain import Plain
from sequence_laws.calls import crop_of
from sequence_laws.subject import Subject


class Ring(Sums):
    """Attention over all that was read; its cache holds 40."""

    def forward(self, x: Tensor, cache: Tensor | None = None) -> tuple[Tensor, Tensor]:
        h = self.embed(x)
        h = h if cache is None else torch.cat((cache, h), 1)
        seen = torch.ones(x.shape[1], h.shape[1], dtype=torch.bool).tril(h.shape[1] - x.shape[1])
        y = (h[:, -x.shape[1] :] @ h.mT).masked_fill(~seen, -1e9).softmax(-1) @ h
        return self.head(y), h[:, -40:]


class Pieces(Sums):
    """A cache of the sum of each piece; of one wrong the last six."""

    def forward(self, x: Tensor, cache: tuple[Tensor, ...] = ()) -> tuple[Tensor, Any]:
        y = self.embed(x).cumsum(1)
        kept = (*cache, y[:, -1:])
        return self.head(y + sum(cache)), kept[-6:] if self.wrong else kept


class Window(Sums):
    """Sums of the last 40 embeddings, kept in a ring; ``wrong`` says when it is written wrongly."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__(wrong)
        self.window = 40

    def forward(self, x: Tensor, cache: tuple[Tensor, int] | None = None) -> Any:
        h, size, length = self.embed(x), self.window, x.shape[1]
        ring, start = (h.new_zeros(len(x), size, 4), 0) if cache is None else cache
        before = ring.roll(-start % size, 1) if start else ring
        whole = torch.cat((before, h), 1)
        y = torch.stack([whole[:, t + 1 : t + 1 + size].sum(1) for t in range(length)], 1)
        last = torch.arange(max(0, length - size), length)
        at = (start + last) % size
        if self.wrong == "a third time around" and start >= 2 * size:
            at = (at + 1) % size
        if self.wrong == "a piece as long as it" and length == size and start:
            at = at.flip(0)
        ring = ring.clone()
        ring[:, at] = h[:, last]
        return self.head(y), (ring, start + length)


class Held:
    """Sums, whose rows stay, or that are not cut."""

    def __init__(self, sums: Tensor, wrong: str) -> None:
        self.sums, self.wrong, self.cut = sums, wrong, False

    def reorder_cache(self, order: Tensor) -> None:
        stay = "rows that stay" in self.wrong and (self.cut or "cut" not in self.wrong)
        self.sums = self.sums if stay else self.sums[order]


class Cut(Held):
    """One that is told how many to keep, or ``wrong`` says that it is told how many to remove."""

    def crop(self, count: int) -> None:
        if (count < 0) != (self.wrong == "a negative number"):
            raise ValueError("crop takes another number")
        self.sums, self.cut = self.sums[:, : count - (self.wrong == "one too many")], True


class Keeps(Sums):
    """Embeddings of all that was read, as its cache."""

    kind: type[Held] = Held

    def forward(self, x: Tensor, cache: Held | None = None) -> tuple[Tensor, Held]:
        h = self.embed(x)
        h = h if cache is None else torch.cat((cache.sums, h), 1)
        return self.head(h.cumsum(1))[:, -x.shape[1] :], self.kind(h, self.wrong)


class Cuts(Keeps):
    kind = Cut


class Running:
    """A sum that is changed in place; ``wrong`` says what is wrong with copies."""

    def __init__(self, total: Tensor, wrong: str) -> None:
        self.total, self.wrong = total, wrong

    def __deepcopy__(self, memo: Any) -> "Running":
        if self.wrong == "no copy":
            raise TypeError("a Running is not copied")
        return Running(self.total if self.wrong == "a shallow copy" else self.total.clone(), "")


class Totals(Sums):
    """Sums with their total as cache, which is changed in place where ``wrong`` says so."""

    def forward(self, x: Tensor, cache: Any = None) -> tuple[Tensor, Any]:
        h = self.embed(x)
        objects = self.wrong in ("no copy", "a shallow copy", "an object")
        if cache is None:
            total = torch.zeros_like(h[:, :1])
            cache = Running(total, self.wrong) if objects else (total,)
        total = cache.total if objects else cache[0]
        y = self.head(total + h.cumsum(1))
        if objects:
            total += h.sum(1, keepdim=True)
            return y, cache
        if self.wrong == "the old one, too":
            total += h.sum(1, keepdim=True)
            return y, (total.clone(),)
        return y, (total + h.sum(1, keepdim=True),)


class Inside(Sums):
    """Its state lies in the module, and its cache tells whether there is one."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__(wrong)
        self.total = torch.zeros(1)

    def forward(self, x: Tensor, cache: Any = None) -> tuple[Tensor, Any]:
        y = self.embed(x).cumsum(1)
        y = y if cache is None else y + self.total
        self.total = y[:, -1:]
        return self.head(y), (torch.tensor([1]),)


class Parts(Sums):
    """Two sums, of which ``wrong`` are detached in its cache."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__(wrong)
        self.other = nn.Linear(4, 4)

    def forward(self, x: Tensor, cache: tuple[Tensor, Tensor] | None = None) -> Any:
        h = self.embed(x)
        a, b = h.cumsum(1), self.other(h).tanh().cumsum(1)
        if cache is not None:
            a, b = a + cache[0], b + cache[1]
        kept = [a[:, -1:].detach() if self.wrong else a[:, -1:], b[:, -1:]]
        kept[1] = kept[1].detach() if self.wrong == "both" else kept[1]
        return self.head(a * b.tanh()), tuple(kept)


class Masked(Sums):
    """Attention over what is real; behind a cache its mask is of all that was read, or, where it
    ``remembers``, of what is new."""

    remembers = False

    def forward(self, x: Tensor, mask: Tensor | None = None, cache: Any = None) -> Any:
        h = self.embed(x)
        before = None if cache is None else cache[1]
        real = torch.ones_like(x, dtype=torch.bool) if mask is None else mask
        if before is not None and (self.remembers or mask is None):
            real = torch.cat((before, real), 1)
        if before is not None and self.wrong == "the mask of the past":
            real = torch.cat((torch.ones_like(before), real[:, before.shape[1] :]), 1)
        whole = h if cache is None else torch.cat((cache[0], h), 1)
        ago = whole.shape[1] - x.shape[1]
        seen = torch.ones(x.shape[1], whole.shape[1], dtype=torch.bool).tril(ago)
        seen = seen & real[:, None]
        y = (h @ whole.mT).masked_fill(~seen, -1e9).softmax(-1) @ whole
        return self.head(y), (whole, real)


class Remembers(Masked):
    remembers = True


class Either(Masked):
    """Behind a cache its mask is of all that was read, or of what is new; ``wrong`` says that the
    cache forgets padding, or has no mask at all."""

    def forward(self, x: Tensor, mask: Tensor | None = None, cache: Any = None) -> Any:
        whole = None if cache is None else cache[0]
        if mask is not None and whole is not None and mask.shape[1] == x.shape[1]:
            before = torch.ones(whole.shape[:2], dtype=torch.bool) if self.wrong else cache[1]
            mask = torch.cat((before, mask), 1)
        given = None if cache is None else (whole, torch.ones(whole.shape[:2], dtype=torch.bool))
        y, (whole, real) = super().forward(x, mask, given)
        return y, (whole,) if self.wrong == "none" else (whole, real)


class Limited(Sums):
    """Sums of all embeddings, of which its cache holds 80; ``wrong`` says what is done with more:
    the oldest are lost, or an error says nothing, or something."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__(wrong)
        self.max_len = 80

    def forward(self, x: Tensor, cache: Tensor | None = None) -> tuple[Tensor, Tensor]:
        h = self.embed(x)
        h = h if cache is None else torch.cat((cache, h), 1)
        if h.shape[1] > 80 and (cache is not None or self.wrong == "one pass refuses"):
            if self.wrong in ("in words", "one pass refuses"):
                raise ValueError(f"{h.shape[1]} inputs do not fit into a maximum length of 80")
            if self.wrong == "without a word":
                raise RuntimeError("something is amiss")
            h = h[:, -80:] if self.wrong else h
        return self.head(h.cumsum(1))[:, -x.shape[1] :], h


LOOKS = (
    Look(
        "streaming", "a piece across a limit", lambda: Limited("lost"),
        "come in pieces that end at 78, 85, the last across its limit of 80",
        instead(streaming, "across", nothing("")),
    ),
    Look(
        "streaming", "masks of what is new", lambda: Either("forgets"),
        "which comes in pieces, each with a mask of its own, that end at 4, 6, 9, is off",
        lambda patch: patch.setattr(Plain, "feeds_new", None),
    ),
    Look(
        "streaming", "pieces at the longest length", Ring, "output 63 is off",
        both(
            lambda patch: patch.setattr(streaming, "LONG", 65),
            lambda patch: patch.setattr(Subject, "lengths", lambda *_: [5, 33]),
        ),
    ),
    Look(
        "streaming", "one input at a time", lambda: Pieces("six"), "that end at 1, 2, 3",
        instead(streaming, "splits", lambda right: lambda n: right(n)[1:]),
    ),
    Look(
        "streaming", "a third time around a window", lambda: Window("a third time around"),
        "the 122 inputs come in pieces that end at 1, 2, 3",
        instead(streaming, "windows", nothing([])),
    ),
    Look(
        "streaming", "pieces as long as a window", lambda: Window("a piece as long as it"),
        "the 122 inputs come in pieces that end at 40, 80, 120",
        instead(streaming, "windows", nothing([])),
    ),
    Look(
        "streaming", "rows in another order", lambda: Keeps("rows that stay"), "in the order",
        instead(caches, "reordered", nothing("")),
    ),
    Look(
        "streaming", "inputs taken back", lambda: Cuts("one too many"), "taken back with crop(2) (",
        instead(caches, "taken_back", nothing("")),
    ),
    Look(
        "streaming", "rows in another order behind a cut", lambda: Cuts("rows that stay once cut"),
        "taken back with crop(32) and rows changed places",
        instead(caches, "taken_back", nothing("")),
    ),
    Look(
        "streaming", "two branches", lambda: Totals("the old one, too"), "that continue one cache",
        instead(caches, "branches", nothing("")),
    ),
    Look(
        "streaming", "a branch of a copy", lambda: Totals("a shallow copy"), "a cache and its copy",
        instead(caches, "branches", nothing("")),
    ),
    Look(
        "streaming", "branches of what lies in the module", Inside, "in turns is off",
        instead(caches, "branches", nothing("")),
    ),
    Look(
        "streaming", "gradients", lambda: Parts("one"), "a part of it is detached",
        instead(caches, "gradients", nothing("")),
    ),
    Look(
        "streaming", "padding on the left", lambda: Masked("the mask of the past"),
        "of a row with two padding inputs on the left", instead(caches, "padded", nothing("")),
    ),
)  # fmt: skip


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.what.replace(" ", "-"))
def test_a_look_finds_what_nothing_else_does(look, monkeypatch):
    torch.manual_seed(0)
    model = look.model()
    [found] = check(subject_of(model, vocabulary=16), laws=["streaming"])
    assert found.status == "failed", found
    assert look.says in found.detail
    shown: list[Any] = []
    program = found.reproduction.replace("...", "made")
    exec(program, {"made": copy.deepcopy(model), "print": lambda *sizes: shown.extend(sizes)})
    assert max(map(float, shown)) > 1e-6, found.reproduction
    look.without(monkeypatch)
    [missed] = check(subject_of(model, vocabulary=16), laws=["streaming"])
    assert missed.status == "held", missed


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (Pieces, "rows in another order half-way"),
        (Window, "15 splits, of one input at a time and more"),
        (Keeps, "its cache was not cut: it has no crop"),
        (lambda: Cuts("a negative number"), r"not cut: crop\(2\) is refused: .*another number"),
        (Limited, "; pieces across its limit of 80; "),
        (lambda: Limited("in words"), "; a piece across its limit of 80 is refused; "),
        (lambda: Limited("one pass refuses"), "more; rows in another order"),
        (Either, "; a row padded on the left, with masks of all that was read and of what is new"),
        (lambda: Either("none"), "; masks of what is new alone take what was read for real"),
        (Cuts, "inputs taken back; two branches of its cache; gradients pass it"),
        (Totals, "two branches of its cache; gradients"),
        (lambda: Totals("an object"), "of its cache, which is changed in place, and of a copy"),
        (lambda: Totals("no copy"), "cannot be copied: .*TypeError: a Running is not copied"),
        (lambda: Parts("both"), "; gradients do not pass its cache$"),
        (Masked, "gradients pass it; a row padded on the left"),
        (Remembers, "gradients pass it; a row padded on the left"),
    ],
)
def test_right_caches_hold_and_say_what_was_tried(model, says):
    torch.manual_seed(0)
    [one] = check(model(), vocabulary=16, laws=["streaming"])
    assert one.status == "held", one.detail
    assert re.search(says, one.detail), one.detail


def test_an_error_across_a_limit_that_says_nothing_is_found():
    torch.manual_seed(0)
    [one] = check(model := Limited("without a word"), vocabulary=16, laws=["streaming"])
    assert one.status == "failed", one.detail
    assert one.detail.startswith("7 inputs behind 78 cross its limit of 80, which 85 in one pass")
    with pytest.raises(RuntimeError, match="something is amiss"):
        exec(one.reproduction.replace("...", "made"), {"made": model})


def test_caches_of_transformers_are_told_how_many_to_remove():
    theirs = type("Theirs", (Cut,), {"__module__": "transformers.cache_utils"})
    mine = type("Mine", (theirs,), {})
    none = torch.zeros(1, 9, 4)
    assert [crop_of(kind(none, ""), 7, 2) for kind in (Cut, theirs, mine)] == [7, -2, -2]
