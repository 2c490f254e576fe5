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

from everyformer.lab.report.comparison import _repeat, _used, changes, write_report
from report_results import NASTY, made_up, many

VOID = {"meta", "br", "img", "link", "hr", "input"}


class _Page(HTMLParser):
    """Checks nesting and keeps what matters."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.markup = (folder / "report.html").read_text("utf-8")
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(self.markup)
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
        self.words += data


def _write(results: dict[str, Any], folder: Path, **how: Any) -> _Page:
    # as from results.json: a report needs nothing that JSON does not keep
    write_report(json.loads(json.dumps(results)), folder, **how)
    return _Page(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page on which every text that is not ours is markup."""
    folder = tmp_path_factory.mktemp("nasty")
    error = f'{NASTY} a "very" long reason ' + "x" * 200
    doubt = f"no member is surely better; {NASTY}"
    results = made_up(("attention", NASTY), failed={"gmlp": error}, doubts=(doubt,), seeds=1)
    results["data"]["name"] = NASTY
    results["data"]["split"] = f"{NASTY} {{{{ split }}}} {{% raw %}}"
    results["config"]["data"]["source"] = "</details>" + NASTY
    results["command"] = f"everyformer compare 'attention --data '{NASTY}'"
    write_report(json.loads(json.dumps(results)), folder)
    return folder


@pytest.fixture(scope="module")
def nasty(folder: Path) -> _Page:
    return _Page(folder)


