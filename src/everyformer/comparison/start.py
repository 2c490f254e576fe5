"""`python -m everyformer.comparison.start MODULE FOLDER SHARED [WORD]`: a process of a comparison.

It tells that it lives from its first moment on, while what it is for is still being imported.
SHARED is the descriptor that `Pulse.lend` gave to the program that started it, or ``-``.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from everyformer.comparison.processes import stop_with_parent
from everyformer.core.pulse import Pulse


def run(module: str, folder: str, shared: str, *words: str) -> int:
    """The exit code of ``main(folder, *words)`` of a module of this package."""
    stop_with_parent()
    with Pulse("starting a process", None if shared == "-" else int(shared)):
        main = importlib.import_module(f"everyformer.comparison.{module}").main
        code: int = main(Path(folder), *words)
        return code


if __name__ == "__main__":
    sys.exit(run(*sys.argv[1:]))
