"""Tokens that leave the layers: those that run are computed, the others stay as they left.

    x^t_i = layers_t(x^(t-1))_i  where token i runs at the step t,   x^(t-1)_i  where it has left

Keys and values of a token that has left are, at deeper steps, those of its copied stream. They are
all that it costs there: queries, outputs and feed-forwards are computed for the tokens that run
alone, where the mixer answers for some of its tokens, and rows in which none runs are left out.

Not even they are computed where the same layers read the stream as it is at every step, for there
a token that has left moves by its step's signal s_t alone:

    W (x_i + s_t) = W x_i + W s_t        W x_i of tokens that ran a step before, else as it was

In a stream a step that no token takes is not run at all. What it would have taken in waits
(`_pending`) until a later token comes there, or until so much waits that it is
cheaper taken in at once; then it is taken in by one call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from everyformer.blocks.depth import Run
from everyformer.core.chosen import Chosen
from everyformer.core.dispatch import take
from everyformer.core.state import State
from everyformer.core.trace import tracing
from everyformer.genes.depth._pending import Pending

HELD = 64
"""tokens that wait at most"""
Enter = Callable[[Tensor, Tensor, int], Tensor]
"""(stream, positions, step) to what enters the layers of that step"""


class Leaving:
    """The steps of one pass; call `fill` and `step` for each that is taken, and `close` at the end.

    Args:
        steps: of each step the blocks that it applies in order.
        name: of the depth, as reports know it.
        enter: of tokens that waited.
        copies: whether tokens that have left stay as they are.
    """

    def __init__(
        self,
        blocks: Any,
        given: Run,
        steps: Sequence[Sequence[int]],
        name: str,
        enter: Enter | None = None,
        copies: bool = True,
    ) -> None:
        self.blocks, self.given, self.steps, self.enter = blocks, given, steps, enter
        self.waiting: State | None = None if given.carried is None else given.carried.pending
        self.all_of = bool(given.taps) or tracing() or torch.compiler.is_compiling()
        """whether all tokens are computed, and some then taken"""
        self.taken = 0
        self.ran: Chosen | None = None
        """who ran at the step before; None: all"""
        self.still: dict[int, Tensor] = {}
        """(B, L, C) by block, W x of the stream without the step's signal"""
        if copies:
            why = "its inside is looked at, or a compiler cannot follow who runs"
            way = "all tokens" if self.all_of else "running tokens"
            take(f"depth {name}", way, why if self.all_of else "")

    def layers(self, t: int) -> range:
        """Which layers of the stack the step t is."""
        first = sum(map(len, self.steps[:t]))
        return range(first, first + len(self.steps[t]))

    def fill(self, t: int) -> None:
        """Let the layers of the step t take in what they lack, before they read more."""
        if isinstance(self.waiting, Pending) and not self.waiting.none:
            self._fill(self.waiting, t)

    def step(
        self,
        t: int,
        x: Tensor,
        running: Tensor | None = None,
        chosen: Chosen | None = None,
        signal: Tensor | None = None,
    ) -> Tensor:
        """``x`` (B, L, width) behind the step t; tokens that are not ``running`` (B, L) stay.

        Args:
            chosen: those that run, as `among` gives them.
            signal: (width,) all in which ``x`` differs from the step before at tokens that did not
                run there, of steps that apply the same blocks.
        """
        for n, layer in zip(self.steps[t], self.layers(t), strict=True):
            if chosen is not None:
                some = chosen if signal is None else self._known(n, x, chosen, signal)
                x = chosen.put(x, self.given.step(self.blocks, n, layer, x, some))
                continue
            new = self.given.step(self.blocks, n, layer, x)
            x = new if running is None else torch.where(running[..., None], new, x)
            self.given.collect(layer + 1, {"block-output": x})
        self.taken, self.ran = t + 1, chosen
        return x

    def _known(self, n: int, x: Tensor, chosen: Chosen, signal: Tensor) -> Chosen:
        """``chosen`` with what block n makes keys and values of, computed only of tokens that ran
        a step before."""
        moves = self.blocks[n].sources(signal, biased=False)
        if moves is None:
            return chosen
        x, ran = self.given.entering(self.blocks, n, x), self.ran
        new = self.blocks[n].sources((x if ran is None else ran.pick(x)) - signal)
        self.still[n] = new if ran is None else ran.put(self.still[n], new)
        return chosen._replace(sources=self.still[n] + moves)

    def among(self, running: Tensor) -> Chosen | None:
        """The tokens that are ``running`` (B, L); None: all are computed."""
        return None if self.all_of else Chosen.of(running)

    def over(self, running: Tensor) -> bool:
        """Whether no token takes a further step, and none need be computed."""
        return not self.all_of and not bool(running.any())

    def close(
        self, x: Tensor, positions: Tensor, own: Callable[[int], Tensor], may_leave: bool = True
    ) -> None:
        """States of the steps that no token has taken, and what they have still to take in.

        Args:
            x: (B, L, width) as the tokens of this pass left. positions: theirs.
            own: what of them enters a step. may_leave: whether they might leave early.
        """
        given = self.given
        if given.carried is None or given.state is None:
            return
        later = range(self.taken, len(self.steps))
        if self.waiting is None:
            for t in later:
                for n, layer in zip(self.steps[t], self.layers(t), strict=True):
                    given.extend(self.blocks, n, layer, own(t), given.mask)
        pending = None
        if isinstance(self.waiting, Pending):
            keep = None if given.mask is None else given.mask.keep
            if self.waiting.none and not later:
                given.pending = self.waiting.passed(x, keep, may_leave)
                return
            pending = self.waiting.append(x, positions, keep, may_leave)
            if len(later) and pending.most(given.state[self.layers(later[-1])[0]].seen) > HELD:
                for t in later:
                    self._fill(pending, t)
        given.states += [given.state[layer] for t in later for layer in self.layers(t)]
        if pending is not None:
            given.pending = pending.but_for(given.states[-1].seen)

    def _fill(self, waiting: Pending, t: int) -> None:
        assert self.given.state is not None
        layers = self.layers(t)
        lacked = waiting.lacked(self.given.state[layers[0]].seen)
        if lacked is None:
            return
        stream, positions, mask = lacked
        stream = stream if self.enter is None else self.enter(stream, positions, t)
        for n, layer in zip(self.steps[t], layers, strict=True):
            self.given.extend(self.blocks, n, layer, stream, mask)
