"""One update of the weights, from a step's rows to the optimiser, and its gradient.

The gradient is the same for any number of slices and processes. What is drawn in a step is the same
too, on a CPU: slices and processes begin with one state of torch's generator, and each draws on to
its own rows (`everyformer.engines.drawing`).
"""

import functools
import random
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from everyformer.core.errors import ConfigError, DataError, UnsupportedError
from everyformer.core.outputs import ModelOutput
from everyformer.core.seeds import mixed
from everyformer.core.state import StackState
from everyformer.data.batch import Batch
from everyformer.data.dataset import Dataset
from everyformer.engines.drawing import piece_of_rows
from everyformer.training.carry import TextCarry
from everyformer.training.optimiser import clip_gradients, set_learning_rate
from everyformer.training.parallel.shared import Shared
from everyformer.training.parallel.world import World
from everyformer.training.schedule import learning_rate, narrowed, pieces_of
from everyformer.training.session import Session
from sequence_laws.inputs import seed_all


class Update(NamedTuple):
    """The rows of an update, and its losses by name, learning rate and norm of the gradient."""

    batch: Batch
    losses: dict[str, float]
    lr: float
    norm: float


def update(session: Session, dataset: Dataset) -> Update:
    """Change the weights, and their average, once.

    Raises:
        DivergedError: a loss or the gradient is not finite; the weights are as before.
    """
    model, config, world, done = session.model, session.config, session.world, session.done
    step, pieces = session.state.steps + 1, pieces_of(config.stages, done)
    batch = rows_of(session, dataset, step - 1)
    batch = batch if pieces == 1 else batch.folded(pieces)
    seed_step(session.seed, step, world.rank)
    lr = learning_rate(config, done, step)
    set_learning_rate(session.optimiser, lr)
    session.optimiser.zero_grad()
    report: Any = getattr(model, "set_progress", None)
    if report is not None:
        report(done)
    with narrowed(model, pieces), session.operations.measured(batch) as measuring:
        # torch counts nothing within compiled code
        module = session.module if measuring else session.compiled
        losses = backward(
            module, batch, world, slices=config.accumulate, precision=session.precision,
            carry=session.carry,
        )  # fmt: skip
    norm = clip_gradients(model.parameters(), config.clip)
    session.records.check_finite({**losses, "norm of the gradient": norm}, f"in step {step}")
    session.optimiser.step()
    end_step: Any = getattr(model, "end_step", None)
    if end_step is not None:
        end_step()
    if session.average is not None:
        session.average.update(model)
    session.state.steps = step
    return Update(batch, losses, lr, norm)


def rows_of(session: Session, dataset: Dataset, step: int) -> Batch:
    """This process's rows of a step, from 0; of a memory, those that continue the last ones."""
    config, own, text = session.config, session.world.own, dataset.running_text
    if session.carry is None or text is None:
        return dataset.train_batch(step, config.batch, config.seed, own)
    return text.segment(step, config.batch, own)


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
    rng_before = torch.get_rng_state()
    for i, (start, stop) in enumerate(cuts(batch, slices)):
        part, where = batch.rows(start, stop), (first + start, first + stop)
        share = weights.of(part, (stop - start) / weights.rows)
        part = part.to(world.device)
        own = model.slice(i == slices - 1) if isinstance(model, Shared) else nullcontext()
        torch.set_rng_state(rng_before)
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


def forward(
    model: nn.Module, batch: Batch, state: StackState | None = None, **options: Any
) -> ModelOutput:
    """The model's output and loss on a batch; one with a memory goes on from ``state``."""
    options |= batch.extra if state is None else {"state": state, **batch.extra}
    return model(batch.inputs, targets=batch.targets, mask=batch.mask, **options)


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """The precision of a forward pass, as a context."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")


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
        model: Any = getattr(self._model, "module", self._model)
        counts = getattr(model, "term_counts", None)
        return {} if counts is None else counts(batch.inputs, batch.targets, batch.mask)
