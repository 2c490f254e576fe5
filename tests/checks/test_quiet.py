"""What torch's profiler and compiler say stays out of `verify`'s stderr; all else comes through."""

import logging
import os

import pytest
import torch

from everyformer.checks.cases import Case
from everyformer.checks.machine import (
    _one_graph,
    _without_profiler_lines,
    largest_allocation,
)
from everyformer.core.trials import WIDTH
from everyformer.family import info
from sequence_laws.verdict import LawBroken


def test_the_profiler_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    case = Case(info("attention"), {}, True)
    assert largest_allocation(case.mixer(torch.float32, "cpu", width=WIDTH, length=8), 8) > 0
    assert capfd.readouterr() == ("", "")


def test_other_lines_are_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    with _without_profiler_lines():
        os.write(2, b"USDT:2026-01-01 profiler_start\na warning\n")
    os.write(2, b"later\n")
    assert capfd.readouterr().err == "a warning\nlater\n"


def test_a_law_s_sentence_stands_for_the_compiler_s_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[logging.LogRecord] = []
    monkeypatch.setattr(logging.Logger, "callHandlers", lambda self, record: said.append(record))

    def looping(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x[:, t] for t in range(x.shape[1])], 1)

    x = torch.ones(2, 9)
    torch._dynamo.reset()
    torch._dynamo.mark_dynamic(x, 1)
    with pytest.raises(LawBroken, match="as of a loop over tokens"), _one_graph("L=9"):
        torch.compile(looping, backend="eager", fullgraph=True)(x)
    assert not [record for record in said if record.levelno >= logging.WARNING]


def test_what_only_some_lengths_meet_is_said() -> None:
    class Cut(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if x.shape[1] % 16 else x + 1

    lengths = {"x": {1: torch.export.Dim("length", min=2, max=32)}}
    with pytest.raises(LawBroken, match=r"Constraints violated.*; .*% 16"), _one_graph("L=9"):
        torch.export.export(Cut(), (torch.ones(2, 9),), dynamic_shapes=lengths)
