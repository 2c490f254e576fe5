"""Packages that an extra brings, imported where they are needed."""

import importlib
from typing import Any

from sequence_laws.errors import MissingExtraError


def extra_module(
    module: str, extra: str, purpose: str, package: str | None = None, of: str = "everyformer"
) -> Any:
    """The module of a package that only ``extra`` installs.

    Args:
        purpose: what needs it, for the message.
        package: what the package is called where it is not as its module.
        of: the distribution that has the extra.

    Raises:
        MissingExtraError: it is not installed, or fails as it is imported.
    """
    first = module.partition(".")[0]
    try:
        importlib.import_module(first)
        return importlib.import_module(module)
    except ImportError as error:
        fails = None if getattr(error, "name", None) in (first, module) else str(error)
        raise MissingExtraError(package or first, extra, purpose, fails, of) from error
