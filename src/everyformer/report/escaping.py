"""Text of data, members and errors on a page: escaped, whatever it holds."""

from __future__ import annotations

import html
from typing import Any

_VISIBLE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
"""control character -> its picture"""


def safe(value: Any) -> str:
    """Any text as text of a page: escaped, control characters made visible."""
    text = str(value).replace("\r\n", "\n").encode("utf-8", "replace").decode("utf-8")
    return html.escape(text.translate(_VISIBLE))
