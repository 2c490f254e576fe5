"""The page of a comparison as a PDF: what was found, the table, then a figure a page."""

import math
import textwrap
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure

from everyformer.lab.compare.results import Results
from everyformer.lab.report.facts import facts, remedies
from everyformer.lab.report.figures import draw_all
from everyformer.lab.report.headline import answer
from everyformer.lab.report.notes import notes
from everyformer.lab.report.table import cells
from everyformer.lab.report.words import question, title
from everyformer.lab.show.style import WIDE, styled
from everyformer.system.files import file_written_whole

PAPER = (11.0, 8.0)
"""inches of a page of text or table"""
LETTERS, LINES = 120, 40
"""of a page of text"""
ROWS = 18
"""members of a page of the table"""
HEAD, LETTER = 13, 60
"""letters of a line of a heading, and of a caption"""


@styled
def write_booklet(results: Results, path: Path) -> Path:
    """Write the pages to ``path``."""
    with (
        file_written_whole(path, parents=True) as new,
        PdfPages(new, metadata={"Title": title(results), "CreationDate": None}) as pages,
    ):
        for figure in (*_texts(results), *_tables(results), *_figures(results)):
            pages.savefig(figure, facecolor="white")
    return path


def _texts(results: Results) -> list[Figure]:
    """The first pages: the question, the answer, what is to be known, and doubts with remedies."""
    texts = [question(results), answer(results)]
    texts += [f"{name}: {text}" for name, text in facts(results)]
    texts.append(f"Data: {results['data']['split']}")
    texts += [f"Doubt: {doubt}. Remedy: {remedy}." for doubt, remedy in remedies(results)]
    texts += [f"To be known: {note}" for note in notes(results)]
    lines = [line for text in texts for line in (*_wrapped(text), "")][:-1]
    size = math.ceil(len(lines) / math.ceil(len(lines) / LINES))
    result = []
    for start in range(0, len(lines), size):
        body = "\n".join(lines[start : start + size])
        figure = Figure(figsize=PAPER)
        figure.text(0.05, 0.95, title(results), fontsize=14, va="top")
        figure.text(0.05, 0.89, body.strip("\n"), fontsize=9, va="top", linespacing=1.35)
        result.append(figure)
    return result


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, LETTERS, subsequent_indent="    ")


def _tables(results: Results) -> list[Figure]:
    columns, rows = cells(results)
    titles = ["member", *(column.title for column in columns)]
    heads = ["\n".join(textwrap.wrap(title, HEAD)) for title in titles]
    texts = [
        [row["member"], *(f"{cell.text}\n{cell.below}".rstrip() for cell in own)]
        for row, own in rows
    ]
    result = []
    for start in range(0, len(texts), ROWS):
        figure = Figure(figsize=PAPER)
        axes = figure.add_axes((0.03, 0.03, 0.94, 0.94))
        axes.set_axis_off()
        page = texts[start : start + ROWS]
        drawn = axes.table(
            page, colLabels=heads, loc="upper center", cellLoc="right", edges="horizontal"
        )
        drawn.auto_set_font_size(False)
        drawn.set_fontsize(6.5)
        drawn.auto_set_column_width(range(len(heads)))
        for (line, column), cell in drawn.get_celld().items():
            cell.set_height(0.1 if line == 0 else 0.048)
            cell.set_linewidth(0.3)
            if line and column and rows[start + line - 1][1][column - 1].best:
                cell.set_text_props(weight="bold")
        result.append(figure)
    return result


def _figures(results: Results) -> list[Figure]:
    result = []
    for drawing in draw_all(results):
        figure: Any = drawing.figure
        caption = textwrap.fill(f"{drawing.title}. {drawing.caption}", LETTER)
        below = figure.supxlabel(caption, fontsize=7, x=0.02, ha="left")
        figure.set_size_inches(
            WIDE, figure.get_figheight() + 0.14 * (below.get_text().count("\n") + 2)
        )
        result.append(figure)
    return result
