"""Programs that continue texts: the state goes in and comes out, whether it grows or not."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from everyformer.core.errors import UnsupportedError
from everyformer.core.mask import Mask
from everyformer.core.state import StackState, in_step, named_tensors, refilled
from everyformer.engines.rows import compact, real_first, spread
from everyformer.models.base import Model

STATE = "state."
"""what inputs begin with that are tensors of a state"""
PAST = 7
"""tokens of the example's past, at most: half of what fits into a model's tables"""


class Stream(nn.Module):
    """A model that continues from a state, by the names of its tensors, and gives it back.

    Args:
        like: a state of this kind. of: name of each of its tensors -> name of the one that it is,
            as layers that have read the same share their flags.
    """

    def __init__(self, model: Model, like: StackState, of: dict[str, str]) -> None:
        super().__init__()
        self.model, self.like, self.of = model, like, of

    def forward(
        self, tokens: Tensor, padding_mask: Tensor, state: dict[str, Tensor]
    ) -> tuple[Tensor, ...]:
        before = refilled(self.like, {name: state[first] for name, first in self.of.items()})
        # once, not in every layer
        rows = compact(tokens, padding_mask)
        with real_first():
            out = self.model(rows.x, mask=Mask(padding_mask=rows.padding_mask), state=before)
        after = named_tensors(in_step(out.state))
        return spread(out.logits, rows), *(after[name] for name in state)


class Example(NamedTuple):
    """A program that continues texts, and a state to trace it with."""

    stream: Stream
    after: dict[str, Tensor]
    """each tensor of the state after some tokens"""
    grows: dict[str, list[int]]
    """dimensions of each that were smaller before"""

    def tensors(self) -> dict[str, Tensor]:
        """Each tensor once, by the first of its names, in memory of its own."""
        names = [name for name, first in self.stream.of.items() if name == first]
        dense = torch.contiguous_format
        return {name: self.after[name].clone(memory_format=dense) for name in names}


def example(model: Model, batch: int) -> Example:
    """The program of a model that continues texts, and a state of ``batch`` rows."""
    began, like = named_tensors(start_state(model, batch)), next(model.parameters())
    past = PAST if model.longest is None else min(PAST, model.longest // 2)
    tokens = torch.zeros(batch, past, dtype=torch.long, device=like.device)
    mask = Mask(padding_mask=torch.ones_like(tokens, dtype=torch.bool))
    # continued without flags, of which layers share those that they make
    read = in_step(model(tokens, mask=mask, state=model.init_state(batch)).state)
    after = named_tensors(read)
    if began.keys() != after.keys():
        raise UnsupportedError(
            f"the state of '{model.config.member}' changes its form from call to call, which no "
            "file holds: export it without `state=True`"
        )
    sizes = {name: zip(t.shape, began[name].shape, strict=True) for name, t in after.items()}
    grows = {name: [d for d, (n, m) in enumerate(both) if n != m] for name, both in sizes.items()}
    return Example(Stream(model, read, firsts(after)), after, grows)


def start_state(model: Model, batch: int) -> StackState:
    """The state before a text, with flags of which of its slots are real."""
    state = model.init_state(batch)
    return state.reset(torch.zeros_like(state.num_tokens, dtype=torch.bool))


def start_tensors(model: Model, inputs: Sequence[str], batch: int) -> dict[str, Tensor]:
    """Those of a file's ``inputs`` that are a state, before a text of ``batch`` rows."""
    start = named_tensors(start_state(model, batch))
    return {name: start[name[len(STATE) :]] for name in inputs if name.startswith(STATE)}


def firsts(tensors: dict[str, Tensor]) -> dict[str, str]:
    """The first name of each tensor that has several."""
    known: dict[int, str] = {}
    return {name: known.setdefault(id(tensor), name) for name, tensor in tensors.items()}
