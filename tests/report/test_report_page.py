"""The page: whole, escaped, from nowhere else, and readable in a real browser."""

import base64
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from report_results import NASTY, made_up, many

from everyformer.report.comparison import _repeat, changes, write_report
from everyformer.report.words import safe

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
    doubt = f"no member is surely better; {NASTY}"
    results = made_up(("attention", NASTY), failed={"gmlp": error}, doubts=(doubt,), seeds=1)
    results["data"]["name"] = NASTY
    results["data"]["split"] = f"{NASTY} $split ${{split}}"
    results["config"]["data"]["source"] = "</details>" + NASTY
    results["command"] = f"everyformer compare attention --data '{NASTY}'"
    text, page = _write(results, folder)
    return folder, text, page


def test_page_is_well_formed(nasty: tuple[Path, str, _Page]) -> None:
    page = nasty[2]
    assert page.open == []
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_text_from_data_is_escaped(nasty: tuple[Path, str, _Page]) -> None:
    _, text, page = nasty
    assert text.count("<script") == 1
    assert "NASTY" not in text.partition("<script")[2]
    assert "alert(1)" in text
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert "".join(page.text).count(NASTY) > 10
    assert "\x00" not in text


def test_nothing_is_loaded_from_elsewhere(nasty: tuple[Path, str, _Page]) -> None:
    _, text, page = nasty
    assert not re.search(r"https?:|url\((?!#)|@import|src=\"//", text)
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "object", "base")
        assert tag != "script" or not attributes
        for name in ("src", "href", "xlink:href"):
            place = attributes.get(name) or "#"
            assert place.startswith(("#", "data:image/png;base64,")), place


def test_what_a_reader_needs_is_there(nasty: tuple[Path, str, _Page]) -> None:
    folder, _, page = nasty
    text = "".join(page.text)
    for part in (
        "95% interval",
        "writing after 1,024 tokens (ms per token)",
        "failed:",
        "One seed",
    ):
        assert part in text
    assert "layer faster than attention from (tokens)" in text
    assert "arXiv 1706.03762" in text
    assert "no example could be read from the data" in text
    assert (folder / "figures" / "quality.svg").stat().st_size > 1000
    viewport = [a for tag, a in page.tags if tag == "meta" and a.get("name") == "viewport"]
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


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are left out: a page of them takes a second."""
    monkeypatch.setattr("everyformer.report.comparison.draw_all", lambda *given, **how: [])


def test_a_page_of_many_members_has_a_short_title_and_boxes_for_their_groups(
    undrawn: None, tmp_path: Path
) -> None:
    """The title was eleven lines of names."""
    text, _ = _write(many(31), tmp_path)
    assert "<title>everyformer: 31 members on stdlib</title>" in text
    assert "<h1>Which of 31 members predicts stdlib best" in text
    assert text.count('type="checkbox"') == 8
    assert 'type="checkbox"' not in _write(many(8), tmp_path)[0]


def test_of_many_the_best_few_are_looked_into_and_the_others_linked(
    undrawn: None, tmp_path: Path
) -> None:
    results = many(8)
    text, _ = _write(results, tmp_path)
    order = [row["member"] for row in results["rows"]]
    assert re.findall(r'<div class="member"><h3>([^<]+)</h3>', text) == order[:4]
    for member in order[4:]:
        assert f"everyformer show runs/compare/runs/{member}-seed0 all" in text
    assert text.index("Samples of the other members") < text.index(f'"member">{order[4]}</h3>')
    results["rows"].append(results["rows"].pop(0))
    text, _ = _write(results, tmp_path)
    assert re.findall(r'<div class="member"><h3>([^<]+)</h3>', text)[-1] == "attention"


def test_numbers_stand_above_doubts_and_weights_below_a_fold(undrawn: None, tmp_path: Path) -> None:
    text, page = _write(made_up(seeds=1), tmp_path)
    order = ["facts", "data", "decision", "sure", "next", "samples", "learned", "budget"]
    places = [text.index(f'"{name}"') for name in order]
    assert places == sorted(places)
    folds = [attributes.get("id") for tag, attributes in page.tags if tag == "details"]
    assert {"samples", "learned", "budget", "environment"} <= {*folds}
    assert not any("open" in attributes for tag, attributes in page.tags if tag == "details")
    words = re.sub("<[^>]+>", "", text)
    assert "Every member was trained once, with one seed. Repeat with --seeds 3." in words
    assert words.index("the end is held out") < words.index("The numbers to decide from")


def test_a_few_figures_stand_above_the_fold(tmp_path: Path) -> None:
    text, _ = _write(made_up(), tmp_path)
    above, below = text.split('<details id="more">')
    titles = re.findall(r"<figure class=\"[^\"]*\"><h3>([^<]+)", above)
    assert titles == [
        "Quality", "Quality against speed of training", "Quality against time of writing",
        "Loss against training time",
    ]  # fmt: skip
    assert "Memory per call against length" in below


def test_a_page_says_what_to_do_now(undrawn: None, tmp_path: Path) -> None:
    text, _ = _write(made_up(), tmp_path)
    assert "What now" in text
    assert "look into it" in text
    assert "everyformer show &#x27;runs/a b&#x27; all" in text
    results = made_up()
    results["next"] = []
    assert "What now" not in _write(results, tmp_path)[0]
    results["verdict"]["doubts"] = ["the machine had other work"]
    text, _ = _write(results, tmp_path)
    assert "<dt>What now</dt><dd>repeat while nothing else runs, or with <code>--budget" in text
    assert "other work. <strong>What helps stands above.</strong>" in text


def test_a_table_wider_than_its_place_says_so_and_lines_part_its_names(
    undrawn: None, tmp_path: Path
) -> None:
    """Of 12 members the last column was out of sight at a desk; a name that stays in place when
    the table is scrolled loses borders that its neighbours share."""
    text, _ = _write(many(12), tmp_path)
    assert 'class="narrow"> The table scrolls sideways.' in text
    assert "place.scrollWidth > place.clientWidth) hint.style.display" in text
    assert "position: sticky" in text
    assert "border-collapse: separate" in text


def test_an_advice_stands_once_on_a_page(undrawn: None, tmp_path: Path) -> None:
    """Doubts come after what was found, in their first words, and one advice helps against all."""
    results = made_up(
        seeds=1,
        doubts=(
            "no member is surely better than counting (bits per byte 1.9)",
            "fewer than 50 steps were made (gmlp 5)",
        ),
    )
    for row in results["rows"]:
        row["steps"] = 5
    text, _ = _write(results, tmp_path)
    words = re.sub("<[^>]+>", "", text)
    head = words[: words.index("The data")]
    assert "attention 2.000 and gmlp 2.500 (bits per byte, lower is better). Not settled: " in head
    assert "no member is surely better than counting; fewer than 50 steps were made." in head
    [advice] = re.findall("[Gg]ive 20 times.*", words)
    assert advice.endswith("--budget-seconds 1200, or a smaller model: --width 64 --layers 2")
    assert words.count("--seeds 3") == 1


def test_an_incomplete_page_has_no_look_into_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written after every member: the table, and curves of quality and loss."""
    monkeypatch.setattr("everyformer.report.comparison.learned_of_all", pytest.fail)
    waiting = tuple(f"member{n}" for n in range(9))
    results = json.loads(json.dumps(made_up(waiting=waiting)))
    text = write_report(results, tmp_path, complete=False).read_text("utf-8")
    names = ["loss-flops", "loss-seconds", "loss-tokens", "quality"]
    assert sorted(file.stem for file in (tmp_path / "figures").iterdir()) == names
    assert "2 of 11 members are trained; member0, member1" in text
    assert "Waiting to be trained: member0, member1, member2, member3, member4, member5" in text
    assert "member7 and member8.</p>" in text


BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
in_a_browser = pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")
PROBE = """<body><iframe id="f" src="{page}" width="{width}" height="900"></iframe><script>
onload = () => {{ const d = document.getElementById("f").contentDocument, width = {width};
const all = (what, within = d) => [...within.querySelectorAll(what)];
const box = e => e.getBoundingClientRect();
const seen = (() => {{ {script} }})();
document.body.innerHTML = "<p>" + btoa(JSON.stringify(seen)) + "</p>"; }}</script></body>"""
WIDE = """all("body *").filter(e => !e.closest(".scroll, pre, svg") && box(e).right > width + 1)
.map(e => e.tagName)"""


def _look(page: Path, width: int, script: str, folder: Path) -> Any:
    """What ``script`` gives back in a frame of ``width`` that shows ``page``."""
    probe = folder / "probe.html"
    probe.write_text(PROBE.format(page=page.as_uri(), width=width, script=script), "utf-8")
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    flags += "--disable-background-networking --disable-component-update --disable-sync "
    flags += "--allow-file-access-from-files --virtual-time-budget=5000 --dump-dom"
    assert BROWSER is not None
    done = subprocess.run(
        [BROWSER, *flags.split(), f"--user-data-dir={folder / 'profile'}", probe.as_uri()],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    found = re.search(r"<p>([^<]*)</p>", done.stdout)
    assert found is not None
    return json.loads(base64.b64decode(found[1]))


@in_a_browser
@pytest.mark.parametrize("width", [380, 1200])
def test_browser_shows_the_table_without_overflow(
    nasty: tuple[Path, str, _Page], tmp_path: Path, width: int
) -> None:
    script = f"""return [d.documentElement.scrollWidth, all("tr").length,
      all("td")[1].firstChild.data, {WIDE}]"""
    seen, rows, first, beyond = _look(nasty[0] / "report.html", width, script, tmp_path)
    assert (rows, first, beyond) == (4, "2.000", [])
    assert seen <= width


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of 32 members."""
    results = many(32)
    for n, row in enumerate(results["rows"]):
        row["by_position"] = [[0.0, 3.0], [32.0, 2.0 + 0.001 * n]]
    return write_report(results, tmp_path_factory.mktemp("crowd"))


@in_a_browser
@pytest.mark.parametrize("width", [400, 1200])
def test_browser_shows_32_members(crowd: Path, tmp_path: Path, width: int) -> None:
    """The table scrolls inside its box beside names that stay; names in figures do not overlap;
    a group can be hidden in the table and in all figures."""
    script = f"""
    const over = [];
    for (const fold of all("details")) fold.open = true;
    for (const svg of all("svg")) {{
      const texts = all("text", svg).map(e => [e.textContent, box(e)]);
      texts.forEach(([a, one], n) => texts.slice(n + 1).forEach(([b, two]) => {{
        const across = Math.min(one.right, two.right) - Math.max(one.left, two.left);
        const along = Math.min(one.bottom, two.bottom) - Math.max(one.top, two.top);
        if (across > 1 && along > 0.35 * Math.min(one.height, two.height)) over.push([a, b]);
      }}));
    }}
    const names = all("[id*='-member'] text", all("svg[aria-label^='After 6 seconds']")[0]).length;
    const scroll = d.querySelector(".scroll"), name = all("tbody th[scope=row]")[0];
    const left = box(name).left;
    scroll.scrollLeft = 150;
    const stays = Math.abs(box(name).left - left) < 2;
    const shown = () => [all("tbody tr"), all("[id*='-group0-']")].map(
      many => many.filter(e => box(e).width || box(e).height).length);
    const before = shown();
    d.getElementById("show0").click();
    const after = shown();
    d.getElementById("show0").click();
    const column = n => all("tbody.trained tr").map(e => e.cells[n].firstChild.textContent);
    const button = d.querySelectorAll("thead th button")[4];
    button.click();
    const up = column(4);
    button.click();
    const down = column(4);
    const find = d.querySelector("input[type=search]");
    find.value = "AFT-";
    find.dispatchEvent(new Event("input"));
    const found = all("tbody.trained tr").filter(e => box(e).height).map(e => e.cells[0].innerText);
    return {{ page: d.documentElement.scrollWidth, wide: {WIDE}, box: box(scroll).right, over,
      stays, before, after, names, up, down, found }};"""
    seen = _look(crowd, width, script, tmp_path)
    assert seen["page"] <= width
    assert seen["wide"] == []
    assert seen["box"] <= width
    assert seen["stays"]
    assert seen["over"] == []
    assert seen["names"] == 6
    rows, lines = seen["before"]
    assert lines > 5
    assert seen["after"][1] == 0
    assert 0 < seen["after"][0] < rows
    assert seen["up"] == [f"{100_000 + 30_000 * n:,}" for n in range(32)]
    assert seen["down"] == seen["up"][::-1]
    assert len(seen["found"]) == 4
    assert all(name.startswith("aft-") for name in seen["found"])


@in_a_browser
@pytest.mark.parametrize(("width", "height"), [(390, 844), (1280, 800)])
def test_the_first_screen_says_which_how_sure_at_what_cost_and_what_now(
    width: int, height: int, undrawn: None, tmp_path: Path
) -> None:
    """At its longest: many members, none of whom may be called the best."""
    doubts = ("the machine had other work (4.2 threads wanted its 2 cores)", "speeds scattered "
              "(attention by 38%, gmlp by 41%, linear by 50%, rope by 77%, 9 more)")  # fmt: skip
    results = many(32, doubts=doubts)
    for row in results["rows"]:
        row |= {"baseline": 4.16, "baseline_words": "counting tokens"}
    page = write_report(results, tmp_path, complete=False)
    script = f"""return all("h1, .answer, .facts div").map(e => box(e).bottom / {height})"""
    ends = _look(page, width, script, tmp_path)
    assert len(ends) == 6
    assert max(ends) < 1


def test_the_speeds_behind_a_budget_in_seconds_are_told(tmp_path: Path) -> None:
    results = made_up()
    results["rows"][0]["calibrated"] = {
        "seconds": 0.02,
        "rounds": [0.03, 0.02],
        "cpu_seconds": 0.035,
        "steps": 100,
        "peak_bytes": None,
    }
    results["rows"][0]["load"] = 2.04
    text = "".join(_write(results, tmp_path)[1].text)
    assert "timed beforehand at 20 ms a step, 35 ms of all threads (2 rounds up to 30 ms)" in text
    assert "2.0 threads of the machine wanted a core meanwhile" in text


def test_a_command_that_is_no_words_is_shown_as_it_is() -> None:
    results = made_up()
    results["command"] = "everyformer compare 'attention <script>"
    page = _repeat(results)
    assert "compare &#x27;attention &lt;script&gt;" in page
