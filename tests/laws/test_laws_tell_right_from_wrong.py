"""Laws for models of anyone: a right one keeps all, each wrong one is caught by exactly its law."""

import functools
from collections import Counter

import pytest
import torch
from right_and_wrong import Bare, Right

from sequence_laws import LAWS, check
from sequence_laws.adapters import subject_of
from sequence_laws.verdict import BROKEN

WRONG = [
    ("causality", Bare, "a diagonal too far"),
    ("causality", Bare, "tokens in the order of their scores"),
    ("causality", Right, "batch norm"),
    ("causality", Bare, "a sum over the number of tokens"),
    ("streaming", Right, "positions start over"),
    ("streaming", Right, "the oldest forgotten"),
    ("streaming", Right, "rows share a cache"),
    ("padding", Right, "mask ignored"),
    ("padding", Right, "mask of queries, not keys"),
    ("padding", Right, "places of padding"),
    ("streaming", Right, "rows that stay"),
    ("streaming", Right, "cut one too few"),
    ("streaming", Right, "only the first layer cut"),
    ("padding", Right, "a loss over padding"),
    ("padding", Right, "a mean of means"),
    ("packing", Right, "places that go on"),
    ("packing", Right, "documents of the first layer"),
    ("packing", Right, "the document before it too"),
    ("batch", Bare, "a mean over the batch"),
    ("batch", Bare, "the number of rows"),
    ("batch", Bare, "the first row read by all"),
    ("lengths", Bare, "one token squeezed"),
    ("lengths", Bare, "a table that ends"),
    ("lengths", Bare, "pairs of tokens"),
    ("numbers", Right, "too large for half"),
    ("numbers", Right, "no digit in half"),
    ("numbers", Right, "places in half"),
    ("gradients", Right, "a layer that nothing uses"),
    ("gradients", Right, "detached"),
    ("gradients", Right, "a root at zero"),
    ("determinism", Right, "a call counted"),
    ("determinism", Right, "noise of the process"),
    ("determinism", Right, "the time of day"),
    ("saving", Right, "layers in a list"),
    ("saving", Right, "a weight that is no parameter"),
    ("saving", Right, "a buffer that is not saved"),
    ("compiles", Right, "compiled otherwise"),
    ("compiles", Right, "dropped when compiled"),
    ("compiles", Right, "compiled otherwise with a mask"),
    ("agreement", Right, "scaled by a mask"),
    ("agreement", Right, "another path without gradients"),
    ("agreement", Right, "gradients with a mask"),
]
assert min(Counter(law for law, *_ in WRONG).values()) >= 3, (
    "each law has three that it alone finds"
)
FAST = tuple(law for law in LAWS if law not in ("compiles", "cost"))


def judged(kind: type[Right], wrong: str = "", laws: tuple[str, ...] = FAST):
    torch.manual_seed(0)
    make = functools.partial(kind, wrong)
    return check(subject_of(make(), "it", make=make), laws=laws)


def test_a_right_model_keeps_every_law():
    verdicts = {one.law: one for one in judged(Right, laws=())}
    assert {law for law, one in verdicts.items() if one.status == "reported"} == {"order", "cost"}
    others = [one.status for law, one in verdicts.items() if law not in ("order", "cost")]
    assert others == ["held"] * 12, verdicts


FIRST = {law: wrong for law, _, wrong in reversed(WRONG)}
AGAIN = pytest.mark.full("another fault that the same law catches")


@pytest.mark.parametrize(
    ("law", "kind", "wrong"),
    [pytest.param(*one, marks=() if FIRST[one[0]] == one[2] else AGAIN) for one in WRONG],
    ids=str,
)
def test_a_wrong_model_is_caught_by_exactly_its_law(law, kind, wrong):
    laws = FAST if law in FAST else (*FAST, law)
    failed = {one.law: one.detail for one in judged(kind, wrong, laws) if one.status in BROKEN}
    assert list(failed) == [law], failed
