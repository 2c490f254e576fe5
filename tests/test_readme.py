"""The programs of the README run as they stand."""

import re
from pathlib import Path

import pytest
import torch

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_mixers_models_bodies_and_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last program is about a model of the reader's own."""
    monkeypatch.chdir(tmp_path)
    assert len(PROGRAMS) == 3
    q = torch.randn(1, 2, 300, 8)
    names = {"q": q, "k": q, "v": q}
    for program in PROGRAMS[:2]:
        exec(compile(program, "README.md", "exec"), names)
