"""What torch's profiler says of itself stays out of `verify`'s stderr; all else comes through."""

import os

import pytest
import torch

from everyformer.core.trials import WIDTH
from everyformer.family import info
from everyformer.verification.cases import Case
from everyformer.verification.machine import _without_profiler_lines, largest_allocation


def test_the_profiler_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    case = Case(info("attention"), {}, True)
    assert largest_allocation(case.mixer(torch.float32, "cpu", width=WIDTH, length=8), 8) > 0
    assert capfd.readouterr() == ("", "")


def test_other_lines_are_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    with _without_profiler_lines():
        os.write(2, b"USDT:2026-01-01 profiler_start\na warning\n")
    os.write(2, b"later\n")
    assert capfd.readouterr().err == "a warning\nlater\n"
