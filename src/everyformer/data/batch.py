"""`Batch`: the inputs and the targets of one step, or the `Portion` of one process in them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from everyformer.core.mask import Mask

T = TypeVar("T")
IGNORED = -100
"""The target of a position that is not scored (torch's convention)."""
EXTRA = ("labels", "neighbours", "returns", "actions", "timesteps")
"""Tensors that models read besides the inputs, by the names of their arguments."""
TENSORS = ("inputs", "targets", "padding_mask", "documents", *EXTRA)


@dataclass(frozen=True)
class Portion:
    """Rows of a batch that one of several processes builds and learns from."""

    number: int = 0
    """of the process, from 0"""
    count: int = 1
    """of all processes"""

    def of(self, rows: int) -> tuple[int, int]:
        """The first of the share's rows among ``rows``, and the end of them."""
        return rows * self.number // self.count, rows * (self.number + 1) // self.count


WHOLE = Portion()


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """``items``, ``size`` at a time; the last time there may be fewer."""
    rest = iter(items)
    while some := list(itertools.islice(rest, size)):
        yield some


@dataclass(frozen=True)
class Batch:
    """A batch: B rows of inputs with their targets."""

    inputs: Tensor
    """(B, L) int64 tokens, (B, C, H, W) uint8 pixels, (B, L, C) float32 steps of series, or the
    states (B, K, ...) of K steps of episodes."""
    targets: Tensor
    """(B, L) or (B, T) int64 with -100 where nothing is scored, (B,) int64 classes, (B, N) float32
    numbers, or (B, K, N) float32 actions, which are scored where ``padding_mask`` is True."""
    padding_mask: Tensor | None = None
    """(B, L) bool, True = real token, or step of an episode; None when all are."""
    documents: Tensor | None = None
    """(B, L) int64, which document each token is of, where each sees only that one."""
    labels: Tensor | None = None
    """(B,) int64, the class of each picture, where a pixel model reads it."""
    neighbours: Tensor | None = None
    """(B, L, k) int64, for each token those that followed similar contexts, -1 where there are
    fewer; None where nothing is looked up."""
    separate: bool = False
    """True where the targets are another sequence (B, T), as a translation is."""
    returns: Tensor | None = None
    """(B, K) float32, the return-to-go of each step of an episode."""
    actions: Tensor | None = None
    """(B, K) int64 or (B, K, N) float32, what was done at each step."""
    timesteps: Tensor | None = None
    """(B, K) int64, how many steps of its episode came before each."""

    def to(self, device: torch.device | str) -> Batch:
        """This batch on ``device``."""
        return self._each(lambda t: t.to(device, non_blocking=True))

    def rows(self, start: int, stop: int) -> Batch:
        """Rows ``start`` up to ``stop``: one process's or one accumulation step's share."""
        return self._each(lambda t: t[start:stop])

    def folded(self, pieces: int) -> Batch:
        """Every row cut into ``pieces`` shorter rows; for texts (B, L)."""
        return self._each(lambda t: t.unflatten(1, (pieces, -1)).flatten(0, 1))

    @staticmethod
    def joined(parts: Sequence[Batch]) -> Batch:
        """The rows of several batches of one kind."""
        names = [name for name in TENSORS if getattr(parts[0], name) is not None]
        rows: Any = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
        return replace(parts[0], **rows)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        tensors = {name: getattr(self, name) for name in TENSORS}
        changed: Any = {n: change(t) for n, t in tensors.items() if t is not None}
        return replace(self, **changed)

    @property
    def mask(self) -> Mask | None:
        """The mask of padding and documents; None where there are neither."""
        if self.padding_mask is None and self.documents is None:
            return None
        return Mask(padding_mask=self.padding_mask, documents=self.documents)

    @property
    def extra(self) -> dict[str, Tensor]:
        """Tensors that a model reads besides inputs and mask, by the names of its arguments."""
        tensors = {name: getattr(self, name) for name in EXTRA}
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}

    @property
    def tokens(self) -> int:
        """Tokens of texts and steps of series and episodes, padding included; of pictures every
        channel value (see `Model.positions_read` for what a model reads of them)."""
        if self.timesteps is not None:
            return self.timesteps.numel()
        if self.inputs.dim() == 3:
            return self.inputs[..., 0].numel()
        return self.inputs.numel() + (self.targets.numel() if self.separate else 0)

    @property
    def scored(self) -> int:
        """Number of targets that count; of numbers, rows or steps that have some."""
        return int(self.counted.sum())

    @property
    def counted(self) -> Tensor:
        """Flags of the targets that count, in their shape; of numbers, (B,) or (B, K) steps."""
        if not self.targets.is_floating_point():
            return self.targets != IGNORED
        shape = self.targets.shape[: max(1, self.targets.dim() - 1)]
        every = torch.ones(shape, dtype=torch.bool, device=self.targets.device)
        return every if self.targets.dim() < 3 or self.padding_mask is None else self.padding_mask
