"""Fingerprints of weights, by which changes are noticed.

Torch counts in-place changes of a tensor, but not those of fused optimisers, of ``.data`` and of
inference mode; and a sum of all numbers stays as it is under a permutation. A fingerprint is a few
numbers of every tensor, in order: what moves weights at all moves those too, and reading them costs
a few microseconds a tensor.
"""

import hashlib
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from everyformer.system.plain import to_json

SAMPLES = 16
"""numbers of a tensor, evenly spread"""


@torch.no_grad()
def fingerprint(tensors: Iterable[Tensor]) -> Tensor:
    """A vector of numbers of ``tensors``, on the device of the first of them."""
    taken = []
    for weight in tensors:
        # of one that is split over processes, the part that lies here
        own: Callable[[], Tensor] | None = getattr(weight, "to_local", None)
        tensor = weight if own is None else own()
        step = max(1, tensor.numel() // SAMPLES)
        taken.append(tensor.detach().reshape(-1)[::step])
    if not taken:
        return torch.empty(0)
    return torch.cat([one.to(taken[0].device) for one in taken])


def unchanged(before: Tensor | None, now: Tensor) -> bool:
    """True if two fingerprints are those of the same weights; None is of none."""
    if before is None or (before.shape, before.dtype) != (now.shape, now.dtype):
        return False
    same = before.device == now.device
    return same and (now.is_meta or torch.equal(before, now))


def raw_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a tensor's numbers, in order."""
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data


def weights_digest(model: nn.Module) -> str:
    """A short hash of all weights by name, the same on every machine: of a model, for good."""
    result = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(model.state_dict().items()):
        for part in (to_json(name).encode(), raw_bytes(tensor)):
            result.update(len(part).to_bytes(8, "little") + part)
    return result.hexdigest()
