"""Universal depth: the blocks T times over with signals of position and step, until tokens halt.

    P^t[i, 2j]   = sin(i w_j) + sin(t w_j)       w_j = 10000^(-2j/d),  i = 0 .. L-1,  t = 1 .. T
    P^t[i, 2j+1] = cos(i w_j) + cos(t w_j)
    X = H^(t-1) + P^t,   H^t = layers(X)         halting "none": y = H^T

Each token may halt by itself (ACT). It runs while what it has spent stays within 1 - epsilon:

    p^t = sigma(w . X + b),   N = min {n : sum_(t <= n) p^t > 1 - epsilon}
    R = 1 - sum_(t < N) p^t
    w^t = p^t for t < N,  R for t = N            accumulated: y = sum_t w^t H^t,  sum_t w^t = 1

interpolate y <- w^t H^t + (1 - w^t) y, as tensor2tensor runs it (its weights do not sum to 1). The
loss ``ponder`` is tau times the mean of N + R over real tokens; N has no gradient.

A token that has halted is copied: its keys and values at later steps are those of H^N + P^t (and in
the further layers of a step of the same). At the last step all that run are forced to stop.

Copied tokens cost nothing but their keys and values where the mixer answers for some of its tokens
(softmax attention without a memory), and with post-norm, as published, no product with weights;
another mixer computes all, and only what comes after it is spared. All is computed for all while a
trace is open, with taps and under a compiler. Streams keep a cache a step. What
copied tokens would add to deeper steps waits until a later token runs there
(`everyformer.genes.depth._deferred`); other mixers take it in at once. The transition is the
layers' feed-forward; of ``sepconv``, which reads what layers make of neighbours, copied ones too,
all is computed for all.

Source: Dehghani et al. 2018, arXiv 1807.03819; Graves 2016, arXiv 1603.08983. Which keys a copied
token has is our choice, the papers do not say. Cost: T times that of the layers, or the mean of N;
d weights and a bias for p.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyformer.blocks.depth import Depth
from everyformer.blocks.passing import LayerSchedule, StackRun, Steps
from everyformer.core.bounds import (
    Affects,
    Amount,
    Between,
    Layers,
    Real,
    Unless,
    Whole,
)
from everyformer.core.config import Options
from everyformer.core.mask import Mask, positions_of
from everyformer.core.panels import Recorded
from everyformer.core.position import normal_table
from everyformer.core.state import State
from everyformer.core.tally import tally
from everyformer.core.trace import record
from everyformer.core.trials import Trials
from everyformer.engines.drawing import uniform_rows
from everyformer.genes.depth import DEPTHS
from everyformer.genes.depth._deferred import Deferred
from everyformer.genes.depth._leaving import Leaving
from everyformer.genes.depth._panels import halting
from everyformer.genes.positions.sinusoidal import sinusoid

_HALTS = Unless("halting", "none")


@dataclass(frozen=True)
class UniversalOptions(Options):
    steps: Layers = 6
    """T, how often the blocks are applied, or at most where tokens halt"""
    halting: Literal["act", "none"] = "act"
    """what ends a token's steps: its p, or nothing"""
    combine: Annotated[Literal["accumulated", "interpolate"], _HALTS] = "accumulated"
    """what comes out of the steps of a token"""
    epsilon: Annotated[Between, _HALTS] = 0.01
    """a token halts once it has spent more than 1 - epsilon"""
    tau: Annotated[Amount, Affects("nothing"), _HALTS] = 0.01
    """weight of the ponder loss, the mean of N + R"""
    halting_bias: Annotated[Real, Affects("nothing"), _HALTS] = 1.0
    """b at the start: 1 halts after about two steps, -3 after many"""
    signal: Literal["sinusoid", "learned", "none"] = "sinusoid"
    """what tells a step apart: waves (the paper), a learned vector (tensor2tensor), nothing"""
    order: Literal["sinusoid", "none"] | None = None
    """whether positions are added at each step too (default: waves, where the model has no position
    already)"""
    start: Annotated[Whole, Affects("nothing")] = 0
    """in training each row's positions begin anywhere from 0 to this (0: at 0)"""
    gone: ClassVar[dict[str, Any]] = {"halted": "copy", "cap": "force", "waves": "paper"}


