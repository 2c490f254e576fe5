"""Small faults of modules of one's own, each beside the right module."""

from pathlib import Path

import pytest
import torch
from programs import printed, shown
from torch import Tensor, nn

from sequence_laws import check
from sequence_laws.command import main
from sequence_laws.rounding import computed, rounding
from sequence_laws.verdict import LawResult


class Sums(nn.Module):
    """Running sums of embeddings; ``wrong`` names what goes wrong."""

    def __init__(self, wrong: str = "") -> None:
        super().__init__()
        self.runs, self.max_length = 0, 64 if wrong == "one too few" else 0
        self.table = torch.ones(())
        self.wrong, self.embed, self.head = wrong, nn.Embedding(16, 8), nn.Linear(8, 16)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x).cumsum(1) / 8
        return self.head(self.changed(h))

    def changed(self, h: Tensor) -> Tensor:
        """What a wrong one does."""
        if self.wrong == "rows are numbered":
            return h + 0.1 * torch.arange(len(h))[:, None, None]
        if self.wrong == "faster without gradients" and not torch.is_grad_enabled():
            return h.round(decimals=1)
        if self.wrong == "one row is none" and len(h) == 1:
            return h[0]
        if self.wrong == "the third run" and self.training:
            self.runs += 1
            return h + (self.runs == 3)
        if self.wrong == "one too few" and h.shape[1] >= 64:
            raise ValueError(f"a length of {h.shape[1]} is above 64")
        if self.wrong == "the mean of rows":
            return h + h.mean(0)
        if self.wrong == "no digits":
            return (h + 1e3) - 1e3 if h.dtype is not torch.bfloat16 else h.roll(1, 2)
        if self.wrong == "half a gradient":
            return h + (h - h.detach())
        if self.wrong == "inference mode" and torch.is_inference_mode_enabled():
            return 2 * h
        if self.wrong == "compact" and not torch.is_grad_enabled() and h.dtype is torch.float32:
            return h.bfloat16().float()
        if self.wrong == "another order" and not torch.is_grad_enabled():
            return (3 * h + 1) / 3 - 1 / 3
        if self.wrong == "kept":
            self.table = self.table if self.runs else h.new_ones(1, 1, 8)
            self.runs = 1
            return h * self.table.to(h)
        if self.wrong == "an index" and h.shape[1] > 64:
            raise IndexError("index out of range")
        if self.wrong == "compiled otherwise" and torch.compiler.is_compiling():
            return 2 * h
        return h


class Filled(Sums):
    """Of its logits the last two stand for no token."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y.masked_fill(torch.arange(16) >= 14, torch.finfo(y.dtype).min)


def verdict(law: str, wrong: str = "", kind: type[Sums] = Sums) -> tuple[LawResult, nn.Module]:
    torch.manual_seed(0)
    model = kind(wrong)
    [found] = check(model, laws=[law])
    return found, model


def test_the_program_of_rows_in_the_opposite_order_compares_them() -> None:
    found, model = verdict("batch", "rows are numbered")
    assert "in the opposite order" in found.detail
    assert printed(found, model)[-1].startswith("tensor(0.2")


@pytest.mark.parametrize(
    ("wrong", "status"),
    [("", "held"), ("faster without gradients", "held"), ("compiled otherwise", "failed")],
)
def test_a_compiled_model_is_compared_without_gradients_on_both_sides(
    wrong: str, status: str
) -> None:
    found, model = verdict("compiles", wrong)
    assert found.status == status, found
    assert status == "held" or shown(found, model) > 0.01


def test_what_fails_in_one_row_is_tried_in_two() -> None:
    assert verdict("batch")[0].status == "held"
    found, _ = verdict("batch", "one row is none")
    assert found.status == "failed", found
    assert "an output at each position" in found.detail


@pytest.mark.parametrize(("body", "code"), [("x * random.Random().random()", 2), ("x", 0)])
def test_a_check_in_which_nothing_was_judged_is_no_success(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], body: str, code: int
) -> None:
    file = tmp_path / "small.py"
    file.write_text(
        "import random, torch\nclass Mine(torch.nn.Module):\n    def forward(self, x):\n"
        f"        return {body}\n"
    )
    words = [f"{file}:Mine", "--width", "4", "--laws", "causality", "packing"]
    assert main(words) == code
    assert ("nothing was judged" in capsys.readouterr().err) == (code == 2)


def test_three_runs_are_compared() -> None:
    assert verdict("determinism")[0].status == "held"
    found, model = verdict("determinism", "the third run")
    assert found.detail.startswith("two runs in training")
    assert shown(found, model) > 0.1


def test_a_limit_is_told_where_there_is_one() -> None:
    found, _ = verdict("lengths", "one too few")
    assert found.detail == "takes 1 to 33 of those tried; refuses 64 (its limit), 65 clearly"
    found, _ = verdict("lengths", "an index")
    assert found.detail.startswith("length 65 ends in an error that names no length: IndexError")
    assert verdict("lengths")[0].detail == "takes 1 to 65"


@pytest.mark.parametrize(
    ("law", "wrong"),
    [("batch", "the mean of rows"), ("numbers", "no digits"), ("gradients", "half a gradient")],
)
def test_logits_that_stand_for_no_token_hide_nothing(law: str, wrong: str) -> None:
    assert verdict(law, kind=Filled)[0].status == "held"
    assert verdict(law, wrong, Filled)[0].status == "failed"


def test_a_filler_is_the_same_huge_number_everywhere() -> None:
    y = torch.randn(2, 3, 4, dtype=torch.float64)
    y[..., 1], y[..., 2] = -1e30, 5.0
    y[0, :, 3] = 1e30
    assert computed(y).tolist() == [True, False, True, True]
    y[..., 3] = 1.0
    assert rounding(y.float(), y) == pytest.approx(2.0**-23 * 5)
    assert computed(torch.full((2, 3), 1e30)).all()
    assert computed(torch.tensor([1e5, 1.0])).all()
    assert computed(torch.tensor(1e5)).all()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("inference mode", "in inference mode output 0 of row 0 is off by"),
        ("compact", "in float32 outputs with gradients and without differ by"),
    ],
)
def test_a_path_of_a_mode_of_its_own_agrees(wrong: str, says: str) -> None:
    found, model = verdict("agreement", wrong)
    assert found.status == "failed", found
    assert found.detail.startswith(says)
    assert shown(found, model) > 1e-4


@pytest.mark.parametrize("wrong", ["", "another order", "kept"])
def test_a_faster_path_that_rounds_otherwise_agrees(wrong: str) -> None:
    found, _ = verdict("agreement", wrong)
    assert found.status == "held", found
    assert found.detail == "equal with gradients, in inference mode"
