"""Figures: what is drawn, what their captions say, how they are embedded."""

import itertools
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.layout_engine import ConstrainedLayoutEngine

from everyformer.core.errors import UnsavedError
from everyformer.family import info, list_members
from everyformer.lab.report.comparison import write_report
from everyformer.lab.report.figures import FIGURES, draw_all
from everyformer.lab.show.style import Styles, inline_svg, new_figure, save_figure, styled, svg_text
from report_results import made_up, many


@styled
def _boxes(figure: Figure) -> list[Any]:
    """Places of the labels along the axis, as they are drawn."""
    FigureCanvasAgg(figure).draw()
    low, high = figure.axes[0].get_xlim()
    ticks = zip(figure.axes[0].get_xticks(), figure.axes[0].get_xticklabels(), strict=True)
    return [label.get_window_extent() for place, label in ticks if low <= place <= high]


def _captions(results: Any) -> dict[str, str]:
    return {drawing.name: drawing.caption for drawing in draw_all(results)}


@pytest.mark.parametrize("qualities", [(0.0175, 0.029), (2.0, 2.5)])
def test_numbers_below_the_ranking_do_not_overlap(qualities: tuple[float, float]) -> None:
    """ "0.01750.0200" stood there once."""
    results = made_up(metric="mae", qualities=qualities, half=qualities[0] / 30)
    for row in results["rows"]:
        row["values"] = [row["quality"]] * 3
    boxes = _boxes(draw_all(results)[0].figure)
    assert len(boxes) >= 2
    assert all(left.x1 + 10 < right.x0 for left, right in itertools.pairwise(boxes))


@pytest.mark.parametrize(
    ("metric", "task", "unit"),
    [("bits_per_byte", "lm", "bits per byte"), ("accuracy", "lm", "nats per token"),
     ("accuracy", "classify-image", "nats per example"),
     ("accuracy", "regress-image", "squared standard deviations")],
)  # fmt: skip
def test_losses_have_the_unit_of_the_table_or_of_their_task(
    metric: str, task: str, unit: str
) -> None:
    results = made_up(metric=metric)
    results["data"]["task"] = task
    drawings = {drawing.name: drawing for drawing in draw_all(results, complete=False)}
    assert drawings["loss-tokens"].figure.axes[0].get_ylabel() == f"loss ({unit})"


def test_captions_of_scaling_have_the_crossover_of_the_table_and_name_what_is_missing() -> None:
    results = made_up()
    # at 256 its quartiles overlap with attention's
    assert "gmlp from 512 tokens on" in _captions(results)["time"]
    results["bench"][-1] |= {"seconds": None, "peak_bytes": None, "status": "out of memory"}
    results["bench"][0]["peak_bytes"] = 0
    captions = _captions(results)
    assert "gmlp (out of memory) at 512" in captions["time"]
    assert "attention (too little to see) at 128" in captions["memory"]


def test_figures_without_numbers_are_left_out() -> None:
    results = made_up()
    results["bench"] = []
    for row in results["rows"]:
        row |= {"decode_ms": {}, "by_position": None, "interval": None}
    results["rows"][0]["tokens_per_second"] = None
    names = [drawing.name for drawing in draw_all(results)]
    assert names == ["quality", "loss-seconds", "loss-tokens", "loss-flops"]
    assert draw_all(made_up((), qualities=(), failed={"gmlp": "no"})) == []


def test_a_member_evaluated_too_late_is_not_compared() -> None:
    results = made_up(seeds=1)
    for row in results["runs"][1]["evaluations"]:
        row["tokens"] *= 10
    assert "No two members were evaluated" in _captions(results)["loss-tokens"]


@pytest.mark.full("draws every figure")
def test_figures_are_one_column_wide_and_nothing_is_cut(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnsavedError, match=r"cannot write .*a\.png: "):
        save_figure(new_figure()[0], tmp_path / "file" / "a.png")
    drawings = {drawing.name: drawing for drawing in draw_all(many(9))}
    assert tuple(drawings) == FIGURES
    assert drawings["time"].figure.axes[0].get_ylabel() == "time per call (ms)"
    for drawing in drawings.values():
        figure = drawing.figure
        # with units
        assert figure.axes[0].get_xlabel()
        assert drawing.caption.endswith(".")
        assert 3.3 <= figure.get_figwidth() <= 3.5
        pixels = imread(save_figure(figure, tmp_path / "a.png"))
        # 0.01 inches stay white, whatever the letters are rounded to
        assert (pixels[:, [0, 1, 2, -3, -2, -1]] == 1).all(), drawing.name


