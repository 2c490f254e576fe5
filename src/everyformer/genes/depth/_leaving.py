"""Tokens that leave the layers: those that run are computed, the others stay as they left.

    x^t_i = layers_t(x^(t-1))_i  where token i runs at the step t,   x^(t-1)_i  where it has left

Keys and values of a token that has left are, at deeper steps, those of its copied stream. They are
all that it costs there: queries, outputs and feed-forwards are computed for the tokens that run
alone, where the mixer answers for some of its tokens, and rows in which none runs are left out.

In a stream a step that no token takes is not run at all. What it would have taken in waits
(`_pending`) until a later token comes there, or until so much waits that it is
cheaper taken in at once; then it is taken in by one call.
"""

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor

from everyformer.blocks.passing import LayerSchedule, StackRun
from everyformer.core.dispatch import take
from everyformer.core.state import State
from everyformer.core.subset import TokenSubset
from everyformer.core.trace import tracing
from everyformer.genes.depth._deferred import Deferred

HELD = 64
"""tokens that wait at most"""
Enter = Callable[[Tensor, Tensor, int], Tensor]
"""(stream, positions, step) to the stream that enters the layers of that step"""


class Leaving(LayerSchedule):
    """A schedule that tokens leave: those that run are computed, the others stay.

    Args:
        name: of the depth, as reports know it.
        enter: of tokens that waited.
        copies: whether tokens that have left stay as they are.
    """

    def __init__(
        self, run: StackRun, name: str, enter: Enter | None = None, copies: bool = True
    ) -> None:
        super().__init__(run)
        self.resumed = enter
        self.waiting: State | None = None if run.carried is None else run.carried.pending
        self.all_of = bool(run.taps) or tracing() or torch.compiler.is_compiling()
        """whether all tokens are computed, and some then taken"""
        self.taken = 0
        """steps"""
        self.running: Tensor | None = None
        """(B, L) who takes the step; None: all, or nobody stays as it was"""
        self.chosen: TokenSubset | None = None
        """the same, where they alone are computed"""
        if copies:
            why = "its inside is looked at, or a compiler cannot follow who runs"
            way = "all tokens" if self.all_of else "running tokens"
            take(f"depth {name}", way, why if self.all_of else "")

    def catch_up(self, t: int) -> None:
        """Let the layers of the step ``t`` take in what they lack, before they read more."""
        self.taken = t + 1
        if isinstance(self.waiting, Deferred) and not self.waiting.none:
            self._catch_up(self.waiting, t)

    def run_for(self, running: Tensor) -> None:
        """Let the tokens that are ``running`` (B, L) alone take the step."""
        self.running = running
        self.chosen = None if self.all_of else TokenSubset.of(running)

    @final
    def apply(self, n: int, layer: int, stream: Tensor) -> Tensor:
        if self.chosen is not None:
            return self.chosen.put(stream, self.run.step(n, layer, stream, self.chosen))
        new: Tensor = self.run.step(n, layer, stream)
        if self.running is not None:
            new = torch.where(self.running[..., None], new, stream)
            self.run.collect(layer + 1, {"block-output": new})
        return new

    def none(self, running: Tensor) -> bool:
        """True if no token is ``running`` (B, L), and none need be computed."""
        # where no number can be read, all are computed too
        self.all_of |= running.is_meta
        return not self.all_of and not bool(running.any())

    def finalise(
        self,
        x: Tensor,
        positions: Tensor,
        enter: Callable[[int], Tensor],
        may_leave: bool = True,
    ) -> None:
        """States of the steps that no token has taken, and what they have still to take in.

        Args:
            x: (B, L, width) as the tokens of this pass left. positions: theirs.
            enter: step to their stream as it enters that. may_leave: whether they might leave
                early.
        """
        run = self.run
        if run.carried is None or run.state is None:
            return
        later = range(self.taken, len(run.steps))
        if self.waiting is None:
            for t in later:
                for n, layer in self._layers(t):
                    run.append(n, layer, enter(t), run.mask)
        pending = None
        if isinstance(self.waiting, Deferred):
            padding_mask = None if run.mask is None else run.mask.padding_mask
            if self.waiting.none and not later:
                run.pending = self.waiting.passed(x, padding_mask, may_leave)
                return
            pending = self.waiting.append(x, positions, padding_mask, may_leave)
            if (
                len(later)
                and pending.most(run.state[self._layers(later[-1])[0][1]].num_tokens) > HELD
            ):
                for t in later:
                    self._catch_up(pending, t)
        run.states += [run.state[layer] for t in later for _, layer in self._layers(t)]
        if pending is not None:
            run.pending = pending.but_for(run.states[-1].num_tokens)

    def _layers(self, t: int) -> list[tuple[int, int]]:
        """Block and layer of each layer of the step ``t``."""
        first = sum(map(len, self.run.steps[:t]))
        return [(n, first + i) for i, n in enumerate(self.run.steps[t])]

    def _catch_up(self, waiting: Deferred, t: int) -> None:
        assert self.run.state is not None
        layers = self._layers(t)
        lacked = waiting.lacked(self.run.state[layers[0][1]].num_tokens)
        if lacked is None:
            return
        stream, positions, mask = lacked
        stream = stream if self.resumed is None else self.resumed(stream, positions, t)
        for n, layer in layers:
            self.run.append(n, layer, stream, mask)
