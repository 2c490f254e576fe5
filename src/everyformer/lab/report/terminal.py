"""A comparison as text: what it allows to say, the table, and what to do next."""

from everyformer.core.wording import join_names
from everyformer.lab.compare.results import Results
from everyformer.lab.report.facts import remedies
from everyformer.lab.report.headline import answer
from everyformer.lab.report.notes import notes
from everyformer.lab.report.table import cells, limits
from everyformer.system.console import table


def render(results: Results) -> str:
    """The one table that a person can decide from."""
    lines = [answer(results), "", table(*texts(results))]
    lines.append(
        f"{results['better']} is better; speeds and memory are of rounds in which all take turns; "
        "(low to high) is the 95% interval of a quality, and the quartiles of a speed"
    )
    for limit, names in limits(results).items():
        lines.append(f"{join_names(names)}: {'each ' if len(names) > 1 else ''}{limit}")
    lines += [
        f"{row['member']} failed: {row['error']}"
        for row in results["rows"]
        if row["status"] == "failed" and row["error"]
    ]
    lines += [f"Doubt: {doubt}. What helps: {remedy}." for doubt, remedy in remedies(results)]
    lines += notes(results)
    if results["next"]:
        widest = max(len(words) for words, _ in results["next"])
        lines += ["", *(f"{words:<{widest}}  {command}" for words, command in results["next"])]
    return "\n".join(lines)


def texts(results: Results) -> tuple[list[str], list[list[str]]]:
    """The headings and the rows of the table, members that failed last."""
    columns, rows = cells(results)
    done = [
        [
            row["member"] + ("*" if row["leaks"] else ""),
            *(f"{cell.text} ({cell.below})" if cell.below else cell.text for cell in own),
        ]
        for row, own in rows
    ]
    dashes = ["-"] * (len(columns) - 1)
    failed = [r["member"] for r in results["rows"] if r["status"] == "failed"]
    headings = ["member", *(column.brief for column in columns)]
    return headings, [*done, *([name, "failed", *dashes] for name in failed)]


def as_html(results: Results) -> str:
    """The same answer and table for a notebook."""
    from everyformer.lab.report.comparison import rendered

    headings, rows = texts(results)
    return rendered("notebook.html", answer=answer(results), headings=headings, rows=rows)
