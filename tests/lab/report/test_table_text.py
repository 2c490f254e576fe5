"""The table for a paper: the numbers of the page, whole rows, nothing that breaks its format."""

import csv
import io
import re
from typing import Any

import pytest

from everyformer.core.errors import ConfigError
from everyformer.lab.report.table import cells
from everyformer.lab.report.table_text import table_text
from report_results import made_up

NASTY = r"a_b & 50% $x$ #1 {c} \d ~e^f | <g>"


def _nasty() -> Any:
    results = made_up(("attention", NASTY), failed={"gmlp": "no"})
    results["data"]["name"] = "stdlib_\n\x00 100%"
    return results


def _rows(latex: str) -> list[list[str]]:
    within = latex.partition(r"\toprule")[2].partition(r"\bottomrule")[0]
    lines = [line for line in within.strip().splitlines() if line != r"\midrule"]
    assert all(line.endswith(r" \\") for line in lines)
    return [re.split(r"(?<!\\)&", line.removesuffix(r" \\")) for line in lines]


def test_markdown_has_the_cells_of_the_page_with_intervals_and_bold() -> None:
    head, rule, first, second, *_ = table_text({"cmp": made_up()}, "md").splitlines()
    assert head.startswith("| member | tier | bits per byte (lower is better) | parameters |")
    assert rule == "| --- |" + " ---: |" * 11
    assert first.startswith("| attention | a | **2.000** (1.900 to 2.100) | 100,000 | 1,000 (990")
    assert second.startswith("| gmlp | b | 2.500 (2.400 to 2.600) | 130,000 (1.30 x the first) |")


@pytest.mark.parametrize("kind", ["md", "tex"])
def test_nothing_is_bold_where_no_one_may_be_called_the_best(kind: str) -> None:
    bold = {"md": "**", "tex": r"\textbf"}[kind]
    assert bold in table_text({"cmp": made_up()}, kind)
    text = table_text({"cmp": made_up(doubts=("the machine had other work",))}, kind)
    assert bold not in text
    assert "Bold" not in text


def test_latex_has_booktabs_whole_rows_and_balanced_groups() -> None:
    text = table_text({"cmp": _nasty()}, "tex")
    for rule in ("toprule", "midrule", "bottomrule", "begin{tabular}", "end{tabular}"):
        assert text.count(f"\\{rule}") == 1
    columns = re.search(r"begin\{tabular\}\{(l(r+))\}", text)
    assert columns is not None
    rows = _rows(text)
    assert {len(row) for row in rows} == {len(columns[1])}
    assert len(columns[2]) == len(cells(_nasty())[0])
    bare = re.sub(r"\\[{}\\]", "", text)
    assert bare.count("{") == bare.count("}")
    assert text.isascii()
    # each stands in one line under a stacked heading; its interval below
    assert [row[0].strip() for row in rows[-4:]][1::2] == ["", ""]
    assert rows[-4][2].strip() == r"\textbf{2.000}"
    assert rows[-3][2].strip() == "1.900 to 2.100"


def test_latex_escapes_all_that_it_would_read() -> None:
    text = table_text({"cmp": _nasty()}, "tex")
    assert (
        r"a\_b \& 50\% \$x\$ \#1 \{c\} \textbackslash{}d \textasciitilde{}e\textasciicircum{}f "
        r"\textbar{} \textless{}g\textgreater{}"
    ) in text
    assert r"stdlib\_ 100\%" in text
    assert not re.search(r"(?<!\\)[#$]", text)
    assert [line for line in text.splitlines() if re.search(r"(?<!\\)%", line)] == [
        r"% \usepackage{booktabs}"
    ]


def test_markdown_escapes_all_that_it_would_read() -> None:
    text = table_text({"cmp": _nasty()}, "md")
    assert r"a\_b &amp; 50% $x$ #1 {c} \\d ~e^f \| &lt;g>" in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({len(re.split(r"(?<!\\)\|", line)) for line in lines}) == 1


def test_csv_has_a_row_a_seed_with_what_the_pair_with_the_first_came_to() -> None:
    lines = [*csv.DictReader(io.StringIO(table_text({"cmp": _nasty()}, "csv")))]
    assert [(line["member"], line["seed"]) for line in lines] == [
        *((member, seed) for member in ("attention", NASTY) for seed in "012"), ("gmlp", ""),
    ]  # fmt: skip
    names = ("quality", "quality_low", "quality_high", "mean", "mean_low", "mean_high")
    assert [float(lines[1][name]) for name in names] == pytest.approx(
        [2.01, 1.91, 2.11, 2, 1.9, 2.1]
    )
    pair = ("difference_to_first", "difference_to_first_low", "difference_to_first_high")
    assert [lines[4][name] for name in (*pair, "p_to_first")] == ["0.5", "0.01", "0.5", "0.012"]
    assert {lines[0][name] for name in (*pair, "p_to_first")} == {""}
    assert (lines[4]["tier"], lines[4]["lr"], lines[4]["metric"]) == ("b", "0.001", "bits_per_byte")
    assert (lines[6]["status"], lines[6]["error"]) == ("failed", "no")


@pytest.mark.parametrize("kind", ["md", "tex", "csv"])
def test_tables_of_several_comparisons_are_one(kind: str) -> None:
    """Rows in turn, columns by their titles; what a comparison has no column for is a dash."""
    other = made_up(("rope",), metric="accuracy", qualities=(0.75,), seeds=1)
    text = table_text({"first": made_up(), "second": other}, kind)
    if kind == "csv":
        lines = [*csv.DictReader(io.StringIO(text))]
        found = [(line["comparison"], line["member"], line["metric"]) for line in lines]
        first = [("first", member, "bits_per_byte") for member in ("attention", "gmlp")]
        assert [*dict.fromkeys(found)] == [*first, ("second", "rope", "accuracy")]
        return
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines] if kind == "md" else _rows(text)
    table = [[cell.strip() for cell in row] for row in rows]
    assert len({len(row) for row in table}) == 1
    named = {(row[0], row[1]): row for row in table if row[0] in ("first", "second")}
    assert [*named] == [("first", "attention"), ("first", "gmlp"), ("second", "rope")]
    here, there = named["first", "attention"], named["second", "rope"]
    number = next(n for n, cell in enumerate(here) if "2.000" in cell)
    assert there[number] == "-"
    [exact] = [n for n, cell in enumerate(there) if cell.startswith("75.0")]
    assert here[exact] == "-"
    assert "first: Which of attention or gmlp" in text
    assert "second: Which of rope" in text


@pytest.mark.parametrize("kind", ["md", "tex"])
def test_those_who_failed_wait_or_leak_are_named(kind: str) -> None:
    results = made_up(failed={"rope": "no"}, waiting=("linear",))
    results["rows"][0]["leaks"] = "it sees the future"
    text = table_text({"cmp": results}, kind).replace("\\", "")
    for words in ("Failed: rope.", "Waiting to be trained: linear.", "* attention: it sees"):
        assert words in text


def test_without_a_trained_member_there_is_no_table() -> None:
    with pytest.raises(ConfigError, match="no member was trained to the end"):
        table_text({"cmp": made_up((), qualities=(), failed={"gmlp": "no"})}, "tex")
