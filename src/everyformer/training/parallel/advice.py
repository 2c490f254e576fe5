"""Which way of splitting a model of a given size asks for.

    held        16 N bytes: float32 weights, gradients and AdamW's two moments of N parameters
    a step      moves 8 N bytes a process (DDP sums gradients, FSDP gathers weights twice and sums
                gradients) and computes 6 N T operations on its T tokens, so both take equally long
                at T = 8/6 speed / bandwidth, whatever N

Sources: Rajbhandari et al. 2020, arXiv 1910.02054, section 3.1 (16 N); Kaplan et al. 2020, arXiv
2001.08361, section 2.1 (6 N T).
"""

from dataclasses import dataclass
from typing import NamedTuple

from everyformer.system.memory import size

HELD, MOVED, COMPUTED = 16, 8, 6
"""bytes held, bytes moved, and operations a token, of each parameter"""
ROOM = 0.5
"""share of a process's memory for what is held; activations have the rest"""


@dataclass(frozen=True)
class Cluster:
    """Memory and speed of the processes."""

    processes: int
    nodes: int
    memory: float
    """bytes a process"""
    speed: float
    """operations a second of one, in products of matrices"""
    bandwidth: float | None
    """bytes a second between two; None with one process"""


class Way(NamedTuple):
    """A way of splitting, and the reason."""

    parallel: str
    why: str


def overlap(cluster: Cluster) -> float | None:
    """Tokens a process reads in a step at which moving and computing take equally long."""
    if cluster.bandwidth is None:
        return None
    return MOVED / COMPUTED * cluster.speed / cluster.bandwidth


def split(parameters: int, cluster: Cluster) -> Way:
    """The best way of sharing the weights and rows of a model with so many parameters."""
    held, room = HELD * parameters, ROOM * cluster.memory
    node = cluster.processes // cluster.nodes
    needs = f"{size(held)} of weights, gradients and moments"
    if held <= room:
        return Way("ddp", f"{needs} fit beside activations in the {size(cluster.memory)} of each")
    if cluster.nodes > 1 and held / node <= room:
        return Way(
            "hybrid", f"{needs} fit in one node's {node} processes, between which it is fast"
        )
    if held / cluster.processes <= room:
        return Way("fsdp", f"{needs} fit in {cluster.processes} processes together")
    wanted = -(-held // int(room))
    return Way(
        "none", f"{needs} need {wanted:,} processes of {size(cluster.memory)}, or a smaller model"
    )
