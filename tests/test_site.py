"""The site: every page is in it, it builds without a warning, and loads nothing from elsewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import everyformer

DOCS = Path(__file__).parents[1] / "docs"


def test_every_page_of_docs_is_in_the_site():
    named = re.findall(r"^[\w/-]+$", (DOCS / "index.md").read_text("utf-8"), re.MULTILINE)
    pages = {page.stem for page in DOCS.glob("*.md")} - {"index"}
    assert pages <= {*named}
    assert all((DOCS / f"{name}.md").exists() for name in named if "gallery" not in name)


def test_what_the_page_of_the_api_names_is_there():
    named = re.findall(
        r"^\.\. auto(?:class|function|exception):: (\w+)(?:\n +:members: (.+))?",
        (DOCS / "api.md").read_text("utf-8"),
        re.MULTILINE,
    )
    assert len(named) > 20
    for name, members in named:
        thing = getattr(everyformer, name)
        assert all(hasattr(thing, member) for member in members.split(", ") if member), name


@pytest.mark.full("builds the site, a minute or more")
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    words = ["-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    command = [sys.executable, *words, "-d", str(tmp_path / "trees"), ".", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=DOCS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "site" / "notebooks" / "own-mixer.html").exists()
    assert (tmp_path / "site" / "gallery-drawn" / "positions" / "draw_alibi.html").exists()
    loads = r'<(?:script|img|link|iframe|source|object)\b[^>]*(?:src|href|data)="(?:\w+:)?//[^"]*"'
    pages = [*(tmp_path / "site").rglob("*.html")]
    assert len(pages) > 100
    assert not [found for page in pages for found in re.findall(loads, page.read_text("utf-8"))]
    styles = [*(tmp_path / "site").rglob("*.css")]
    assert not [css for css in styles if re.search(r"url\(.?(?:\w+:)?//", css.read_text("utf-8"))]


@pytest.mark.parametrize(
    "script", sorted((DOCS / "gallery").rglob("draw_*.py")), ids=lambda p: p.stem
)
def test_a_script_of_the_gallery_runs(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib.pyplot as plt

    plt.switch_backend("Agg")
    monkeypatch.chdir(script.parent)  # as the site runs it
    monkeypatch.setattr(plt, "show", lambda: None)
    exec(compile(script.read_text("utf-8"), str(script), "exec"), {})
    assert plt.get_fignums()
    plt.close("all")
