"""Errors of the library: what was received, what was expected, what to do.

Every error carries the exit code that the command line ends with: 2 for wrong usage, configuration
or input (nothing ran), 1 for a job that ran and failed.
"""

import errno
from collections.abc import Iterable
from typing import Any

from sequence_laws.errors import ConfigError as ConfigError
from sequence_laws.errors import LawsError as EveryformerError
from sequence_laws.errors import MissingExtraError as MissingExtraError
from sequence_laws.errors import PluginError as PluginError
from sequence_laws.errors import ResourceError as ResourceError
from sequence_laws.errors import ShapeError as ShapeError
from sequence_laws.errors import UnknownNameError as UnknownNameError
from sequence_laws.errors import nearest as nearest
from sequence_laws.errors import unknown as unknown


def in_quotes(error: Exception) -> str:
    """Text of an error about the contents of a file: the names in it are those of the file."""
    return str(error).replace("`", "'")


class GeneError(ConfigError):
    """Two genes of a member cannot live together; the message names both and says why."""


class UnsupportedError(EveryformerError, NotImplementedError):
    """A request for something that a member's mathematics does not have (a mask, a state ...)."""


class DataError(EveryformerError, ValueError):
    """Input data is missing, empty, corrupt or too short."""


class CheckpointError(EveryformerError, RuntimeError):
    """A saved model or run cannot be read, or does not fit what it is loaded into."""


class UnsavedError(CheckpointError):
    """A result that could not be written."""

    exit_code = 1


class LostError(EveryformerError, RuntimeError):
    """The other processes of a run cannot be reached."""

    exit_code = 1


class DivergedError(EveryformerError, ArithmeticError):
    """A loss, scores or weights are not finite numbers."""

    exit_code = 1


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""reasons of a system that lie in the disk"""
_WRONG_PATH = (
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST),
    *(errno.EACCES, errno.EPERM, errno.EROFS),
)
"""reasons that lie in the request"""


def unwritable(path: object, error: Exception) -> UnsavedError:
    """Error about a system that refused to write at ``path``."""
    reason = getattr(error, "strerror", None) or str(error)
    if "No space left" in str(error):
        reason = "the disk is full"
    if getattr(error, "errno", None) in _WRONG_PATH:
        refused = UnsavedError(f"cannot write {path}: {reason}; choose another place")
        refused.exit_code = 2
        return refused
    return UnsavedError(
        f"cannot write {path}: {reason}; what was there before is untouched. Free some space or "
        "choose another place"
    )


def refused_by_system(error: OSError) -> EveryformerError:
    """Error about a refusal that nobody expected where it came."""
    if error.errno in (*_FULL, errno.EROFS):
        return unwritable(error.filename or "the output", error)
    where = "" if error.filename is None else f" {error.filename}"
    return EveryformerError(
        f"the system refused{where}: {error.strerror or error}; see that what was named exists, "
        "and that its disk, its permissions and this user's limits allow it"
    )


def require_word(name: str, word: Any, known: Iterable[str]) -> None:
    """Refuse a ``word`` given as ``name`` that is none of those that are ``known``."""
    names = tuple(known)
    if word not in names:
        raise ConfigError(f"`{name}` cannot be {word!r}; {nearest(str(word), names)}")
