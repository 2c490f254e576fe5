"""Errors: what was received, what was expected, what to do.

Every error carries the exit code that a command line ends with: 2 for wrong usage, configuration
or input (nothing ran), 1 for a job that ran and failed.
"""

import difflib
from collections.abc import Iterable


class LawsError(Exception):
    """Base of all errors raised on purpose by this library, and by everyformer."""

    exit_code: int = 2


class ConfigError(LawsError, ValueError):
    """An option, a configuration file or a combination of them is wrong."""


class UnknownNameError(ConfigError, KeyError):
    """A name that nothing is registered under; the message offers the nearest ones."""

    def __str__(self) -> str:
        return str(self.args[0])


class ShapeError(LawsError, ValueError):
    """A tensor has another shape or dtype than the call expects."""


class PluginError(LawsError, RuntimeError):
    """A plug-in failed, ended the program, or gave something else than it must."""

    exit_code = 1


class MissingExtraError(LawsError, ImportError):
    """An optional dependency is needed; the message names the extra that brings it, or, where it is
    there and fails, what it says. ``of``: the distribution that has the extra."""

    def __init__(
        self,
        package: str,
        extra: str,
        purpose: str,
        fails: str | None = None,
        of: str = "everyformer",
    ) -> None:
        what = f"which cannot be imported ({fails})" if fails else "which is not installed"
        super().__init__(
            f"{purpose} needs the package '{package}', {what}; "
            f"install it with: pip install '{of}[{extra}]'"
        )


class ResourceError(LawsError, MemoryError):
    """A request that is larger than this machine; the message holds both numbers."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A half-sentence that offers the names closest to ``name``; all of them when none is close."""
    names = sorted(set(known))
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return "did you mean " + " or ".join(f"'{c}'" for c in close) + "?"
    return "known: " + ", ".join(names) if names else "nothing is known under such names"


def unknown(kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
    """The error for a ``kind`` (member, option, verb ...) that does not exist."""
    return UnknownNameError(f"unknown {kind} '{name}'; {nearest(name, known)}")