class Signals(NamedTuple):
    """Signals added to the stream before a step."""

    steps: Tensor
    """(T, width)"""
    places: Tensor | None
    """(B or 1, L, width); None: order is not added"""

    def on(self, x: Tensor, t: int) -> Tensor:
        """``x`` (B, L, width) as it enters the step t, counted from 0."""
        x = x + self.steps[t]
        return x if self.places is None else x + self.places


@DEPTHS.register("universal")
class Universal(Depth):
    """All blocks, up to T times, with halting by token."""

    name = "universal"
    Options = UniversalOptions
    options: UniversalOptions
    drives = places = True
    recorded: ClassVar[Recorded] = {"halting": halting}
    trials = Trials(
        variants=(
            {"steps": 4},
            {"steps": 4, "halting_bias": -1.0},
            {"steps": 3, "halting": "none", "signal": "learned"},
            {"steps": 3, "combine": "interpolate"},
        )
    )

    def build(self, width: int, layers: int) -> None:
        o = self.options
        if o.halting == "act":
            # one output: a vector, which weight decay leaves alone
            self.weight = nn.Parameter(torch.empty(width))
            self.bias = nn.Parameter(torch.full((1,), o.halting_bias))
            nn.init.xavier_uniform_(self.weight.data[None])
        if o.signal == "learned":
            self.signals = normal_table(o.steps, width, std=width**-0.5)

    def steps(self, blocks: int) -> Steps:
        return [range(blocks)] * self.options.steps

    def begin(self, batch: int, width: int, **like: Any) -> State | None:
        return Deferred.empty(batch, width, **like) if self.options.halting == "act" else None

    def schedule(self, run: StackRun, x: Tensor) -> LayerSchedule:
        return Halting(self, run, x)

    def chances(self, x: Tensor) -> Tensor:
        """p (B, L) of what enters a step, in float32 or wider."""
        wide = torch.promote_types(x.dtype, torch.float32)
        # no matrix product, which autocast would do in half precision
        return ((x.to(wide) * self.weight.to(wide)).sum(-1) + self.bias.to(wide)).sigmoid()

    def positions(self, x: Tensor, run: StackRun) -> Tensor:
        """(B or 1, L) of the text; zeros where none are added."""
        length = x.shape[1] - run.prefix
        if not self.adds_positions:
            return torch.zeros(1, length, dtype=torch.long, device=x.device)
        mask, carried = run.mask, run.carried
        if mask is not None and mask.padding_mask is not None and run.prefix:
            mask = Mask(padding_mask=mask.padding_mask[:, run.prefix :])
        num_tokens = None if carried is None else carried.num_tokens
        positions = positions_of(x.shape[0], length, mask, num_tokens, x.device)
        if self.training and self.options.start and carried is None:
            drawn = uniform_rows((x.shape[0], 1), x.device)
            first = (drawn * (self.options.start + 1)).long()
            positions = positions + first
        return positions

    def signals_of(self, positions: Tensor, x: Tensor) -> Signals:
        """Signals of all steps, and of the tokens of ``x`` at ``positions``."""
        o, width = self.options, x.shape[-1]
        steps = x.new_zeros(o.steps, width)
        if o.signal == "sinusoid":
            counted = torch.arange(1, o.steps + 1, device=x.device)
            steps = sinusoid(counted, width, dtype=x.dtype)
        elif o.signal == "learned":
            steps = (self.signals * width**0.5).to(x.dtype)
        places = sinusoid(positions, width, dtype=x.dtype) if self.adds_positions else None
        return Signals(steps, places)


