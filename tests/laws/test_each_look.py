"""Each look of a law by one model that it alone judges rightly: without the look the verdict turns.

Most are wrong models that nothing else in the law finds; of two, marked so, the look is what keeps
a right one from a false alarm.
"""

import copy
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from sequence_laws import (
    causality,
    check,
    compiling,
    gradients,
    numbers,
    padding,
    rows,
    saving,
    streaming,
)
from sequence_laws.adapters import subject_of
from sequence_laws.inputs import Inputs
from sequence_laws.subject import Subject


class Sums(nn.Module):
    """Running sums of embeddings; ``wrong`` names what goes wrong."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.wrong, self.embed, self.head = wrong, nn.Embedding(16, 4), nn.Linear(4, 16)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        if self.wrong == "rows that are numbered":
            h = h + 0.1 * torch.arange(len(x))[:, None, None]
        if self.wrong == "more rows than 8":
            h = h / h[:8].std() if len(x) > 8 else h
        if self.wrong == "a spread of one":
            h = h / h.var(1, correction=0, keepdim=True)
        if self.wrong == "how many there are":
            h = h + 1 / x.shape[1]
        if self.wrong == "how many there are beyond 100":
            h = h * (max(x.shape[1], 100) / 100)
        if self.wrong == "a last block that is short" and x.shape[1] > 16:
            h = h * (1 + (torch.arange(x.shape[1]) // 16 == x.shape[1] // 16))[:, None]
        y = self.head(h.cumsum(1))
        return 2 * y if self.wrong == "exported" and torch.compiler.is_exporting() else y


class Whisper(Sums):
    """5e-11 of the next input from position 20 on, beside outputs of a thousand."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        late = (torch.arange(x.shape[1]) >= 20)[:, None] & (
            torch.arange(x.shape[1]) < x.shape[1] - 1
        )[:, None]
        return 1000 + 1e-2 * h.cumsum(1) + 5e-11 * late * h.roll(-1, 1)


class Odd(Sums):
    """Output 20 tells whether the next token is odd: a choice, which no gradient sees."""

    def forward(self, x: Tensor) -> Tensor:
        odd = nn.functional.pad(x[:, 1:] % 2, (0, 1)) * (torch.arange(x.shape[1]) == 20)
        return self.head(self.embed(x).cumsum(1) + odd[..., None])


class FarAhead(Sums):
    """Behind two windows it sees one ahead."""

    window = 48

    def __init__(self) -> None:
        super().__init__()
        self.window = 48

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        late = (torch.arange(x.shape[1]) == 2 * self.window - 1)[:, None]
        return self.head(h.cumsum(1) + late * h.roll(-1, 1).detach())


class At300(Sums):
    """Output 299 sees input 300, and nothing else is wrong; ``limit`` is its own length."""

    def __init__(self, limit: int = 512) -> None:
        super().__init__()
        self.max_length = limit

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        late = (torch.arange(x.shape[1]) == 299)[:, None]
        return self.head(h.cumsum(1) + late * h.roll(-1, 1))


class Slow(Sums):
    """It is computed in two ways, of which one looks a token ahead at 20."""

    way = ""

    def forward(self, x: Tensor) -> Tensor:
        ahead = (self.way == "slow") * (torch.arange(x.shape[1]) == 20)[:, None]
        h = self.embed(x)
        return self.head(h.cumsum(1) + ahead * h.roll(-1, 1).detach())


class Ways(Subject):
    """It in each way."""

    def variants(self) -> Any:
        for way in ("fast", "slow"):
            other = self.again()
            other.model = copy.deepcopy(self.model)
            other.model.way = way
            yield way, other


class Drops(Sums):
    """Its own dropout, in training, looks ahead at 20; torch's comes first."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.drop(self.embed(x))
        ahead = self.training * (torch.arange(x.shape[1]) == 20)[:, None]
        return self.head(h.cumsum(1) + ahead * h.roll(-1, 1).detach())


class Blocks(Sums):
    """The mean of each block of 70, of which the first shows nothing."""

    def forward(self, x: Tensor) -> Tensor:
        first, *rest = self.embed(x).split(70, 1)
        later = [part.detach().mean(1, keepdim=True).expand_as(part) for part in rest]
        return self.head(torch.cat((first, *later), 1))


class Overflows(nn.Module):
    """Attention by exponentials without their maximum, of features."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        weights = (self.query(x) @ self.key(x).mT).exp().tril()
        return weights @ x / weights.sum(-1, keepdim=True)


