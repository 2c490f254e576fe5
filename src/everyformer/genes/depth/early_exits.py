"""Early exits: each token leaves the layers when it is sure enough, and is predicted from there.

    n_t = the first deciding layer n at which token t leaves, or N;   p(y_t) = head_n(h_t^n)

A token that leaves is copied to the deeper layers, whose keys and values are projections of it
(`_leaving`), so a stream with a cache and a whole text at once give the same.
A text that is read to be gone on from goes through all layers (`reading_prompt`).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal, final

import torch
from torch import Tensor, nn

from everyformer.blocks.depth import Depth, Exiting
from everyformer.blocks.passing import LayerSchedule, StackRun, Steps
from everyformer.core.bounds import Affects, Bounds, Count
from everyformer.core.config import Options
from everyformer.core.devices import widest
from everyformer.core.errors import ConfigError
from everyformer.core.mask import positions_of
from everyformer.core.panels import Recorded
from everyformer.core.state import State
from everyformer.core.subset import TokenSubset
from everyformer.core.tally import tally
from everyformer.core.trace import record
from everyformer.genes.depth._deferred import Deferred
from everyformer.genes.depth._leaving import Leaving
from everyformer.genes.depth._panels import confidence, exits
from everyformer.genes.depth.plain import Plain

Threshold = Annotated[float, Bounds(0, 1)]
Weighting = Literal["uniform", "linear", "root", "inverse"]


@dataclass(frozen=True, kw_only=True)
class ExitOptions(Options):
    """Options of all early exits."""

    heads: Literal["tied", "separate"] = "tied"
    """whether layers predict by the model's norm and output layer, or each by another"""
    scale_gradients: Annotated[bool, Affects("nothing")] = False
    """divide what comes down to a layer by the weight of all exits above it, which else add up"""
    first_exit: Annotated[Count, Affects("results")] = 1
    """the first layer that decides"""
    every: Annotated[Count, Affects("results")] = 1
    """layers from one that decides to the next; 1: each from the first on"""
    gone: ClassVar[dict[str, Any]] = {"together": False}


@dataclass(frozen=True)
class Learns:
    """Loss of a training of early exits."""

    weighting: Weighting | None = "uniform"
    """of the layers' losses, each of the whole text; None: those of drawn layers"""
    samples: int = 1
    """how often layers are drawn"""
    decides: bool = False
    """whether what decides is trained too"""
    alone: bool = False
    """whether it alone is, and all else stays as it is"""


@dataclass(eq=False)
class Evidence:
    """Outputs of all layers for a text (B, T), which train the decision."""

    states: list[Tensor]
    """(B, T, width) what each layer predicts from"""
    logs: Tensor
    """(N, B, T) log p of the targets by each layer, in float32 or wider"""
    best: Tensor
    """(N, B, T) the tokens that each finds likeliest"""
    targets: Tensor
    """(B, T), -100: not scored"""
    runs: Tensor | None
    """(B, T) which document of its row a token is in; None: one"""
    context: Sequence[State] | None
    """of a decoder, what was made of the encoder's output"""


def layer_weights(weighting: Weighting, layers: int, device: torch.device) -> Tensor:
    """omega_n of n = 1 .. N: 1, n, sqrt(n) or 1 / n."""
    n = torch.arange(1, layers + 1, dtype=widest(device), device=device)
    return {
        "uniform": torch.ones_like(n),
        "linear": n,
        "root": n.sqrt(),
        "inverse": 1 / n,
    }[weighting]


@dataclass(eq=False)
class Running:
    """The running tokens after a layer, by which a depth decides who leaves."""

    n: int
    """the layer, from 1"""
    stream: Tensor
    """(R, k, width) h^n"""
    before: Tensor | None
    """(R, k, width) after the layer that decided before; None: there is none"""
    age: Tensor
    """(R, k) how many tokens of the row might leave before each"""
    exiting: Exiting
    _logits: Tensor | None = field(default=None, init=False)

    @property
    def state(self) -> Tensor:
        """(R, k, width) what layer n predicts from."""
        return self.exiting.norm(self.stream, self.n)

    @property
    def logits(self) -> Tensor:
        """(R, k, vocabulary)"""
        if self._logits is None:
            self._logits = self.exiting.head(self.state, self.n)
        return self._logits