NAMES = [member.name for member in list_members()]


def test_a_member_looks_the_same_whoever_else_is_there() -> None:
    alone = {name: Styles([name])[name] for name in NAMES}
    for names in (NAMES[:2], NAMES[::-1][:12], NAMES):
        together = Styles(names)
        for name in names:
            assert replace(together[name], about="") == replace(alone[name], about="")


def test_members_differ_in_shade_marker_or_dashes() -> None:
    looks = {replace(Styles([name])[name], about="") for name in NAMES}
    assert len(looks) == len(NAMES)
    # without the dashes too, as points of a scatter
    assert len({(look.colour, look.marker) for look in looks}) == len(NAMES)


def test_a_family_has_one_hue_and_is_told_apart_by_colour_blind_readers() -> None:
    families = Styles(NAMES).families
    assert list(families) == list(dict.fromkeys(info(name).group for name in NAMES))
    seen = [_simulated(colour, sight) for sight in SIGHTS for colour in [*families.values()]]
    hues = np.array(seen).reshape(len(SIGHTS), len(families), 3)
    apart = np.linalg.norm(hues[:, :, None] - hues[:, None], axis=-1)
    assert apart[:, *np.triu_indices(len(families), 1)].min() > 15


def test_other_names_take_the_looks_that_are_left() -> None:
    names = ["rope", *(f"k={n}" for n in range(20)), "gmlp"]
    looks = Styles(names)
    assert len({(looks[name].colour, looks[name].marker) for name in names}) == 22
    assert replace(looks["gmlp"], about="") == replace(Styles(["gmlp"])["gmlp"], about="")


SIGHTS = {
    "usual": np.eye(3),
    # Machado et al. 2009, full severity, on linear RGB
    "protanopia": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                            [-0.003882, -0.048116, 1.051998]]),
    "deuteranopia": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                              [-0.011820, 0.042940, 0.968881]]),
}  # fmt: skip


def _simulated(colour: str, sight: str) -> np.ndarray:
    """CIELAB of a colour as one sees it."""
    values = np.array(to_rgb(colour))
    linear = np.where(values > 0.04045, ((values + 0.055) / 1.055) ** 2.4, values / 12.92)
    linear = np.clip(SIGHTS[sight] @ linear, 0, 1)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    x, y, z = np.cbrt(np.array(to_xyz) @ linear / [0.9505, 1.0, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


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
    before = dict(matplotlib.rcParams)
    first, second = _two_figures()
    assert dict(matplotlib.rcParams) == before, "drawing leaves no trace"
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
    assert len(files) == len(laid_out) == len(FIGURES)
    assert calls == ["savefig"] * len(FIGURES)
    assert {file.suffix for file in files} == {".svg"}
    path = re.compile(r'<path d="[^"]+"')
    page = set(path.findall((tmp_path / "report.html").read_text("utf-8")))
    for file in files:
        svg = file.read_text("utf-8")
        ElementTree.fromstring(svg)
        assert 'fill="white"' in svg
        assert set(path.findall(svg)) <= page


@pytest.mark.parametrize("form", ["png", "pdf", "svg"])
def test_the_same_figure_is_the_same_file_and_its_text_is_text(tmp_path: Path, form: str) -> None:
    """Journals refuse Type 3 fonts; a reader searches and a typesetter changes words."""
    for name in ("a", "b"):
        figure, axes = styled(new_figure)()
        axes.plot([0, 1])
        axes.set_xlabel("training tokens")
        save_figure(figure, tmp_path / f"{name}.{form}")
    written = (tmp_path / f"a.{form}").read_bytes()
    assert written == (tmp_path / f"b.{form}").read_bytes()
    assert b"CreationDate" not in written
    assert (b">training tokens</text>" in written) == (form == "svg")
    assert (b"/CIDFontType2" in written, b"/Type3" in written) == (form == "pdf", False)
