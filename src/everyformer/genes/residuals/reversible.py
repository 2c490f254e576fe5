"""Reversible stacks: activations are not saved for the backward pass but computed again from below.

    Y1 = X1 + F(X2),   Y2 = X2 + G(Y1)          X2 = Y2 - G(Y1),   X1 = Y1 - F(X2)

F is a layer's mixer, G its feed-forward, each after its norm and followed by dropout; the first
layer's X1 and X2 are both the embeddings. Written by sub-layers, as here, one step is

    (a, b) -> (b, a + f(b))                     (a', b') -> (b' - f(a'), a')

so layers of one sub-layer (gMLP) and of three (a decoder's) are reversible as well; after an odd
number of steps the two halves have changed names.

Memory other than weights is O(L d) at any depth, for one more forward pass. What repeats a step
exactly is saved: the state of the random generators where a step has used them, and what mixers
have chosen (`everyformer.core.choices`; of Reformer its buckets, 2 or 4 bytes a token, head and
round).
The halves are held in float32 at least, since rounding enters through their sums and differences.

Positions that are added before a layer are added to both halves and taken off again, and saved.
What comes out are both halves side by side, twice the width, or their mean.

One `autograd.Function` spans the stack, with the weights among its inputs: frozen inputs or
weights, accumulation and hooks work as ever. A memory (`genes.memory`) is read and comes out
as a constant. Without gradients, with a state that gradients pass through and under the compiler
the same equations run as written.

Sources: Gomez et al. 2017, arXiv 1707.04585; Kitaev et al. 2020 (Reformer), arXiv 2001.04451,
section 3.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from everyformer.blocks.block import Block
from everyformer.blocks.passing import LayerSchedule, StackRun
from everyformer.blocks.residual import Around, Part, Residual
from everyformer.core.choices import keep_choices, repeat_choices
from everyformer.core.config import Options
from everyformer.core.devices import CPU, as_now, forked_random, random_state, set_random_state
from everyformer.core.errors import EveryformerError
from everyformer.core.mask import Mask
from everyformer.core.outputs import LayerOutput, Losses, add_losses
from everyformer.core.state import State
from everyformer.core.subset import TokenSubset
from everyformer.core.taps import Tap
from everyformer.core.trace import untraced
from everyformer.core.trials import Trials
from everyformer.engines.once import once_differentiable
from everyformer.genes.residuals import RESIDUALS
from everyformer.system.fingerprint import fingerprint, unchanged


@dataclass(frozen=True)
class ReversibleOptions(Options):
    reversible_output: Literal["concat", "mean"] = "concat"
    """what the stack gives: both halves side by side (2 width), or their mean"""


class Halves(NamedTuple):
    """The stream: two tensors (B, L, width), in float32 at least."""

    a: Tensor
    b: Tensor
    dtype: torch.dtype
    """of what sub-layers read"""


class ReversibleStep(NamedTuple):
    """One sub-layer of a pass, and what repeats it."""

    block: Block
    part: Part
    n: int
    """of the block"""
    layer: int
    random: list[Tensor]
    """states of the generators before it: the CPU's, then the devices'"""
    choices: list[Tensor]
    terms: int
    """how many losses it has"""


@dataclass(eq=False)
class Replayed(StackRun):
    """A pass that can be gone backwards: its steps are recorded, not its activations."""

    dtype: torch.dtype = field(default=torch.float32, init=False)
    """of what sub-layers read"""
    recording: bool = field(default=False, init=False)
    tensors: list[Tensor] = field(default_factory=list, init=False)
    """weights of all layers, ``added``, then what ``context`` and ``mask`` hold: all that may want
    gradients"""
    weights: dict[tuple[int, Part], range] = field(default_factory=dict, init=False)
    """indices of a block's sub-layer among the tensors"""
    positions: range = field(default=range(0), init=False)
    """indices of ``added``"""
    outside: range = field(default=range(0), init=False)
    """indices of context and mask"""
    subtaps: list[Tap] = field(default_factory=list, init=False)
    """taps after layers, first layer first"""
    records: list[ReversibleStep] = field(default_factory=list, init=False)
    names: list[str] = field(default_factory=list, init=False)
    """of the losses, step by step"""
    terms: list[Tensor] = field(default_factory=list, init=False)
    """their values"""

    def forward(self, x: Tensor, schedule: LayerSchedule) -> Halves:
        """The equations as written, or, where gradients are wanted, without activations.

        Taps inside layers keep activations.
        """
        plain = torch.compiler.is_compiling() or not torch.is_grad_enabled() or self.inside()
        if plain or not all(layer.cut for layer in self.state or ()):
            return cast(Halves, super().forward(x, schedule))
        stream: Halves = self.residual.open(x)
        self.record(x.dtype)
        a, b, *rest = _Reversible.apply(self, schedule, stream.a, stream.b, *self.tensors)
        # what the function saw inside has no gradient: its outputs stand for it
        for i, tap in enumerate(self.subtaps):
            self.tapped[tap] = Halves(rest[2 * i], rest[2 * i + 1], x.dtype)
        self.collect(0, {"block-output": stream})
        self.losses = {}
        for name, term in zip(self.names, rest[2 * len(self.subtaps) :], strict=True):
            add_losses(self.losses, {name: term})
        return Halves(a, b, x.dtype)

    def record(self, dtype: torch.dtype) -> None:
        """Record the steps from here on, of layers that read numbers of this dtype."""
        self.recording, self.dtype = True, dtype
        self.subtaps = sorted(tap for tap in self.taps if tap.layer)
        for n, block in enumerate(self.blocks):
            for part in block.parts:
                first = len(self.tensors)
                self.tensors += block.weights_of(part).values()
                self.weights[n, part] = range(first, len(self.tensors))
        added = list(self.added or ())
        self.positions = range(len(self.tensors), len(self.tensors) + len(added))
        self.tensors += added
        read = [t for one in self.context or () for t in one.tensors()]
        if self.mask is not None and self.mask.bias is not None:
            read.append(self.mask.bias)
        self.outside = range(len(self.tensors), len(self.tensors) + len(read))
        self.tensors += read

    def through(
        self, block: Block, n: int, layer: int, stream: Halves, chosen: TokenSubset | None = None
    ) -> LayerOutput:
        if not self.recording:
            return super().through(block, n, layer, stream, chosen)
        losses: Losses = {}
        read = self.inputs(n, layer)
        for part in block.parts:
            random = _random_states(stream.a)
            if self.records and _same(self.records[-1].random, random):
                random = self.records[-1].random
            with keep_choices() as choices:
                f = partial(block.branch, part, **read)
                stream, out = block.residual.step(stream, block.around(part), f)
            self.records.append(
                ReversibleStep(block, part, n, layer, random, choices, len(out.losses))
            )
            self.names += out.losses
            self.terms += out.losses.values()
            read["state"], losses = out.state, losses | out.losses
        return LayerOutput(stream, read["state"], losses, {})

    def again(
        self, step: ReversibleStep, b: Tensor, weights: Sequence[Tensor], read: Iterable[Tensor]
    ) -> LayerOutput:
        """One step from its ``b`` with these weights, and ``read`` for context and mask."""
        context, mask = self._around(read)
        inputs = self.inputs(step.n, step.layer)
        inputs |= {"context": None if context is None else context[step.n], "mask": mask}
        names = step.block.weights_of(step.part)
        named = {f"block.{name}": w for name, w in zip(names, weights, strict=True)}
        branch = _Branch(step.block, step.part)
        out: LayerOutput = functional_call(branch, named, (b.to(self.dtype),), inputs)
        return out

    def _around(self, read: Iterable[Tensor]) -> tuple[list[State] | None, Mask | None]:
        """``context`` and ``mask`` with the tensors ``read`` in place of their own."""
        tensors, mask = iter(read), self.mask
        context = None
        if self.context is not None:
            context = [one.map(lambda t, _: next(tensors)) for one in self.context]
        if mask is not None and mask.bias is not None:
            mask = replace(mask, bias=next(tensors))
        return context, mask