class Account:
    """Halting probability that each token (B, L) of a pass has spent: Graves' recurrence.

        stops = r and c + p > 1 - epsilon            r: the token runs, c: what it has spent
        goes  = r and not stops
        w     = p where it goes on, 1 - c where it stops       R = 1 - c where it stops
        c    += p where it goes on                             n += 1 where r

    The comparison is strict (tensor2tensor; Graves 2016 has >=). A token that is forced to stop
    stops whatever p is. Sums are in float32 at least; who runs is a flag, never asked of c.
    """

    def __init__(self, running: Tensor, epsilon: float, dtype: torch.dtype) -> None:
        self.running = running
        """(B, L) bool, which take the next step; padding never does"""
        self.epsilon = epsilon
        self.spent = torch.zeros(running.shape, dtype=dtype, device=running.device)
        """c"""
        self.remainder = torch.zeros_like(self.spent)
        """R"""
        self.steps = torch.zeros_like(running, dtype=torch.long)
        """N"""

    def spend(self, p: Tensor, last: bool) -> Tensor:
        """Take one step; its weights w (B, L), 0 where a token does not run.

        Args:
            p: (B, L) chance to halt. last: whether all that run are forced to stop.
        """
        stops = self.running if last else self.running & (self.spent + p > 1 - self.epsilon)
        goes = self.running & ~stops
        nothing = torch.zeros_like(self.spent)
        rest = torch.where(stops, 1 - self.spent, nothing)
        paid = torch.where(goes, p, nothing)
        self.remainder, self.spent = self.remainder + rest, self.spent + paid
        self.steps, self.running = self.steps + self.running, goes
        return paid + rest

    def ponder(self, counted: Tensor) -> Tensor:
        """The mean of N + R over the tokens that are ``counted`` (B, L)."""
        cost = torch.where(counted, self.steps + self.remainder, torch.zeros_like(self.spent))
        return cost.sum() / counted.sum().clamp(min=1)


class Halting(Leaving):
    """One pass through a universal depth: who runs, and what comes out of the steps so far."""

    def __init__(self, depth: Universal, run: StackRun, x: Tensor) -> None:
        o = self.options = depth.options
        super().__init__(run, depth.name, self._resume, o.halting != "none")
        self.depth, prefix = depth, run.prefix
        self.positions = depth.positions(x, run)
        signals = depth.signals_of(self.positions, x)
        if signals.places is not None and prefix:
            signals = signals._replace(places=F.pad(signals.places, (0, 0, prefix, 0)))
        self.signals = signals
        padding_mask = None if run.mask is None else run.mask.padding_mask
        self.real = (
            x.new_ones(x.shape[:2], dtype=torch.bool) if padding_mask is None else padding_mask
        )
        self.counted = self.real.clone()
        self.counted[:, :prefix] = False
        wide = torch.promote_types(x.dtype, torch.float32)
        self.account = Account(self.real, o.epsilon, wide)
        self.x, self.y = x, torch.zeros_like(x, dtype=wide)
        """the stream of the tokens, and the sum that comes out of their steps"""

    def _resume(self, stream: Tensor, positions: Tensor, t: int) -> Tensor:
        return self.depth.signals_of(positions, stream).on(stream, t)

    def over(self) -> bool:
        return self.options.halting != "none" and self.none(self.account.running)

    def enter(self, t: int, stream: Tensor) -> Tensor:
        o, account = self.options, self.account
        self.x, moved = stream, self.signals.on(stream, t)
        if o.halting == "none":
            return moved
        self.catch_up(t)
        self.runs = account.running
        self.w = account.spend(self.depth.chances(moved), t + 1 == o.steps)[..., None]
        self.run_for(self.runs)
        return moved

    def leave(self, t: int, stream: Tensor) -> Tensor:
        h = stream
        if self.options.halting == "none":
            return h
        stream = torch.where(self.runs[..., None], h, self.x)
        layers = (t + 1) * len(self.run.steps[t])
        self.run.collect(layers, {"block-output": stream})
        before = self.y if self.options.combine == "accumulated" else (1 - self.w) * self.y
        self.y = before + self.w * h
        return stream

    def close(self, stream: Tensor) -> Tensor:
        o, account, counted = self.options, self.account, self.counted
        if o.halting == "none":
            tally("depth", lambda: (o.steps * counted.sum(), counted.sum()))
            return stream
        self.finalise(stream, self.positions, lambda t: self.signals.on(stream, t))
        self.run.losses["ponder"] = o.tau * account.ponder(counted)
        tally("depth", lambda: (account.steps[counted].sum(), counted.sum()))
        prefix = self.run.prefix
        record(self.depth, "halting", lambda: account.steps[:, prefix:])
        record(self.depth, "remainder", lambda: account.remainder[:, prefix:])
        return self.y.to(stream.dtype)
