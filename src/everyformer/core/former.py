"""Names of the version before, read for one version: of genes, their options and their flags."""

import re
import warnings
from collections.abc import Mapping
from typing import Any

from everyformer.core.errors import ConfigError

FORMER = {"wiring": "residual"}
"""gene by its name in the version before, which is read for one version -> its name now"""
_FORMER = re.compile(rf"(-*)({'|'.join(FORMER)})(?=_options$|[.=]|$)")


def name_now(name: str, warn: bool = True) -> str:
    """The name or flag of an option, which may be that of the version before, as it is now."""
    if (former := _FORMER.match(name)) is None:
        return name
    now = FORMER[former[2]]
    if warn:
        message = f"'{former[2]}' is '{now}' now: use that name, the next version knows no other"
        warnings.warn(message, FutureWarning, stacklevel=2)
    return former[1] + now + name[former.end() :]


def renamed(values: Mapping[str, Any], warn: bool = True) -> dict[str, Any]:
    """Options by their names of now (`name_now`).

    Raises:
        ConfigError: one is given by both of its names.
    """
    for old in values:
        if (new := name_now(old, False)) in values.keys() - {old}:
            raise ConfigError(f"`{new}` is given twice, as `{old}` too: leave `{old}` out")
    return {name_now(name, warn): value for name, value in values.items()}