class HalfPlaces(Sums):
    """Places counted in the dtype of the weights: half of those behind 256 are wrong, of 400."""

    def __init__(self) -> None:
        super().__init__()
        self.max_length = 400

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        places = torch.arange(x.shape[1]).to(h)[:, None] * torch.tensor([1.0, 1.1, 1.2, 1.3]).to(h)
        return self.head(h + 3 * (places / 4).sin())


class Deaf(Sums):
    """Its bias is not read from a state_dict; no one knows what it is made of."""

    def __init__(self, flavour: str) -> None:
        super().__init__()

    def load_state_dict(self, state: Any, *more: Any, **named: Any) -> Any:
        return super().load_state_dict({**state, "head.bias": self.head.bias}, *more, **named)


class Drawn(Sums):
    """A table that is drawn when it is made, and not saved."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(width), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embed(x).cumsum(1) * self.table)


class Back(Sums):
    """Weights of inputs more than 12 back."""

    def __init__(self) -> None:
        super().__init__()
        self.far = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        return self.head(h + nn.functional.pad(self.far(h), (0, 0, 13, 0))[:, : x.shape[1]])


class Zeros(Sums):
    """A layer behind one that starts as zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, 4)
        nn.init.zeros_(self.outer.weight)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        return self.head(h + self.outer(self.inner(h)))


class Masked(Sums):
    """Means over what is real, both ways; ``wrong`` says what is taken for that."""

    def forward(self, x: Tensor, mask: Tensor | None = None, labels: Tensor | None = None) -> Any:
        real = torch.ones_like(x, dtype=torch.bool) if mask is None else mask.clone()
        if self.wrong == "all of a long text" and x.shape[1] > 65:
            real[:] = True
        if self.wrong == "all up to the last":
            real = real.flip(1).cumsum(1).flip(1) > 0
            real &= real if mask is None else mask.cumsum(1) > 0
        if self.wrong == "the first column":
            real[:, 0] = True
        begun = (real.cumsum(1) > 0).sum(1)
        ended = (real.flip(1).cumsum(1) > 0).sum(1)
        counts = {"all after the first": begun, "all before the last": ended}
        count = counts.get(self.wrong, real.sum(1))
        y = self.head(
            self.embed(x) + ((self.embed(x) * real[..., None]).sum(1) / count[:, None])[:, None]
        )
        if labels is None:
            return y
        each = nn.functional.cross_entropy(y.mT, labels.clamp(min=0), reduction="none")
        told = (
            torch.ones_like(each) if self.wrong == "a loss of padding" else (labels >= 0).to(each)
        )
        return {"loss": (each * told).sum() / told.sum(), "logits": y}


class Documents(Sums):
    """Running sums of each document; ``wrong`` says where the one before goes on."""

    def forward(self, x: Tensor, documents: Tensor | None = None) -> Tensor:
        documents = torch.zeros_like(x) if documents is None else documents
        if self.wrong == "those of the first row":
            documents = documents[:1].expand_as(x)
        if self.wrong == "all but the last":
            documents = (documents == documents[:, -1:]).long()
        if self.wrong == "those that begin with a block":
            starts = torch.searchsorted(documents, documents)
            documents = torch.where(starts % 16 == 0, 0, starts)
        same = documents[:, :, None] == documents[:, None]
        return self.head(same.tril().to(self.embed.weight) @ self.embed(x))


class Fours(nn.Module):
    """Rows four at a time, each with the mask of the first four; ``right`` with its own."""

    def __init__(self, right: bool = False) -> None:
        super().__init__()
        self.right, self.sums = right, Masked()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        mask = torch.ones_like(x, dtype=torch.bool) if mask is None else mask
        masks = mask.split(4) if self.right else [mask[:4]] * len(x)
        return torch.cat(
            [
                self.sums(part, its[: len(part)])
                for part, its in zip(x.split(4), masks, strict=False)
            ]
        )


