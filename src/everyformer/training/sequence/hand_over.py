"""States from process to process: sent on with the text, their gradients sent back.

A message is its length, a header of names, dtypes and shapes where it differs from that of the last
message, and the bytes of all tensors, one after the other. Tensors that several layers share are
sent once, and shared again where they arrive. Gradients of what learns come back as bytes alone, in
the same order, since their sender knows the shapes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from everyformer.core.state import S, named_tensors, refilled
from everyformer.system.plain import from_json, to_json
from everyformer.training.sequence.chain import Chain


@dataclass
class Sent:
    """A state that was sent, whose gradient is awaited."""

    learned: list[Tensor]
    """its tensors that have a gradient"""
    buffer: Tensor
    """bytes of their gradients, as they arrive"""
    works: list[Any]
    """messages under way, with what they hold"""

    def gradients(self) -> list[Tensor]:
        """Gradients of `learned`, once they are here."""
        for work, _ in self.works:
            work.wait()
        return unpacked(self.buffer, self.learned)


@dataclass
class Post:
    """A process's ends of the lines to the parts before and after its own."""

    chain: Chain
    _last: list[bytes] = field(default_factory=lambda: [b"", b""])
    """headers of the last message that was sent, and received"""
    _returning: list[Any] = field(default_factory=list)
    """gradients on their way back"""

    def send(self, state: Any) -> Sent | None:
        """Send a state to the next part, without waiting; None: there is none."""
        to = self.chain.neighbour(1)
        if to is None:
            return None
        names, tensors = _distinct(state)
        header = _described(names, tensors)
        new, self._last[0] = header if header != self._last[0] else b"", header
        parts = [self._bytes([len(new)], torch.int64), self._bytes(new), packed(tensors)]
        works = [_sending(part, to, self.chain.onward) for part in parts if part.numel()]
        learned = [t for t in tensors if t.requires_grad]
        buffer = self._bytes(bytes(0)).new_empty(sum(t.nbytes for t in learned))
        if learned:
            # it is known by now what will come back
            work = dist.irecv(buffer, to, group=self.chain.back)
            works.append((work, buffer))
        return Sent(learned, buffer, works)

    def receive(self, like: S) -> tuple[S, list[Tensor]]:
        """The state that the part before sent, of the kind of ``like``, and its tensors that have
        a gradient; without a part before, ``like`` itself."""
        of = self.chain.neighbour(-1)
        if of is None:
            return like, []
        size = self._received(8, of).view(torch.int64)
        if int(size):
            self._last[1] = bytes(self._received(int(size), of).tolist())
        told = from_json(self._last[1].decode())
        shapes = [(getattr(torch, dtype), shape) for dtype, shape, _ in told["tensors"]]
        empty = [torch.empty(shape, dtype=dtype, device="meta") for dtype, shape in shapes]
        buffer = self._received(sum(t.nbytes for t in empty), of)
        tensors = unpacked(buffer, empty)
        for tensor, (_, _, learns) in zip(tensors, told["tensors"], strict=True):
            tensor.requires_grad_(learns)
        named = {name: tensors[index] for name, index in told["names"].items()}
        return refilled(like, named), [t for t in tensors if t.requires_grad]

    def send_back(self, learned: Sequence[Tensor]) -> None:
        """Send the gradients of what was received to the part before."""
        of = self.chain.neighbour(-1)
        if of is None or not learned:
            return
        gradients = [torch.zeros_like(t) if t.grad is None else t.grad for t in learned]
        self.settle()
        self._returning.append(_sending(packed(gradients), of, self.chain.back))

    def settle(self) -> None:
        """Wait until all gradients have left."""
        for work, _ in self._returning:
            work.wait()
        self._returning.clear()

    def _received(self, size: int, of: int) -> Tensor:
        buffer = torch.empty(size, dtype=torch.uint8, device=self.chain.world.device)
        if size:
            dist.recv(buffer, of, group=self.chain.onward)
        return buffer

    def _bytes(self, values: Any, dtype: torch.dtype = torch.uint8) -> Tensor:
        made = torch.tensor([*values], dtype=dtype, device=self.chain.world.device)
        return made.view(torch.uint8)


def packed(tensors: Sequence[Tensor]) -> Tensor:
    """The bytes of all tensors, those of the widest numbers first, so that each is aligned."""
    parts = [tensors[n].detach().contiguous() for n in _order(tensors)]
    flat = [part.view(-1).view(torch.uint8) for part in parts]
    return torch.cat(flat) if flat else torch.empty(0, dtype=torch.uint8)


def unpacked(buffer: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Tensors of the shapes and dtypes of ``like``, out of the bytes that `packed` made of them."""
    order = _order(like)
    parts = buffer.split([like[n].nbytes for n in order])
    views = {
        n: p.view(like[n].dtype).view(like[n].shape) for n, p in zip(order, parts, strict=True)
    }
    return [views[n] for n in range(len(like))]


def _order(tensors: Sequence[Tensor]) -> list[int]:
    return sorted(range(len(tensors)), key=lambda n: -tensors[n].element_size())


def _distinct(state: Any) -> tuple[dict[str, int], list[Tensor]]:
    """The tensors of a state, each once, and which of them every name is."""
    named = named_tensors(state)
    tensors = {id(t): t for t in named.values()}
    index = {key: n for n, key in enumerate(tensors)}
    return {name: index[id(t)] for name, t in named.items()}, [*tensors.values()]


def _described(names: dict[str, int], tensors: Sequence[Tensor]) -> bytes:
    told = [(str(t.dtype).removeprefix("torch."), [*t.shape], t.requires_grad) for t in tensors]
    return to_json({"names": names, "tensors": told}).encode()


def _sending(buffer: Tensor, to: int, group: Any) -> tuple[Any, Tensor]:
    return dist.isend(buffer, to, group=group), buffer
