"""What the pages on acting show is so: their programs run, and print what they say."""

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gymnasium")

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("page", ["decisions", "policies", "trajectories"])
def test_programs_print_what_they_say(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    [program] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(program, page, "exec"), names)
    [said] = re.findall(r"(?m)^print\(.*\)  # (.*)$", program)
    assert capsys.readouterr().out.splitlines() == [said]
