"""The table of a comparison for a paper: Markdown, LaTeX with booktabs, and CSV."""

import textwrap
from collections.abc import Mapping

from everyformer.core.errors import ConfigError
from everyformer.core.wording import join_names
from everyformer.lab.compare.collect import as_csv
from everyformer.lab.compare.results import Results, finished
from everyformer.lab.report.table import Cell, cells
from everyformer.lab.report.words import question

HEAD = 12
"""letters of a line of a heading in LaTeX, where columns are no wider than their numbers"""
_MARKDOWN = str.maketrans({c: f"\\{c}" for c in "\\|*_`[]"} | {"<": "&lt;", "&": "&amp;"})
_LATEX = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "\u2212": "$-$"}
    | {"²": r"\textsuperscript{2}", "[": "{[}", "]": "{]}"}
)


def table_text(compared: Mapping[str, Results], kind: str) -> str:
    """The tables of ``compared`` in one as ``kind``: md, tex or csv. Numbers stand with their
    intervals; bold is what the page of its comparison calls the best.

    Raises:
        ConfigError: no member of one was trained to the end.
    """
    for name, results in compared.items():
        if not finished(results):
            raise ConfigError(f"{name} has no table yet: no member was trained to the end")
    return _WRITERS[kind](compared)


def _joined(compared: Mapping[str, Results]) -> tuple[list[str], list[list[Cell]]]:
    """The titles of all columns, and the cells of each row, its names first."""
    several = len(compared) > 1
    named = [(name, *cells(results)) for name, results in compared.items()]
    titles = list(dict.fromkeys(column.title for _, columns, _ in named for column in columns))
    rows = []
    for name, columns, lines in named:
        for row, own in lines:
            known = dict(zip([column.title for column in columns], own, strict=True))
            names = [*[name] * several, row["member"] + ("*" if row["leaks"] else "")]
            rows.append([*map(Cell, names), *(known.get(title, Cell("-")) for title in titles)])
    return [*["comparison"] * several, "member", *titles], rows


def _markdown(compared: Mapping[str, Results]) -> str:
    titles, rows = _joined(compared)
    names = titles.index("member") + 1
    lines = [[_plain(title, _MARKDOWN) for title in titles]]
    lines.append([*["---"] * names, *["---:"] * (len(titles) - names)])
    for own in rows:
        texts = [
            (f"**{text}**" if cell.best else text)
            + (f" ({_plain(cell.below, _MARKDOWN)})" if cell.below else "")
            for cell in own
            for text in [_plain(cell.text, _MARKDOWN)]
        ]
        lines.append(texts)
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{table}\n\n{_plain(_captions(compared, 'In brackets'), _MARKDOWN)}\n"


def _latex(compared: Mapping[str, Results]) -> str:
    """A table as wide as the page; a heading is stacked, an interval stands below its number."""
    titles, rows = _joined(compared)
    names = titles.index("member") + 1
    heads = [textwrap.wrap(title, HEAD, break_long_words=False) for title in titles]
    high = max(map(len, heads))
    stacked = zip(*([""] * (high - len(head)) + head for head in heads), strict=True)
    lines = [_latex_row([_plain(words, _LATEX) for words in line]) for line in stacked]
    lines.append(r"\midrule")
    for own in rows:
        texts = [(_plain(cell.text, _LATEX), cell.best) for cell in own]
        lines.append(_latex_row([rf"\textbf{{{text}}}" if best else text for text, best in texts]))
        if any(cell.below for cell in own):
            lines.append(_latex_row([_plain(cell.below, _LATEX) for cell in own]))
    return "\n".join([
        r"% \usepackage{booktabs}",
        r"\begin{table*}",
        r"\centering",
        r"\scriptsize",
        r"\setlength{\tabcolsep}{3pt}",
        rf"\caption{{{_plain(_captions(compared, 'Below a number'), _LATEX)}}}",
        r"\label{tab:everyformer}",
        rf"\begin{{tabular}}{{{'l' * names}{'r' * (len(titles) - names)}}}",
        r"\toprule",
        *lines,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table*}",
        "",
    ])  # fmt: skip


_WRITERS = {"md": _markdown, "tex": _latex, "csv": as_csv}


def _latex_row(texts: list[str]) -> str:
    return rf"{' & '.join(texts)} \\"


def _captions(compared: Mapping[str, Results], place: str) -> str:
    """The caption of a comparison, or of several, each after its name."""
    texts = {name: _caption(results, place) for name, results in compared.items()}
    return " ".join(f"{name}: {text}" if len(texts) > 1 else text for name, text in texts.items())


def _caption(results: Results, place: str) -> str:
    """Lines on the question, on the marks beside numbers, and on who is missing."""
    rows = finished(results)
    words = [question(results)]
    words.append(f"{place}: the 95% interval over {rows[0]['interval_of']}, of speeds quartiles.")
    if any(cell.best for _, own in cells(results)[1] for cell in own):
        words.append("Bold: best of its column, with all that cannot be told from it.")
    words += [f"* {row['member']}: {row['leaks']}." for row in rows if row["leaks"]]
    if failed := [row["member"] for row in results["rows"] if row["status"] == "failed"]:
        words.append(f"Failed: {join_names(failed)}.")
    if results["waiting"]:
        words.append(f"Waiting to be trained: {join_names(results['waiting'])}.")
    return " ".join(words)


def _plain(text: str, escapes: dict[int, str]) -> str:
    """One line of what can be printed, escaped."""
    shown = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(shown.split()).translate(escapes)
