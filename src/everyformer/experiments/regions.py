"""Where a Compressive Transformer looks: its compressed memory, its memory, or the segment itself.

Source: Rae et al. 2020, arXiv 1911.05507, section 5.2 and figure 2: attention by position over the
three regions, in six parts each, averaged over heads and layers of a trained model.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from everyformer.core.trace import trace
from everyformer.data.streams import held_out_segments
from everyformer.data.text import TextDataset
from everyformer.experiments.base import Outcome, Study, experiment, load, mean
from everyformer.experiments.figures import panels
from everyformer.models.base import Model
from everyformer.models.build import create_model

SIZE, PARTS = 60, 6
"""rows of each region, and parts that each is shown in"""
REGIONS = ("compressed memory", "memory", "sequence")
HEADS, STREAMS, WARM = 4, 8, 6
"""heads of a layer, stretches of text read side by side, segments until all regions are full"""
MEASURED = 60
"""segments of each stretch whose attention is counted"""


@experiment(
    "a row of the compressed memory gets more attention than one of the oldest sixth of the "
    "memory, and one of the segment itself gets most",
    members=("compressive",),
    minutes=15,
    data="a text of a megabyte or more",
)
def regions(study: Study) -> Outcome:
    """Mean attention of a query to one row of each part of each region."""
    found = load(source=study.source, length=SIZE)
    assert isinstance(found, TextDataset)
    count = STREAMS * SIZE * (WARM + study.steps(MEASURED)) + 1
    text = dataclasses.replace(found, validation=found.validation[:count])
    parts: list[np.ndarray] = []
    for _ in study.seeds():
        model = create_model(
            "compressive", width=128, layers=3, heads=HEADS, vocabulary=256, max_length=SIZE,
            slots=SIZE, compressed=SIZE, rate=3, dropout=0.0, embedding_dropout=0.0,
        )  # fmt: skip
        study.train(
            model, text, 1200, batch=16, lr=1e-3, weight_decay=0.01, evaluate_sequences=1,
            device="cpu",
        )  # fmt: skip
        parts.append(attention_by_part(model, text))
        study.say(f"{np.round(parts[-1].mean(0), 4).tolist()}")
    means = np.stack([part.mean(0) for part in parts])
    numbers = {
        f"{region}, part {n + 1}": means[:, r * PARTS + n].tolist()
        for r, region in enumerate(REGIONS)
        for n in range(PARTS)
    }
    compressed = mean(means[:, :PARTS].mean(1).tolist())
    oldest = mean(numbers["memory, part 1"])
    sequence = mean(means[:, 2 * PARTS :].mean(1).tolist())
    memory = mean(means[:, PARTS : 2 * PARTS].mean(1).tolist())
    sentence = (
        f"A query gives a row of the compressed memory {compressed:.2%} of its attention on "
        f"average, one of the oldest sixth of the memory {oldest:.2%}, one of the memory "
        f"{memory:.2%} and one of its own segment {sequence:.2%} (each region has {SIZE} rows)."
    )
    holds = compressed > oldest and sequence > max(memory, compressed)
    return Outcome(numbers, holds, sentence, {"mass": figure_of(parts)})


@torch.no_grad()
def attention_by_part(model: Model, text: TextDataset) -> np.ndarray:
    """(segments, 3 x `PARTS`) attention of a query to one row, mean over heads, layers, queries."""
    state: Any = model.init_state(STREAMS)
    found = []
    for number, batch in enumerate(held_out_segments(text, STREAMS)):
        with trace(model) as seen:
            state = model(batch.inputs, state=state).state
        if number < WARM:
            continue
        layers = [got[:, -3 * SIZE :] for got in seen.find("received").values()]
        got = torch.stack(layers).mean((0, 1)) / (HEADS * SIZE)
        if got.numel() == 3 * SIZE:
            found.append(got.view(3 * PARTS, -1).mean(1).numpy())
    return np.stack(found)


def figure_of(parts: list[np.ndarray]) -> Figure:
    """A bar for each part, with two standard errors over segments."""
    every = np.concatenate(parts)
    error = 2 * every.std(0) / np.sqrt(len(every))
    figure, [axis] = panels(size=(8, 3.2))
    for r, region in enumerate(REGIONS):
        where = np.arange(r * PARTS, (r + 1) * PARTS)
        axis.bar(where, every.mean(0)[where], yerr=error[where], label=region)
    axis.set(yscale="log", ylabel="attention to one row", xlabel="oldest to newest rows", xticks=[])
    axis.legend(frameon=False)
    return figure
