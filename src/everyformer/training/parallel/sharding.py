"""Weights, gradients and moments split over processes, by torch's FSDP2 (`fully_shard`).

Each process holds a part of every weight. A unit's weights (`Stack.units`: a block, where blocks
are called one by one) are gathered when it runs, forward and backward, and let go of afterwards;
its gradients are summed to where the parts are. So every pass needs all processes, held-out text
included (`everyformer.training.evaluate`).

Source: torch.distributed.fsdp.fully_shard; Zhao et al. 2023, arXiv 2304.11277.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, Shard

from everyformer.core.errors import ConfigError
from everyformer.engines.ranges import HALF
from everyformer.training.parallel.shared import Shared


class Sharded(Shared):
    """A model whose weights are split.

    Args:
        model: on its device, the same on all processes; its parameters are replaced by their parts.
        shards: processes that hold one copy between them, a divisor of how many there are.
        device: of this process.
    """

    def __init__(self, model: nn.Module, shards: int, device: torch.device) -> None:
        super().__init__(model)
        mesh = _mesh(shards, device)
        # what an optimiser reads of a parameter is to be said of its part too
        attributes = {name: dict(vars(weight)) for name, weight in model.named_parameters()}
        half = any(weight.dtype in HALF for weight in model.parameters())
        rules: dict[str, Any] = {
            "mesh": mesh,
            "mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.float32 if half else None),
            "shard_placement_fn": lambda weight: Shard(_cut(weight, shards)),
        }
        for stack in [part for part in model.modules() if hasattr(part, "units")]:
            units: Any = stack.units
            for unit in units():
                fully_shard(unit, **rules)
            if isinstance(stack, FSDPModule):
                register_fsdp_forward_method(stack, "read_context")
        fully_shard(model, **rules)
        self.module.set_reduce_scatter_unused_params(True)
        weights = dict(model.named_parameters())
        if weights.keys() != attributes.keys():
            torn = sorted(weights.keys() - attributes.keys())[0]
            raise ConfigError(
                f"'{torn}' is a weight of two parts of the model that are gathered apart, which "
                "splitting would make into two: train it with `parallel` ddp"
            )
        for name, weight in weights.items():
            vars(weight).update(attributes[name])
        self._used: set[str] = set()
        self._watched: set[str] = set()
        for name, unit in list(model.named_modules()):
            if isinstance(cast(object, unit), FSDPModule):
                unit.register_forward_pre_hook(self._watch(name))

    def forward(self, *inputs: Any, **options: Any) -> Any:
        return self.module(*inputs, **options)

    @contextmanager
    def slice(self, last: bool) -> Iterator[None]:
        self.module.set_requires_gradient_sync(last)
        self.module.set_is_last_backward(last)
        yield
        if last:
            self._forget_unused()

    def _watch(self, unit: str) -> Any:
        """A hook that makes the gathered weights of a unit say when a gradient comes to them."""

        def watch(module: nn.Module, _: Any) -> None:
            for inner, weight in module.named_parameters():
                name = f"{unit}.{inner}" if unit else inner
                # those of units inside are not gathered yet
                if isinstance(weight, DTensor) or name in self._watched:
                    continue
                self._watched.add(name)
                if weight.requires_grad:
                    weight.register_hook(lambda _, name=name: self._used.add(name))

        return watch

    def _forget_unused(self) -> None:
        """Take away the gradients, all zero, of weights that no process used.

        What one process alone would not touch, neither decays nor has moments. The zeros were
        needed, since some may have been used elsewhere.
        """
        weights = dict(self.module.named_parameters())
        flags = torch.tensor([name in self._used for name in weights], dtype=torch.int32)
        flags = flags.to(next(self.module.buffers(), flags).device)
        dist.all_reduce(flags, dist.ReduceOp.MAX)
        for weight, used in zip(weights.values(), flags.tolist(), strict=True):
            if not used:
                weight.grad = None
        self._used.clear()


def _mesh(shards: int, device: torch.device) -> DeviceMesh:
    """Copies by shards; of one copy a line, since there is nothing to sum between copies."""
    size = dist.get_world_size()
    if shards == size:
        return init_device_mesh(device.type, (size,), mesh_dim_names=("shards",))
    sides = (size // shards, shards)
    return init_device_mesh(device.type, sides, mesh_dim_names=("copies", "shards"))


def _cut(weight: Tensor, shards: int) -> int:
    """The largest dimension that parts evenly, the first of equals; else the first dimension.

    A table whose first dimension is 1 would lie whole on one process.
    """
    even = [size if size % shards == 0 else 0 for size in weight.shape]
    return even.index(max(even))
