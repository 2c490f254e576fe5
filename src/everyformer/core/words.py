"""Quantities as a person reads them, the same in messages, tables and pages."""

from __future__ import annotations


def size(count: float | None) -> str:
    """A count of bytes: '512 B', '1.5 GiB'; '-' where there is none."""
    if count is None:
        return "-"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(count) < 1024 or unit == "TiB":
            break
        count /= 1024
    return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
