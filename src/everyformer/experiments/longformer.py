"""Longformer: how windows should grow with depth, and how a position table should.

Sources: Beltagy et al. 2020, arXiv 2004.05150, table 4 (bits a character of text8 after 150,000
steps: windows that grow 1.21, of one size 1.23, that shrink 1.24) and table 5 (bits a character of
a RoBERTa on 4,096 tokens: fresh positions 10.3, repeated ones 1.96, trained on 1.71).
"""

from __future__ import annotations

import math
from typing import Any

import torch

from everyformer.experiments.base import Outcome, Study, experiment, fitting, held_out, load
from everyformer.experiments.figures import bars
from everyformer.genes.positions.learned import Learned
from everyformer.genes.positions.sinusoidal import Sinusoidal
from everyformer.models.base import Model
from everyformer.models.build import by_layer
from everyformer.models.lengthen import lengthen

TEXT = 256
"""bytes of a text of the language models"""
GROWING = (4, 8, 32, 128)
"""windows of the layers, first layer first; half of each lies before a token"""
ARMS: dict[str, tuple[int, ...]] = {
    "growing": GROWING,
    "of one size": (sum(GROWING) // len(GROWING) // 2 * 2,) * len(GROWING),
    "shrinking": GROWING[::-1],
}
BETTER = 0.995
"""loss of growing windows over that of the others, at most"""
SHORT, LONG = 64, 256
"""bytes of a text before and after the extension, and the first also the window, as in the paper:
hardly a window holds two tokens with the same row of a repeated table"""
RATE = 0.3
"""of the bytes are hidden: twice as many as in the paper, for more targets a step"""
WAVES = 0.05
"""of sinusoids, at which the short table starts: from small random rows the few steps here would
not teach the model to read positions at all"""
NEAR, FAR = 1.1, 1.25
"""loss right after the extension over that of the short model: of repeated rows at most, of fresh
ones at least"""


@experiment(
    "windows that grow from layer to layer need at least 0.5% fewer bits a byte than windows "
    "of one size and than windows that shrink, of as many keys together",
    members=("longformer",),
    minutes=12,
)
def windows(study: Study) -> Outcome:
    """Loss of language models that differ in the order of their windows alone."""
    data = load("lm", source=study.source or "stdlib", length=TEXT)
    arms = {name: ("longformer", {"window": by_layer(*sizes)}) for name, sizes in ARMS.items()}
    how: dict[str, Any] = {"width": 64, "layers": len(GROWING), "heads": 4, "position": "rope"}
    for name, model in study.models(arms, data, 8, 500, **how):
        bits = held_out(model, data, "loss", limit=256) / math.log(2)
        study.keep(name, bits, "{:.3f} bits a byte")
    numbers = study.numbers
    grown, equal, shrunk = study.means().values()
    sentence = (
        f"Language models of bytes of {data.name} with windows of "
        f"{', '.join(map(str, GROWING))} from the first layer to the last need {grown:.3f} bits a "
        f"byte, with {ARMS['of one size'][0]} in all layers {equal:.3f}, in reverse order "
        f"{shrunk:.3f}."
    )
    holds = all(one <= BETTER * min(others) for one, *others in zip(*numbers.values(), strict=True))
    lowest = min(min(values) for values in numbers.values())
    figure = bars(study.means(), ylabel="bits a byte", ylim=(0.95 * lowest, None))
    for n, values in enumerate(numbers.values()):
        figure.axes[0].plot([n] * len(values), values, "k.", markersize=4)
    return Outcome(numbers, holds, sentence, {"order": figure})


@experiment(
    "right after a table of positions is made longer repeated rows lose at most 10% more than "
    "the short model and fresh ones at least 25% more, and after 100 steps more fresh ones "
    "still lose more",
    members=("longformer",),
    minutes=10,
)
def extension(study: Study) -> Outcome:
    """A masked model of short texts made longer: its table repeated, or with fresh rows."""
    source = study.source or "stdlib"
    short, long = (
        load("mlm", source=source, length=length, mask_rate=RATE) for length in (SHORT, LONG)
    )
    names = ("short", "repeated", "fresh", "repeated, trained on", "fresh, trained on")
    study.order(names)
    for _ in study.seeds():
        how = {"dropout": 0.0, "embedding_dropout": 0.0}
        model = fitting(short, "bert", width=96, layers=3, heads=4, **how)
        waves = Sinusoidal(width=96).embed(torch.arange(SHORT)[None])[0]
        assert isinstance(model.position, Learned)
        model.position.table.data = WAVES * waves
        study.fit(model, (short, 32), 1000, lr=2e-3)
        study.keep("short", held_out(model, short, "loss", limit=512))
        for name in ("repeated", "fresh"):
            longer = lengthen(model, "longformer", LONG, window=SHORT)
            if name == "fresh":
                _fresh_rows(longer)
            study.keep(name, held_out(longer, long, "loss", limit=128))
            study.fit(longer, (long, 8), 100, lr=5e-4)
            study.keep(f"{name}, trained on", held_out(longer, long, "loss", limit=128))
        study.say(f"nats a hidden byte: {study.latest('.3f')}")
    numbers = study.numbers
    found = study.means()
    sentence = (
        f"A masked model of {SHORT} bytes loses {found['short']:.3f} nats a hidden byte. Made a "
        f"Longformer of {LONG} bytes it loses {found['repeated']:.3f} right away if its table is "
        f"repeated and {found['fresh']:.3f} with fresh rows; after {study.steps(100)} more steps "
        f"{found['repeated, trained on']:.3f} and {found['fresh, trained on']:.3f}."
    )
    right_away = zip(numbers["short"], numbers["repeated"], numbers["fresh"], strict=True)
    holds = all(
        repeated <= NEAR * before and fresh >= FAR * before
        for before, repeated, fresh in right_away
    )
    after = zip(*(numbers[f"{name}, trained on"] for name in ("repeated", "fresh")), strict=True)
    holds = holds and all(repeated < fresh for repeated, fresh in after)
    figure = bars(found, (5, 3), ylabel="nats a hidden byte")
    return Outcome(numbers, holds, sentence, {"loss": figure})


def _fresh_rows(model: Model) -> None:
    """Draw the rows behind the short table anew, as large as the learned ones are."""
    assert isinstance(model.position, Learned)
    table = model.position.table.data
    table[SHORT:] = table[:SHORT].std() * torch.randn_like(table[SHORT:])
