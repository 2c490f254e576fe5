"""The gradient of one step, the same for any number of slices and processes, and `TextCarry`.

The latter is what a training carries from step to step beside weights, and where its rows come
from. Of most models nothing: the rows of a step are a function of its number. A model with a memory
reads texts that go on.

What is drawn in a step is the same too, on a CPU: slices and processes begin with one state of
torch's generator, and each draws on to its own rows (`everyformer.engines.drawing`).
"""

import functools
import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from everyformer.core.errors import ConfigError, DataError, UnsupportedError
from everyformer.core.modules import memories_of
from everyformer.core.outputs import ModelOutput
from everyformer.core.seeds import mixed
from everyformer.core.state import StackState, filled, named_tensors, present_names
from everyformer.data.batch import WHOLE, Batch, Portion
from everyformer.data.dataset import Dataset
from everyformer.engines.drawing import piece_of_rows
from everyformer.training.config import TrainingConfig
from everyformer.training.parallel.shared import Shared
from everyformer.training.parallel.world import World
from sequence_laws.flops import count_flops
from sequence_laws.inputs import seed_all

Backward = Callable[..., dict[str, float]]
"""a batch, ``slices``, ``precision`` -> its losses by name; weights have their gradient added"""


class TextCarry:
    """The states of a batch's rows; row b of every step goes on where row b of the last ended.

    Each process has those of its own rows, in as many pieces as it works them through. What is
    saved are those of all, so that other pieces and processes can continue them.
    """

    def __init__(self, model: nn.Module, world: World) -> None:
        self._model: Any = model
        self._world = world
        self._pieces: dict[tuple[int, int], StackState] = {}
        self._saved: StackState | None = None

    def batch(
        self, dataset: Dataset, step: int, size: int, seed: int, portion: Portion = WHOLE
    ) -> Batch:
        """A ``portion`` of the ``size`` rows of a step; steps are asked for one after the other."""
        text = dataset.running_text
        assert text is not None
        return text.segment(step, size, portion)

    def of(self, start: int, stop: int) -> StackState:
        """The state that the step's rows from ``start`` up to ``stop`` go on from."""
        state = self._pieces.get((start, stop))
        if state is not None:
            return state
        if self._saved is not None and stop <= len(self._saved.num_tokens):
            return self._saved.reorder(torch.arange(start, stop))
        made: StackState = self._model.init_state(stop - start)
        return made

    def take(self, start: int, stop: int, state: StackState | None) -> None:
        """Take over the state that these rows came to."""
        assert state is not None
        overlapping = [rows for rows in self._pieces if rows[0] < stop and start < rows[1]]
        for rows in overlapping:
            del self._pieces[rows]
        self._pieces[start, stop] = state.detach()

    def tensors(self) -> dict[str, Tensor]:
        """All that the next step needs, to be saved; all processes have to ask."""
        own = [named_tensors(self._pieces[rows]) for rows in sorted(self._pieces)]
        every = [part for parts in self._world.gathered(own) for part in parts]
        return {name: torch.cat([part[name].cpu() for part in every]) for name in every[0]}

    def fill(self, tensors: dict[str, Tensor]) -> None:
        """Take up what `tensors` gave."""
        tensors = present_names(tensors)
        initial = self._model.init_state(len(tensors["num_tokens"]))
        self._saved = filled(initial, tensors).to(next(self._model.parameters()).device)


def carry_of(model: nn.Module, dataset: Dataset, world: World) -> TextCarry | None:
    """What the training of a model on this data carries; None where nothing is."""
    if not memories_of(model) or dataset.running_text is None:
        return None
    return TextCarry(model, world)


def weigh_classes(model: nn.Module, dataset: Dataset, config: TrainingConfig) -> None:
    """Give the model the weights of the classes that ``config`` asks for.

    Raises:
        ConfigError: the task has no classes, or the model takes no weights.
    """
    config.check_task(dataset.does)
    weigh: Any = getattr(model, "weigh_classes", None)
    if config.class_weights is not None:
        weights = dataset.balanced_weights
        if weigh is None or weights is None:
            raise ConfigError(
                f"`class_weights` is {config.class_weights}, but a {type(model).__name__} on "
                f"{dataset.name} takes no weights of classes: leave it out"
            )
        weigh(weights.tolist())
    elif weigh is not None:
        weigh(None)


def checkpoint_activations(model: nn.Module) -> None:
    """Let a model keep each layer's input alone for the backward pass.

    Raises:
        ConfigError: it has no blocks.
    """
    enable: Any = getattr(model, "enable_checkpointing", None)
    if enable is None:
        raise ConfigError("`checkpoint_activations` is set, but this model has no blocks")
    enable()


def seed_step(seed: int, step: int, rank: int = 0) -> None:
    """Make all randomness of a step follow from these numbers, whatever was drawn before.

    Args:
        rank: which accelerators draw by; the host draws the same in all processes, since what rows
            draw follows from where they stand (`everyformer.engines.drawing`).
    """
    seed_all(mixed(seed, step, rank))
    number = mixed(seed, step, 0)
    torch.default_generator.manual_seed(number)
    random.seed(number)
    np.random.seed(number & 0xFFFFFFFF)  # noqa: NPY002 (third-party code draws from the global one)


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """The precision of a forward pass, as a context."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")


def forward(
    model: nn.Module, batch: Batch, state: StackState | None = None, **options: Any
) -> ModelOutput:
    """The model's output and loss on a batch; one with a memory goes on from ``state``."""
    options |= batch.extra if state is None else {"state": state, **batch.extra}
    return model(batch.inputs, targets=batch.targets, mask=batch.mask, **options)


