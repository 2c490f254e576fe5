"""Names of a package that are imported when they are first used, so that the package opens fast."""

import importlib
import sys
from collections.abc import Callable
from typing import Any


def late_names(package: str, homes: dict[str, str]) -> Callable[[str], Any]:
    """The ``__getattr__`` of ``package``.

    Args:
        homes: by name the module below the package that has it, as ``module:other`` where it is
            called otherwise there, as ``module:`` where the module itself is meant.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, colon, other = homes[name].partition(":")
        home = importlib.import_module(f"{package}.{module}")
        value = home if colon and not other else getattr(home, other or name)
        setattr(sys.modules[package], name, value)
        return value

    return find