class Exits(Depth):
    """Base of depths whose tokens leave early."""

    options: Any
    drives = True
    learned_as: ClassVar[str] = Plain.name
    recorded: ClassVar[Recorded] = {"exits": exits, "confidence": confidence}
    layers: int
    full: bool = False
    """whether no token leaves"""
    at: Tensor | None = None
    """(B or 1, L or 1) the layers at which tokens leave, whoever else decides (`leaving_at`)"""
    prompt: int = 0
    """columns of what is read that are a text to be gone on from (`reading_prompt`)"""

    @final
    def build(self, width: int, layers: int) -> None:
        self.layers = layers
        self.make(width, layers)

    def make(self, width: int, layers: int) -> None:
        """Make the weights of what decides."""
        raise NotImplementedError

    @property
    def learns(self) -> Learns:
        """Loss of the training."""
        raise NotImplementedError

    def exit_loss(self, evidence: Evidence) -> Tensor | None:
        """The loss of what decides, summed over the targets; None: there is none."""
        raise NotImplementedError

    def planned(self, run: StackRun, x: Tensor, age: Tensor) -> Tensor | None:
        """(B, L) the layers at which tokens leave, where that is known before the first."""
        return None

    def confidence(self, running: Running) -> Tensor:
        """(R, k) how sure a layer is."""
        raise NotImplementedError

    def leaves(self, running: Running, confidence: Tensor) -> Tensor:
        """(R, k) bool, which of the tokens leave."""
        raise NotImplementedError

    def decided(self, running: Running) -> Tensor | None:
        """(R, k) the layers at which tokens leave, where the first deciding layer decides that."""
        return None

    @property
    def has_threshold(self) -> bool:
        """True if a threshold decides as the options are."""
        return True

    @property
    def open(self) -> bool:
        """True if any token may leave as the options are."""
        return True

    @final
    def steps(self, blocks: int) -> Steps:
        return [(n,) for n in range(blocks)]

    @final
    def begin(self, batch: int, width: int, **like: Any) -> State | None:
        return Deferred.empty(batch, width, **like)

    @final
    def schedule(self, run: StackRun, x: Tensor) -> LayerSchedule:
        return ExitCourse(self, run, x)


class ExitCourse(Leaving):
    """One pass through layers that tokens leave early: who runs, and where the others left."""

    def __init__(self, depth: Exits, run: StackRun, x: Tensor) -> None:
        super().__init__(run, depth.name)
        self.depth, self.exiting = depth, run.exiting
        padding_mask = None if run.mask is None else run.mask.padding_mask
        self.real = (
            x.new_ones(x.shape[:2], dtype=torch.bool) if padding_mask is None else padding_mask
        )
        exiting, prompt = self.exiting, depth.prompt
        prescribed = depth.at is not None or (exiting is not None and exiting.at is not None)
        may_leave = prescribed or (depth.open and not depth.full)
        self.whole = exiting is None or exiting.full or not may_leave or prompt >= x.shape[1]
        """whether all tokens go through all layers"""
        self.left = torch.zeros_like(self.real, dtype=torch.long)
        """(B, L) the layers that tokens have taken"""
        self.runs, self.before, self.sures = self.real, None, list[Tensor]()
        if not self.whole:
            self.age = self._age(x)
            plan = exiting.at if depth.at is None else depth.at.expand_as(self.real)
            self.plan = depth.planned(run, x, self.age) if plan is None else plan
            """(B, L) the layers at which tokens leave, where that is known"""

    before: Tensor | None
    """(B, L, width) the stream after the layer that decided before"""

    def over(self) -> bool:
        return not self.whole and self.none(self.runs)

    def enter(self, t: int, stream: Tensor) -> Tensor:
        self.catch_up(t)
        if not self.whole:
            self.run_for(self.runs)
        return stream

    def leave(self, t: int, stream: Tensor) -> Tensor:
        o, n = self.depth.options, t + 1
        if self.whole:
            return self._passed(stream, n)
        self.left = self.left + self.runs
        decides = n >= o.first_exit and (n - o.first_exit) % o.every == 0
        if n == len(self.run.steps) or (self.plan is None and not decides):
            return stream
        leaves = self._leaving(n, stream) if self.plan is None else self.plan <= n
        leaves[:, : self.depth.prompt] = False
        self.runs = self.runs & ~leaves
        return stream

    def _leaving(self, n: int, stream: Tensor) -> Tensor:
        """(B, L) bool, which tokens leave after layer ``n``, from 1."""
        depth, runs = self.depth, self.runs
        some = _all(runs) if self.chosen is None else self.chosen
        before = None if self.before is None else some.pick(self.before)
        running = Running(n, some.pick(stream), before, some.pick(self.age), self.exiting)
        self.before = stream
        plan = depth.decided(running)
        if plan is not None:
            self.plan = some.put(torch.zeros_like(runs, dtype=torch.long), plan)
            return self.plan <= n
        sure = depth.confidence(running)
        leaves = some.put(torch.zeros_like(runs), depth.leaves(running, sure))
        self.sures.append(some.put(sure.new_full(runs.shape, torch.nan), sure))
        return leaves

    def close(self, stream: Tensor) -> Tensor:
        depth, real, exiting = self.depth, self.real, self.exiting
        left = real * len(self.run.steps) if self.whole else self.left
        still = torch.zeros(1, stream.shape[1], dtype=torch.long, device=stream.device)
        self.finalise(stream, still, lambda t: stream, may_leave=not self.whole)
        if exiting is not None:
            exiting.left, exiting.stream = left, stream
        counted = real[:, depth.prompt :]
        if counted.shape[1]:
            tally("depth", lambda: (left[:, depth.prompt :][counted].sum(), counted.sum()))
        if self.sures:
            record(depth, "confidence", lambda: torch.stack(self.sures))
        record(depth, "exits", lambda: left)
        return stream

    def _passed(self, x: Tensor, n: int) -> Tensor:
        """The stream after layer ``n`` in a pass through all, as the next one reads it."""
        exiting = self.exiting
        if exiting is None or exiting.streams is None:
            return x
        if exiting.weights is None or not self.depth.options.scale_gradients:
            exiting.streams.append(x)
            return x
        weights = exiting.weights
        above = weights[n - 1 :].sum()
        exiting.streams.append(_scaled(x, float(weights.sum() / above)))
        return _scaled(x, float(weights[n:].sum() / above))

    def _age(self, x: Tensor) -> Tensor:
        """(B, L) how many tokens of each row that might leave come before each."""
        run, prompt = self.run, self.depth.prompt
        waiting = None if run.carried is None else run.carried.pending
        num_tokens = waiting.early if isinstance(waiting, Deferred) else None
        places = positions_of(x.shape[0], x.shape[1], run.mask, num_tokens, x.device)
        if prompt:
            places = (places - places[:, prompt : prompt + 1]).clamp(min=0)
        return places.expand(x.shape[0], -1)


