"""Code that is not ours, in plug-ins: where it failed, and how that is reported."""

import inspect
import re
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from sequence_laws.errors import LawsError

FAILURES = (Exception, SystemExit)
"""what code that is not ours may raise; that it ends the program is a failure, too"""
LONGEST = 300
"""letters of an error's text that are repeated"""
OURS = ("sequence_laws", "everyformer")
_LIBRARY = str(Path(sysconfig.get_path("stdlib")))
_packages: set[str] = set()
"""installed packages that bring members, by their first names"""


def note_package(module: str) -> None:
    """Note that what an installed module does is done by whoever brings a member."""
    _packages.add(module.partition(".")[0])


def describe(error: BaseException) -> str:
    """Sentence about any error: ours as it is, another with where code that is not ours raised it.

    A long text is cut.
    """
    if isinstance(error, LawsError):
        return str(error)
    where = place(error)
    at = "" if where is None else f"{where}: "
    if isinstance(error, SystemExit):
        return f"{at}the program was ended (SystemExit: {error.code}), which no code here may do"
    return f"{at}{type(error).__name__}: {cut(str(error))}".rstrip(": ")


def cut(text: str) -> str:
    """A text as one line that is not too long, without addresses in memory."""
    line = re.sub(" at 0x[0-9a-f]+", "", " ".join(text.split()))
    return line if len(line) <= LONGEST else f"{line[:LONGEST].rstrip()} ..."


def place(error: BaseException) -> str | None:
    """The last line of code that is not ours on the way to an error: file, line and function.

    None where no such code ran. Of an end of the program in none of ours, it is the last line.
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    foreign = [_where(frame, line) for frame, line in frames if _is_foreign(frame)]
    if isinstance(error, SyntaxError) and error.filename and not foreign:
        return f"{error.filename}, line {error.lineno}"
    if isinstance(error, SystemExit) and not foreign:
        foreign = [_where(frame, line) for frame, line in frames]
    return foreign[-1] if foreign else None


def source(code: Callable[..., Any] | type) -> str:
    """File and line of a function or class."""
    try:
        code = inspect.unwrap(code)
        return f"{file_name(inspect.getfile(code))}, line {inspect.getsourcelines(code)[1]}"
    except (OSError, TypeError):  # made in a prompt
        return f"{code.__module__}.{code.__qualname__}"


def file_name(path: str) -> str:
    """A file as it is reported: of an installed package, behind the folder it is installed in."""
    return re.sub("^.*(site|dist)-packages.", "", path)


def _where(frame: FrameType, line: int) -> str:
    file = file_name(frame.f_code.co_filename)
    return f"{file}, line {line}, in {frame.f_code.co_qualname}"


def _is_foreign(frame: FrameType) -> bool:
    """True if a line is neither ours nor of a library that brings no members."""
    first = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    if first in OURS or first in _packages:
        return first not in OURS
    file = frame.f_code.co_filename
    installed = {"site-packages", "dist-packages"} & set(Path(file).parts)
    return not (file.startswith(("<", _LIBRARY)) or installed)
