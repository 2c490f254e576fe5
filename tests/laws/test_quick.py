"""Quick looks: each finds what is broken, with a program that shows it, and nothing else."""

import pytest
import torch
from right_and_wrong import Right
from torch import Tensor, nn

from sequence_laws import check
from sequence_laws.quick import QUICK


class Overflows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return (self.embed(x) * 1e30).square().cumsum(1)


class Draws(Overflows):
    """Counts its calls."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        type(self).calls += 1
        return self.embed(x) + type(self).calls


def found(model: nn.Module) -> dict[str, str]:
    return {one.law: one.status for one in check(model, depth="quick")}


def test_what_is_right_holds() -> None:
    assert found(Right()) == dict.fromkeys(QUICK, "held")
    assert found(nn.GRU(8, 8, batch_first=True))["streaming"] == "held"


@pytest.mark.parametrize(
    ("wrong", "law"),
    [
        ("a diagonal too far", "causality"),
        ("positions start over", "streaming"),
        ("the number of rows", "batch"),
    ],
)
def test_what_is_wrong_breaks_the_law_of_it(wrong: str, law: str) -> None:
    model = Right(wrong)
    verdicts = {one.law: one for one in check(model, depth="quick")}
    assert verdicts[law].status == "failed"
    printed: list[Tensor] = []
    program = verdicts[law].reproduction.replace("model = ...  # yours", "model = made")
    exec(program, {"made": model, "print": printed.append})
    assert float(printed[0]) > 1e-3


class SeesPadding(Overflows):
    """Its mask does nothing."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.embed(x).flip(1).cumsum(1).flip(1)


def test_padding_and_numbers() -> None:
    verdicts = {o.law: o for o in check(SeesPadding(), depth="quick", causal=False)}
    assert {law: one.status for law, one in verdicts.items()} == {
        "causality": "exempt",
        "streaming": "exempt",
        "padding": "failed",
        "batch": "held",
        "numbers": "held",
    }
    overflows = found(Overflows())
    assert overflows.pop("numbers") == "failed"
    assert overflows["batch"] == "held"
    assert found(Draws())["causality"] == "undecided"
    assert torch.is_grad_enabled()


def test_depths_are_those_of_a_subject() -> None:
    from sequence_laws.adapters import subject_of

    deep = subject_of(Right())
    assert deep.depth == "usual"
    deep.depth = "deep"
    assert [n for n in deep.lengths() if n > 65] == [129, 257]
    assert not [n for n in subject_of(Right()).lengths() if n > 65]
