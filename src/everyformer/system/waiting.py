"""Threads of OpenMP that wait for the next part of their work spin only briefly.

By its own rule a waiting thread turns in a loop, about 300,000 times, before it sleeps. That is the
quickest on a machine that does nothing else, and the slowest with other work: the thread that is
waited for cannot run while those that wait use up the cores. With 10,000 turns a training on two
cores was measured to be as quick when it was alone, and half as quick again with one or two busy
processes. The library reads this once, when torch is loaded.
"""

import os
import sys

SPINS = "10000"
CHOSEN = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME")
"""what a user may have set; then that holds"""


def wait_briefly() -> bool:
    """Let waiting threads spin briefly, in this process and those it starts; whether it was done.

    Not once torch is loaded, nor where the user has chosen.
    """
    if "torch" in sys.modules or any(name in os.environ for name in CHOSEN):
        return False
    os.environ["GOMP_SPINCOUNT"] = SPINS
    return True