def test_page_is_well_formed(nasty: _Page) -> None:
    assert nasty.open == []
    ids = [attributes["id"] for _, attributes in nasty.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_text_from_data_is_escaped(nasty: _Page) -> None:
    assert nasty.markup.count("<script") == 1
    assert not any(name.startswith("on") for _, attributes in nasty.tags for name in attributes)
    # title, question, answer, table, doubt, sample, learned, data, repeat, config ...
    assert nasty.words.count(NASTY) > 10
    assert "{{ split }} {% raw %}" in nasty.words
    assert "\x00" not in nasty.markup
    assert "after\u2400</pre>" in nasty.words
    assert f"everyformer compare 'attention --data '{NASTY}'" in nasty.words


def test_nothing_is_loaded_from_elsewhere(nasty: _Page) -> None:
    assert not re.search(r"https?:|url\((?!#)|@import|src=\"//", nasty.markup)
    for tag, attributes in nasty.tags:
        assert tag not in ("link", "iframe", "object", "base")
        assert tag != "script" or not attributes
        for name in ("src", "href", "xlink:href"):
            place = attributes.get(name) or "#"
            assert place.startswith(("#", "data:image/png;base64,")), place


def test_every_part_of_the_page_is_there_in_its_order(folder: Path, nasty: _Page) -> None:
    """Numbers above doubts, and weights below a fold."""
    assert [a["id"] for tag, a in nasty.tags if tag in ("section", "details") and "id" in a] == [
        "data", "decision", "sure", "figures", "next", "more", "samples", "learned", "budget",
        "environment", "repeat",
    ]  # fmt: skip
    folds = [attributes for tag, attributes in nasty.tags if tag == "details"]
    names = {"more", "samples", "learned", "budget", "environment", None}
    assert {attributes.get("id") for attributes in folds} == names
    assert not any("open" in attributes for attributes in folds)
    for part in (
        "95% interval", "writing after 1,024 tokens (ms per token)", "failed: <script>", "One seed",
        "arXiv 1706.03762", "no example could be read from the data", '"budget_seconds": 60',
        "Every member was trained once, with one seed. Repeat with --seeds 3.", "torch 2.13.0",
    ):  # fmt: skip
        assert part in nasty.words, part
    assert (folder / "figures" / "quality.svg").stat().st_size > 1000
    viewport = [a for tag, a in nasty.tags if tag == "meta" and a.get("name") == "viewport"]
    assert viewport == [{"name": "viewport", "content": "width=device-width, initial-scale=1"}]


def test_cells_have_marks_numbers_to_sort_by_and_notes_of_limits(
    undrawn: None, tmp_path: Path
) -> None:
    results = made_up(failed={"rope": "no memory"}, waiting=())
    results["rows"][1] |= {"leaks": "the future chooses", "limits": ["reads slowly"]}
    text = _write(results, tmp_path).markup
    assert '<td class="best" data-value="2.0">2.000<small>1.900 to 2.100</small></td>' in text
    assert '<td data-value="100000">100,000</td>' in text
    assert "<td>baseline</td>" in text
    assert "</span>gmlp*<sup>1</sup></th>" in text
    assert '<ol class="limits"><li>reads slowly</li></ol>' in text
    assert '<td class="failed" colspan="11">failed: no memory</td>' in text


def test_columns_that_need_it_are_explained_below(undrawn: None, tmp_path: Path) -> None:
    quality, timed = (
        "Below a quality: its 95% interval over seeds.",
        "below a speed: its quartiles.",
    )
    last, layer = "Seconds to match the last row: of training", "Layer faster than attention: one"
    bold, base = "Bold: best of its column", "Differences are to attention, the baseline."
    alone = made_up(("gmlp",), qualities=(2.0,)) | {"bench": []}
    for results, there in (
        (made_up(), {quality, timed, last, layer, bold}),
        (made_up(doubts=("the machine had other work",)), {quality, timed, last, layer}),
        (many(31), {quality, timed, last, layer, bold, base}),
        (alone, {quality, timed}),
    ):
        words = _write(results, tmp_path).words
        assert {one for one in (quality, timed, last, layer, bold, base) if one in words} == there


def test_nothing_finished_is_a_page_too(tmp_path: Path) -> None:
    results = made_up((), qualities=(), failed={"gmlp": "no memory"}, metric="loss")
    results["bench"], results["command"] = [], ""
    words = _write(results, tmp_path).words
    assert "No member could be trained" in words
    assert "no memory" in words
    assert "import everyformer as ef" in words
    assert "What now" not in _write(results | {"next": []}, tmp_path).words


def test_python_call_holds_only_what_was_changed() -> None:
    default = {"a": 1, "b": {"c": 2, "d": 3}, "resume": False}
    assert changes({"a": 1, "b": {"c": 2, "d": 4}, "resume": True}, default) == {"b": {"d": 4}}
    results = made_up()
    assert _repeat(results) == results["command"]
    assert _repeat(results | {"command": ""}) == (
        "import everyformer as ef\nef.compare(members=['attention', 'gmlp'], seeds=3)"
    )


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are left out: a page of them takes a second."""
    monkeypatch.setattr("everyformer.lab.report.comparison.draw_all", lambda *given, **how: [])


def test_a_page_of_many_members_has_boxes_for_their_groups_and_looks_into_the_best(
    undrawn: None, tmp_path: Path
) -> None:
    results = many(31)
    results["rows"].append(results["rows"].pop(0))
    text = _write(results, tmp_path).markup
    assert "<title>everyformer: 31 members on stdlib</title>" in text
    assert text.count('type="checkbox"') == text.count("body:has(#show") == 8
    families = [row["group"] for row in results["rows"]]
    assert re.findall(r"<th scope=.row.>.*?<small>([^<]+)</small></th>", text) == families
    groups = list(dict.fromkeys(re.findall(r"checked> <span [^>]+></span>([^<]+)", text)))
    shown = [int(n) for n in re.findall(r'<tr class="group(\d+)">', text)]
    assert [groups[n] for n in shown] == families
    order = [row["member"] for row in results["rows"]]
    found = re.findall(r'<div class="member"><h3>([^<]+)</h3>', text)
    assert found == [*order[:4], "attention"]
    assert "<code>everyformer show COMPARISON/runs/RUN all</code>" in text
    assert text.index("Samples of the other members") < text.index(f'"member">{order[4]}</h3>')
    few = _write(many(6), tmp_path).markup
    assert "runs/RUN" not in few
    assert 'type="checkbox"' not in few
    assert "<tr class" not in few


def test_a_few_figures_stand_above_the_fold(tmp_path: Path) -> None:
    above, below = _write(made_up(), tmp_path).markup.split('<details id="more">')
    assert re.findall(r"<figure class=\"[^\"]*\"><h3>([^<]+)", above) == [
        "Quality", "Quality against speed of training", "Quality against time of writing",
        "Loss against training time",
    ]  # fmt: skip
    assert "Memory per call against length" in below


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
    page = _write(results, tmp_path)
    head = page.words[: page.words.index("The data")]
    assert "Not settled: no member is surely better than counting; 1 more below." in head
    [advice] = re.findall("[Gg]ive 20 times.*", page.words)
    assert advice.endswith("--budget-seconds 1200, or a smaller model: --width 64 --layers 2")
    assert page.words.count("--seeds 3") == 1
    assert "<code>--budget-seconds 1200</code>" in page.markup
    assert "(gmlp 5). What helps stands above." in page.words


def test_an_incomplete_page_has_no_look_into_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written after every member: the table, and curves of quality and loss."""
    monkeypatch.setattr("everyformer.lab.report.comparison.learned_of_all", pytest.fail)
    waiting = tuple(f"member{n}" for n in range(9))
    page = _write(made_up(waiting=waiting), tmp_path, complete=False)
    names = ["loss-flops", "loss-seconds", "loss-tokens", "quality"]
    assert sorted(file.stem for file in (tmp_path / "figures").iterdir()) == names
    assert "2 of 11 members are trained; member0, member1" in page.words
    assert "Waiting to be trained: member0, member1, member2, member3, member4, m" in page.words
    assert "member7 and member8.</p>" in page.markup


def test_the_speeds_behind_a_budget_in_seconds_are_told() -> None:
    results = made_up()
    times = {"seconds": 0.02, "rounds": [0.03, 0.02], "cpu_seconds": 0.035}
    results["rows"][0] |= {"calibrated": times, "load": 2.04}
    assert _used(results["rows"][0]) == (
        "60 steps, 60,000 tokens, 1e+09 FLOPs in 6 s; timed beforehand at 20 ms a step, 35 ms of "
        "all threads (2 rounds up to 30 ms); 2.0 threads of the machine wanted a core meanwhile"
    )


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
def test_browser_shows_the_table_without_overflow(folder: Path, tmp_path: Path, width: int) -> None:
    script = f"""return [d.documentElement.scrollWidth, all("tr").length,
      all("td")[1].firstChild.data, {WIDE}]"""
    seen, rows, first, beyond = _look(folder / "report.html", width, script, tmp_path)
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
