"""Words of one of several processes that were started together, as ``torchrun`` starts them.

The first speaks to the user; the others are silent but for the error that ends them. ``torchrun``
is given that error too, and shows it in its summary.
"""

import contextlib
import os
import sys
import time
from collections.abc import Iterator

from everyformer.system.plain import to_json

ERRORS = "TORCHELASTIC_ERROR_FILE"
"""names the file that torchrun reads a process's error from"""


def place() -> tuple[int, int]:
    """Rank of this process, and how many there are; what is no number is refused later, where it
    is needed (`everyformer.training.parallel.world.read_launch`)."""
    texts = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    if not all(text.isascii() and text.isdecimal() for text in texts):
        return 0, 1
    rank, size = map(int, texts)
    return rank, size


@contextlib.contextmanager
def spoken() -> Iterator[None]:
    """A block in which this process speaks if it is the first of its run."""
    rank, size = place()
    if size > 1:
        # warnings of torch's own C++ code, once a process; read when torch is imported
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if rank == 0:
        yield
        return
    with (
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        yield


def tell(sentence: str) -> None:
    """Say an error that ends this process."""
    rank, size = place()
    whose = f" [process {rank + 1} of {size}]" if size > 1 else ""
    with contextlib.suppress(OSError):  # nobody can be told
        print(f"everyformer{whose}: {sentence}", file=sys.stderr)
    if ERRORS in os.environ:
        about = {"py_callstack": sentence, "timestamp": str(int(time.time()))}
        with contextlib.suppress(OSError), open(os.environ[ERRORS], "w", encoding="utf-8") as file:
            file.write(to_json({"message": {"message": sentence, "extraInfo": about}}))
