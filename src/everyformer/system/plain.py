"""Plain values as text, JSON, and out of text that anybody may have written: JSON and TOML.

JSON has no infinity and no NaN. They are written as MongoDB's Extended JSON writes them, which any
reader of JSON takes and which cannot be mistaken for a text of somebody's (a class named "nan"):

    {"$numberDouble": "Infinity"}    "-Infinity"    "NaN"

Python's reader takes bare NaN and Infinity and ends in a RecursionError where lists stand in lists
a thousand deep. Here both are a ValueError, which callers turn into a sentence that names the file.
"""

import json
import math
import tomllib
from typing import Any, NoReturn

TAG = "$numberDouble"
"""the one name of a table that stands for a number"""
NUMBERS = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}


def to_json(value: Any, **layout: Any) -> str:
    """``value`` as JSON that `from_json` reads; ``layout`` is that of `json.dumps`."""
    return json.dumps(_tagged(value), allow_nan=False, **layout)


def from_json(text: str | bytes, unique: bool = False) -> Any:
    """The value that ``text`` is.

    Args:
        unique: refuse a table in which a name stands twice; else the last one counts.

    Raises:
        ValueError: it is no JSON, holds NaN or infinity by name, or is nested too deeply.
    """
    table = _once if unique else dict
    try:
        return json.loads(
            text,
            parse_constant=_no_number,
            object_pairs_hook=lambda pairs: _untagged(table(pairs)),
        )
    except RecursionError:
        raise ValueError("its tables and lists are nested too deeply") from None


def from_toml(text: str) -> dict[str, Any]:
    """The table that ``text`` is.

    Raises:
        ValueError: it is no TOML, or is nested too deeply.
    """
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("its tables and lists are nested too deeply") from None


def _tagged(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {TAG: "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"}
    if isinstance(value, dict):
        return {key: _tagged(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_tagged(inner) for inner in value]
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise ValueError(f"'{name}' stands twice in a table")
        values[name] = value
    return values


def _untagged(values: dict[str, Any]) -> Any:
    if len(values) == 1 and isinstance(word := values.get(TAG), str):
        return NUMBERS.get(word, values)
    return values


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")
