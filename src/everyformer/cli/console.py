"""Results on stdout: tables for people, JSON for programs."""

from collections.abc import Mapping
from typing import Any

from everyformer.core.columns import table as table
from everyformer.system.plain import to_json


def facts(values: Mapping[str, Any]) -> str:
    """One named value a line."""
    width = max(map(len, values), default=0)
    rows = ((k, f"{v:.6g}" if isinstance(v, float) else v) for k, v in values.items())
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def emit(values: Any) -> None:
    """Machine output: JSON on stdout."""
    print(to_json(values, indent=2))
