"""`Given`: options as they were given in one place, before they are typed."""

from dataclasses import dataclass
from typing import Any, TypeVar

from everyformer.core.config import from_dict
from everyformer.core.errors import ConfigError, Spelled

C = TypeVar("C")


@dataclass(frozen=True)
class Given:
    """Options that were given in one place, as nested plain values by field."""

    values: dict[str, Any]
    where: str = ""
    """before their names in refusals: -- of flags"""
    file: str | None = None
    """the config file, if they were read from one"""

    def over(self, base: C) -> C:
        """``base`` with these options in place of its own.

        Raises:
            ConfigError: see `from_dict`; that of a file names it.
        """
        try:
            return from_dict(type(base), self.values, self.where, base)
        except ConfigError as error:
            if self.file is None:
                raise
            raise Spelled(f"{self.file}: {error}") from error
