"""Times of a column, as seconds since 1970 or plain numbers."""

import datetime
import itertools
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

Parser = Callable[[str], datetime.datetime]

DAY = 86_400
CLOCKS = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", " %I:%M %p", " %I:%M:%S %p")
DATES = (
    *("%Y-%m", "%Y/%m", "%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d"),
    *("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y"),
    *("%d.%m.%y", "%d/%m/%y", "%m/%d/%y"),
    *("%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y", "%b %d %Y", "%B %d %Y"),
    *("%d-%b-%Y", "%d-%b-%y", "%b %Y", "%B %Y", "%b-%Y", "%b-%y", "%Y %b", "%Y %B"),
)
QUARTER = re.compile(r"(\d{4})[ -]?Q([1-4])")
EPOCHS = {1: (5e8, 5e9), 1000: (5e11, 5e12)}
"""fractions of a second -> numbers that are taken for so many since 1970 (1985 to 2128)"""
TRIED = 50
"""cells that a form must read before it is tried on all"""


class Times(NamedTuple):
    """Times of the rows of a table."""

    values: np.ndarray
    """(rows,) float64: seconds since 1970 in UTC, or the plain numbers"""
    dated: bool
    """whether they are dates"""
    mixed: tuple[int, int] | None = None
    """the first row with a zone and the first without one, where there are both"""

    def written(self, time: float) -> str:
        """One of them as text: a date in ISO form, without a clock where that is at midnight."""
        if not self.dated:
            return f"{time:g}"
        return str(np.datetime64(round(time), "s").astype(f"M8[{'s' if time % DAY else 'D'}]"))


def read_times(cells: Sequence[str]) -> Times | int:
    """Times of a column of text, or the number of the first cell that is none in any form that
    reads the others."""
    words = [cell.strip() for cell in cells]
    try:
        return _numbers(np.array([float(word) for word in words]), words)
    except ValueError:
        pass
    furthest = 0
    for form in (datetime.datetime.fromisoformat, _quarter):
        times, good = _parsed(words, form)
        if times is not None:
            zoned = [time.tzinfo is not None for time in times]
            mixed = (zoned.index(True), zoned.index(False)) if len({*zoned}) > 1 else None
            return Times(_stamps(times), True, mixed)
        furthest = max(furthest, good)
    able = []
    for date, clock in itertools.product(DATES, CLOCKS):
        times, good = _parsed(words[:TRIED], _formatted(date + clock))
        if times is not None and len(words) > TRIED:
            times, good = _parsed(words, _formatted(date + clock))
        furthest = max(furthest, good)
        if times is not None:
            able.append(_stamps(times))
    if not able:
        return furthest
    # of forms that read all, days before months or after, the one whose times are most even
    return Times(min(able, key=lambda times: len(np.unique(np.diff(np.unique(times))))), True)


def _numbers(values: np.ndarray, words: Sequence[str]) -> Times:
    if not np.isfinite(values).all():
        raise ValueError("times are finite")
    if all(len(word) == 8 and word.isdecimal() for word in words):
        compact, _ = _parsed(words, datetime.datetime.fromisoformat)  # 20240131
        if compact is not None:
            return Times(_stamps(compact), True)
    for fraction, (least, most) in EPOCHS.items():
        if ((values >= least) & (values <= most)).all():
            return Times(values / fraction, True)
    return Times(values, False)


def _parsed(words: Sequence[str], form: Parser) -> tuple[list[datetime.datetime] | None, int]:
    """All words as times, or None; and how many were read."""
    times: list[datetime.datetime] = []
    for word in words:
        try:
            times.append(form(word))
        except (ValueError, OverflowError):
            return None, len(times)
    return times, len(times)


def _stamps(times: Sequence[datetime.datetime]) -> np.ndarray:
    """(n,) seconds since 1970, of times without a zone as if they were of UTC."""
    zoned = (time if time.tzinfo else time.replace(tzinfo=datetime.UTC) for time in times)
    return np.array([time.timestamp() for time in zoned])


def _quarter(word: str) -> datetime.datetime:
    if (match := QUARTER.fullmatch(word)) is None:
        raise ValueError("no quarter")
    return datetime.datetime(int(match[1]), 3 * int(match[2]) - 2, 1)


def _formatted(form: str) -> Parser:
    return lambda word: datetime.datetime.strptime(word, form)
