"""Transformer-XL on text: longer memories in evaluation, the first tokens of a segment, and speed.

Source: Dai et al. 2019, arXiv 1901.02860, sections 4.2 to 4.4: perplexity falls with the attention
length beyond that of the training, and evaluation in order is up to 1,874 times faster than by a
window that slides token by token.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from matplotlib.figure import Figure

from everyformer.data.text import TextDataset
from everyformer.experiments.base import Outcome, Study, experiment, load, mean
from everyformer.experiments.figures import panels, plot
from everyformer.genes.memory.base import memories_of
from everyformer.models.base import Model
from everyformer.models.build import create_model
from everyformer.training.long_evaluation import evaluate_long

LENGTH, SLOTS = 32, 32
"""bytes of a segment, and of the memory in training"""
MEMORIES = (0, 16, 32, 64, 128, 256, 512)
"""bytes of the memory in evaluation"""
SCORED = 32_768
"""bytes of held-out text that are scored"""
SLID = 96
"""targets of the window that slides byte by byte, for its speed"""
EARLY, LATE = 4, 8
"""places of a segment that are compared: its first ones, and those after"""
DIFFERENCE = 0.1
"""nats a byte that recurrence is worth at the first places"""


@experiment(
    "the loss falls from no memory over the training's to one sixteen times as long, and at "
    f"the first {EARLY} places of a segment recurrence is worth more than {DIFFERENCE} nats a "
    "byte and more than twice what it is worth at later ones",
    members=("transformer-xl",),
    minutes=20,
    data="a text of a megabyte or more",
)
def segments(study: Study) -> Outcome:
    """Loss by memory and by place, with recurrence in training and without."""
    found = load(source=study.source, length=LENGTH)
    assert isinstance(found, TextDataset)
    text = dataclasses.replace(found, validation=found.validation[: study.steps(SCORED) + 1])
    by_memory: dict[int, list[float]] = {slots: [] for slots in MEMORIES}
    parts: dict[str, list[dict[str, Any]]] = {}
    for _ in study.seeds():
        model = trained(text, SLOTS, study)
        for slots in MEMORIES:
            loss = in_order(model, text, slots)["loss"]
            by_memory[slots].append(loss)
        alone = trained(text, 0, study)
        for name, reader, slots in (("with memory", model, SLOTS), ("without", alone, 0)):
            one = in_order(reader, text, slots)
            parts[name] = one["by_place"]
            for part, first, last in (("first", 0, EARLY), ("later", LATE, LENGTH)):
                loss = at_positions(one["by_place"], first, last)
                study.keep(f"{name}, {part} places", loss)
        study.keep("bytes a second, in order over sliding", speed(model, text, study))
        ends = by_memory[0][-1], by_memory[MEMORIES[-1]][-1]
        study.say(f"{ends[0]:.3f} to {ends[1]:.3f}")
    numbers = study.numbers | {f"memory {slots}": losses for slots, losses in by_memory.items()}
    none, trained_at, longest = (mean(by_memory[n]) for n in (0, SLOTS, MEMORIES[-1]))
    gain, later = (
        study.mean(f"without, {part} places") - study.mean(f"with memory, {part} places")
        for part in ("first", "later")
    )
    faster = study.mean("bytes a second, in order over sliding")
    sentence = (
        f"Trained with a memory of {SLOTS} bytes, the loss in evaluation is {none:.3f} nats a byte "
        f"without memory, {trained_at:.3f} with {SLOTS} and {longest:.3f} with {MEMORIES[-1]}. At "
        f"the first {EARLY} places of a segment the model trained without memory loses {gain:.2f} "
        f"nats more, after the {LATE}th {later:.2f} more. Reading in order with a memory of "
        f"{MEMORIES[-1]} was {faster:.0f} times as fast as a window of {MEMORIES[-1]} that slides "
        "byte by byte."
    )
    holds = longest < trained_at < none and gain > DIFFERENCE and gain > 2 * later
    figure = figure_of(by_memory, parts)
    return Outcome(numbers, holds, sentence, {"memory": figure})


def trained(text: TextDataset, slots: int, study: Study) -> Model:
    """A small model of bytes, trained on ordered streams.

    Distances beyond those of the training count as its longest, as in the paper's evaluations.
    """
    torch.manual_seed(study.seed)
    model = create_model(
        "transformer-xl", width=128, layers=3, heads=4, vocabulary=256, max_length=LENGTH,
        slots=slots, clamp=LENGTH + SLOTS - 1, dropout=0.0, embedding_dropout=0.0,
    )  # fmt: skip
    how: dict[str, Any] = {"lr": 1e-3, "weight_decay": 0.01, "evaluate_sequences": 1}
    return study.train(model, text, 2500, batch=16, device="cpu", **how)


def in_order(model: Model, text: TextDataset, slots: int) -> dict[str, Any]:
    """The evaluation of the whole held-out part, read in order with so long a memory."""
    for memory in memories_of(model):
        memory.slots = slots
    found = evaluate_long(model, text, mode="recurrent", streams=4)
    assert found is not None
    return found


def at_positions(parts: list[dict[str, Any]], first: int, last: int) -> float:
    """Mean loss of the positions of a segment after the ``first`` up to the ``last`` one."""
    chosen = [one for one in parts if first < one["from"] and one["to"] <= last]
    count = sum(one["targets"] for one in chosen)
    return sum(one["loss"] * one["targets"] for one in chosen) / count


def speed(model: Model, text: TextDataset, study: Study) -> float:
    """Targets a second read in order, over those of a window that slides byte by byte."""
    longest = MEMORIES[-1]
    ordered = in_order(model, text, longest)["tokens_per_second"]
    for memory in memories_of(model):
        memory.slots = 0
    count = longest + study.steps(SLID)
    window = dataclasses.replace(text, length=longest, validation=text.validation[: count + 1])
    slid = evaluate_long(model, window, mode="sliding", stride=1, batch=8)
    assert slid is not None
    # the first window scores all of its targets at once: only those that slid in count
    share = study.steps(SLID) / slid["scored"]
    return float(ordered / (slid["tokens_per_second"] * share))


def figure_of(by_memory: dict[int, list[float]], parts: dict[str, list[dict[str, Any]]]) -> Figure:
    """Loss against the memory, and against the position in a segment."""
    figure, [left, right] = panels(2, (8, 3.2))
    ticks = range(len(MEMORIES))
    left.plot(ticks, [mean(losses) for losses in by_memory.values()], marker="o")
    left.axvline(MEMORIES.index(SLOTS), color="grey", linestyle=":")
    left.set_xticks(ticks, [str(slots) for slots in MEMORIES])
    left.set(xlabel=f"memory in evaluation (trained with {SLOTS})", ylabel="loss (nats a byte)")
    curves = {name: [one["loss"] for one in found] for name, found in parts.items()}
    middles = [(one["from"] + one["to"]) / 2 for one in parts["without"]]
    label = f"position in a segment of {LENGTH}"
    plot(right, curves, middles, ".-", xlabel=label, ylabel="loss (nats a byte)")
    return figure
