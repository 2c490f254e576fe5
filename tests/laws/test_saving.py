"""What is drawn when a model is made and not saved, in each form in which a model may hold it."""

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from programs import shown
from torch import Tensor, nn

from sequence_laws import check, saving

FORMS: dict[str, Callable[[list[float]], Any]] = {
    "a tensor": torch.tensor,
    "an array": numpy.array,
    "a list of numbers": list,
    "a tuple of tensors": lambda given: tuple(map(torch.tensor, given)),
    "a number": lambda given: given[0],
    "a generator": lambda given: torch.Generator().manual_seed(int(1e6 * abs(given[0]))),
    "a function": lambda given: lambda h: given[0] * h,
}
"""of numbers"""


class Holds(nn.Module):
    """Sums, by what it holds in one form."""

    def __init__(self, form: str, width: int = 4) -> None:
        super().__init__()
        self.form, self.width = form, width
        self.embed, self.head = nn.Embedding(16, width), nn.Linear(width, 16)
        self.held = FORMS[form](self.numbers())

    def numbers(self) -> list[float]:
        return torch.randn(self.width).tolist()

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x).cumsum(1)
        if callable(self.held):
            return self.head(self.held(h))
        if isinstance(self.held, torch.Generator):
            drawn = torch.Generator().manual_seed(self.held.initial_seed())
            return self.head(h * torch.randn(self.width, generator=drawn).to(h))
        parts = self.held if isinstance(self.held, float) else [float(one) for one in self.held]
        return self.head(h * torch.tensor(parts).to(h))


class Constant(Holds):
    """The same of each instance."""

    def numbers(self) -> list[float]:
        return [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("form", FORMS)
def test_what_is_drawn_and_not_saved_is_found_in_any_form(form, monkeypatch):
    [found] = check(model := Holds(form), laws=["saving"], vocabulary=16)
    assert found.status == "failed", found
    assert "drawn when one is made" in found.detail
    if form not in ("a generator", "a function"):
        assert "held" in found.detail
    assert shown(found, model) > 0.001
    [right] = check(Constant(form), laws=["saving"], vocabulary=16)
    assert right.status == "held", right
    monkeypatch.setattr(saving, "instances", lambda *_: "")
    [missed] = check(model, laws=["saving"], vocabulary=16)
    assert missed.status == "held", missed


def test_what_another_instance_cannot_show_is_said():
    class Unkept(nn.Module):
        """How much is scaled is known to whoever made it."""

        def __init__(self, scale: float = 1.0) -> None:
            super().__init__()
            self.by = scale
            self.embed, self.head = nn.Embedding(16, 4), nn.Linear(4, 16)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.embed(x).cumsum(1) * self.by)

    [one] = check(Unkept(3.0), laws=["saving"])
    assert one.status == "held"
    assert one.detail.endswith("of the arguments that it keeps, computes otherwise: not compared")
    [same] = check(Unkept(), laws=["saving"])
    assert same.detail.endswith("and into another instance")

    class Wants(Unkept):
        def __init__(self, flavour: str) -> None:
            super().__init__()

    [none] = check(Wants("sweet"), laws=["saving"])
    assert none.detail.endswith(
        "no other instance can be made, which would show what is drawn with one"
    )
