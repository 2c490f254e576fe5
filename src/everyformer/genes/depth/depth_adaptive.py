"""Depth-adaptive decoding: every layer predicts, and which one does for a token is learned.

    aligned   L_dec = -(1 / sum omega) sum_n omega_n sum_t log p(y_t | h_t^n)
    mixed     L_dec = -(1 / M) sum_m sum_t log p(y_t | h_t^(n_t)),   n_t drawn from 1 .. N
    L = L_dec + alpha sum_t CE(q*_t, q_t)

q says at which layer a token leaves:

    sequence      q(n | x) = softmax(W x' + b), x' the mean of the encoder's outputs; all tokens
    multinomial   q_t(n) = softmax(W h_t^1 + b), decided after the first layer
    geometric     chi_t^n = sigma(w_n . h_t^n + b_n);  q_t(n) = chi^n prod_(m < n) (1 - chi^m)
    threshold     at the first n with max_y p(y | h^n) >= tau_n, nothing is learned
    fixed, random   always the same layer, or one that is drawn (controls)

q* is 1 at the oracle (`exit_targets`): the layer that is best by likelihood or
correctness around t, less lambda for each layer. A geometric token leaves at the first layer with
chi > 0.5, which is not where q is largest. W reads what a layer predicts from, after its norm. Its
kernel is divided by its sum, so that lambda means the same whatever sigma is. `h_t` has seen y_<t
alone. With mixed training what decides is learned from a pass through all layers besides.

Cost: N output layers in training, M passes where it is mixed; N d weights for q.

Source: Elbayad et al. 2019, arXiv 1910.10073. Defaults of sigma and alpha are ours, no code of the
authors is known.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from everyformer.blocks.passing import StackRun
from everyformer.core.bounds import Affects, Amount, Count, Repeats, When
from everyformer.core.errors import ConfigError
from everyformer.core.mask import Mask
from everyformer.core.state import State, state
from everyformer.core.trials import Trials
from everyformer.engines.ranges import widened
from everyformer.genes.depth import DEPTHS
from everyformer.genes.depth.early_exits import (
    Evidence,
    ExitOptions,
    Exits,
    Learns,
    Running,
    Threshold,
    Weighting,
)
from everyformer.genes.depth.exit_targets import geometric, oracle, smoothed

SURE = {"geometric": 0.5, "threshold": 0.9}
"""what must be reached by default"""
_LEARNED = When("exits", "geometric", "multinomial", "sequence")
_MIXED = When("training", "mixed")
MULTIPLIER = 2654435761
"""Knuth's, of the hash that draws layers"""


@dataclass(frozen=True, kw_only=True)
class DepthAdaptiveOptions(ExitOptions):
    exits: Literal["geometric", "multinomial", "sequence", "threshold", "fixed", "random"] = (
        "geometric"
    )
    """who decides where a token leaves"""
    threshold: Annotated[
        Threshold | None, Affects("results"), When("exits", "geometric", "threshold")
    ] = None
    """what chi or the largest p must reach (default: 0.5 and 0.9); 1: no token leaves"""
    thresholds: Annotated[
        tuple[Threshold, ...], Affects("results"), When("exits", "geometric", "threshold")
    ] = ()
    """the same for each layer but the last"""
    layer: Annotated[Count, Affects("results"), When("exits", "fixed")] = 1
    """at which all leave"""
    training: Annotated[Literal["aligned", "mixed"], Affects("nothing")] = "aligned"
    """whether every layer predicts every token, or for each token one that is drawn does"""
    samples: Annotated[Repeats, Affects("nothing"), _MIXED] = 1
    """M, how often layers are drawn"""
    weighting: Annotated[Weighting, Affects("nothing"), When("training", "aligned")] = "uniform"
    """omega_n of the layers' losses: 1, n, sqrt(n) or 1 / n"""
    oracle: Annotated[Literal["correctness", "likelihood"], Affects("nothing"), _LEARNED] = (
        "correctness"
    )
    """what makes a layer the best: how often it is right, or log p"""
    sigma: Annotated[Amount, Affects("nothing"), When("exits", "geometric", "multinomial")] = 5.0
    """width of the kernel over the tokens around; 0: none"""
    penalty: Annotated[Amount, Affects("nothing"), _LEARNED] = 0.01
    """lambda, what a layer costs"""
    alpha: Annotated[Amount, Affects("nothing"), _LEARNED] = 0.1
    """weight of the loss of what decides, which leaves the layers alone"""
    gone: ClassVar[dict[str, Any]] = ExitOptions.gone | {"detach": True}


@state
class SequenceExit(State):
    """Exit of the tokens of a translation."""

    of_context = True
    num_tokens: Tensor
    odds: Tensor
    """(B, N) W x' + b"""


