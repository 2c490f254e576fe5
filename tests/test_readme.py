"""The programs of README and docs run as they stand, and every link leads somewhere."""

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN = {"README.md": 1, "docs/python.md": 2, "docs/stream.md": 1}
"""page -> how many of its programs run by themselves; the others speak of what a reader has"""


def programs(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)


@pytest.mark.parametrize("page", RUN)
def test_programs_run_as_they_stand(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    q = torch.randn(1, 2, 300, 8)
    names = {"q": q, "k": q, "v": q}
    alone = [one for one in programs(page) if "runs/" not in one and "layer." not in one]
    assert len(alone) == RUN[page]
    for program in alone:
        exec(compile(program, page, "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    markdown = re.findall(r"\]\(([^)\s]+)\)", text)
    for target in (*markdown, *re.findall(r'(?:src|srcset|href)="([^"]+)"', text)):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, heading = target.partition("#")
        linked = page if not file else (page.parent / file).resolve()
        assert linked.exists(), target
        if heading:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = [re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings]
            assert heading in slugs, target
