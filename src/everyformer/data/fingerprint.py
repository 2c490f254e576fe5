"""Short hashes, by which data, splits and what is in the cache are told apart."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def digest(*parts: Any) -> str:
    """A short hash of plain values and bytes, the same on every machine."""
    result = hashlib.blake2b(digest_size=16)
    for part in parts:
        raw = part if isinstance(part, bytes) else json.dumps(part, sort_keys=True).encode()
        result.update(len(raw).to_bytes(8, "little") + raw)
    return result.hexdigest()
