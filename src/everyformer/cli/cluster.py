"""`everyformer doctor --cluster`: what processes see of each other, and how to split a model."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Any

from everyformer.core.errors import ConfigError
from everyformer.family import info

if TYPE_CHECKING:
    from everyformer.training.parallel.world import World

SENT, TIMES = 1 << 22, 5
"""bytes that are sent from one process to another and back, and how often"""
VOCABULARY = 50_000
"""tokens of the model that is spoken of"""


def examine(member: str | None, width: int, layers: int, length: int, speed: float) -> dict:
    """Facts of the cluster, and with a member the ways that its model asks for.

    Args:
        speed: GFLOP/s of this process.

    Raises:
        ConfigError: the environment that torchrun sets contradicts itself.
    """
    from everyformer.system.memory import free_memory, size
    from everyformer.training.parallel import advice
    from everyformer.training.parallel.world import join

    with join("auto") as world:
        hosts = world.gathered(socket.gethostname())
        nodes = len(set(hosts))
        free = min(world.gathered(_memory(world) or free_memory() / hosts.count(hosts[0])))
        slowest = min(world.gathered(speed)) * 1e9
        bandwidth = _bandwidth(world)
    cluster = advice.Cluster(world.size, nodes, free, slowest, bandwidth)
    overlap = advice.overlap(cluster)
    facts: dict[str, Any] = {
        "processes": world.size,
        "nodes": nodes,
        "device": str(world.device),
        "memory": f"{size(free)} a process",
        "speed": f"{slowest / 1e9:.4g} GFLOP/s a process",
        "bandwidth": "unknown (one process)" if bandwidth is None else f"{size(bandwidth)}/s",
    }
    if overlap is not None:
        facts["tokens"] = f"{overlap:,.0f} a process and step at which moving takes as long"
    if member is None:
        return {"cluster": facts}
    count = parameters(member, width, layers, length)
    held = f"{count:,} parameters, {VOCABULARY:,} tokens, length {length:,}"
    return {"cluster": facts, "ways": {"model": held, "weights": advice.split(count, cluster)}}


def parameters(member: str, width: int, layers: int, length: int) -> int:
    """How many a language model of the member has; nothing is computed.

    Raises:
        ConfigError: it predicts no next token.
    """
    import torch

    from everyformer import create_model

    if "lm" not in info(member).tasks:
        raise ConfigError(f"'{member}' predicts no next token: ask of a member with the task lm")
    heads = max(1, width // 64)
    with torch.device("meta"):
        made = create_model(
            member, width=width, heads=heads, layers=layers, max_length=length,
            vocabulary=VOCABULARY,
        )  # fmt: skip
    return sum(weight.numel() for weight in made.parameters())


def _memory(world: World) -> float | None:
    """Bytes of the accelerator, if there is one."""
    import torch

    if world.device.type != "cuda":
        return None
    return float(torch.cuda.get_device_properties(world.device).total_memory)


def _bandwidth(world: World) -> float | None:
    """Bytes a second from the first process to the last one and back, the best of some."""
    import torch
    import torch.distributed as dist

    if world.size == 1:
        return None
    data, other, seconds = torch.zeros(SENT // 4, device=world.device), world.size - 1, []
    for _ in range(TIMES):
        dist.barrier()
        start = time.perf_counter()
        if world.first:
            dist.send(data, other)
            dist.recv(data, other)
        elif world.rank == other:
            dist.recv(data, 0)
            dist.send(data, 0)
        float(data[0])
        seconds.append(time.perf_counter() - start)
    return world.from_first([2 * SENT / min(seconds)])[0]
