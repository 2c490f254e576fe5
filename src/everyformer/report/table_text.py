"""The table of a comparison for a paper: Markdown, LaTeX with booktabs, and CSV."""

import csv
import io
import textwrap
from collections.abc import Callable

from everyformer.comparison.results import Results, TableRow, finished
from everyformer.core.errors import ConfigError
from everyformer.core.wording import listed
from everyformer.report.table import cells
from everyformer.report.words import question

HEAD = 12
"""letters of a line of a heading in LaTeX, where columns are no wider than their numbers"""
_MARKDOWN = str.maketrans({c: f"\\{c}" for c in "\\|*_`[]"} | {"<": "&lt;", "&": "&amp;"})
_LATEX = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "\u2212": "$-$"}
    | {"²": r"\textsuperscript{2}", "[": "{[}", "]": "{]}"}
)


def table_text(results: Results, kind: str) -> str:
    """The table as ``kind``: md, tex or csv. Numbers stand with their intervals; bold is what the
    page calls the best.

    Raises:
        ConfigError: no member was trained to the end.
    """
    if not finished(results):
        raise ConfigError("there is no table yet, since no member was trained to the end")
    return _WRITERS[kind](results)


def _markdown(results: Results) -> str:
    columns, rows = cells(results)
    lines = [["member", *(_plain(column.title, _MARKDOWN) for column in columns)]]
    lines.append(["---", *["---:"] * len(columns)])
    for row, own in rows:
        texts = [
            (f"**{text}**" if cell.best else text)
            + (f" ({_plain(cell.below, _MARKDOWN)})" if cell.below else "")
            for cell in own
            for text in [_plain(cell.text, _MARKDOWN)]
        ]
        lines.append([_plain(_name(row), _MARKDOWN), *texts])
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{table}\n\n{_plain(_caption(results, 'In brackets'), _MARKDOWN)}\n"


def _latex(results: Results) -> str:
    """A table as wide as the page; a heading is stacked, an interval stands below its number."""
    columns, rows = cells(results)
    titles = ["member", *(column.title for column in columns)]
    heads = [textwrap.wrap(title, HEAD, break_long_words=False) for title in titles]
    high = max(map(len, heads))
    stacked = zip(*([""] * (high - len(head)) + head for head in heads), strict=True)
    lines = [_latex_row([_plain(words, _LATEX) for words in line]) for line in stacked]
    lines.append(r"\midrule")
    for row, own in rows:
        texts = [(_plain(cell.text, _LATEX), cell.best) for cell in own]
        values = [rf"\textbf{{{text}}}" if best else text for text, best in texts]
        lines.append(_latex_row([_plain(_name(row), _LATEX), *values]))
        if any(cell.below for cell in own):
            lines.append(_latex_row(["", *(_plain(cell.below, _LATEX) for cell in own)]))
    return "\n".join([
        r"% \usepackage{booktabs}",
        r"\begin{table*}",
        r"\centering",
        r"\scriptsize",
        r"\setlength{\tabcolsep}{3pt}",
        rf"\caption{{{_plain(_caption(results, 'Below a number'), _LATEX)}}}",
        r"\label{tab:everyformer}",
        rf"\begin{{tabular}}{{l{'r' * len(columns)}}}",
        r"\toprule",
        *lines,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table*}",
        "",
    ])  # fmt: skip


def _csv(results: Results) -> str:
    """Numbers as they are, with the ends of their intervals where there are any."""
    columns, rows = cells(results)
    spread = [any(own[n].spread for _, own in rows) for n in range(len(columns))]
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    heads = ["member"]
    for column, known in zip(columns, spread, strict=True):
        title = column.title + (f" ({column.unit})" if column.unit else "")
        heads += [title, f"{title}: low", f"{title}: high"] if known else [title]
    writer.writerow(heads)
    for row, own in rows:
        values = [
            value
            for n, cell in enumerate(own)
            for value in (cell.value, *((cell.spread or ("", "")) if spread[n] else ()))
        ]
        writer.writerow([row["member"], *values])
    return text.getvalue()


_WRITERS: dict[str, Callable[[Results], str]] = {"md": _markdown, "tex": _latex, "csv": _csv}


def _latex_row(texts: list[str]) -> str:
    return rf"{' & '.join(texts)} \\"


def _name(row: TableRow) -> str:
    return row["member"] + ("*" if row["leaks"] else "")


def _caption(results: Results, place: str) -> str:
    """Lines on the question, on the marks beside numbers, and on who is missing."""
    rows = finished(results)
    words = [question(results)]
    words.append(f"{place}: the 95% interval over {rows[0]['interval_of']}, of speeds quartiles.")
    if any(cell.best for _, own in cells(results)[1] for cell in own):
        words.append("Bold: best of its column, with all that cannot be told from it.")
    words += [f"* {row['member']}: {row['leaks']}." for row in rows if row["leaks"]]
    if failed := [row["member"] for row in results["rows"] if row["status"] == "failed"]:
        words.append(f"Failed: {listed(failed)}.")
    if results["waiting"]:
        words.append(f"Waiting to be trained: {listed(results['waiting'])}.")
    return " ".join(words)


def _plain(text: str, escapes: dict[int, str]) -> str:
    """One line of what can be printed, escaped."""
    shown = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(shown.split()).translate(escapes)
