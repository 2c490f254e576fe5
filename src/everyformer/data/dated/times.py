"""Times of a column, as seconds or plain numbers, and `Step`, the distance from one to the next."""

import datetime
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Parser = Callable[[str], datetime.datetime]

DAY = 86_400
FRIDAY = 1
"""days since Thursday, 1 January 1970, less whole weeks"""
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
SEASONS = {60: 60, 3600: 24, DAY: 7, 7 * DAY: 52}
"""seconds of a step -> steps of a season; below a day that is a day"""
MOST_SEASON = 1440
"""steps of a season that is guessed, at most"""
ONE_CLOCK = "write the zone behind every time (+01:00), or behind none"
"""what to do about times of which some have a zone"""
UNITS = ((7 * DAY, "week"), (DAY, "day"), (3600, "hour"), (60, "minute"), (1, "second"))


@dataclass(frozen=True)
class Times:
    """Times of the rows of a table."""

    values: np.ndarray
    """(rows,) float64: seconds since 1970 in UTC, or the plain numbers"""
    dated: bool
    """whether they are dates"""
    note: str | None = None
    """a guess at their form, or that they are told in another"""
    zoned: bool = False
    """whether they were read with their zones, so that they are written with that of UTC"""
    mixed: tuple[int, int] | None = None
    """the first row with a zone and the first without one, where there are both"""


@dataclass(frozen=True)
class Step:
    """Distance from one time of a series to the next."""

    unit: Literal["month", "weekday", "second", "number", "row"]
    """of calendars, of clocks, of plain numbers; row: times are irregular and only counted"""
    count: float
    """units; of rows, the median distance in seconds or numbers"""
    dated: bool = True
    within: float = 0.0
    """of months: seconds after their beginning, on their last day where they are shorter"""
    zoned: bool = False
    """as of `Times`"""

    def index(self, times: np.ndarray) -> np.ndarray:
        """(n,) numbers of the steps at which ``times`` lie; whole where they are on the grid."""
        if self.unit == "month":
            return _months(times) / self.count
        if self.unit == "weekday":
            return np.busday_count("1970-01-01", _days(times)).astype(np.float64)
        return times / self.count

    def after(self, time: float, steps: np.ndarray) -> np.ndarray:
        """(n,) times that lie so many steps after ``time``."""
        if self.unit == "month":
            return _in_months(_months(time) + (steps * self.count).astype(np.int64), self.within)
        if self.unit == "weekday":
            moved = np.busday_offset(_days(time), steps.astype(np.int64))
            return moved.astype("datetime64[s]").astype(np.float64) + time % DAY
        return time + steps * self.count

    @property
    def season(self) -> int:
        """Steps after which a series may repeat itself; 1 where nothing says so."""
        if self.unit == "month":
            return max(1, round(12 / self.count)) if 12 % self.count == 0 else 1
        if self.unit == "weekday":
            return 5
        if self.unit != "second":
            return 1
        if self.count in SEASONS:
            return SEASONS[int(self.count)]
        a_day = DAY / self.count
        return int(a_day) if self.count < DAY and a_day.is_integer() and a_day <= MOST_SEASON else 1

    def __str__(self) -> str:
        """Frequency in words: 'daily', 'every 15 minutes', 'monthly', 'in steps of 1'."""
        if self.unit == "row":
            return "at irregular times"
        if self.unit == "number":
            return f"in steps of {self.count:g}"
        if self.unit == "weekday":
            return "on weekdays"
        if self.unit == "month":
            named = {1: "monthly", 3: "quarterly", 12: "yearly"}
            return named.get(int(self.count)) or f"every {self.count:g} months"
        size, name = next((s, n) for s, n in UNITS if self.count % s == 0 or s == 1)
        many = self.count / size
        if many == 1:
            return {"day": "daily", "hour": "hourly", "week": "weekly"}.get(name, f"every {name}")
        return f"every {many:g} {name}s"


def read_times(cells: Sequence[Any]) -> Times | int:
    """Times of a column of text, numbers, or dates of Parquet; or the number of the first cell
    that is none in any form that reads the others."""
    if cells and all(isinstance(cell, datetime.date) for cell in cells):
        return _dated(cells)
    words = [str(cell).strip() for cell in cells]
    try:
        return _numbers(np.array([float(word) for word in words]), words)
    except ValueError:
        pass
    furthest = 0
    for form in (_iso, _quarter):
        result, good = _parsed(words, form)
        if result is not None:
            return _dated([form(word) for word in words])
        furthest = max(furthest, good)
    able = []
    for date, clock in itertools.product(DATES, CLOCKS):
        result, good = _parsed(words[:TRIED], _formatted(date + clock))
        if result is not None and len(words) > TRIED:
            result, good = _parsed(words, _formatted(date + clock))
        furthest = max(furthest, good)
        if result is not None:
            able.append((len(np.unique(np.diff(np.unique(result)))), date, result))
    if not able:
        return furthest
    # of forms that read all, days before months or after, the one whose times are most even
    fewest = min(distances for distances, _, _ in able)
    _, date, result = next(one for one in able if one[0] == fewest)
    if len({one[2].tobytes() for one in able}) == 1:
        return Times(result, True)
    order = "day" if date.find("%d") < date.find("%m") else "month"
    return Times(result, True, f"dates are read with the {order} first")


