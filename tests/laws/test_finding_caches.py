"""Caches of modules of one's own are found by what comes back; that there is none has evidence."""

import dataclasses
from typing import Any

import pytest
import torch
from programs import shown
from torch import Tensor, nn

from sequence_laws import check
from sequence_laws.adapters import subject_of
from sequence_laws.errors import ConfigError


class Sums(nn.Module):
    """Running sums of embeddings; ``wrong`` of twice what a cache holds."""

    def __init__(self, wrong: bool = False) -> None:
        super().__init__()
        self.wrong, self.embed, self.head = wrong, nn.Embedding(16, 4), nn.Linear(4, 16)

    def sums(self, x: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
        y = self.embed(x).cumsum(1)
        y = y if before is None else y + (1 + self.wrong) * before
        return self.head(y), y[:, -1:]


class Third(Sums):
    """Outputs, a weight and the cache."""

    def forward(self, x: Tensor, cache: Tensor | None = None) -> tuple[Tensor, ...]:
        y, after = self.sums(x, cache)
        return y, torch.zeros(len(x), x.shape[1]), after


class Unheard(Sums):
    """Words that nobody would look for."""

    def forward(self, x: Tensor, *, gist: Tensor | None = None, tell: bool = False) -> Any:
        y, after = self.sums(x, gist)
        return (y, after) if tell else y


class Asked(Sums):
    """A flag that is None by default."""

    def forward(self, x: Tensor, past_kv: Any = None, use_past: bool | None = None) -> Any:
        y, after = self.sums(x, past_kv)
        return {"logits": y, "kept": after} if use_past else {"logits": y}


@dataclasses.dataclass
class Out:
    last_hidden_state: Tensor
    gist: Tensor | None


class Recorded(Sums):
    def forward(self, x: Tensor, scale: Tensor | None = None, gist: Tensor | None = None) -> Out:
        return Out(*self.sums(x if scale is None else x * scale.long(), gist))


class Words(Sums):
    """Words that no signature tells."""

    def forward(self, x: Tensor, **words: Any) -> dict[str, Tensor]:
        y, after = self.sums(x, words.get("gist"))
        return {"logits": y, "gist": after}


class Empty(Sums):
    """A cache that is empty at first."""

    def forward(self, x: Tensor, states: tuple[Tensor, ...] = ()) -> tuple[Tensor, Any]:
        y, after = self.sums(x, states[0] if states else None)
        return y, (after,)


CACHES = (Third, Unheard, Asked, Recorded, Words, Empty)


@pytest.mark.parametrize("kind", CACHES)
def test_a_cache_is_found_by_whatever_name(kind: type[Sums]) -> None:
    torch.manual_seed(0)
    model = kind()
    [one] = check(model, laws=["streaming"], vocabulary=16)
    assert one.status == "held", one.detail
    assert "9 splits" in one.detail
    # the program of one that is wrong, on a right one: its cache is given as it should be
    subject = subject_of(model, vocabulary=16)
    lines = (
        "x = torch.arange(12).view(2, 6)",
        *subject.feed_code(),
        "y, cache = feed(x[:, :2], None)",
        f"print((feed(x[:, 2:], cache)[0] - {subject.call_code('x')}[:, 2:]).abs().max())",
    )
    shown: list[Tensor] = []
    program = subject.code(*lines).replace("...", "made")
    exec(program, {"made": model, "print": shown.append})
    assert float(shown[0]) < 1e-12


@pytest.mark.parametrize("kind", [Third, Asked, Recorded, Empty])
def test_a_cache_by_its_name_is_tried_though_it_continues_wrongly(kind: type[Sums]) -> None:
    torch.manual_seed(0)
    [one] = check(kind(wrong=True), laws=["streaming"], vocabulary=16)
    assert one.status == "failed"
    assert "when the 5 inputs come in pieces" in one.detail


class Memory(Sums):
    """What it gives beside outputs it also reads, but not as what came before."""

    def forward(self, x: Tensor, memory: Tensor | None = None, mask: Tensor | None = None) -> Any:
        h = self.embed(x) if mask is None else self.embed(x) * mask[..., None]
        h = h.cumsum(1)
        return self.head(h if memory is None else h + memory.mean(1, keepdim=True)), h


class Whole(Sums):
    """With its cache it is given all inputs again, and gives the last output."""

    def forward(self, x: Tensor, cache: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self.sums(x if cache is None else x[:, -1:], cache)


class Ignored(Sums):
    """With its cache it reads nothing of it."""

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self.sums(x, None)


def test_a_cache_without_which_the_whole_text_is_right_is_none_that_is_given_it_again() -> None:
    torch.manual_seed(0)
    [one] = check(Ignored(), laws=["streaming"], vocabulary=16)
    assert one.status == "failed", one.detail
    assert "come in pieces" in one.detail


class Places(Sums):
    """It is told how many came before."""

    def forward(self, x: Tensor, start_pos: int = 0, cache: Tensor | None = None) -> Any:
        h = self.embed(x) * (1 + torch.arange(start_pos, start_pos + x.shape[1]))[:, None]
        y = h.cumsum(1) if cache is None else h.cumsum(1) + cache
        return self.head(y), y[:, -1:]


class Nothing(Sums):
    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        return self.sums(x, None)[0]


class Bare(Sums):
    def forward(self, x: Tensor) -> Tensor:
        return self.sums(x, None)[0]


class Encodes(Sums):
    """Hidden states and a state of its encoder, which are no caches."""

    def forward(self, x: Tensor, encoder_states: Tensor | None = None) -> Any:
        y, h = self.sums(x, encoder_states)
        return y, h


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (Whole, "its cache is given the whole text again, which comes in no pieces"),
        (Places, "its cache goes on where start_pos says, which is not tried"),
        (Nothing, "of (x, scale) none takes one, and nothing but outputs comes back"),
        (Bare, "it offers no cache: of (x) none takes one"),
        (Encodes, "of (x, encoder_states) none takes one"),
    ],
)
def test_no_cache_is_said_with_what_was_looked_for(kind: type[Sums], says: str) -> None:
    torch.manual_seed(0)
    [one] = check(kind(), laws=["streaming"], vocabulary=16)
    assert one.status == "exempt"
    assert says in one.detail


