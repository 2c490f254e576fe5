"""The table of a comparison for a paper: Markdown, LaTeX with booktabs, and CSV."""

import textwrap
from collections.abc import Callable, Mapping

from everyformer.comparison.collect import as_csv
from everyformer.comparison.results import Results, finished
from everyformer.core.errors import ConfigError
from everyformer.core.wording import listed
from everyformer.report.table import Cell, cells
from everyformer.report.words import question

HEAD = 12
"""letters of a line of a heading in LaTeX, where columns are no wider than their numbers"""
NONE = Cell(None, "-", "", best=False)
"""where a comparison has no such column"""
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


def _joined(
    compared: Mapping[str, Results],
) -> tuple[list[str], list[tuple[list[str], list[Cell]]]]:
    """The titles of all columns, and each row's names and cells."""
    named = [(name, *cells(results)) for name, results in compared.items()]
    titles = list(dict.fromkeys(column.title for _, columns, _ in named for column in columns))
    rows = []
    for name, columns, lines in named:
        for row, own in lines:
            known = dict(zip([column.title for column in columns], own, strict=True))
            names = [*[name] * (len(compared) > 1), row["member"] + ("*" if row["leaks"] else "")]
            rows.append((names, [known.get(title, NONE) for title in titles]))
    return [*["comparison"] * (len(compared) > 1), "member", *titles], rows


def _markdown(compared: Mapping[str, Results]) -> str:
    titles, rows = _joined(compared)
    lines = [[_plain(title, _MARKDOWN) for title in titles]]
    for names, own in rows:
        texts = [
            (f"**{text}**" if cell.best else text)
            + (f" ({_plain(cell.below, _MARKDOWN)})" if cell.below else "")
            for cell in own
            for text in [_plain(cell.text, _MARKDOWN)]
        ]
        lines.append([*(_plain(name, _MARKDOWN) for name in names), *texts])
    lines.insert(1, [*["---"] * len(rows[0][0]), *["---:"] * len(rows[0][1])])
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{table}\n\n{_plain(_caption(compared, 'In brackets'), _MARKDOWN)}\n"


def _latex(compared: Mapping[str, Results]) -> str:
    """A table as wide as the page; a heading is stacked, an interval stands below its number."""
    titles, rows = _joined(compared)
    heads = [textwrap.wrap(title, HEAD, break_long_words=False) for title in titles]
    high = max(map(len, heads))
    stacked = zip(*([""] * (high - len(head)) + head for head in heads), strict=True)
    lines = [_latex_row([_plain(words, _LATEX) for words in line]) for line in stacked]
    lines.append(r"\midrule")
    for names, own in rows:
        texts = [(_plain(cell.text, _LATEX), cell.best) for cell in own]
        values = [rf"\textbf{{{text}}}" if best else text for text, best in texts]
        lines.append(_latex_row([*(_plain(name, _LATEX) for name in names), *values]))
        if any(cell.below for cell in own):
            below = [_plain(cell.below, _LATEX) for cell in own]
            lines.append(_latex_row([*[""] * len(names), *below]))
    return "\n".join([
        r"% \usepackage{booktabs}",
        r"\begin{table*}",
        r"\centering",
        r"\scriptsize",
        r"\setlength{\tabcolsep}{3pt}",
        rf"\caption{{{_plain(_caption(compared, 'Below a number'), _LATEX)}}}",
        r"\label{tab:everyformer}",
        rf"\begin{{tabular}}{{{'l' * len(rows[0][0])}{'r' * len(rows[0][1])}}}",
        r"\toprule",
        *lines,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table*}",
        "",
    ])  # fmt: skip


_WRITERS: dict[str, Callable[[Mapping[str, Results]], str]] = {
    "md": _markdown,
    "tex": _latex,
    "csv": as_csv,
}


def _latex_row(texts: list[str]) -> str:
    return rf"{' & '.join(texts)} \\"


def _caption(compared: Mapping[str, Results], place: str) -> str:
    """Lines on the question, on the marks beside numbers, and on who is missing."""
    several, every = len(compared) > 1, compared.values()
    words = [
        f"{name}: {question(one)}" * several or question(one) for name, one in compared.items()
    ]
    over = listed(list(dict.fromkeys(finished(one)[0]["interval_of"] for one in every)), "or")
    words.append(f"{place}: the 95% interval over {over}, of speeds quartiles.")
    if any(cell.best for _, own in _joined(compared)[1] for cell in own):
        where = "column in its comparison" if several else "column"
        words.append(f"Bold: best of its {where}, with all that cannot be told from it.")
    for name, one in compared.items():
        of = f" ({name})" * several
        words += [
            f"* {row['member']}{of}: {row['leaks']}." for row in finished(one) if row["leaks"]
        ]
        if failed := [row["member"] for row in one["rows"] if row["status"] == "failed"]:
            words.append(f"Failed{of}: {listed(failed)}.")
        if one["waiting"]:
            words.append(f"Waiting to be trained{of}: {listed(one['waiting'])}.")
    return " ".join(words)


def _plain(text: str, escapes: dict[int, str]) -> str:
    """One line of what can be printed, escaped."""
    shown = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(shown.split()).translate(escapes)
