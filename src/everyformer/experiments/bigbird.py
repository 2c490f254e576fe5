"""BigBird: what near, random and global blocks each give, at an equal number of keys.

Source: Zaheer et al. 2020, arXiv 2007.14062, table 1 (building blocks at 512 tokens, masked
language modelling: random 60.1, window 58.3, both 62.7, with global tokens 64.4, BERT 64.2) and
section 3 (paths in the graph of who reads whom).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from everyformer.engines.sparse.plan import reached
from everyformer.engines.sparse.random_blocks import average_path
from everyformer.experiments.base import Outcome, Study, experiment
from everyformer.experiments.figures import panels, plot_bars
from everyformer.genes.mixers.bigbird import BigBird
from everyformer.models.base import Model
from everyformer.models.build import create_model

BLOCK, BLOCKS = 2, 64
LENGTH = BLOCK * BLOCKS
HEADS = 4
NOISE, VALUES, QUESTIONS = 2, 8, 8
QUESTION = NOISE + VALUES
"""symbols: noise, needles, and the question which of them there is, asked `QUESTIONS` times"""
ARMS: dict[str, dict[str, Any]] = {
    "window": {"window_blocks": 7, "random_blocks": 0, "global_blocks": ()},
    "random": {"window_blocks": 1, "random_blocks": 6, "global_blocks": ()},
    "window, random": {"window_blocks": 3, "random_blocks": 4, "global_blocks": ()},
    "window, global": {"window_blocks": 5, "random_blocks": 0},
    "window, random, global": {"window_blocks": 3, "random_blocks": 2},
}
"""a block reads seven blocks in each of them"""
MARGIN = 0.3


@experiment(
    "with as many keys, windows with random or global blocks find at least 30% more needles "
    "than windows alone, and paths between blocks are shorter by a third",
    members=("bigbird",),
    minutes=16,
)
def needle(study: Study) -> Outcome:
    """Two layers find the value of a needle anywhere in a text of noise, or do not."""
    for name, options in study.each(ARMS.items()):
        inputs, targets = hidden(torch.Generator().manual_seed(2000 + study.seed), 128)
        model = create_model(
            "bigbird", "mlm", width=64, layers=2, heads=HEADS, vocabulary=QUESTION + 1,
            max_length=LENGTH, position=None, block_size=BLOCK, seed=study.seed, **options,
        )  # fmt: skip
        study.fit(model, hidden, 400, lr=2e-3)
        found, able = answered(model, inputs, targets)
        study.keep(f"{name}, found", found)
        study.keep(f"{name}, within reach", able)
        first = model.stack.blocks[0].mixer
        assert isinstance(first, BigBird)
        step = first.plan(LENGTH).mask(LENGTH, HEADS).any(0)[::BLOCK, ::BLOCK]
        length, farthest = average_path(step)
        study.keep(f"{name}, mean path", length)
        study.say(
            f"{name} {found:.1%} found, {able:.1%} within reach, paths of {length:.2f} layers, at "
            f"most {farthest}"
        )
    shares = {name: study.mean(f"{name}, found") for name in ARMS}
    lengths = {name: study.mean(f"{name}, mean path") for name in ARMS}
    listed = "; ".join(
        f"{name} {shares[name]:.0%} ({study.mean(f'{name}, within reach'):.0%} within reach, "
        f"mean path {lengths[name]:.2f})"
        for name in ARMS
    )
    sentence = (
        f"Two layers in which each of {BLOCKS} blocks of {BLOCK} tokens reads seven blocks find a "
        f"needle's value (chance {1 / VALUES:.0%}): {listed}."
    )
    mixed = [name for name in ARMS if name.startswith("window, ")]
    better = all(shares[name] > shares["window"] + MARGIN for name in mixed)
    shorter = all(1.5 * lengths[name] < lengths["window"] for name in mixed)
    figure, [left, right] = panels(2, (8, 3))
    plot_bars(left, shares, ylabel="needles found", ylim=(0, 1))
    left.axhline(1 / VALUES, color="grey", linestyle=":")
    plot_bars(right, lengths, ylabel="layers between two blocks, mean")
    return Outcome(study.numbers, better and shorter, sentence, {"needle": figure})


def hidden(generator: torch.Generator, rows: int = 32) -> tuple[Tensor, Tensor]:
    """Noise with a needle and questions anywhere else that ask for its value."""
    inputs = torch.randint(0, NOISE, (rows, LENGTH), generator=generator)
    targets = torch.full_like(inputs, -100)
    values = torch.randint(0, VALUES, (rows, 1), generator=generator)
    positions = torch.rand(rows, LENGTH, generator=generator).topk(1 + QUESTIONS).indices
    inputs.scatter_(1, positions, QUESTION)
    inputs.scatter_(1, positions[:, :1], NOISE + values)
    targets.scatter_(1, positions[:, 1:], (NOISE + values).expand(-1, QUESTIONS))
    return inputs, targets


@torch.no_grad()
def answered(model: Model, inputs: Tensor, targets: Tensor) -> tuple[float, float]:
    """Share of questions answered, and of those whose needle the layers reach."""
    plans = [block.mixer.plan(LENGTH) for block in model.stack.blocks]  # type: ignore[union-attr,operator]
    reach = reached(plans, LENGTH, HEADS)
    needles = ((inputs >= NOISE) & (inputs < NOISE + VALUES)).long().argmax(1)
    row, position = (targets != -100).nonzero(as_tuple=True)
    right = (model(inputs).logits.argmax(-1) == targets)[row, position]
    return float(right.float().mean()), float(reach[position, needles[row]].float().mean())
