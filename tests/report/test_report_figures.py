"""Figures: what is drawn, what their captions say, how they are embedded."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from report_results import made_up

from everyformer.core.errors import UnsavedError
from everyformer.report.comparison import write_report
from everyformer.report.figures import draw_all
from everyformer.report.style import (
    Styles,
    inline_svg,
    new_figure,
    save_figure,
    styled,
    svg_text,
)


def test_every_figure_is_drawn_with_units() -> None:
    drawings = {drawing.name: drawing for drawing in draw_all(made_up())}
    assert list(drawings) == [
        "quality", "loss-seconds", "loss-tokens", "loss-flops",
        "positions", "time", "memory", "decoding",
    ]  # fmt: skip
    for drawing in drawings.values():
        axes = drawing.figure.axes[0]
        assert axes.get_xlabel()
        assert drawing.caption.endswith(".")
    assert drawings["time"].figure.axes[0].get_ylabel() == "time per call (ms)"


@pytest.mark.parametrize(
    ("task", "unit"),
    [("lm", "nats per token"), ("classify-image", "nats per example"),
     ("regress-image", "squared standard deviations")],
)  # fmt: skip
def test_losses_have_the_unit_of_their_task(task: str, unit: str) -> None:
    results = made_up(metric="accuracy")
    results["data"]["task"] = task
    drawings = {drawing.name: drawing for drawing in draw_all(results, complete=False)}
    assert drawings["loss-tokens"].figure.axes[0].get_ylabel() == f"loss ({unit})"


@pytest.mark.parametrize("metric", ["bits_per_byte", "bits_per_base", "bits_per_residue"])
def test_losses_of_text_have_the_unit_of_the_table(metric: Any) -> None:
    drawings = {drawing.name: drawing for drawing in draw_all(made_up(metric=metric))}
    unit = metric.replace("_", " ")
    assert drawings["loss-tokens"].figure.axes[0].get_ylabel() == f"loss ({unit})"


def test_the_crossover_is_the_one_of_the_table() -> None:
    time = next(drawing for drawing in draw_all(made_up()) if drawing.name == "time")
    # at 256 its quartiles overlap with attention's
    assert "gmlp from 512 tokens on" in time.caption


def test_points_without_numbers_are_named() -> None:
    results = made_up()
    results["bench"][-1] |= {"seconds": None, "peak_bytes": None, "status": "out of memory"}
    results["bench"][0]["peak_bytes"] = 0
    drawings = {drawing.name: drawing.caption for drawing in draw_all(results)}
    assert "gmlp (out of memory) at 512" in drawings["time"]
    assert "attention (too little to see) at 128" in drawings["memory"]


def test_figures_without_numbers_are_left_out() -> None:
    results = made_up()
    results["bench"] = []
    for row in results["rows"]:
        row |= {"decode_ms": {}, "by_position": None, "interval": None}
    names = [drawing.name for drawing in draw_all(results)]
    assert names == ["quality", "loss-seconds", "loss-tokens", "loss-flops"]
    assert draw_all(made_up((), qualities=(), failed={"gmlp": "no"})) == []


def test_a_member_evaluated_too_late_is_not_compared() -> None:
    results = made_up()
    for row in results["runs"][1]["evaluations"]:
        row["tokens"] *= 10
    loss = next(d for d in draw_all(results) if d.name == "loss-tokens")
    assert "No two members were evaluated" in loss.caption


def test_members_differ_in_colour_or_marker() -> None:
    looks = Styles([str(n) for n in range(20)])
    assert len({looks[str(n)] for n in range(20)}) == 20


def test_colours_follow_members_not_ranks() -> None:
    looks, others = Styles(["a", "b"]), Styles(["a", "b"])
    assert looks["b"] == others["b"] != looks["a"]


@styled
def _two_figures() -> list[str]:
    made = []
    for prefix in ("one", "two"):
        figure, axes = new_figure()
        axes.plot([0, 1], [0, 1], marker="o", label="a < b & $c$")
        axes.legend()
        axes.imshow([[0, 1]], interpolation="none")
        made.append(inline_svg(svg_text(figure), prefix, 'the "finding"'))
    return made


def test_inline_figures_are_xml_with_ids_of_their_own() -> None:
    first, second = _two_figures()
    for svg in (first, second):
        root = ElementTree.fromstring(svg.replace("<svg ", '<svg xmlns:xlink="x" ', 1))
        assert root.attrib["aria-label"] == 'the "finding"'
        assert "a < b & $c$" in "".join(root.itertext())
        assert "http" not in svg
        assert "currentColor" in svg
        used = set(re.findall(r'(?:url\(|href=")#([^)"]+)', svg))
        assert used <= set(re.findall(r' id="([^"]+)"', svg))
    ids = [set(re.findall(r' id="([^"]+)"', svg)) for svg in (first, second)]
    assert not ids[0] & ids[1]


def test_a_figure_is_rendered_once_for_its_file_and_for_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And laid out once; the file has the page's picture, on white."""
    calls: list[str] = []
    for name in ("savefig", "draw_without_rendering"):
        whole = getattr(Figure, name)

        def counted(
            self: Figure, *given: Any, whole: Any = whole, name: str = name, **how: Any
        ) -> Any:
            calls.append(name)
            return whole(self, *given, **how)

        monkeypatch.setattr(Figure, name, counted)
    laid_out: list[Figure] = []
    execute = ConstrainedLayoutEngine.execute
    monkeypatch.setattr(
        ConstrainedLayoutEngine, "execute",
        lambda self, figure: (laid_out.append(figure), execute(self, figure))[1],
    )  # fmt: skip
    write_report(made_up(), tmp_path)
    files = list((tmp_path / "figures").iterdir())
    assert len(files) == len(laid_out) == 8
    assert calls == ["savefig"] * 8
    assert {file.suffix for file in files} == {".svg"}
    path = re.compile(r'<path d="[^"]+"')
    page = set(path.findall((tmp_path / "report.html").read_text("utf-8")))
    for file in files:
        svg = file.read_text("utf-8")
        ElementTree.fromstring(svg)
        assert 'fill="white"' in svg
        assert set(path.findall(svg)) <= page


def test_drawing_leaves_no_trace_in_matplotlib() -> None:
    before = dict(matplotlib.rcParams)
    _two_figures()
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("form", ["png", "svg"])
def test_the_same_figure_is_the_same_file(tmp_path: Path, form: str) -> None:
    for name in ("a", "b"):
        figure, axes = new_figure()
        axes.plot([0, 1])
        save_figure(figure, tmp_path / f"{name}.{form}")
    assert (tmp_path / f"a.{form}").read_bytes() == (tmp_path / f"b.{form}").read_bytes()


def test_a_figure_that_cannot_be_written_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnsavedError, match=r"cannot write .*a\.png: "):
        save_figure(new_figure()[0], tmp_path / "file" / "a.png")
