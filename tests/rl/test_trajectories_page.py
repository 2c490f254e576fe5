"""What docs/trajectories.md shows is so: its programs run, and give what they say."""

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gymnasium")
pytest.importorskip("minari")

PAGE = (Path(__file__).parents[2] / "docs" / "trajectories.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_its_programs_print_what_they_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    names: dict[str, Any] = {}
    promised = 0
    for program in PROGRAMS:
        exec(compile(program, "trajectories.md", "exec"), names)
        printed = capsys.readouterr().out
        said = re.findall(r"(?m)^print\(.*\)  # (.*)$", program)
        assert all(line in printed.splitlines() for line in said), (said, printed)
        promised += len(said)
    assert (len(PROGRAMS), promised) == (6, 4)