class Recent(Sums):
    """Running sums; ``wrong``: its cache keeps what the last 64 inputs gave, of all that were."""

    def forward(self, x: Tensor, cache: Tensor | None = None) -> tuple[Tensor, Tensor]:
        h = self.embed(x) if cache is None else torch.cat((cache, self.embed(x)), 1)
        y = self.head(h.cumsum(1)[:, -x.shape[1] :])
        return y, h[:, -64:] if self.wrong else h


class Trains(Sums):
    """It counts its calls in training."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training
        return super().forward(x) * (1 + 0.01 * self.calls)


class Ends(Sums):
    """A table of 100 places."""

    def __init__(self) -> None:
        super().__init__()
        self.max_length, self.places = 100, nn.Embedding(100, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embed(x) + self.places(torch.arange(x.shape[1])))


class Look(NamedTuple):
    """One look, and what is seen by it alone."""

    law: str
    what: str
    model: Callable[[], nn.Module]
    says: str
    without: Callable[[pytest.MonkeyPatch], Any]
    """leaves the look out"""
    alarm: bool = False
    """whether a right model would be called wrong without it"""


def instead(owner: Any, name: str, change: Callable[[Any], Any]) -> Callable[..., Any]:
    """What puts another function, made of the right one, in its place."""
    return lambda patch: patch.setattr(owner, name, change(getattr(owner, name)))


def nothing(given: Any = None) -> Callable[[Any], Any]:
    return lambda right: lambda *_, **__: given


def but(word: str) -> Callable[[Any], Any]:
    """A look of all sides, or of all findings, but one."""
    return lambda right: (
        lambda *of, **more: 0.0 if any(word in str(o) for o in of[1:]) else right(*of, **more)
    )


def both(*ways: Callable[..., Any]) -> Callable[..., Any]:
    return lambda patch: [way(patch) for way in ways]


uncut = instead(causality, "left_out", lambda right: lambda *of: of[3:] or right(*of))
"""Nothing is left out of a long text."""


def evaluating(right: Any) -> Any:
    return lambda self, x, padding_mask=None, *, training=False: right(self, x, padding_mask)


LOOKS = (
    Look(
        "causality", "gradients at all", Whisper, "has a gradient of",
        instead(causality, "gradients", nothing(0)),
    ),
    Look(
        "causality", "position 300 of its own length", At300,
        "output 299 has a gradient of", instead(causality, "far", nothing()),
    ),
    Look(
        "causality", "the output right before what is changed", Odd, "output 20 moves by",
        instead(causality, "changes", nothing()),
    ),
    Look(
        "causality", "inputs left out", lambda: Sums("how many there are"), "are left out",
        instead(causality, "left_out", nothing()),
    ),
    *(
        Look(
            "causality", f"inputs left out of a long text: {wrong}",
            functools.partial(Sums, wrong), "are left out", uncut,
        )
        for wrong in ("how many there are beyond 100", "a last block that is short")
    ),
    Look(
        "causality", "lengths behind two windows", FarAhead, "at length 97",
        instead(Subject, "marks", nothing([])),
    ),
    Look(
        "causality", "some places of a long text", Blocks, "at length 320",
        both(uncut, instead(causality, "places", nothing([0]))),
    ),
    Look(
        "causality", "another way to compute it", lambda: Ways(Slow(), "slow", Inputs(16)),
        "in evaluation, slow", instead(causality, "equal", nothing(True)),
    ),
    Look(
        "causality", "training", Drops, "in training", instead(causality, "equal", nothing(True)),
    ),
    Look(
        "padding", "holes", lambda: Masked("all up to the last"), "(holes: ",
        instead(padding, "contents", but("holes")),
    ),
    Look(
        "padding", "what stands on the left", lambda: Masked("the first column"), "(left: ",
        both(instead(padding, "contents", but("left")), instead(padding, "alone", but("left"))),
    ),
    Look(
        "padding", "a row alone of one padded on the right", lambda: Masked("all after the first"),
        "padding input on the right",
        both(instead(padding, "alone", but("right")), instead(padding, "losses", nothing([]))),
    ),
    Look(
        "padding", "a row alone of one padded on the left", lambda: Masked("all before the last"),
        "padding input on the left", instead(padding, "alone", but("left")),
    ),
    Look(
        "padding", "a long text", lambda: Masked("all of a long text"), "of 129)",
        lambda patch: patch.setattr(padding, "LONG", 65),
    ),
    Look(
        "padding", "losses", lambda: Masked("a loss of padding"), "the loss of a padded batch",
        instead(padding, "losses", nothing([])),
    ),
    Look(
        "batch", "rows in the opposite order", lambda: Sums("rows that are numbered"),
        "a row in the opposite order",
        both(
            lambda patch: patch.setattr(Tensor, "flip", lambda x, *_: x),
            instead(rows, "many", nothing("")),
        ),
    ),
    Look(
        "batch", "many rows", lambda: Sums("more rows than 8"), "among 33",
        instead(rows, "many", nothing()),
    ),
    Look(
        "batch", "many rows with masks", Fours, "each with a mask of its own",
        instead(rows, "many", nothing()),
    ),
    *(
        Look(
            "packing", f"several rows and borders: {wrong}", functools.partial(Documents, wrong),
            "from that of its document alone", instead(rows, "borders", nothing([(15,)])),
        )
        for wrong in (
            "those of the first row", "all but the last", "those that begin with a block",
        )
    ),
    Look(
        "streaming", "pieces beyond a ring of 64", lambda: Recent("ring"), "inputs come in pieces",
        lambda patch: patch.setattr(streaming, "LONG", 65),
    ),
    Look(
        "lengths", "one beyond its own", Ends, "length 101 (its limit: 100)",
        instead(Subject, "max_length", nothing()),
    ),
    Look(
        "lengths", "finite outputs", lambda: Sums("a spread of one"), "length 1 are not finite",
        lambda patch: patch.setattr(torch, "isfinite", torch.ones_like),
    ),
    Look(
        "numbers", "features of 1e4", Overflows, "features of 1e4",
        instead(numbers, "require_finite", but("1e4")),
    ),
    Look(
        "numbers", "bfloat16 behind 256", HalfPlaces, "behind 256",
        lambda patch: patch.setattr(numbers, "FAR", 256),
    ),
    Look(
        "gradients", "inputs far back", Back, "5 parameters",
        lambda patch: patch.setattr(gradients, "TRIED", (12,)), alarm=True,
    ),
    Look(
        "gradients", "weights that left their start", Zeros, "7 parameters",
        lambda patch: patch.setattr(
            torch, "randn", lambda shape, **of: torch.zeros(shape, dtype=of["dtype"])
        ), alarm=True,
    ),
    Look(
        "determinism", "training", Trains, "two runs in training",
        instead(Subject, "exact", evaluating),
    ),
    Look(
        "saving", "a living model whose weights are others", lambda: Deaf("sweet"),
        "something that outputs",
        instead(saving, "_stir", nothing()),
    ),
    Look(
        "saving", "tables that a living model does not save", Drawn, "table, drawn when one",
        instead(saving, "instances", nothing("")),
    ),
    Look(
        "compiles", "what is exported", lambda: Sums("exported"), "exported outputs are off",
        instead(compiling, "exports", nothing("")),
    ),
)  # fmt: skip


@pytest.mark.parametrize(
    "look", LOOKS, ids=lambda look: f"{look.law}: {look.what}".replace(" ", "-")
)
def test_a_look_judges_rightly_what_nothing_else_does(look, monkeypatch):
    torch.manual_seed(0)
    model = look.model()
    reads = {"width": 4} if isinstance(model, Overflows) else {"vocabulary": 16}
    monkeypatch.setattr(compiling, "by_the_real_compiler", lambda *_: "")
    how: dict[str, Any] = {
        "laws": [look.law],
        "depth": "deep" if look.law == "compiles" else "usual",
    }
    [found] = check(subject_of(model, **reads), **how)
    assert found.status == ("held" if look.alarm else "failed"), found
    assert look.says in found.detail
    look.without(monkeypatch)
    [missed] = check(subject_of(model, **reads), **how)
    assert missed.status == ("failed" if look.alarm else "held"), missed


@pytest.mark.parametrize(
    "kind", [Sums, Masked, Documents, Recent, functools.partial(Fours, right=True)]
)
def test_right_models_of_these_kinds_hold(kind):
    torch.manual_seed(0)
    found = check(kind(), causal=kind in (Sums, Documents, Recent))
    assert {one.status for one in found} <= {"held", "exempt", "reported"}, found
