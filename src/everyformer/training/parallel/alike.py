"""A check that processes which train together still hold one model."""

import hashlib

import torch
import torch.distributed as dist
from torch import Tensor, nn

from everyformer.core.errors import PluginError
from everyformer.core.foreign import source
from everyformer.training.parallel.world import World


def check_alike(model: nn.Module, world: World) -> None:
    """Refuse buffers that differ between processes: no gradient brings those together again.

    Raises:
        PluginError: names the first one, and the part of the model that moves it.
    """
    buffers = dict(model.named_buffers())
    if world.size == 1 or not buffers:
        return
    least = torch.tensor([_hash(buffer) for buffer in buffers.values()], device=world.device)
    most = least.clone()
    dist.all_reduce(least, dist.ReduceOp.MIN)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    for name, same in zip(buffers, (least == most).tolist(), strict=True):
        if not same:
            part = type(model.get_submodule(name.rpartition(".")[0]))
            raise PluginError(
                f"the buffer '{name}', which {part.__name__} ({source(part)}) moves, differs "
                f"between the {world.size} processes of this run: what moves without a gradient "
                "has to be summed over them once a step (`Mixer.end_step`)"
            )


def _hash(tensor: Tensor) -> int:
    raw = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return int.from_bytes(hashlib.blake2b(raw, digest_size=7).digest(), "big")
