"""CALM: a token leaves the layers when its confidence reaches a threshold, which is calibrated.

    exit at the first n with c^n >= lambda_t,  else at N
    softmax-difference   c = p_(1) - p_(2) of p = softmax(head(h^n))      -maximum  c = p_(1)
    saturation           c = cos(h^n, h^m), m the layer that decided before; 0 at the first
    classifier           c = sigma(w . h^n + b), one for all layers
    decay tau            lambda_t = 0.9 lambda + 0.1 e^(-tau t / N_max), at most 1

t counts the tokens of a row that might have left before. lambda = 1 means that none leaves, 0 that
all leave at the first layer that decides, with decay too. Training minimises

    L = sum_n omega_n L_n / sum_n omega_n,   omega_n = n

The classifier learns whether layer n finds the same token likeliest as layer N, right and wrong
ones counting as much ("balanced"), or which is the first layer that does ("first", by the chances
of leaving one layer after the other); the layers do not notice. The paper trains it afterwards,
with all else as it is: ``learns="classifier"``, from a run that has been trained. Which threshold
keeps a promise, `everyformer calibrate` finds out (`everyformer.lab.exits`).

Cost: a layer's keys and values, 2 d^2 a token, instead of all of it; each layer that decides costs
V d for softmax, d for the others.

Source: Schuster et al. 2022, arXiv 2207.07061; the code of t5x and flaxformer, whose saturation is
of a whole batch (ours of each token).
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from everyformer.core.bounds import Affects, Amount, Count, Unless, When
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
)
from everyformer.genes.depth.exit_targets import balanced, first_agreeing, geometric

_CLASSIFIES = When("confidence", "classifier")


@dataclass(frozen=True, kw_only=True)
class CalmOptions(ExitOptions):
    confidence: Literal["softmax-difference", "softmax-maximum", "saturation", "classifier"] = (
        "softmax-difference"
    )
    """what says how sure a layer is: how far the likeliest token is ahead, how likely it is, how
    little the stream still changes, or a classifier"""
    threshold: Annotated[Threshold, Affects("results")] = 0.9
    """lambda, what confidence must reach; 1: no token leaves"""
    decay: Annotated[Amount | None, Affects("results")] = None
    """tau, how fast the threshold falls along a text (the paper has 4; default: not at all)"""
    longest: Annotated[Count, Affects("results"), Unless("decay", None)] = 512
    """N_max, tokens of a text over which it falls"""
    learns: Annotated[Literal["layers", "classifier"], Affects("nothing"), _CLASSIFIES] = "layers"
    """what a training changes: all, or the classifier alone"""
    classifier_loss: Annotated[Literal["balanced", "first"], Affects("nothing"), _CLASSIFIES] = (
        "balanced"
    )
    """what the classifier learns: whether a layer agrees with the last, or which is the first"""
    gone: ClassVar[dict[str, Any]] = ExitOptions.gone | {
        "decay_form": "paper", "weighting": "linear"
    }  # fmt: skip


@DEPTHS.register("calm")
class Calm(Exits):
    """Exits by a confidence that a layer has of itself."""

    name = "calm"
    Options = CalmOptions
    options: CalmOptions
    trials = Trials(
        variants=(
            {"threshold": 0.3},
            {"threshold": 0.4, "confidence": "softmax-maximum", "decay": 4.0, "longest": 16},
            {"threshold": 0.8, "confidence": "saturation", "every": 2},
            {"threshold": 0.5, "confidence": "classifier", "heads": "separate"},
        )
    )

    def make(self, width: int, layers: int) -> None:
        if self.options.confidence == "classifier":
            # one output: a vector, which weight decay leaves alone
            self.weight = nn.Parameter(torch.zeros(width))
            self.bias = nn.Parameter(torch.zeros(1))

    @property
    def open(self) -> bool:
        return self.options.threshold < 1

    @property
    def learns(self) -> Learns:
        o = self.options
        if o.learns == "classifier":
            return Learns(None, decides=True, alone=True)
        return Learns("linear", decides=o.confidence == "classifier")

    def leaves(self, running: Running, confidence: Tensor) -> Tensor:
        o = self.options
        if o.threshold == 0:
            return torch.ones_like(confidence, dtype=torch.bool)
        if o.decay is None:
            return confidence >= o.threshold
        fallen = (-o.decay * running.age / o.longest).exp()
        return confidence >= (0.9 * o.threshold + 0.1 * fallen).clamp(0, 1)

    def confidence(self, running: Running) -> Tensor:
        kind = self.options.confidence
        if kind == "classifier":
            return self._odds(running.state).sigmoid()
        if kind == "saturation":
            if running.before is None:
                return running.stream.new_zeros(running.stream.shape[:2])
            return torch.cosine_similarity(widened(running.stream), widened(running.before), dim=-1)
        likely = widened(running.logits).softmax(-1)
        if kind == "softmax-maximum":
            return likely.amax(-1)
        first = likely.topk(2, -1).values
        return first[..., 0] - first[..., 1]

    def exit_loss(self, evidence: Evidence) -> Tensor | None:
        if not self.learns.decides:
            return None
        scored = evidence.targets != -100
        odds = torch.stack([self._odds(state.detach()) for state in evidence.states[:-1]])
        if self.options.classifier_loss == "first":
            chances = geometric(odds.movedim(0, -1))
            first = first_agreeing(evidence.best) - 1
            return -chances.gather(-1, first[..., None]).squeeze(-1)[scored].sum()
        right = evidence.best[:-1] == evidence.best[-1]
        each = [balanced(a[scored], yes[scored]) for a, yes in zip(odds, right, strict=True)]
        return torch.stack(each).mean() * scored.sum()

    def _odds(self, state: Tensor) -> Tensor:
        # no matrix product, which autocast would do in half precision
        read = widened(state)
        return (read * self.weight.to(read)).sum(-1) + self.bias.to(read)
