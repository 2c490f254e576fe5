"""Names and numbers of things within a sentence."""

from collections.abc import Sequence

MOST_NAMES = 6
"""names that a sentence lists before it counts the rest"""
NOT_WRITING = "not strictly autoregressive, so no measure of what it writes"
"""of the loss of a model that leaks"""


def join_names(names: Sequence[str], word: str = "and") -> str:
    """a, b and c."""
    return f" {word} ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def join_first(names: Sequence[str], most: int = MOST_NAMES) -> str:
    """a, b and c; of many the first ones: a, b, c, d, e, f and 25 more."""
    if len(names) <= most:
        return join_names(names)
    return f"{', '.join(names[:most])} and {len(names) - most:,} more"


def shortened(text: str, most: int, *, end: bool = False) -> str:
    """The beginning of a text, or its ``end``, in so many letters with the … of what is left out;
    a shorter one as it is."""
    if len(text) <= most:
        return text
    return f"…{text[1 - most :]}" if end else f"{text[: most - 1]}…"


def pluralise(count: int, what: str) -> str:
    """1 row, 2,000 rows."""
    return f"{count:,} {what}{'s' * (count != 1)}"


def duration(seconds: float) -> str:
    """45 s, 3 min 20 s, 2 h 5 min."""
    minutes, rest = divmod(round(seconds), 60)
    hours, left = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {left} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
