"""Depth that adapts or is shared: chased pointers, texts reversed, and how long tokens run.

A text of pointers is a table of 6 nodes in which each points to another, then queries: a node, and
how many hops to go from it, 1 to 4. A layer can look one hop up, so a query of k hops needs about
k + 1 layers: one depth for all is too deep for some queries and not deep enough for others.

Sources: Dehghani et al. 2018, arXiv 1807.03819; Graves 2016, arXiv 1603.08983, section 3; Elbayad
et al. 2019, arXiv 1910.10073.
"""

import itertools
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from everyformer.core.outputs import ModelOutput
from everyformer.core.trace import trace
from everyformer.genes.depth.early_exits import leaving_at, set_threshold
from everyformer.lab.experiments.figures import lines, panels
from everyformer.lab.experiments.measures import mean, scored_accuracy
from everyformer.lab.experiments.study import Outcome, Study, experiment
from everyformer.models.build import create_model

NODES, HOPS, QUERIES, ROWS = 6, 4, 8, 64
STEPS = 6
"""of the layer that is repeated, and layers of the models with others"""
COSTS = (0.01, 0.05, 0.2)
"""values of tau"""
GROWTH, FALL, RIGHT = 0.5, 0.5, 0.95
THRESHOLDS = (0.1, 0.3, 0.5, 0.7, 0.9)
BETTER, EARLIER = 0.05, 0.5
LABEL = "chi > 0.1 ... 0.9"


class Chaser(nn.Module):
    """A causal model that reads pairs: a node and its pointer, or the hops to go from it."""

    def __init__(self, member: str, **options: Any) -> None:
        super().__init__()
        width = 64
        self.model = create_model(
            member, width=width, heads=2, vocabulary=NODES, max_length=NODES + QUERIES,
            dropout=0.0, embedding_dropout=0.0, tie=False, **options,
        )  # fmt: skip
        self.first, self.second = nn.Embedding(NODES, width), nn.Embedding(NODES + HOPS, width)

    def forward(self, pairs: Tensor, targets: Tensor | None = None) -> ModelOutput:
        """Logits and loss of pairs (2, B, L)."""
        x = self.first(pairs[0]) + self.second(pairs[1])
        out: ModelOutput = self.model(pairs[0], targets=targets, embeddings=x)
        return out


