"""The gradient of one step whose texts are split over processes, each part behind another.

A member that streams holds its whole past in its `State`. So process r reads its columns of the
rows after the state that process r - 1 came to, sends its own on, and in the backward pass sends
the gradient of what it was given back:

    s_(r+1), loss_r = model(columns r, s_r),    dL/ds_r -> r - 1,    dL/dw = sum_r dL_r/dw

Rows go through this one slice after the other (`accumulate`), so that the processes work on
different slices at once: of M slices over P parts a share of M / (M + P - 1) of the time is work
(Huang et al. 2019, arXiv 1811.06965). Each slice goes back as soon as it can, which bounds what a
process keeps to P - r slices (Harlap et al. 2018, arXiv 1806.03377).

States that are sums over the past are not waited for (`everyformer.training.sequence.prefix`).
A memory that takes no gradient (`State.cut`) learns as if one process read the parts as segments.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from everyformer.core.errors import UnsupportedError
from everyformer.core.past import answered_by
from everyformer.core.state import StackState, adds_up, in_step, innermost
from everyformer.core.tasks import TASKS
from everyformer.data.batch import Batch
from everyformer.family import info
from everyformer.genes.config import ModelConfig
from everyformer.training.parallel.world import World
from everyformer.training.sequence.chain import Chain
from everyformer.training.sequence.hand_over import Post, Sent
from everyformer.training.sequence.prefix import Prefix
from everyformer.training.step import Weights, autocast, cuts, forward


def sequence_reason(model: ModelConfig | nn.Module) -> str | None:
    """Why texts of a model cannot be split over processes, in words; None: they can.

    Of a config it is what its member and task say; a model is also asked for its parts.
    """
    config: Any = getattr(model, "config", model)
    task = TASKS.get(getattr(config, "task", ""))
    if task is None or config.outside is not None:
        return "it is no model of this library, whose state could be handed on"
    if task.predicts != "next" or task.reads != "text":
        return f"the task '{task.name}' does not go on from token to token of one text"
    streams = info(config.member).streaming
    if streams is not True:
        return f"{config.member} has no exact state ({streams})"
    if not isinstance(model, nn.Module):
        return None
    parts = (getattr(part, "undivided", None) for part in model.modules())
    reason = next(filter(None, parts), None)
    if reason is not None:
        return f"of {config.member}, {reason}"
    begin: Any = model.init_state
    try:
        begin(1)
    except UnsupportedError as error:
        return str(error)
    return None


def sums_alone(model: Any) -> bool:
    """True if all that a model carries on is sums over the past, and each layer runs once and is
    not compiled, so that its mixer can ask for them."""
    stack = model.stack
    again = stack.checkpointing or stack.wiring.recomputes or stack.depth.drives
    compiled = hasattr(model, "_orig_mod")
    return not (again or compiled) and adds_up(model.init_state(1))


def order(slices: int, ahead: int) -> Iterator[tuple[int, bool]]:
    """Passes of a process, as a slice's number and whether it goes back: at most so many slices
    ``ahead`` are on their way."""
    yield from ((n, False) for n in range(min(ahead, slices)))
    for n in range(slices):
        yield n, True
        if n + ahead < slices:
            yield n + ahead, False


class Sequence:
    """A training whose texts are split over processes.

    Args:
        model: the module itself, the same on all processes, not wrapped for them.
        world: all processes, and how many hold one text together.
        waits: whether states go from part to part even where they are sums over the past.

    Raises:
        UnsupportedError: the model's texts cannot be split.
        ConfigError: the processes cannot be parted so.
    """

    def __init__(self, model: nn.Module, world: World, waits: bool = False) -> None:
        reason = sequence_reason(model)
        if reason is not None:
            raise UnsupportedError(f"texts cannot be split over processes: {reason}")
        self.model, self.waits = model, waits
        self.chain = Chain.of(world)
        self.post = Post(self.chain)

    def backward(
        self, batch: Batch, *, slices: int = 1, precision: str = "float32"
    ) -> dict[str, float]:
        """Add the gradient of the batch's loss to the parameters; the loss's terms by name.

        It is that of `everyformer.training.step.backward`. Terms that are means over rows there are
        means over rows and columns here.

        Args:
            batch: this process's rows of the whole batch.
            slices: how many pieces this process works its rows through in.
            precision: float32 computes as the model's weights are, bfloat16 under autocast.

        Raises:
            DataError: no target of the whole batch is scored.
            ConfigError, UnsupportedError: it cannot be split, or not so far.
        """
        self.chain.check(batch)
        step = _Step(self.model, self.chain, self.post, batch, slices, precision)
        if self.chain.parts > 1 and not self.waits and sums_alone(self.model):
            step.sum_up()
        else:
            step.pass_on()
        self.chain.average(self.model)
        return self.chain.total({name: float(value) for name, value in step.sums.items()})


@dataclass
class _Slice:
    """A slice of the rows on its way."""

    loss: Tensor
    received: list[Tensor]
    sent: Sent | None


class _Step:
    """One step of this process."""

    def __init__(
        self, model: Any, chain: Chain, post: Post, batch: Batch, slices: int, precision: str
    ) -> None:
        self.model, self.chain, self.post, self.precision = model, chain, post, precision
        self.sums: dict[str, Tensor] = {}
        rows = [batch.rows(*cut) for cut in cuts(batch, slices)]
        start, stop = chain.columns(batch.inputs.shape[1])
        self.before = [each.columns(0, start) for each in rows]
        self.pieces = [each.columns(start, stop) for each in rows]
        weights = Weights(model, batch, chain.world, slices)
        size = weights.rows * batch.targets.shape[1]
        self.shares = [weights.of(piece, piece.targets.numel() / size) for piece in self.pieces]

    def pass_on(self) -> None:
        """Slices one after the other, each from the state that the part before sent of it."""
        under_way: dict[int, _Slice] = {}
        for n, back in order(len(self.pieces), self.chain.parts - self.chain.part):
            if not back:
                state, received = self.post.receive(self._begun(n))
                loss, after = self._forward(n, state)
                under_way[n] = _Slice(loss, received, self.post.send(after))
                continue
            done = under_way.pop(n)
            learned = [] if done.sent is None else done.sent.learned
            gradients = [] if done.sent is None else done.sent.gradients()
            torch.autograd.backward([done.loss, *learned], [None, *gradients])
            self.post.send_back(done.received)
        self.post.settle()

    def sum_up(self) -> None:
        """Slices one after the other, each from the sums over the parts before it."""
        for n, before in enumerate(self.before):
            state = self._begun(n)
            read = torch.full_like(state.seen, before.inputs.shape[1])
            read = read if before.keep is None else before.keep.sum(1).to(read)
            prefix = Prefix(self.chain)
            with answered_by(prefix):
                loss, _ = self._forward(n, in_step(replace(state, seen=read)))
            if prefix.asked != len([*innermost(state)]):
                raise UnsupportedError(
                    f"{len([*innermost(state)])} states of this model are sums over the past, but "
                    f"its mixers asked for {prefix.asked}: let each ask by "
                    "`everyformer.core.past.past`"
                )
            loss.backward()

    def _begun(self, n: int) -> StackState:
        state: StackState = self.model.init_state(
            len(self.pieces[n].targets), device=self.chain.world.device
        )
        return state

    def _forward(self, n: int, state: StackState) -> tuple[Tensor, Any]:
        """The loss of slice ``n``, and the state after it."""
        piece = self.pieces[n].to(self.chain.world.device)
        with autocast(self.chain.world.device, self.precision):
            out = forward(self.model, piece, state)
            terms = self.shares[n].weigh(out)
        for name, term in terms.items():
            self.sums[name] = self.sums.get(name, torch.zeros_like(term)) + term.detach()
        # gradients are averaged over the processes, the weights add up to one
        return reduce(torch.add, terms.values()) * self.chain.world.size, out.state
