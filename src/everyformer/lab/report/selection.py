"""Selection among many members: the best few and the baseline."""

from everyformer.lab.bench.points import BASELINE
from everyformer.lab.compare.results import Results, TableRow, finished
from everyformer.lab.show.style import MANY, Styles

NAMED = 6
"""members with a name in the figures, where there are too many to name all"""


def crowded(results: Results) -> bool:
    """True if there are too many members to name all in every figure."""
    return len(results["config"]["members"]) > MANY


def baseline(results: Results) -> TableRow | None:
    """The row that others are compared with: attention where it takes part, else the first."""
    done = {row["member"]: row for row in finished(results)}
    for member in (BASELINE, *results["config"]["members"]):
        if member in done:
            return done[member]
    return None


def best_few(results: Results, most: int) -> list[TableRow]:
    """The first rows of the table, ``most`` at most, and the baseline's."""
    rows, base = finished(results), baseline(results)
    return [row for n, row in enumerate(rows) if n < most or row is base]


def styles_of(results: Results) -> Styles:
    """Styles of the members: of many the best few and the baseline are named, the rest is pale."""
    members = results["config"]["members"]
    if not crowded(results):
        return Styles(members)
    named = best_few(results, NAMED)
    if len(named) > NAMED:
        named = best_few(results, NAMED - 1)
    return Styles(members, [row["member"] for row in named])