@RESIDUALS.register("reversible")
class Reversible(Residual):
    """(a, b) -> (b, a + f(norm(b)))."""

    name = "reversible"
    Options = ReversibleOptions
    trials = Trials(variants=({"reversible_output": "mean"},))
    recomputes = True
    passes = Replayed

    def out_width(self, width: int) -> int:
        return 2 * width if self.options.reversible_output == "concat" else width

    def open(self, x: Tensor) -> Halves:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return Halves(wide, wide, x.dtype)

    def close(self, stream: Halves) -> Tensor:
        a, b, dtype = stream
        both = self.options.reversible_output == "concat"
        return (torch.cat((a, b), -1) if both else (a + b) / 2).to(dtype)

    def shift(self, stream: Halves, added: Tensor) -> Halves:
        return Halves(stream.a + added, stream.b + added, stream.dtype)

    def read(self, stream: Halves, around: Around) -> Tensor:
        return around.norm(stream.b.to(stream.dtype))

    def join(self, stream: Halves, y: Tensor, around: Around) -> Halves:
        return Halves(stream.b, stream.a + y, stream.dtype)


class _Branch(nn.Module):
    """One sub-layer with its norm, as a module."""

    def __init__(self, block: Block, part: Part) -> None:
        super().__init__()
        self.block, self.part = block, part

    def forward(self, x: Tensor, **read: Any) -> LayerOutput:
        return self.block.branch(self.part, self.block.around(self.part).norm(x), **read)


