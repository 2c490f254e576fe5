"""A comparison in Python prints as the table of the terminal, and becomes a frame."""

import csv
import io
import sys
from pathlib import Path
from typing import Any

import pytest

from everyformer.core.errors import EveryformerError
from everyformer.lab.compare.collect import write
from everyformer.lab.report.compare import Comparison
from everyformer.lab.report.terminal import render
from report_results import NASTY, made_up


@pytest.fixture
def done(tmp_path: Path) -> Comparison:
    results = made_up(failed={NASTY: f"{NASTY} happened"})
    return Comparison(results["rows"], results, tmp_path)


def test_it_prints_as_the_table_and_its_repr_is_short(done: Comparison) -> None:
    assert str(done) == render(done.results)
    assert repr(done) == f"Comparison([attention, gmlp, {NASTY}], folder={str(done.folder)!r})"
    nothing: Any = Comparison([], {}, Path("a"), 15)  # type: ignore[typeddict-item]
    assert str(nothing) == repr(nothing) == "Comparison([], folder='a')"
    assert (nothing._repr_html_(), len(nothing.to_pandas())) == (None, 0)


def test_a_notebook_has_every_cell_and_no_markup_of_others(done: Comparison) -> None:
    html = done._repr_html_()
    assert html is not None
    assert "<script" not in html
    assert "<td>&lt;script&gt;" in html
    assert "<td>2.500 (2.400 to 2.600)</td>" in html
    assert "attention is best after 60 seconds of training" in html


def test_a_frame_has_the_lines_of_the_file(done: Comparison) -> None:
    write(done.results, done.folder)
    text = (done.folder / "results.csv").read_text(encoding="utf-8")
    frame = done.to_pandas()
    lines = [*csv.DictReader(io.StringIO(text))]
    assert [*frame.columns] == text.splitlines()[0].split(",")
    assert frame.columns.is_unique
    every = [*["attention"] * 3, *["gmlp"] * 3, NASTY]
    assert [*frame["member"]] == [line["member"] for line in lines] == every
    gmlp = lines[3]
    assert (gmlp["mean"], gmlp["mean_low"], gmlp["mean_high"]) == ("2.5", "2.4", "2.6")
    speeds = [float(gmlp[f"tokens_per_second{end}"]) for end in ("_low", "", "_high")]
    assert speeds == [1980, 2000, 2020]
    assert [gmlp[f"ms_after_1024{end}"] for end in ("_low", "", "_high")] == ["1.55", "1.6", "1.65"]
    assert (gmlp["state_bytes_after_64"], gmlp["state_bytes_after_1024"]) == ("1024", "2048")
    assert (lines[6]["ms_after_64"], lines[6]["error"]) == ("", f"{NASTY} happened")


def test_a_frame_without_pandas_says_what_to_install(
    done: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(EveryformerError, match="install it with: pip install pandas"):
        done.to_pandas()
