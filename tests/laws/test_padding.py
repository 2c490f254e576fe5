"""Padding: what moves a row fails, or is said; each look by a model that it alone finds wrong."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from programs import shown
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sequence_laws import check, padding
from sequence_laws.adapters import subject_of
from sequence_laws.subject import Subject


class Means(nn.Module):
    """Each token beside the mean of what is real."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head, self.places = (
            nn.Embedding(16, 4),
            nn.Linear(4, 16),
            nn.Embedding(80, 4),
        )

    def read(self, x: Tensor, real: Tensor) -> Tensor:
        return self.embed(x)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        real = torch.ones_like(x, dtype=torch.bool) if mask is None else mask
        h = self.read(x, real)
        kept = h * real[..., None]
        return self.head(h + kept.sum(1, keepdim=True) / real.sum(1)[:, None, None].clamp(min=1))


class ByTwos(Means):
    """Places, padding among them, in turns of two."""

    def read(self, x: Tensor, real: Tensor) -> Tensor:
        return self.embed(x) + self.places(torch.arange(x.shape[1]) % 2)


class Blocks(Means):
    """The number of the block of 16 in which a token stands, padding among them."""

    def read(self, x: Tensor, real: Tensor) -> Tensor:
        return self.embed(x) + self.places(torch.arange(x.shape[1]) // 16)


class OneLength(Means):
    """It reads 16 inputs alone; ``right`` counts what is real."""

    right = False

    def read(self, x: Tensor, real: Tensor) -> Tensor:
        if x.shape[1] != 16:
            raise ValueError(f"a length of {x.shape[1]} is not 16")
        counted = (real.cumsum(1) - 1).clamp(min=0)
        return self.embed(x) + self.places(counted if self.right else torch.arange(16))


class OneLengthRight(OneLength):
    right = True


class ShortestRow(Means):
    """Everything is divided by how long the shortest row is."""

    def read(self, x: Tensor, real: Tensor) -> Tensor:
        return self.embed(x) / real.sum(1).min().clamp(max=1)


class Pooled(ByTwos):
    """One output a row."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        real = torch.ones_like(x, dtype=torch.bool) if mask is None else mask
        h = self.read(x, real) * real[..., None]
        return self.head(h.sum(1) / real.sum(1)[:, None].clamp(min=1))


def first(pairs: Callable[[Subject], Any]) -> Callable[[Subject], Any]:
    return lambda subject: [*pairs(subject)][:1]


def by_two(right: Callable[[Subject], Any]) -> Callable[[Subject], Any]:
    """As it was: two inputs of padding alone."""
    return lambda subject: [(9, [7])]


class Look(NamedTuple):
    model: Callable[[], nn.Module]
    says: str
    name: str
    without: Callable[[Any], Any]


LOOKS = (
    Look(ByTwos, "one padding input on the left", "shorter", by_two),
    Look(Pooled, "31 padding inputs on the left", "shorter", first),
    Look(Blocks, "31 padding inputs on the left", "shorter", first),
    Look(OneLength, "padding inputs on the left", "turned", lambda right: lambda *_: 0.0),
    Look(ShortestRow, "beside one of nothing but", "beside_nothing", lambda right: lambda *_: ""),
)


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.model.__name__)
def test_what_moves_a_row_is_found_by_one_look(look, monkeypatch):
    torch.manual_seed(0)
    model = look.model()
    made = subject_of(model, vocabulary=16, causal=False)
    [found] = check(made, laws=["padding"])
    assert found.status == "failed", found
    assert look.says in found.detail
    assert not shown(found, model) < 1e-3
    # of one that says so it is no fault, and never held
    made.counts_padding = "left" in look.says
    [said] = check(made, laws=["padding"])
    assert said.status == ("reported" if made.counts_padding else "failed"), said
    made.counts_padding = False
    monkeypatch.setattr(padding, look.name, look.without(getattr(padding, look.name)))
    [missed] = check(made, laws=["padding"])
    assert missed.status == "held", missed


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Means, "a row padded on the left is the row alone; rows of nothing but padding leave"),
        (OneLengthRight, "a row is the same padded on the left and on the right"),
    ],
)
def test_right_models_hold(kind, words):
    [found] = check(kind(), laws=["padding"], vocabulary=16, causal=False)
    assert found.status == "held", found
    assert words in found.detail


def test_what_nothing_can_be_compared_with_is_undecided():
    made = subject_of(OneLength(), vocabulary=16, causal=False)
    made.masks = ("left",)
    [one] = check(made, laws=["padding"])
    assert one.status == "undecided"


def test_nothing_that_sees_nothing_is_finite_in_torch_and_one_layer_keeps_it_to_itself():
    """Tokens of padding on the left see nothing in a causal encoder of torch: they are not finite,
    which is said; a second layer takes them over."""
    verdicts = []
    for layers in (1, 2):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        [one] = check(model, laws=["padding"], causal=True)
        verdicts.append(one.status)
    assert (
        "outputs of padding itself are not finite"
        in check(
            nn.TransformerEncoder(layer, 1, enable_nested_tensor=False),
            laws=["padding"],
            causal=True,
        )[0].detail
    )
    assert verdicts == ["held", "failed"]


class Padded(Means):
    """True at what is padding; with ``wrong`` its mean is of all."""

    wrong = False

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        padding = torch.zeros_like(x, dtype=torch.bool) if padding_mask is None else padding_mask
        return super().forward(x, None if self.wrong else ~padding)


class Tokenized(Means):
    """Numbers 1 at what is real, as tokenizers give them."""

    wrong = False

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        mask = torch.ones_like(x) if attention_mask is None else attention_mask
        return super().forward(x, None if self.wrong else 1 - mask < 1)


class KeyPadded(Padded):
    def forward(
        self, x: Tensor, mask: Tensor | None = None, key_padding_mask: Tensor | None = None
    ) -> Tensor:
        if mask is not None and mask.shape != (x.shape[1],) * 2:
            raise ValueError("a mask is (L, L)")
        return super().forward(x, key_padding_mask)


class Added(Means):
    """What is added to scores."""

    wrong = False

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        h = self.embed(x)
        scores = h @ h.mT
        if attention_mask is not None and not self.wrong:
            scores = scores + attention_mask[:, None]
        return self.head(scores.softmax(-1) @ h)


@pytest.mark.parametrize("kind", [Padded, Tokenized, KeyPadded, Added])
def test_a_mask_is_given_in_the_form_in_which_it_is_taken(kind: type[Any]) -> None:
    torch.manual_seed(0)
    model = kind()
    laws = ("padding", "agreement", "batch")
    for one in check(model, laws=laws, vocabulary=16, causal=False):
        added = kind is Added and one.law == "padding"
        assert one.status == ("reported" if added else "held"), one.detail
    model.wrong = True
    [one] = check(model, laws=["padding"], vocabulary=16, causal=False)
    assert one.status == "failed"
    assert "padding" in one.detail
    assert shown(one, model) > 1e-3


class Turned(Padded):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(x, mask)


class TurnedNumbers(Padded):
    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return super().forward(x, None if attention_mask is None else attention_mask.bool())


@pytest.mark.parametrize("kind", [Turned, TurnedNumbers])
def test_a_mask_that_is_turned_around_fails_unless_its_name_says_padding(kind: type[Any]) -> None:
    torch.manual_seed(0)
    [one] = check(kind(), laws=["padding"], vocabulary=16, causal=False)
    assert one.status == "failed", one.detail


def test_a_loss_in_a_dict_is_read_there_by_its_program() -> None:
    class Lossy(Means):
        def forward(
            self, x: Tensor, mask: Tensor | None = None, targets: Tensor | None = None
        ) -> Any:
            y = super().forward(x, mask)
            if targets is None:
                return y
            return {"logits": y, "loss": (y.sum(-1) * (targets > 0)).mean()}

    torch.manual_seed(0)
    model = Lossy()
    [one] = check(model, laws=["padding"], vocabulary=16, causal=False)
    assert one.detail.startswith("the loss of a padded batch")
    assert shown(one, model) > 1e-3


class Tuples(nn.Module):
    """A causal model that gives (logits, loss), as many small models of text do; ``way`` says which
    loss."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.embed, self.head = way, nn.Embedding(16, 4), nn.Linear(4, 16)

    def forward(
        self, x: Tensor, documents: Tensor | None = None, targets: Tensor | None = None
    ) -> Any:
        documents = torch.zeros_like(x) if documents is None else documents
        h = self.embed(x)
        y = self.head((documents[:, :, None] == documents[:, None]).tril().to(h) @ h)
        if self.way == "a number that is none":
            return (y, y.mean())
        if targets is None:
            return y[:, -1:] if self.way in ("last", "all of last") else y, None
        ignored = -1 if self.way == "minus one" else -100
        each = cross_entropy(y.mT, targets, ignore_index=ignored, reduction="none")
        real = targets != ignored
        if self.way == "no label is none":
            each, real = each + y.square().mean(-1), torch.ones_like(real)
        loss = each.sum() if self.way == "sum" else each.sum() / real.sum()
        if self.way in ("all", "all of last"):
            loss = each.mean()
        if self.way == "documents" and documents.any():
            first = documents == 0
            loss = (
                each[first].sum() / real[first].sum() + each[~first].sum() / real[~first].sum()
            ) / 2
        return (loss, y) if self.way == "first" else (y, loss)


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("right", "; its loss is the mean over targets"),
        ("first", "; its loss is the mean over targets"),
        ("last", "; its loss is the mean over targets"),
        ("minus one", "; its loss is the mean over targets"),
        ("sum", "; its loss is the sum over targets, not their mean"),
        ("no label is none", "; whether labels of -100 are none to its loss is not known"),
        ("a number that is none", "; for targets it gives no loss that is known as such"),
        ("all", "the loss of a batch, "),
        ("all of last", "the loss of a batch, "),
        ("documents", "the loss of a row of two documents, "),
    ],
)
def test_a_loss_is_found_and_judged_without_a_mask(way: str, words: str) -> None:
    torch.manual_seed(0)
    model, law = Tuples(way), "packing" if way == "documents" else "padding"
    [one] = check(model, laws=[law], vocabulary=16)
    assert words in one.detail
    assert one.status == ("failed" if words.startswith("the loss") else "exempt")
    if one.status == "failed":
        assert shown(one, model) > 1e-3
    else:
        [packed] = check(model, laws=["packing"], vocabulary=16)
        assert packed.status == "held", packed.detail


def test_padding_that_is_told_in_a_way_that_is_not_known_is_undecided() -> None:
    class Lengths(Means):
        def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
            return super().forward(x)

    [one] = check(Lengths(), laws=["padding"], vocabulary=16, causal=False)
    assert one.status == "undecided"
    assert one.detail.startswith("whether lengths tells what is padding is not known")
