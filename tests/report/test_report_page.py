"""The page: whole, escaped, from nowhere else, and readable in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from report_results import NASTY, made_up

from everyformer.report.comparison import changes, safe, write_report

VOID = {"meta", "br", "img", "link", "hr", "input"}


class _Page(HTMLParser):
    """Checks nesting and keeps what matters."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def _write(results: dict[str, Any], folder: Path) -> tuple[str, _Page]:
    # as from results.json: a report needs nothing that JSON does not keep
    text = write_report(json.loads(json.dumps(results)), folder).read_text(encoding="utf-8")
    return text, _Page(text)


@pytest.fixture(scope="module")
def nasty(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, _Page]:
    folder = tmp_path_factory.mktemp("nasty")
    error = f'{NASTY} a "very" long reason ' + "x" * 200
    results = made_up(("attention", NASTY), failed={"gmlp": error})
    results["data"]["name"] = NASTY
    results["data"]["split"] = f"{NASTY} $split ${{split}}"
    results["config"]["data"]["source"] = "</details>" + NASTY
    results["command"] = f"everyformer compare attention --data '{NASTY}' --resume --overwrite"
    text, page = _write(results, folder)
    return folder, text, page


def test_page_is_well_formed(nasty: tuple[Path, str, _Page]) -> None:
    page = nasty[2]
    assert page.open == []
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_text_from_data_is_escaped(nasty: tuple[Path, str, _Page]) -> None:
    _, text, page = nasty
    assert "<script" not in text
    assert "alert(1)" in text
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert "".join(page.text).count(NASTY) > 10
    assert "\x00" not in text


def test_nothing_is_loaded_from_elsewhere(nasty: tuple[Path, str, _Page]) -> None:
    _, text, page = nasty
    assert not re.search(r"https?:|url\((?!#)|@import|src=\"//", text)
    for tag, attributes in page.tags:
        assert tag not in ("link", "script", "iframe", "object", "base")
        for name in ("src", "href", "xlink:href"):
            place = attributes.get(name) or "#"
            assert place.startswith(("#", "data:image/png;base64,")), place


def test_what_a_reader_needs_is_there(nasty: tuple[Path, str, _Page]) -> None:
    folder, _, page = nasty
    text = "".join(page.text)
    for part in ("95% interval", "ms/token after 1024", "failed:", "One seed"):
        assert part in text
    assert "256 tokens" in text
    assert "--resume" not in text
    assert "arXiv 1706.03762" in text
    assert "no example could be read from the data" in text
    assert (folder / "figures" / "quality.png").stat().st_size > 1000
    assert (folder / "figures" / "quality.svg").exists()


def test_phones_are_told_the_width(nasty: tuple[Path, str, _Page]) -> None:
    viewport = [a for tag, a in nasty[2].tags if tag == "meta" and a.get("name") == "viewport"]
    assert viewport == [{"name": "viewport", "content": "width=device-width, initial-scale=1"}]


def test_nothing_finished_is_a_page_too(tmp_path: Path) -> None:
    results = made_up((), qualities=(), failed={"gmlp": "no memory"}, metric="loss")
    results["bench"], results["command"] = [], ""
    text, _ = _write(results, tmp_path)
    assert "No member could be trained" in text
    assert "no memory" in text
    assert "import everyformer as ef" in text


def test_python_call_holds_only_what_was_changed() -> None:
    default = {"a": 1, "b": {"c": 2, "d": 3}, "resume": False}
    assert changes({"a": 1, "b": {"c": 2, "d": 4}, "resume": True}, default) == {"b": {"d": 4}}


def test_control_characters_and_half_surrogates_become_text() -> None:
    assert safe("a\x00\x7f\r\n\tb") == "a\u2400\u2421\n\tb"
    assert safe("\ud800") == "?"
    assert safe('<a href="x">') == "&lt;a href=&quot;x&quot;&gt;"


BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
PROBE = """<body><iframe id="f" src="{page}" width="{width}" height="900"></iframe><script>
onload = () => {{ const d = document.getElementById("f").contentDocument;
const wide = [...d.querySelectorAll("body *")].filter(e => !e.closest(".scroll, pre, svg")
  && e.getBoundingClientRect().right > {width} + 1).map(e => e.tagName);
document.body.innerHTML = "<p>" + [d.documentElement.scrollWidth, d.querySelectorAll("tr").length,
  d.querySelector("td").textContent, wide.length].join("|") + "|</p>"; }}</script></body>"""


@pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")
@pytest.mark.parametrize("width", [380, 1200])
def test_browser_shows_the_table_without_overflow(
    nasty: tuple[Path, str, _Page], tmp_path: Path, width: int
) -> None:
    probe = tmp_path / "probe.html"
    page = (nasty[0] / "report.html").as_uri()
    probe.write_text(PROBE.format(page=page, width=width), encoding="utf-8")
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    flags += "--disable-background-networking --disable-component-update --disable-sync "
    flags += "--allow-file-access-from-files --virtual-time-budget=5000 --dump-dom"
    assert BROWSER is not None
    done = subprocess.run(
        [BROWSER, *flags.split(), f"--user-data-dir={tmp_path / 'profile'}", probe.as_uri()],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    seen, rows, first, beyond, _ = re.sub(r".*<p>|</p>.*", "", done.stdout, flags=re.S).split("|")
    assert (int(rows), first, int(beyond)) == (4, "2.000", 0)
    assert int(seen) <= width