class Hidden(Sums):
    """A state by a name that is no cache's in every model."""

    def forward(self, x: Tensor, hidden: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self.sums(x, hidden)


class Gist(Sums):
    """A state by a name that says nothing."""

    def forward(self, x: Tensor, gist: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self.sums(x, gist)


class Features(Sums):
    """What it gives beside outputs, of its inputs alone, moves them, by the name of a state."""

    def forward(self, x: Tensor, h: Tensor | None = None) -> tuple[Tensor, Tensor]:
        y = self.embed(x).cumsum(1)
        return self.head(y if h is None else y + h.mean(1, keepdim=True)), y


class BothWays(Sums):
    """A state that goes on, of a model that reads both ways."""

    def forward(self, x: Tensor, hidden: Tensor | None = None) -> tuple[Tensor, Tensor]:
        y, after = self.sums(x.flip(1), hidden)
        return y.flip(1), after


def test_a_state_by_its_name_and_structure_is_judged() -> None:
    torch.manual_seed(0)
    [right] = check(Hidden(), laws=["streaming"], vocabulary=16)
    assert right.status == "held", right.detail
    [one] = check(wrong := Hidden(wrong=True), laws=["streaming"], vocabulary=16)
    assert one.status == "failed", one.detail
    assert "with hidden, taken for a cache by its name and by [1], which has its" in one.detail
    assert shown(one, wrong) > 1e-3


@pytest.mark.parametrize(
    ("model", "word"),
    [(Memory(), "memory"), (Gist(wrong=True), "gist"), (Features(), "h"), (BothWays(), "hidden")],
)
def test_what_moves_outputs_and_may_be_a_cache_is_said(model: nn.Module, word: str) -> None:
    torch.manual_seed(0)
    [one] = check(model, laws=["streaming"], vocabulary=16)
    assert one.status == "undecided", one.detail
    assert one.detail.startswith(f"whether {word} is a cache is not known: given [1] behind 2 ")
    [both] = check(model, laws=["streaming"], vocabulary=16, causal=False)
    assert both.status == "exempt", both.detail


def test_other_words_that_are_not_there_are_said() -> None:
    said = {one.law: one.detail for one in check(Bare(), laws=["padding", "packing"])}
    assert said["padding"] == (
        "it takes no mask: of (x) none is mask or padding_mask or keep or attention_mask "
        "or key_padding_mask or src_key_padding_mask"
    )
    assert said["packing"].startswith("it takes no documents: of (x) none is document_ids or ")


def test_no_labels_are_said() -> None:
    class Masked(Sums):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            h = self.embed(x) if mask is None else self.embed(x) * mask[..., None]
            return self.head(h.cumsum(1))

    [one] = check(Masked(), laws=["padding"], vocabulary=16)
    assert one.detail.endswith("it takes no labels: of (x, mask) none is labels or targets")


@dataclasses.dataclass(frozen=True)
class Box:
    sums: Tensor
    seen: int


class Boxed(Sums):
    """A cache that is a dataclass in a tuple; one wrong reads what it kept itself."""

    kept: Any = None

    def forward(self, x: Tensor, cache: tuple[Box, ...] = ()) -> Any:
        before = cache[0].sums if cache else None
        if self.wrong and cache:
            before = self.kept
        y = self.embed(x).cumsum(1) + (0 if before is None else before)
        self.kept = y[:, -1:].detach()
        return self.head(y), (Box(y[:, -1:], x.shape[1] + (cache[0].seen if cache else 0)),)


def test_rows_of_a_dataclass_are_reordered() -> None:
    torch.manual_seed(0)
    [right] = check(Boxed(), laws=["streaming"], vocabulary=16)
    assert right.status == "held", right.detail
    assert "rows in another order half-way" in right.detail
    [one] = check(wrong := Boxed(wrong=True), laws=["streaming"], vocabulary=16)
    assert one.detail.startswith("after its rows were put in the order"), one.detail
    assert shown(one, wrong) > 1e-3


class Turned(Sums):
    """Rows in the second dimension of its cache, and in none of its other part; one wrong reads
    what it kept itself."""

    kept: Any = None

    def forward(self, x: Tensor, cache: Any = None) -> Any:
        before = 0 if cache is None else self.kept if self.wrong else cache[0][0, :, None]
        y = self.embed(x).cumsum(1) + before
        self.kept = y[:, -1:].detach()
        return self.head(y), (y[None, :, -1], torch.ones(3))


def test_rows_are_found_in_another_dimension() -> None:
    torch.manual_seed(0)
    [right] = check(Turned(), laws=["streaming"], vocabulary=16)
    assert right.status == "held", right.detail
    assert "rows in another order half-way" in right.detail
    [one] = check(wrong := Turned(wrong=True), laws=["streaming"], vocabulary=16)
    assert one.detail.startswith("after its rows were put in the order"), one.detail
    assert shown(one, wrong) > 1e-3


class Folded(Sums):
    """Rows and two halves in one dimension of its cache."""

    def forward(self, x: Tensor, cache: Tensor | None = None) -> tuple[Tensor, Tensor]:
        y, after = self.sums(x, None if cache is None else cache.reshape(len(x), 1, 4))
        return y, after.reshape(2 * len(x), 2)


def test_rows_that_are_not_found_are_said() -> None:
    torch.manual_seed(0)
    [one] = check(Folded(), laws=["streaming"], vocabulary=16)
    assert one.status == "held", one.detail
    assert "which dimension of its cache is rows is not known: none moved" in one.detail


class Weighted(nn.Module):
    """Features of a width that its constructor alone tells."""

    def __init__(self, input_size: int = 12) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, input_size))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight.mT).cumsum(1)


class Convolved(nn.Module):
    """Features of a width that its convolution alone tells; ``turned`` reads (B, d, L)."""

    def __init__(self, turned: bool = False) -> None:
        super().__init__()
        self.turned, self.conv = turned, nn.Conv1d(16, 16, 3, padding=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)[..., :-2] if self.turned else self.conv(x.mT)[..., :-2].mT


def test_widths_of_convolutions_and_constructors_are_tried() -> None:
    for model, width in ((Weighted(), 12), (Convolved(), 16)):
        assert subject_of(model).inputs.width == width
        [one] = check(model, laws=["causality"])
        assert one.status == "held", one.detail
    with pytest.raises(ConfigError, match="what Convolved reads cannot be guessed"):
        check(Convolved(turned=True), laws=["causality"])