def step_of(series: Sequence[np.ndarray], dated: bool) -> Step:
    """The step of several series, (n,) ascending different times each: the commonest distance, of
    which all must be multiples, or days of a week's five, or months; else rows are counted."""
    distances = np.concatenate([np.diff(times) for times in series])
    if not len(distances):
        return Step("row", 1.0, dated)
    if dated:
        times = np.concatenate(series)
        if (within := _within_months(times, distances)) is not None:
            months = np.concatenate([np.diff(_months(one)) for one in series])
            return Step("month", int(np.gcd.reduce(months)), within=within)
        days = _days(times)
        whole = bool((distances % DAY == 0).all()) and bool(np.is_busday(days).all())
        fridays = _days(np.concatenate([one[:-1] for one in series])).astype(np.int64) % 7 == FRIDAY
        if whole and (fridays & (distances == 3 * DAY)).any() and (distances == DAY).any():
            return Step("weekday", 1.0)
    values, counts = np.unique(distances, return_counts=True)
    commonest = float(values[counts.argmax()])
    multiples = np.abs(distances / commonest - np.rint(distances / commonest)) < 1e-6
    if not multiples.all():
        return Step("row", float(np.median(distances)), dated)
    return Step("second" if dated else "number", commonest, dated)


def written(times: np.ndarray, dated: bool, zoned: bool = False) -> list[str]:
    """Times as text: dates in ISO form, without a clock where all are at midnight of no zone."""
    if not dated:
        return [f"{time:g}" for time in times.tolist()]
    whole = not zoned and not (times % DAY).any()
    unit = "datetime64[D]" if whole else "datetime64[s]"
    stamps = np.rint(times).astype("datetime64[s]").astype(unit)
    return [f"{stamp}{'Z' if zoned else ''}" for stamp in stamps]


def _numbers(values: np.ndarray, words: Sequence[str]) -> Times:
    if not np.isfinite(values).all():
        raise ValueError("times are finite")
    if all(len(word) == 8 and word.isdecimal() for word in words):
        compact, _ = _parsed(words, _iso)  # 20240131
        if compact is not None:
            return Times(compact, True)
    for fraction, (least, most) in EPOCHS.items():
        if ((values >= least) & (values <= most)).all():
            unit = "seconds" if fraction == 1 else "milliseconds"
            return Times(values / fraction, True, f"times are taken for {unit} since 1970")
    return Times(values, False)


def _parsed(words: Sequence[str], form: Parser) -> tuple[np.ndarray | None, int]:
    """All words as seconds, or None; and how many were read."""
    stamps: list[float] = []
    for word in words:
        try:
            stamps.append(_stamp(form(word)))
        except (ValueError, OverflowError):
            return None, len(stamps)
    return np.array(stamps), len(stamps)


def _stamp(time: datetime.date) -> float:
    """Seconds since 1970, of a time without a zone as if it were of UTC."""
    if not isinstance(time, datetime.datetime):
        time = datetime.datetime(time.year, time.month, time.day)
    if time.tzinfo is None:
        time = time.replace(tzinfo=datetime.UTC)
    return time.timestamp()


def _dated(times: Sequence[datetime.date]) -> Times:
    """Dates as `Times`; those with a zone are not written as they were read, which is remarked."""
    zoned = [getattr(time, "tzinfo", None) is not None for time in times]
    mixed = (zoned.index(True), zoned.index(False)) if len({*zoned}) > 1 else None
    note = "times are told in UTC" if any(zoned) else None
    return Times(np.array([_stamp(time) for time in times]), True, note, any(zoned), mixed)


def _iso(word: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(word)


def _quarter(word: str) -> datetime.datetime:
    if (match := QUARTER.fullmatch(word)) is None:
        raise ValueError("no quarter")
    return datetime.datetime(int(match[1]), 3 * int(match[2]) - 2, 1)


def _formatted(form: str) -> Parser:
    return lambda word: datetime.datetime.strptime(word, form)


def _days(times: np.ndarray | float) -> np.ndarray:
    return np.floor(np.asarray(times) / DAY).astype(np.int64).astype("datetime64[D]")


def _months(times: np.ndarray | float) -> np.ndarray:
    return _days(times).astype("datetime64[M]").astype(np.int64)


def _month_start(months: np.ndarray) -> np.ndarray:
    return months.astype("datetime64[M]").astype("datetime64[s]").astype(np.float64)


def _in_months(months: np.ndarray, within: float) -> np.ndarray:
    """Times so many seconds after the beginning of months, in shorter ones on their last day."""
    last = _month_start(months + 1) - DAY
    return np.minimum(_month_start(months) + within, last + within % DAY)


def _within_months(times: np.ndarray, distances: np.ndarray) -> float | None:
    """Seconds after the beginning of their months at which all times are; None where they are not.

    Those that are all on last days have the 31st.
    """
    if distances.min() < 28 * DAY:
        return None
    months = _months(times)
    largest = float((times - _month_start(months)).max())
    for within in (30.0 * DAY + largest % DAY, largest):
        if (_in_months(months, within) == times).all():
            return within
    return None