def backward(
    model: nn.Module,
    batch: Batch,
    world: World,
    *,
    slices: int = 1,
    precision: str = "float32",
    carry: TextCarry | None = None,
) -> dict[str, float]:
    """Add the gradient of the step's loss to the parameters; the loss's terms by name.

    The task's loss is the mean over the scored targets of all processes, or the weighted one that
    `Model.term_counts` tells. Of the other terms each slice weighs in by what the term is a mean
    over (likewise), or else by its rows. What is counted is summed over the processes, once.

    Args:
        model: as `World.wrap` gave it back.
        batch: this process's rows of the whole batch.
        slices: how many pieces this process works its rows through in.
        precision: float32 computes as the model's weights are, bfloat16 under autocast.
        carry: what the rows go on from, and where what they come to is kept.

    Raises:
        DataError: no target of the whole batch is scored.
        ConfigError: it has fewer rows than processes times slices (of batches by tokens).
        UnsupportedError: the loss carries no gradient.
    """
    weights = Weights(model, batch, world, slices)
    first, _ = world.own.of(weights.rows)
    sums: dict[str, Tensor] = {}
    begun = torch.get_rng_state()
    for i, (start, stop) in enumerate(cuts(batch, slices)):
        part, where = batch.rows(start, stop), (first + start, first + stop)
        share = weights.of(part, (stop - start) / weights.rows)
        part = part.to(world.device)
        own = model.slice(i == slices - 1) if isinstance(model, Shared) else nullcontext()
        torch.set_rng_state(begun)
        with own, piece_of_rows(where[0], stop - start):
            state = None if carry is None else carry.of(*where)
            with autocast(world.device, precision):
                out = forward(model, part, state)
                terms = share.weigh(out)
            if carry is not None:
                carry.take(*where, out.state)
            # averaging divides by the number of processes, the weights already have
            loss = functools.reduce(torch.add, terms.values()) * world.size
            if not loss.requires_grad:
                raise UnsupportedError(
                    "the loss of this model carries no gradient, so that nothing can be learnt: "
                    "let its forward run without torch.no_grad() and detach()"
                )
            loss.backward()
        for name, term in terms.items():
            sums[name] = sums.get(name, torch.zeros_like(term)) + term.detach()
    values = world.sum([float(value) for value in sums.values()])
    return dict(zip(sums, values, strict=True))


def cuts(batch: Batch, slices: int) -> Iterator[tuple[int, int]]:
    """First rows of so many slices of a batch, with the ends of them."""
    return pairwise(len(batch.targets) * i // slices for i in range(slices + 1))


class Share(NamedTuple):
    """The share of a batch's losses that those of a piece of it are."""

    targets: float
    rows: float
    terms: dict[str, float]
    """of those that `Model.term_counts` tells"""

    def weigh(self, out: ModelOutput) -> dict[str, Tensor]:
        """The losses of the piece by name, which add up to the batch's."""
        task = out.losses["task"]
        if self.targets == 0:
            # a mean over no targets may be 0/0; the graph must still reach every parameter
            task = out.logits.sum() * 0
        others = (name for name in out.losses if name != "task")
        terms = {name: out.losses[name] * self.terms.get(name, self.rows) for name in others}
        return {"task": task * self.terms.get("task", self.targets), **terms}


class Weights:
    """Shares that pieces of a batch have in its losses; all processes ask for them together.

    Args:
        batch: this process's rows of the whole batch.
        slices: how many pieces it works them through in.

    Raises:
        DataError: no target of the whole batch is scored.
        ConfigError: it has fewer rows than processes times slices (of batches by tokens).
    """

    def __init__(self, model: nn.Module, batch: Batch, world: World, slices: int) -> None:
        self._model = model
        own = self._counts(batch)
        rows, scored, *totals = world.sum([len(batch.targets), batch.scored, *own.values()])
        self.rows, self.scored = round(rows), scored
        self.totals = dict(zip(own, totals, strict=True))
        if scored == 0:
            raise DataError(
                "no target of this batch is scored (all are -100): nothing can be learnt"
            )
        if self.rows < world.size * slices:
            raise ConfigError(
                f"this batch has {self.rows} sequences, fewer than {world.size} processes times "
                f"`accumulate` ({slices}) need: give more `data.tokens`, or a lower `accumulate`"
            )

    def of(self, piece: Batch, of_rows: float) -> Share:
        """The share of ``piece``, which has so much ``of_rows``."""
        own = self._counts(piece)
        terms = {name: own[name] / total if total else 1.0 for name, total in self.totals.items()}
        return Share(piece.scored / self.scored, of_rows, terms)

    def _counts(self, batch: Batch) -> dict[str, float]:
        """Counts of `Model.term_counts` for these rows; none of modules of other kinds."""
        return _answer(self._model, "term_counts", batch.inputs, batch.targets, batch.mask) or {}


def count_operations(
    model: nn.Module, batch: Batch, world: World, step: Callable[[], dict[str, float]]
) -> tuple[dict[str, float], float]:
    """The losses that a ``step`` on the batch gives, and the floating-point operations that one
    position of it took, over all processes."""
    losses: dict[str, float] = {}
    [counted] = world.sum([count_flops(lambda: losses.update(step()))])
    [read] = world.sum([positions(model, batch)])
    return losses, counted / read


def positions(model: nn.Module, batch: Batch) -> int:
    """Positions that a pass over the batch computes, padding included: what speed and budgets of
    tokens count. Of pictures a model says how many it reads, as patches or pixels."""
    read = _answer(model, "positions_read", len(batch.inputs))
    return batch.tokens if read is None else read


def _answer(model: nn.Module, method: str, *arguments: Any) -> Any:
    """A model's answer, wrapped for several processes or not; None of modules of other kinds."""
    method_of: Any = getattr(getattr(model, "module", model), method, None)
    return None if method_of is None else method_of(*arguments)