def exits_of(model: nn.Module) -> list[Exits]:
    """The early exits of a model's stacks, of which there is one at most."""
    return [part for part in model.modules() if isinstance(part, Exits)]


@contextmanager
def reading_prompt(model: nn.Module, columns: int) -> Iterator[None]:
    """The first ``columns`` of what ``model`` reads while the block runs go through all layers, and
    are not counted."""
    exits = exits_of(model)
    for part in exits:
        part.prompt = columns
    try:
        yield
    finally:
        for part in exits:
            part.prompt = 0


@contextmanager
def leaving_at(model: nn.Module, at: Tensor | int) -> Iterator[None]:
    """The tokens of ``model`` leave after these layers, one or (B, L), while the block runs."""
    part = exit_of(model)
    part.at = torch.as_tensor(at).expand(1, 1) if isinstance(at, int) else at
    try:
        yield
    finally:
        part.at = None


def exit_of(model: nn.Module) -> Exits:
    """The early exits of a model.

    Raises:
        ConfigError: it has none.
    """
    exits = exits_of(model)
    if not exits:
        raise ConfigError(
            "this model has no early exits; fine-tune it into one that has: everyformer train "
            "MEMBER --depth calm --from RUN"
        )
    return exits[0]


def set_threshold(model: nn.Module, threshold: float | Sequence[float] | None) -> None:
    """Let the tokens of ``model`` leave where confidence reaches ``threshold``; None: nowhere.

    Args:
        threshold: one for all layers, or one for each but the last.

    Raises:
        ConfigError: it has no early exits, or what decides them has no threshold, or not so many.
    """
    part = exit_of(model)
    part.full = threshold is None
    if threshold is None:
        return
    each = (threshold,) if isinstance(threshold, int | float) else tuple(threshold)
    if not part.has_threshold:
        raise ConfigError(
            f"exits '{getattr(part.options, 'exits', None)}' of depth '{part.name}' have no "
            "threshold: leave it out, or train with `depth.exits=geometric`"
        )
    several = hasattr(part.options, "thresholds")
    if len(each) != 1 and (not several or len(each) != part.layers - 1):
        most = f" or {part.layers - 1}, one for each layer but the last" if several else ""
        raise ConfigError(
            f"{len(each)} thresholds are given, but depth '{part.name}' takes 1{most}"
        )
    if len(each) > 1:
        part.options = replace(part.options, threshold=None, thresholds=each)
    else:
        others = {"thresholds": ()} if several else {}
        part.options = replace(part.options, threshold=each[0], **others)


def _all(running: Tensor) -> TokenSubset:
    at = torch.arange(running.shape[1], device=running.device).expand_as(running)
    return TokenSubset(at, running)


def _scaled(x: Tensor, factor: float) -> Tensor:
    """``x`` with ``factor`` times its gradient."""
    still = x.detach()
    return x if factor == 1 or not x.requires_grad else still + factor * (x - still)
