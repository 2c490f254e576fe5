"""`weights_by_step`: which earlier steps a policy's layers read at each step that it played."""

import numpy as np

from everyformer.core.errors import UnsupportedError
from everyformer.core.trace import Trace
from everyformer.genes.memory.base import memories_of
from everyformer.genes.memory.segment import SegmentMemory
from everyformer.genes.mixers.attention import Attention
from everyformer.models.policy import PolicyModel


def weights_by_step(model: PolicyModel, traced: Trace, most: int) -> dict[str, np.ndarray]:
    """Weights (heads, T, T) by module path: a row the step that acts, a column the one it reads.

    The slots of keys that a layer reads for one row are those of the last steps, whichever episode
    these were of; what a layer no longer has is NaN.

    Args:
        traced: of one environment, step by step, one episode after the other.
        most: T, at most; later steps are left out.

    Raises:
        UnsupportedError: the slots that layers read are not the last steps, or they read none.
    """
    member = model.config.member
    if not all(isinstance(memory, SegmentMemory) for memory in memories_of(model)):
        raise UnsupportedError(
            f"what {member} remembers are not its last steps one by one, so those that it reads "
            "cannot be drawn; a memory of segments or none can"
        )
    readers = {path for path, part in model.named_modules() if isinstance(part, Attention)}
    kept = {path: result["weights"] for path, result in traced.records.items() if path in readers}
    if not kept:
        raise UnsupportedError(
            f"{member} reads no earlier steps by the weights of attention, so there are none to "
            "draw; gtrxl, transformer-xl and attention do"
        )
    result = {}
    for path, calls in kept.items():
        steps = min(len(calls), most)
        result[path] = np.full((calls[0].shape[1], steps, steps), np.nan)
        for step, weights in enumerate(calls[:steps]):
            first = step + 1 - weights.shape[-1]
            result[path][:, step, first : step + 1] = weights[0, :, 0].float().cpu()
    return result
