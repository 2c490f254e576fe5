"""Reversible stacks: activations are not kept for the backward pass but computed again from below.

    Y1 = X1 + F(X2),   Y2 = X2 + G(Y1)          X2 = Y2 - G(Y1),   X1 = Y1 - F(X2)

F is a layer's mixer, G its feed-forward, each behind its norm and followed by dropout; the first
layer's X1 and X2 are both the embeddings. Written by sub-layers, as here, one step is

    (a, b) -> (b, a + f(b))                     (a', b') -> (b' - f(a'), a')

so layers of one sub-layer (gMLP) and of three (a decoder's) are reversible as well; after an odd
number of steps the two halves have changed names.

Memory beside the weights is O(L d) at any depth, for one more forward pass. What repeats a step
exactly is kept: the state of the random generators where a step has used them, and what mixers have
chosen (`everyformer.core.choices`; of Reformer its buckets, 2 or 4 bytes a token, head and round).
The halves are held in float32 at least, since rounding enters through their sums and differences.

Positions that are added before a layer are added to both halves and taken off again; they are kept.

One `autograd.Function` spans the stack, with the weights among its inputs: frozen inputs or
weights, accumulation and hooks work as ever. A memory (`everyformer.memory`) is read and comes out
as a constant. Without gradients, with a state that gradients pass through and under the compiler
the same equations run as they stand.

Sources: Gomez et al. 2017, arXiv 1707.04585; Kitaev et al. 2020 (Reformer), arXiv 2001.04451,
section 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from everyformer.blocks.block import Block, Part
from everyformer.core.choices import keep_choices, repeat_choices
from everyformer.core.errors import EveryformerError
from everyformer.core.fingerprint import fingerprint, unchanged
from everyformer.core.mask import Mask
from everyformer.core.outputs import Losses, MixerOutput, add_losses
from everyformer.core.state import State
from everyformer.core.trace import untraced
from everyformer.engines.once import once_differentiable

Halves = tuple[Tensor, Tensor]


class Passed(NamedTuple):
    """What comes out of a reversible stack, before its norm."""

    halves: Halves
    states: tuple[State, ...]
    """of the mixers, where a state was given"""
    losses: Losses
    hidden: dict[int, Halves]
    """the halves behind the layers asked for"""


def run_reversible(
    blocks: Sequence[Block],
    x: Tensor,
    added: Sequence[Tensor] | None = None,
    context: Sequence[State] | None = None,
    mask: Mask | None = None,
    state: Sequence[State] | None = None,
    hidden: Sequence[int] = (),
) -> Passed:
    """`x` (batch, length, width) through all ``blocks``.

    Args:
        added: (batch or 1, length, width) for each block, added before it to both halves.
        state: of each block's mixer.
        (others as in `Stack.forward`)
    """
    plain = torch.compiler.is_compiling() or not torch.is_grad_enabled()
    if plain or not all(layer.cut for layer in state or ()):
        return run_plainly(blocks, x, added, context, mask, state, hidden)
    inner = tuple(n for n in range(1, len(blocks) + 1) if n in hidden)
    run = Run(blocks, x.dtype, added, context, mask, state, inner)
    wide = _widened(x)
    a, b, *rest = _Reversible.apply(run, wide, wide, *run.tensors)
    found = {n: (rest[2 * i], rest[2 * i + 1]) for i, n in enumerate(inner)}
    losses: Losses = {}
    for name, term in zip(run.names, rest[2 * len(inner) :], strict=True):
        add_losses(losses, {name: term})
    return Passed((a, b), tuple(run.states), losses, {0: (wide, wide), **found})


def run_plainly(
    blocks: Sequence[Block],
    x: Tensor,
    added: Sequence[Tensor] | None = None,
    context: Sequence[State] | None = None,
    mask: Mask | None = None,
    state: Sequence[State] | None = None,
    hidden: Sequence[int] = (),
) -> Passed:
    """The equations as they stand, whatever autograd keeps of them."""
    a = b = _widened(x)
    losses: Losses = {}
    states = []
    found = {0: (a, b)} if 0 in hidden else {}
    for n, block in enumerate(blocks):
        if added is not None:
            a, b = a + added[n], b + added[n]
        before = None if state is None else state[n]
        read = None if context is None else context[n]
        for part in block.parts:
            out = block.added(part, b.to(x.dtype), context=read, mask=mask, state=before)
            a, b = b, a + out.y
            add_losses(losses, out.losses)
            if out.state is not None:
                states.append(out.state)
        if n + 1 in hidden:
            found[n + 1] = (a, b)
    return Passed((a, b), tuple(states), losses, found)


def _widened(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


class Step(NamedTuple):
    """One sub-layer of the stack."""

    block: Block
    part: Part
    layer: int
    """of the block, counted from 0"""
    names: tuple[str, ...]
    """of its parameters in the block"""
    weights: range
    """where they stand among `Run.tensors`"""
    first: bool
    """of its block"""
    last: bool
    """of its block"""


@dataclass
class Kept:
    """What repeats a step."""

    random: list[Tensor]
    """states of the generators before it: the CPU's, then the devices'"""
    choices: list[Tensor]
    terms: int
    """how many losses it has"""


@dataclass(eq=False)
class Run:
    """One pass through a stack: its steps, what they read beside x, and what repeats them."""

    blocks: Sequence[Block]
    dtype: torch.dtype
    added: Sequence[Tensor] | None = None
    context: Sequence[State] | None = None
    mask: Mask | None = None
    state: Sequence[State] | None = None
    """of the mixers, constants"""
    hidden: Sequence[int] = ()
    """layers whose halves come out too, counted from 1"""
    states: list[State] = field(default_factory=list, init=False)
    """of the mixers after this pass"""
    steps: list[Step] = field(default_factory=list, init=False)
    tensors: list[Tensor] = field(default_factory=list, init=False)
    """weights of all steps, ``added``, then what ``context`` and ``mask`` hold: all that may want
    gradients"""
    kept: list[Kept] = field(default_factory=list, init=False)
    names: list[str] = field(default_factory=list, init=False)
    """of the losses, step by step"""

    def __post_init__(self) -> None:
        for layer, block in enumerate(self.blocks):
            for part in block.parts:
                named, first = block.weights_of(part), len(self.tensors)
                self.tensors += named.values()
                weights = range(first, len(self.tensors))
                ends = (part == block.parts[0], part == block.parts[-1])
                self.steps.append(Step(block, part, layer, tuple(named), weights, *ends))
        self.places = range(len(self.tensors), len(self.tensors) + len(self.added or ()))
        self.tensors += self.added or ()
        read = [t for one in self.context or () for t in one.tensors()]
        if self.mask is not None and self.mask.bias is not None:
            read.append(self.mask.bias)
        self.outside = range(len(self.tensors), len(self.tensors) + len(read))
        self.tensors += read

    def call(
        self,
        step: Step,
        b: Tensor,
        context: Sequence[State] | None,
        mask: Mask | None,
        weights: Sequence[Tensor] | None = None,
    ) -> MixerOutput:
        """f(b) of one step, with ``weights`` in place of its own."""
        read = None if context is None else context[step.layer]
        state = None if self.state is None else self.state[step.layer]
        given: dict[str, Any] = {"context": read, "mask": mask, "state": state}
        if weights is None:
            return step.block.added(step.part, b.to(self.dtype), **given)
        named = {f"block.{name}": w for name, w in zip(step.names, weights, strict=True)}
        added, inputs = _Added(step.block, step.part), (b.to(self.dtype),)
        out: MixerOutput = functional_call(added, named, inputs, given)
        return out

    def around(self, read: Iterable[Tensor]) -> tuple[list[State] | None, Mask | None]:
        """``context`` and ``mask`` with the tensors ``read`` in place of their own."""
        given, mask = iter(read), self.mask
        context = None
        if self.context is not None:
            context = [one.map(lambda t, _: next(given)) for one in self.context]
        if mask is not None and mask.bias is not None:
            mask = replace(mask, bias=next(given))
        return context, mask


class _Added(nn.Module):
    """One sub-layer as a module."""

    def __init__(self, block: Block, part: Part) -> None:
        super().__init__()
        self.block, self.part = block, part

    def forward(self, x: Tensor, **given: Any) -> MixerOutput:
        return self.block.added(self.part, x, **given)


class _Reversible(torch.autograd.Function):
    """All steps at once: (run, a, b, *run.tensors) to the last (a, b), those of ``run.hidden`` and
    the steps' losses."""

    @staticmethod
    def forward(ctx: Any, run: Run, a: Tensor, b: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.run, ctx.device = run, a.device
        ctx.autocast = {
            "device_type": a.device.type,
            "enabled": torch.is_autocast_enabled(a.device.type),
            "dtype": torch.get_autocast_dtype(a.device.type),
            # casts made without a graph must not be found by what runs with one
            "cache_enabled": False,
        }
        ctx.versions, ctx.numbers = [t._version for t in tensors], _numbers(tensors)
        found: list[Tensor] = []
        terms: list[Tensor] = []
        context, mask = run.around(tensors[i] for i in run.outside)
        with torch.autocast(**ctx.autocast):
            for step in run.steps:
                if step.first and run.places:
                    a, b = a + tensors[run.places[step.layer]], b + tensors[run.places[step.layer]]
                random = _random_states(a)
                if run.kept and _same(run.kept[-1].random, random):
                    random = run.kept[-1].random
                with keep_choices() as choices:
                    out = run.call(step, b, context, mask)
                run.kept.append(Kept(random, choices, len(out.losses)))
                run.names += out.losses
                terms += out.losses.values()
                a, b = b, a + out.y
                if out.state is not None:
                    run.states.append(out.state)
                if step.last and step.layer + 1 in run.hidden:
                    # an output of its own, even where it is a half of a later layer too
                    found += (a.clone(), b.clone())
        ctx.save_for_backward(a, b)
        return a, b, *found, *terms

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        run: Run = ctx.run
        same = ctx.versions == [t._version for t in run.tensors]
        if not (same and unchanged(ctx.numbers, _numbers(run.tensors))):
            raise EveryformerError(
                "a weight of a reversible stack was changed in place between its forward and its "
                "backward pass, which computes the layers again: step the optimiser afterwards"
            )
        (a, b), (da, db, *rest) = ctx.saved_tensors, gradients
        inner, terms = rest[: 2 * len(run.hidden)], rest[2 * len(run.hidden) :]
        wanted = ctx.needs_input_grad[3:]
        # copies, since hooks of the weights themselves are for the finished gradient alone
        inputs = [
            t.detach().requires_grad_(needed) for t, needed in zip(run.tensors, wanted, strict=True)
        ]
        # views, since hooks on what modules read (of torch's counters) cannot stand on leaves here
        with torch.enable_grad():
            context, mask = run.around(inputs[i].view_as(inputs[i]) for i in run.outside)
        found: list[Tensor | None] = [None] * len(inputs)
        with _same_random_numbers_after(a), torch.autocast(**ctx.autocast), untraced():
            for step, kept in zip(reversed(run.steps), reversed(run.kept), strict=True):
                if step.last and step.layer + 1 in run.hidden:
                    *inner, first, second = inner
                    da, db = da + first, db + second
                _restore(kept.random, a)
                source = a.detach().requires_grad_()
                with torch.enable_grad(), repeat_choices(kept.choices):
                    weights = [inputs[i] for i in step.weights]
                    out = run.call(step, source.view_as(source), context, mask, weights=weights)
                a, b = b - out.y.detach(), a
                cut = len(terms) - kept.terms
                pairs = zip(
                    (out.y, *out.losses.values()), (db.to(out.y.dtype), *terms[cut:]), strict=True
                )
                graded = [(y, dy) for y, dy in pairs if y.requires_grad]
                terms = terms[:cut]
                places = [i for i in (*step.weights, *run.outside) if wanted[i]]
                ends, starts = [y for y, _ in graded], [source, *(inputs[i] for i in places)]
                source_grad, *others = torch.autograd.grad(
                    ends, starts, [dy for _, dy in graded], allow_unused=True
                )
                da, db = db, da if source_grad is None else da + source_grad
                for i, part in zip(places, others, strict=True):
                    found[i] = _sum(found[i], part)
                if step.first and run.places:
                    place = run.places[step.layer]
                    moved = inputs[place].detach()
                    a, b = a - moved, b - moved
                    if wanted[place]:
                        found[place] = (da + db).sum_to_size(moved.shape).to(moved.dtype)
        return None, da, db, *found


def _numbers(tensors: Iterable[Tensor]) -> Tensor:
    """Of those that an optimiser may move: a fused one leaves no trace in their versions."""
    return fingerprint(t for t in tensors if t.is_leaf and t.requires_grad)


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return a if b is None else b if a is None else a + b


def _random_states(like: Tensor) -> list[Tensor]:
    """Of the CPU's generator and of that of the device that ``like`` is on."""
    states = [torch.get_rng_state()]
    if like.device.type != "cpu":
        states.append(torch.get_device_module(like.device).get_rng_state(like.device))
    return states


def _same(some: list[Tensor], others: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


def _restore(states: list[Tensor], like: Tensor) -> None:
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.get_device_module(like.device).set_rng_state(states[1], like.device)


@contextmanager
def _same_random_numbers_after(like: Tensor) -> Iterator[None]:
    """Whatever is drawn inside, what follows draws what it would have."""
    states = _random_states(like)
    try:
        yield
    finally:
        _restore(states, like)
