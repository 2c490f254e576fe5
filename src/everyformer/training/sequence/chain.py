"""Who holds which part: a mesh of processes, rows of a batch by parts of their texts.

    process number p of R P:    row group p // P,  part p mod P

The P processes of a row group are a chain: each reads its columns of the same rows. Neighbours in
it are neighbours by number, which launchers put on one machine.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from everyformer.core.errors import ConfigError, UnsupportedError
from everyformer.data.batch import Batch
from everyformer.training.parallel.world import World

AT_ONCE = 2**24
"""numbers of gradients that are added up in one message"""


@dataclass(frozen=True)
class Chain:
    """The processes of one row group, as one of them sees them."""

    world: World
    onward: Any = None
    """group in which states go to the next part; sums go to all in it"""
    back: Any = None
    """group in which gradients of states go to the part before"""

    @classmethod
    def of(cls, world: World) -> "Chain":
        """The chain of this process; all processes call it."""
        parts = world.parts
        if parts == 1:
            return cls(world)
        groups: dict[int, tuple[Any, Any]] = {}
        for first in range(0, world.size, parts):
            # two of them, since one carries messages in order, and who waits for a gradient must
            # not keep a state from leaving
            members = [*range(first, first + parts)]
            groups[first] = dist.new_group(members), dist.new_group(members)
        return cls(world, *groups[world.rank // parts * parts])

    @property
    def parts(self) -> int:
        """P"""
        return self.world.parts

    @property
    def part(self) -> int:
        """Part of the text that this process holds, counted from 0."""
        return self.world.rank % self.parts

    def columns(self, length: int, part: int | None = None) -> tuple[int, int]:
        """Tokens of a part (default: this process's) among ``length``: start and stop."""
        part = self.part if part is None else part
        return length * part // self.parts, length * (part + 1) // self.parts

    def neighbour(self, by: int) -> int | None:
        """Number in the world of the process that holds the part ``by`` later; None: none does."""
        return self.world.rank + by if 0 <= self.part + by < self.parts else None

    def check(self, batch: Batch) -> None:
        """Refuse a batch that cannot be cut so, on all processes alike.

        Raises:
            UnsupportedError: its rows are no plain texts.
            ConfigError: they have too few tokens.
        """
        plain = batch.inputs.dim() == 2 and not batch.inputs.is_floating_point()
        if not plain or batch.separate or batch.targets.shape != batch.inputs.shape:
            raise UnsupportedError(
                f"inputs {tuple(batch.inputs.shape)} with targets {tuple(batch.targets.shape)} "
                "cannot be cut into parts: only texts of one target a token can"
            )
        if batch.documents is not None:
            raise UnsupportedError(
                "packed documents cannot be cut into parts, whose states go on with one document "
                "a row: give each document a row of its own"
            )
        uneven = [n for n, t in batch.extra.items() if t.shape[:2] != batch.inputs.shape]
        if uneven:
            raise UnsupportedError(
                f"'{uneven[0]}' of this batch is not said token by token, so it cannot be cut into "
                "parts with the text"
            )
        length = batch.inputs.shape[1]
        if length < self.parts:
            raise ConfigError(
                f"texts of {length} tokens cannot be cut into {self.parts} parts: give longer "
                "texts, or fewer processes to each"
            )

    def total(self, terms: dict[str, float]) -> dict[str, float]:
        """The sums over all processes by name; one that a process lacks is 0 there."""
        every = self.world.gathered(terms)
        names = dict.fromkeys(name for each in every for name in each)
        return {name: sum(each.get(name, 0.0) for each in every) for name in names}

    def average(self, model: nn.Module) -> None:
        """Set gradients to their means over all processes; what none has a gradient of has none."""
        if self.world.size == 1:
            return
        learned = [p for p in model.parameters() if p.requires_grad]
        moved = self.world.sum([float(p.grad is not None) for p in learned])
        gradients = []
        for parameter, count in zip(learned, moved, strict=True):
            if count:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                gradients.append(parameter.grad)
        for group in _together(gradients):
            flat = torch.cat([gradient.flatten() for gradient in group])
            dist.all_reduce(flat)
            flat /= self.world.size
            for gradient, mean in zip(group, flat.split([g.numel() for g in group]), strict=True):
                gradient.copy_(mean.view_as(gradient))


def _together(gradients: Iterable[Tensor]) -> list[list[Tensor]]:
    """Gradients of one dtype, so many that a message is worth its time."""
    groups: list[list[Tensor]] = []
    count = 0
    for gradient in gradients:
        alike = groups and groups[-1][0].dtype == gradient.dtype
        if not alike or count + gradient.numel() > AT_ONCE:
            groups.append([])
            count = 0
        groups[-1].append(gradient)
        count += gradient.numel()
    return groups
