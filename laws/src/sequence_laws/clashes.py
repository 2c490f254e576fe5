"""What an error of code that is not ours is about: two dtypes, and the lines that led to it."""

import re
import traceback

from sequence_laws.foreign import OURS, file_name

_CLASH = re.compile(
    "same d(ata ?)?type|dtypes? match|type.* should be the same|dtype to be equal|mixed dtype"
    r"|expected (scalar type )?\w+ but found \w+",
    re.IGNORECASE,
)
"""what torch says of one operation that is given two dtypes"""


def is_clash(error: BaseException) -> bool:
    """Whether an operation was given numbers of two dtypes."""
    return isinstance(error, RuntimeError) and _CLASH.search(str(error)) is not None


def their_lines(error: BaseException) -> list[str]:
    """File and line of each step to an error in code that is neither ours nor torch's."""
    others = (*OURS, "torch", "triton")
    return [
        f"{file_name(frame.f_code.co_filename)}, line {line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] not in others
        and not frame.f_code.co_filename.startswith("<")
    ]