def chases(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pairs (2, B, L) and targets: the node that each query ends at."""
    pointers = torch.rand(ROWS, NODES, generator=generator).argsort(1)
    start = torch.randint(NODES, (ROWS, QUERIES), generator=generator)
    hops = torch.randint(1, HOPS + 1, (ROWS, QUERIES), generator=generator)
    end = start
    for hop in range(HOPS):
        end = torch.where(hops > hop, pointers.gather(1, end), end)
    nodes = torch.arange(NODES).expand(ROWS, -1)
    first, second = torch.cat((nodes, start), 1), torch.cat((pointers, NODES + hops - 1), 1)
    return torch.stack((first, second)), torch.cat((torch.full_like(nodes, -100), end), 1)


@torch.no_grad()
def measured(model: Chaser, seed: int, record: str) -> tuple[float, list[float], float]:
    """Share of fresh queries that is answered, their mean steps by hops, and over all of them.

    Args:
        record: name of the steps in a trace; [] and 0 where there are none.
    """
    generator = torch.Generator().manual_seed(1_000_000 + seed)
    batches = [chases(generator) for _ in range(8)]
    pairs, targets = (torch.cat(parts, -2) for parts in zip(*batches, strict=True))
    with trace(model) as traced:
        right = scored_accuracy(model, pairs, targets)
    queries = targets != -100
    hops = pairs[1][queries] - NODES + 1
    for taken in traced.find(record).values():
        steps = taken[queries].float()
        return (
            right,
            [float(steps[hops == k].mean()) for k in range(1, HOPS + 1)],
            float(steps.mean()),
        )
    return right, [], 0.0


@experiment(
    f"a token's steps grow with the hops that it has to go, by over {GROWTH:g} from 1 to {HOPS} at "
    f"tau = {COSTS[-1]:g}, and fall with tau, by over {FALL:g} from {COSTS[0]:g} to "
    f"{COSTS[-1]:g}, while over {RIGHT:.0%} of the queries are answered",
    members=("universal",),
    minutes=10,
)
def halting(study: Study) -> Outcome:
    """Layers trained at 6 fixed steps, then with halting at three values of tau.

    Halting learned from the start stops after one or two steps, which is right for one hop, and
    stays there (seen with b of -3 and of -1); so layers learn at a fixed number of steps first.
    """
    common = {"steps": STEPS, "order": "none"}
    for _ in study.seeds():
        fixed = Chaser("universal", depth_options={"halting": "none", **common})
        study.fit(fixed, chases, 1800)
        study.keep("fixed steps: right", measured(fixed, study.seed, "halting")[0])
        for tau in study.arms(COSTS):
            model = Chaser("universal", depth_options={"tau": tau, "halting_bias": -3.0, **common})
            model.load_state_dict(fixed.state_dict(), strict=False)
            study.fit(model, chases, 800, lr=2e-3)
            right, steps, _ = measured(model, study.seed, "halting")
            for k, number in enumerate(steps, 1):
                study.keep(f"tau {tau:g}, hops {k}: steps", number)
            study.keep(f"tau {tau:g}: right", right)
        study.say(study.latest(".2f"))
    hops = range(1, HOPS + 1)
    by_hops = [study.series(f"tau {tau:g}, hops {{}}: steps", hops) for tau in COSTS]
    every = [mean(steps) for steps in by_hops]
    worst = min(study.series("tau {:g}: right", COSTS))
    dear = by_hops[-1]
    sentence = (
        f"At tau = {COSTS[-1]:g} queries of 1 to {HOPS} hops take "
        f"{', '.join(f'{steps:.2f}' for steps in dear)} of {STEPS} steps. Over all queries "
        f"{', '.join(f'{steps:.2f}' for steps in every)} at tau = "
        f"{', '.join(f'{tau:g}' for tau in COSTS)}; at worst {worst:.1%} are answered, "
        "[fixed steps: right|.1%] with all steps."
    )
    rises = all(a < b for a, b in itertools.pairwise(dear)) and dear[-1] - dear[0] > GROWTH
    falls = all(a > b for a, b in itertools.pairwise(every)) and every[0] - every[-1] > FALL
    curves = {
        f"tau = {tau:g}": study.curves(f"tau {tau:g}, hops {{}}: steps", hops) for tau in COSTS
    }
    figure = lines(curves, hops, ("hops", "steps of a query"), size=(4.5, 3), ticks=True)
    return study.outcome(rises and falls and worst > RIGHT, sentence, hops=figure)


@experiment(
    f"with learned exits over {BETTER:.0%} more queries are answered than where all tokens leave "
    f"at one layer, at the same depth on average, and queries of 1 hop leave over {EARLIER:g} "
    f"layers before those of {HOPS}",
    members=("depth-adaptive",),
    minutes=10,
)
def exits(study: Study) -> Outcome:
    """Two models, of aligned and of mixed training; each at every layer, and by its own decision.

    The decision is learned with the layers. Queries side by side have nothing in common, so the
    oracle's kernel is left out (sigma = 0).
    """
    arms, layers = ("aligned", "mixed"), range(1, STEPS + 1)
    options = {"sigma": 0.0, "penalty": 0.02, "alpha": 1.0}
    for _ in study.seeds():
        for arm in study.arms(arms):
            depth_options = {**options, "training": arm}
            model = Chaser("depth-adaptive", layers=STEPS, depth_options=depth_options)
            study.fit(model, chases, 2400)
            for n in layers:
                with leaving_at(model, n):
                    study.keep(f"{arm}, all at {n}: right", measured(model, study.seed, "exits")[0])
            for threshold in THRESHOLDS:
                set_threshold(model, threshold)
                right, by_hops, depth = measured(model, study.seed, "exits")
                study.keep(f"{arm}, chi > {threshold:g}: right", right)
                study.keep(f"{arm}, chi > {threshold:g}: layers", depth)
                if threshold == 0.5:
                    for hops, number in enumerate(by_hops, 1):
                        study.keep(f"{arm}, hops {hops}: layers", number)
        study.say(study.latest(".2f"))
    at = {arm: study.series(arm + ", all at {}: right", layers) for arm in arms}
    m = study.means()
    depth, right = m["aligned, chi > 0.5: layers"], m["aligned, chi > 0.5: right"]
    same = float(np.interp(depth, layers, at["aligned"]))
    leave = study.series("aligned, hops {}: layers", range(1, HOPS + 1))
    sentence = (
        f"Aligned, with chi > 0.5, {right:.1%} of the queries are answered after {depth:.2f} of "
        f"{STEPS} layers on average; where all leave at one layer {same:.1%} at that depth (drawn "
        f"between two layers) and {at['aligned'][-1]:.1%} at the last. Queries of 1 to {HOPS} hops "
        f"leave after {', '.join(f'{one:.2f}' for one in leave)} layers. Mixed training answers "
        "[mixed, chi > 0.5: right|.1%] after [mixed, chi > 0.5: layers|.2f] layers, "
        f"{at['mixed'][-1]:.1%} at the last."
    )
    figure, axes = panels(len(arms), size=(7.5, 3))
    for axis, arm in zip(axes, arms, strict=True):
        axis.plot(layers, at[arm], marker="o", label="all at one layer")
        chosen = arm + ", chi > {:g}: "
        by_layers = study.series(chosen + "layers", THRESHOLDS)
        axis.plot(by_layers, study.series(chosen + "right", THRESHOLDS), marker="s", label=LABEL)
        axis.set(title=arm, xlabel="layers on average", ylabel="queries answered", ylim=(0, 1.02))
        axis.legend(loc="lower right")
    holds = right - same > BETTER and leave[-1] - leave[0] > EARLIER
    return study.outcome(holds, sentence, pareto=figure)


SYMBOLS, TRAINED, LENGTHS = 8, 8, (4, 8, 10, 12, 14, 16)
"""kinds of symbols of a text that is reversed, its longest in training, and those measured"""
LONGER = tuple(length for length in LENGTHS if length > TRAINED)
MARGIN = 0.1
START = 16
"""positions begin at 0 to this, so that those of the longest texts are learned"""
SHARED, UNSHARED, CONTROL = "1 layer 6 times", "6 layers", "6 layers, random start"
ARMS: dict[str, dict[str, Any]] = {
    SHARED: {"layers": 1, "depth_options": {"steps": STEPS, "halting": "none", "start": START}},
    UNSHARED: {"layers": STEPS, "depth": "plain", "position": "sinusoidal"},
    CONTROL: {
        "layers": STEPS,
        "depth_options": {"steps": 1, "halting": "none", "signal": "none", "start": START},
    },
}
"""models that take as many operations a token"""


@experiment(
    f"trained to reverse up to {TRAINED} symbols, one layer that is applied {STEPS} times, at "
    f"positions that begin anywhere, gets over {100 * MARGIN:.0f} points more symbols of texts of "
    f"{LONGER[0]} to {LONGER[-1]} right than {STEPS} layers with {STEPS} times its parameters",
    members=("universal",),
    minutes=12,
)
def reversing(study: Study) -> Outcome:
    """x_1 .. x_n 0 x_n .. x_1, n = 1 .. 8 in training, by one layer six times and by six layers.

    With positions that always begin at 0, those of longer texts are never seen. Positions of
    universal begin anywhere in training. That is an option of the depth, not of what is shared, so
    six different layers that have it too are a control. They come out ahead of the one layer: what
    carries over to longer texts is where positions begin, and sharing saves parameters. Counted are
    symbols, each after the right ones.

    One seed was tried first: of 64 symbols that are all different, with norms last, nothing was
    learned in 800 steps; so there are 8 symbols and norms come first. The paper's texts
    (section 3.2) are of 40 and 400 symbols.
    """
    sizes: dict[str, Any] = {
        "width": 32, "heads": 2, "vocabulary": SYMBOLS + 1, "max_length": 2 * LENGTHS[-1] + 1,
        "dropout": 0.0, "embedding_dropout": 0.0, "wiring": "pre",
    }  # fmt: skip
    for arm, model in study.models(ARMS, reversals, 4000, member="universal", **sizes):
        study.keep(f"{arm}: parameters", sum(w.numel() for w in model.stack.parameters()))
        generator = torch.Generator().manual_seed(1_000_000 + study.seed)
        for length in LENGTHS:
            share = scored_accuracy(model, *reversed_rows(length, 256, generator))
            study.keep(f"{arm}, {length} symbols: right", share)
        shares = mean(study.numbers[f"{arm}, {n} symbols: right"][-1] for n in LONGER)
        study.keep(f"{arm}, longer: right", shares, "{:.1%}")
    known = f"{TRAINED} symbols: right"
    sentence = (
        f"Of texts of {LONGER[0]} to {LONGER[-1]} symbols [{SHARED}, longer: right|.1%] are right "
        f"with [{SHARED}: parameters|,.0f] parameters in one layer applied {STEPS} times, "
        f"[{UNSHARED}, longer: right|.1%] with [{UNSHARED}: parameters|,.0f] in {STEPS} layers; of "
        f"{TRAINED} symbols [{SHARED}, {known}|.1%] and [{UNSHARED}, {known}|.1%]. {STEPS} layers "
        f"whose positions begin anywhere too come to [{CONTROL}, longer: right|.1%]."
    )
    curves = {arm: study.curves(arm + ", {} symbols: right", LENGTHS) for arm in ARMS}
    labels = "symbols", "right in the reversed half"
    figure = lines(curves, LENGTHS, labels, size=(5, 3.2), ylim=(0, 1))
    figure.axes[0].axvline(TRAINED, color="grey", linestyle=":")
    shared, unshared = study.series("{}, longer: right", (SHARED, UNSHARED))
    return study.outcome(shared - unshared > MARGIN, sentence, length=figure)


def reversals(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A batch of texts of one length."""
    length = int(torch.randint(1, TRAINED + 1, (1,), generator=generator))
    return reversed_rows(length, 32, generator)


def reversed_rows(length: int, rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Inputs and targets (rows, 2 length): symbols from 1 on, 0, and the same backwards."""
    symbols = torch.randint(1, SYMBOLS + 1, (rows, length), generator=generator)
    text = torch.cat((symbols, symbols.new_zeros(rows, 1), symbols.flip(1)), 1)
    targets = text[:, 1:].clone()
    targets[:, :length] = -100
    return text[:, :-1], targets
