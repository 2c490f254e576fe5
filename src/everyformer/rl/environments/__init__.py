"""Environments that need no download, one file each; `register` tells gymnasium of them.

They try what the members that act are for: a memory (`MemoryTrack`, `TMaze`), credit over a long
delay (`KeyToDoor`), better paths than those in the data (`GraphPath`). The rule of a task stands
first in its file. gymnasium is imported with the file of an environment, not here.
"""

from everyformer.system.extras import extra_module

NAMESPACE = "everyformer"
FILES = {
    "MemoryTrack": "memory_track",
    "TMaze": "t_maze",
    "KeyToDoor": "key_to_door",
    "GraphPath": "graph_path",
}
"""the classes, and the module of each"""


def register() -> None:
    """Make ``everyformer/NAME-v0`` known to gymnasium in this process; a second call does nothing.

    Raises:
        MissingExtraError: gymnasium is not installed.
    """
    gymnasium = extra_module("gymnasium", "rl", "an environment")
    for name, module in FILES.items():
        if f"{NAMESPACE}/{name}-v0" not in gymnasium.registry:
            gymnasium.register(f"{NAMESPACE}/{name}-v0", f"{__name__}.{module}:{name}")
