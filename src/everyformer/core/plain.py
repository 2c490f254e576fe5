"""Plain values out of text that anybody may have written: JSON and TOML, strictly.

Python's readers take NaN and Infinity, which JSON does not have, and end in a RecursionError where
lists stand in lists a thousand deep. Here both are a ValueError, which callers turn into a sentence
that names the file.
"""

from __future__ import annotations

import json
import tomllib
from typing import Any, NoReturn


def from_json(text: str | bytes) -> Any:
    """The value that ``text`` is.

    Raises:
        ValueError: it is no JSON, holds NaN or infinity, or is nested too deeply.
    """
    try:
        return json.loads(text, parse_constant=_no_number)
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


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")
