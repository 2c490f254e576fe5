"""What laws look at: lengths in each mode, other ways, graphs, and what all of a sweep share."""

import importlib.util
from typing import Any

import pytest
from torch import Tensor, nn

from sequence_laws import causality, check, compiling, cost
from sequence_laws.adapters import subject_of
from sequence_laws.adapters.hugging_face import IMPORTS as OF_TRANSFORMERS
from sequence_laws.board import IMPORTS
from sequence_laws.causality import Condition, conditions, longest
from sequence_laws.subject import Subject


class Sums(nn.Module):
    """Running sums of embeddings; with a mask, of what it keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(16, 4), nn.Linear(4, 16)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        h = self.embed(x)
        h = h if mask is None else h * mask[..., None]
        return self.head(h.cumsum(1))


class SeesBehindMasks(Sums):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        y = super().forward(x, mask)
        return (
            y if mask is None else y + 1e-3 * self.embed(x).sum(1, keepdim=True).sum(-1)[..., None]
        )


class Steps(Sums):
    """A loop that a graph writes out."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        h = self.embed(x)
        for _ in range(12):
            h = h + 0.1 * h.tanh()
        return self.head(h)


def subject(model: nn.Module) -> Subject:
    made = subject_of(model, vocabulary=16)
    assert made.masks
    return made


def test_lengths_come_in_order_and_masks_at_the_longest() -> None:
    every = list(conditions(subject(Sums())))
    plain = [one.length for one in every if not (one.training or one.masked)]
    assert plain == sorted(plain)
    assert len(plain) == 3
    assert plain[-1] == 65
    assert [one.length for one in every if one.masked] == [65]
    assert [one.length for one in every if one.training] == plain


def test_the_longest_of_each_mode_stand_for_all() -> None:
    every = [Condition(2), Condition(9), Condition(9, masked=True), Condition(2, training=True)]
    assert longest(every) == every[1:]


def test_other_ways_are_tried_too(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    made = subject(Sums())
    monkeypatch.setattr(
        type(made), "variants", lambda self: iter([("", self), ("slow", self.again())])
    )
    monkeypatch.setattr(causality, "changes", lambda _, how, *of: tried.append(str(how)))
    causality.causality(made)
    # what is equal in training, with a mask and in the other way is looked at once
    assert len(tried) == 3 + 1
    assert tried[-1] == "length 320, in evaluation"
    monkeypatch.setattr(causality, "equal", lambda *of: False)
    tried.clear()
    causality.causality(made)
    assert tried[-4:-1] == [
        "length 65, in evaluation, slow",
        "length 65, in evaluation, with a mask of ones, slow",
        "length 65, in training, slow",
    ]
    assert len(tried) == 3 + 1 + 3 + 1 + 3


def test_a_leak_that_a_mask_opens_is_found() -> None:
    [found] = check(SeesBehindMasks(), laws=("causality",), vocabulary=16)
    assert found.status == "failed"
    assert "at length 65, in evaluation, with a mask of ones" in found.detail


def test_what_is_unrolled_is_not_exported_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "by_the_real_compiler", lambda *_: "")
    how: dict[str, Any] = {"laws": ("compiles",), "vocabulary": 16, "depth": "deep"}
    [small] = check(Steps(), **how)
    assert "exported, equal at lengths 16, 17" in small.detail
    monkeypatch.setattr(compiling, "UNROLLED", 20)
    [large] = check(Steps(), **how)
    assert large.status == "held"
    assert "not exported, since it is unrolled: above 20 operations" in large.detail
    assert "one graph of " in large.detail


def test_cost_is_that_of_the_two_longest_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """16 L^2 + 128 L operations grow as L^1.58 from 8 to 16 and as L^1.74 from 16 to 32."""

    class Pairs(Sums):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            h = self.embed(x)
            return self.head(h @ h.mT @ h)

    monkeypatch.setattr(Subject, "spans", (8, 16, 32))
    monkeypatch.setattr(cost, "SLOW", 1e9)
    [found] = check(Pairs(), laws=("cost",), vocabulary=16)
    assert found.status == "reported"
    assert "operations L^1.74" in found.detail
    assert found.detail.endswith("from 16 to 32")


@pytest.mark.parametrize("name", [*IMPORTS, *OF_TRANSFORMERS])
def test_processes_of_a_sweep_share_modules_that_there_are(name: str) -> None:
    """A name that cannot be imported would be left out without a word, and cost seconds a class."""
    if name.startswith("transformers"):
        pytest.importorskip("transformers")
    assert importlib.util.find_spec(name) is not None


def test_one_that_is_refused_leaves_no_trace_in_what_is_tried_next() -> None:
    class Counts(Sums):
        """Refuses length 3, and everything after it."""

        def __init__(self) -> None:
            super().__init__()
            self.refused = False

        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            self.refused |= x.shape[1] == 3
            if self.refused:
                raise ValueError("no")
            return super().forward(x, mask)

    taken = subject(Counts()).lengths()
    assert 3 not in taken
    assert {2, 33, 65} <= {*taken}