@DEPTHS.register("depth-adaptive")
class DepthAdaptive(Exits):
    """Exits by what was learned of where a token should leave."""

    name = "depth-adaptive"
    Options = DepthAdaptiveOptions
    options: DepthAdaptiveOptions
    trials = Trials(
        variants=(
            {},
            {"exits": "multinomial", "heads": "separate"},
            {"exits": "threshold", "threshold": 0.4, "training": "mixed"},
            {"exits": "random", "scale_gradients": True},
            {"exits": "fixed", "layer": 2},
        )
    )

    def make(self, width: int, layers: int) -> None:
        o = self.options
        if o.thresholds and len(o.thresholds) != layers - 1:
            raise ConfigError(
                f"`thresholds` are {len(o.thresholds)} numbers, but {layers} layers have "
                f"{layers - 1} but the last: give as many, or one `threshold`"
            )
        outputs = {"geometric": layers - 1, "multinomial": layers, "sequence": layers}.get(o.exits)
        self.decides = bool(outputs)
        if outputs:
            self.weight = nn.Parameter(torch.empty(outputs, width))
            self.bias = nn.Parameter(torch.zeros(outputs))
            nn.init.xavier_uniform_(self.weight)

    @property
    def has_threshold(self) -> bool:
        return self.options.exits in SURE

    @property
    def open(self) -> bool:
        if not self.has_threshold:
            return True
        return any(self._needed(n) < 1 for n in range(1, self.layers))

    @property
    def learns(self) -> Learns:
        o = self.options
        mixed = o.training == "mixed"
        return Learns(None if mixed else o.weighting, o.samples, self.decides)

    def planned(self, run: StackRun, x: Tensor, age: Tensor) -> Tensor | None:
        o = self.options
        if o.exits == "fixed":
            return torch.full_like(age, min(o.layer, self.layers))
        if o.exits == "random":
            # by place, so that a text read in pieces is drawn the same
            return 1 + ((age + 1) * MULTIPLIER % 2**32 >> 16) % self.layers
        if o.exits != "sequence":
            return None
        assert run.context is not None
        exit = run.context[-1]
        assert isinstance(exit, SequenceExit)
        each = len(x) // len(exit.odds)
        at = exit.odds.argmax(-1) + 1
        return at.repeat_interleave(each)[:, None].expand_as(age)

    def decided(self, running: Running) -> Tensor | None:
        if self.options.exits != "multinomial":
            return None
        return (widened(running.state) @ widened(self.weight).T + self.bias).argmax(-1) + 1

    def confidence(self, running: Running) -> Tensor:
        if self.options.exits == "geometric":
            return self._odds(running.state, running.n - 1).sigmoid()
        return widened(running.logits).softmax(-1).amax(-1)

    def leaves(self, running: Running, confidence: Tensor) -> Tensor:
        needed = self._needed(running.n)
        if needed in (0, 1):
            return torch.full_like(confidence, 1 - needed, dtype=torch.bool)
        if self.options.exits == "geometric":
            return confidence > needed
        return confidence >= needed

    def exit_loss(self, evidence: Evidence) -> Tensor | None:
        o, scored = self.options, evidence.targets != -100
        if not self.decides:
            return None
        hits = (evidence.best == evidence.targets).to(evidence.logs.dtype)
        scores = evidence.logs if o.oracle == "likelihood" else hits
        whole = o.exits == "sequence"
        sigma = None if whole else o.sigma
        worth = smoothed(scores, scored, None if whole else evidence.runs, sigma)
        at = oracle(worth, o.penalty) - 1
        if whole:
            assert evidence.context is not None
            exit = evidence.context[-1]
            assert isinstance(exit, SequenceExit)
            # the same for all tokens of a row
            first = scored.to(torch.uint8).argmax(1, keepdim=True)
            logs = exit.odds.log_softmax(-1).gather(1, at.gather(1, first)).squeeze(1)
            return -o.alpha * logs.masked_fill(~scored.any(1), 0).sum()
        read = [s.detach() for s in evidence.states]
        if o.exits == "geometric":
            odds = [self._odds(each, n) for n, each in enumerate(read[:-1])]
            logs = geometric(torch.stack(odds, -1))
        else:
            logs = (widened(read[0]) @ widened(self.weight).T + self.bias).log_softmax(-1)
        return -o.alpha * logs.gather(-1, at[..., None]).squeeze(-1).masked_fill(~scored, 0).sum()

    def read_context(self, encoded: Tensor, mask: Mask | None) -> State | None:
        if self.options.exits != "sequence":
            return None
        read = widened(encoded.detach())
        padding_mask = None if mask is None else mask.padding_mask
        if padding_mask is None:
            mean = read.mean(1)
        else:
            mean = read.masked_fill(~padding_mask[..., None], 0).sum(1)
            mean = mean / padding_mask.sum(1, keepdim=True).clamp(min=1)
        num_tokens = torch.zeros(len(encoded), dtype=torch.long, device=encoded.device)
        return SequenceExit(num_tokens, mean @ widened(self.weight).T + self.bias)

    def _needed(self, n: int) -> float:
        """tau_n."""
        o = self.options
        if o.thresholds:
            return o.thresholds[n - 1]
        return SURE[o.exits] if o.threshold is None else o.threshold

    def _odds(self, states: Tensor, n: int) -> Tensor:
        """(...) a_n after layer n + 1."""
        read = widened(states)
        return (read * self.weight[n].to(read)).sum(-1) + self.bias[n].to(read)
