"""Numbers that float32 tells apart: none that are large and differ by little, as times do."""

import numpy as np

HALF_STEP = 2.0**-24
"""by how much of itself float32 moves a number, at most"""
PART = 1e-3
"""of a standard deviation, by which rounding may move a number"""


def told_apart(size: float, deviation: float) -> bool:
    """True if float32 moves numbers of this ``size`` by no more than `PART` of ``deviation``."""
    return size * HALF_STEP <= PART * deviation


def shortened(values: np.ndarray, real: np.ndarray | None = None) -> np.ndarray:
    """Numbers (..., columns) in float32, but in float64 where that is to tell a column's apart.

    Args:
        values: NaN stands for what is not known.
        real: (...) which rows count (default: all).
    """
    if values.dtype in (np.float32, np.float16):
        return values.astype(np.float32)
    wide = values.astype(np.float64)
    rows = wide[np.ones(wide.shape[:-1], dtype=bool) if real is None else real]
    with np.errstate(all="ignore"):
        short = wide.astype(np.float32)
        columns = zip(rows.T, rows.astype(np.float32).T, strict=True)
        enough = all(_alike(each, rounded) for each, rounded in columns)
    return short if enough else wide


def _alike(column: np.ndarray, rounded: np.ndarray) -> bool:
    """True if ``rounded`` numbers can stand for those of a column."""
    known = ~np.isnan(column)
    column, rounded = column[known], rounded[known]
    if (column == rounded).all():
        return True
    inside = bool(np.isfinite(rounded).all())
    return inside and told_apart(float(np.abs(column).max()), float(column.std()))
