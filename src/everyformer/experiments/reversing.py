"""Texts reversed that are longer than those learned from, by one layer six times over.

    x_1 .. x_n 0 x_n .. x_1        n = 1 .. 8 in training, up to 16 afterwards

With positions that always begin at 0, those of longer texts are never seen. Positions of universal
begin anywhere in training. That is an option of the depth, not of what is shared, so six layers of
their own that have it too are a control. They come out ahead of the one layer: what carries over to
longer texts is where positions begin, and sharing saves parameters. Counted are symbols, each
behind the right ones.

One seed was tried first: of 64 symbols that are all different, with norms behind, nothing was
learned in 800 steps; so there are 8 symbols and norms stand first.

Source: Dehghani et al. 2018, arXiv 1807.03819, section 3.2, whose texts are of 40 and 400 symbols.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from everyformer.experiments.base import Outcome, Study, experiment, mean, scored_accuracy
from everyformer.experiments.figures import panels, plot
from everyformer.models.base import Model
from everyformer.models.build import create_model

SYMBOLS, ROWS, STEPS = 8, 32, 6
TRAINED = 8
LENGTHS = (4, 8, 10, 12, 14, 16)
LONGER = tuple(length for length in LENGTHS if length > TRAINED)
MARGIN = 0.1
START = 16
"""positions begin at 0 to this, so that those of the longest texts are learned"""
SHARED, OWN, CONTROL = "1 layer 6 times", "6 layers", "6 layers, random start"
ARMS: dict[str, dict[str, Any]] = {
    SHARED: {"layers": 1, "depth_options": {"steps": STEPS, "halting": "none", "start": START}},
    OWN: {"layers": STEPS, "depth": "plain", "position": "sinusoidal"},
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
    """One layer six times, six layers, and six layers whose positions begin anywhere too."""
    for arm in study.each(ARMS):
        model = reverses(arm)
        study.fit(model, reversals, 4000)
        size = sum(weight.numel() for weight in model.stack.parameters())
        study.keep(f"{arm}: parameters", size)
        generator = torch.Generator().manual_seed(1_000_000 + study.seed)
        for length in LENGTHS:
            share = scored_accuracy(model, *reversed_rows(length, 256, generator))
            study.keep(f"{arm}, {length} symbols: right", share)
        found = mean([study.numbers[f"{arm}, {n} symbols: right"][-1] for n in LONGER])
        study.keep(f"{arm}, longer: right", found, "{:.1%}")
    shared, own, control = (study.mean(f"{arm}, longer: right") for arm in ARMS)
    few, many = (study.mean(f"{arm}: parameters") for arm in (SHARED, OWN))
    known = study.mean(f"{SHARED}, {TRAINED} symbols: right")
    sentence = (
        f"Of texts of {LONGER[0]} to {LONGER[-1]} symbols {shared:.1%} are right with "
        f"{few:,.0f} parameters in one layer applied {STEPS} times, {own:.1%} with "
        f"{many:,.0f} in {STEPS} layers; of {TRAINED} symbols {known:.1%} and "
        f"{study.mean(f'{OWN}, {TRAINED} symbols: right'):.1%}. {STEPS} layers whose positions "
        f"begin anywhere too come to {control:.1%}."
    )
    curves = {
        arm: [
            [study.numbers[f"{arm}, {n} symbols: right"][seed] for n in LENGTHS]
            for seed in range(len(study.numbers[f"{arm}, longer: right"]))
        ]
        for arm in ARMS
    }
    figure, [axis] = panels(size=(5, 3.2))
    plot(axis, curves, LENGTHS, xlabel="symbols", ylabel="right in the reversed half", ylim=(0, 1))
    axis.axvline(TRAINED, color="grey", linestyle=":")
    return Outcome(study.numbers, shared - own > MARGIN, sentence, {"length": figure})


def reverses(arm: str) -> Model:
    """One of the three models, norms first."""
    return create_model(
        "universal", width=32, heads=2, vocabulary=SYMBOLS + 1, max_length=2 * LENGTHS[-1] + 1,
        dropout=0.0, embedding_dropout=0.0, wiring="pre", **ARMS[arm],
    )  # fmt: skip


def reversals(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A batch of texts of one length."""
    length = int(torch.randint(1, TRAINED + 1, (1,), generator=generator))
    return reversed_rows(length, ROWS, generator)


def reversed_rows(length: int, rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Inputs and targets (rows, 2 length): symbols from 1 on, 0, and the same backwards."""
    symbols = torch.randint(1, SYMBOLS + 1, (rows, length), generator=generator)
    text = torch.cat((symbols, symbols.new_zeros(rows, 1), symbols.flip(1)), 1)
    targets = text[:, 1:].clone()
    targets[:, :length] = -100
    return text[:, :-1], targets
