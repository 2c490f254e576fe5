"""Packages that an extra brings, imported where they are needed."""

import importlib
from typing import Any

from everyformer.core.errors import MissingExtraError


def extra_module(module: str, extra: str, purpose: str, package: str | None = None) -> Any:
    """The module of a package that only ``extra`` installs.

    Args:
        purpose: what needs it, for the message.
        package: what the package is called where it is not as its module.

    Raises:
        MissingExtraError: it is not installed.
    """
    first = module.partition(".")[0]
    try:
        importlib.import_module(first)
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(package or first, extra, purpose) from error
