"""`sequence-laws` as a process, `python -m sequence_laws`."""

import gc
import sys

from sequence_laws.command import main


def run() -> int:
    """`main`, of a process that ends with it."""
    # what libraries make as they are imported, hundreds of thousands of objects, is no garbage
    gc.set_threshold(100_000)
    try:
        return main()
    finally:
        gc.freeze()  # or all of it is looked through as the process ends, for a second


if __name__ == "__main__":
    sys.exit(run())