class _Reversible(torch.autograd.Function):
    """All steps at once: (run, schedule, a, b, *run.tensors) to the last (a, b), the halves at
    ``run.subtaps`` and the steps' losses."""

    @staticmethod
    def forward(
        ctx: Any, run: Replayed, schedule: LayerSchedule, a: Tensor, b: Tensor, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.run, ctx.device = run, a.device
        ctx.autocast = as_now(a.device.type)
        ctx.modes = {m: m.training for block in run.blocks for m in block.modules()}
        ctx.versions, ctx.numbers = [t._version for t in tensors], _numbers(tensors)
        with ctx.autocast():
            a, b, _ = run.loop(Halves(a, b, run.dtype), schedule)
        ctx.save_for_backward(a, b)
        # outputs apart, even where they are halves of later layers too
        tapped = [half.clone() for tap in run.subtaps for half in run.tapped[tap][:2]]
        return a, b, *tapped, *run.terms

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        run: Replayed = ctx.run
        same = ctx.versions == [t._version for t in run.tensors]
        if not (same and unchanged(ctx.numbers, _numbers(run.tensors))):
            raise EveryformerError(
                "a weight of a reversible stack was changed in place between its forward and its "
                "backward pass, which computes the layers again: step the optimiser afterwards"
            )
        (a, b), (da, db, *rest) = ctx.saved_tensors, gradients
        inner, terms = rest[: 2 * len(run.subtaps)], rest[2 * len(run.subtaps) :]
        needed = ctx.needs_input_grad[4:]
        # copies, since hooks of the weights themselves are for the finished gradient alone
        inputs = [
            t.detach().requires_grad_(graded) for t, graded in zip(run.tensors, needed, strict=True)
        ]
        # views, since hooks on what modules read (of torch's counters) cannot be on leaves here
        with torch.enable_grad():
            read = [inputs[i].view_as(inputs[i]) for i in run.outside]
        sums: list[Tensor | None] = [None] * len(inputs)
        with forked_random(a.device), ctx.autocast(), untraced(), _modes(ctx.modes):
            for step in reversed(run.records):
                indices, ends_layer = run.weights[step.n, step.part], step.block.parts[-1]
                if step.part == ends_layer and Tap("block-output", step.layer + 1) in run.subtaps:
                    *inner, first, second = inner
                    da, db = da + first, db + second
                _restore(step.random, a)
                source = a.detach().requires_grad_()
                with torch.enable_grad(), repeat_choices(step.choices):
                    weights = [inputs[i] for i in indices]
                    out = run.again(step, source.view_as(source), weights, read)
                a, b = b - out.y.detach(), a
                cut = len(terms) - step.terms
                pairs = zip(
                    (out.y, *out.losses.values()), (db.to(out.y.dtype), *terms[cut:]), strict=True
                )
                graded = [(y, dy) for y, dy in pairs if y.requires_grad]
                terms = terms[:cut]
                positions = [i for i in (*indices, *run.outside) if needed[i]]
                ends, starts = [y for y, _ in graded], [source, *(inputs[i] for i in positions)]
                source_grad, *others = torch.autograd.grad(
                    ends, starts, [dy for _, dy in graded], allow_unused=True
                )
                da, db = db, da if source_grad is None else da + source_grad
                for i, part in zip(positions, others, strict=True):
                    sums[i] = _sum(sums[i], part)
                if step.part == step.block.parts[0] and run.positions:
                    index = run.positions[step.n]
                    moved = inputs[index].detach()
                    a, b = a - moved, b - moved
                    if needed[index]:
                        gradient = (da + db).sum_to_size(moved.shape).to(moved.dtype)
                        sums[index] = _sum(sums[index], gradient)
        return None, None, da, db, *sums


@contextmanager
def _modes(modes: Mapping[nn.Module, bool]) -> Iterator[None]:
    """A block in which modules are in training, or not, as these say."""
    now = {module: module.training for module in modes}
    try:
        for module, training in modes.items():
            module.training = training
        yield
    finally:
        for module, training in now.items():
            module.training = training


def _numbers(tensors: Iterable[Tensor]) -> Tensor:
    """Fingerprint of what an optimiser may move: a fused one leaves no trace in versions."""
    return fingerprint(t for t in tensors if t.is_leaf and t.requires_grad)


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return a if b is None else b if a is None else a + b


def _random_states(like: Tensor) -> list[Tensor]:
    """States of the CPU's generator and of that of the device that ``like`` is on."""
    return [random_state(device) for device in _drawing(like)]


def _drawing(like: Tensor) -> tuple[torch.device, ...]:
    return (CPU,) if like.device == CPU else (CPU, like.device)


def _same(some: list[Tensor], others: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


def _restore(states: list[Tensor], like: Tensor) -> None:
    for state, device in zip(states, _drawing(like), strict=True):
        set_random_state(state, device)
