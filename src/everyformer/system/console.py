"""Results on stdout: tables for people, JSON for programs."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from everyformer.system.plain import to_json

NUMBER = re.compile(r"-|failed|~?[\d.,e+-]+x?( ([KMG]i)?B)?")
"""what stands right in a table"""


def table(headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Columns of equal width; numbers stand right, a missing value is a dash."""
    cells = [[shown(value) for value in row] for row in rows]
    columns = [*zip(*cells, strict=True)] if cells else [()] * len(headers)
    widths = [max(map(len, (h, *column))) for h, column in zip(headers, columns, strict=True)]
    numeric = [bool(column) and all(map(NUMBER.fullmatch, column)) for column in columns]

    def line(values: Sequence[str]) -> str:
        placed = (
            value.rjust(width) if right else value.ljust(width)
            for value, width, right in zip(values, widths, numeric, strict=True)
        )
        return "  ".join(placed).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([line(headers), rule, *map(line, cells)])


def shown(value: Any) -> str:
    """Value of a cell as text."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def facts(values: Mapping[str, Any]) -> str:
    """One named value a line."""
    width = max(map(len, values), default=0)
    rows = ((k, f"{v:.6g}" if isinstance(v, float) else v) for k, v in values.items())
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def emit(values: Any) -> None:
    """Machine output: JSON on stdout."""
    print(to_json(values, indent=2))
