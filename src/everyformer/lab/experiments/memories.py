"""Memories of segments before: their length, where a query looks, and recall at long lags.

Sources: Dai et al. 2019, arXiv 1901.02860, sections 4.2 to 4.4 (perplexity falls with the attention
length beyond that of the training, and evaluation in order is up to 1,874 times faster than by a
window that slides token by token); Rae et al. 2020, arXiv 1911.05507, section 5.2 and figure 2
(attention by position, averaged over heads and layers), sections 4.2 and 5.1 (compressions compared
on enwik8).
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from everyformer.core.modules import memories_of
from everyformer.core.trace import trace
from everyformer.data.text import TextDataset
from everyformer.lab.experiments.figures import Bars, Lines
from everyformer.lab.experiments.measures import joined, load, mean
from everyformer.lab.experiments.study import Outcome, Study, experiment
from everyformer.models.base import Model
from everyformer.models.build import create_model
from everyformer.training.long_text import evaluate_long

LENGTH, SLOTS = 32, 32
"""tokens of a segment, and of the memory in training"""
MEMORIES = (0, 16, 32, 64, 128, 256, 512)
"""bytes of the memory in evaluation"""
EARLY, LATE = 4, 8
"""places of a segment that are compared: its first ones, and those after"""
DIFFERENCE = 0.1
"""nats a byte that recurrence is worth at the first places"""
WANTS = "a text of a megabyte or more"
FASTER = "bytes a second, in order over sliding"
HOW: dict[str, Any] = {
    "batch": 16, "lr": 1e-3, "weight_decay": 0.01, "evaluate_sequences": 1, "device": "cpu",
}  # fmt: skip
"""both models of text are trained"""


@experiment(
    "the loss falls from no memory over the training's to one sixteen times as long, and at "
    f"the first {EARLY} places of a segment recurrence is worth more than {DIFFERENCE} nats a "
    "byte and more than twice what it is worth at later ones",
    members=("transformer-xl",),
    minutes=20,
    data=WANTS,
)
def segments(study: Study) -> Outcome:
    """Loss by memory and by place, with recurrence in training and without."""
    text = text_of(study, LENGTH, study.steps(32_768) + 1)
    parts = {"first": (0, EARLY), "later": (LATE, LENGTH)}
    arms = {"with memory": SLOTS, "without": 0}
    study.order([*(f"{arm}, {part} places" for arm in arms for part in parts), FASTER])
    curves: dict[str, list[float]] = {}
    for arm, slots in study.each(arms.items()):
        # distances beyond those of the training count as its longest, as in the paper's evaluations
        model = create_model(
            "transformer-xl", width=128, layers=3, heads=4, vocabulary=256, max_length=LENGTH,
            slots=slots, clamp=LENGTH + SLOTS - 1, dropout=0.0, embedding_dropout=0.0,
        )  # fmt: skip
        study.train(model, text, 2500, **HOW)
        by_place = in_order(model, text, slots)["by_place"]
        curves[arm] = [one["loss"] for one in by_place]
        middles = [(one["from"] + one["to"]) / 2 for one in by_place]
        for part, (first, last) in parts.items():
            study.keep(f"{arm}, {part} places", at_positions(by_place, first, last))
        if slots:
            losses = [in_order(model, text, longer)["loss"] for longer in MEMORIES]
            for longer, loss in zip(MEMORIES, losses, strict=True):
                study.keep(f"memory {longer}", loss)
            study.keep(FASTER, speed(model, text, study))
            study.say(f"{losses[0]:.3f} to {losses[-1]:.3f}")
    by_memory = study.series("memory {}", MEMORIES)
    none, trained_at, longest = study.series("memory {}", (0, SLOTS, MEMORIES[-1]))
    gain, later = (
        study.mean(f"without, {part} places") - study.mean(f"with memory, {part} places")
        for part in parts
    )
    sentence = (
        f"Trained with a memory of {SLOTS} bytes, the loss in evaluation is {none:.3f} nats a byte "
        f"without memory, {trained_at:.3f} with {SLOTS} and {longest:.3f} with {MEMORIES[-1]}. At "
        f"the first {EARLY} places of a segment the model trained without memory loses {gain:.2f} "
        f"nats more, after the {LATE}th {later:.2f} more. Reading in order with a memory of "
        f"{MEMORIES[-1]} was [{FASTER}|.0f] times as fast as a window of {MEMORIES[-1]} that "
        "slides byte by byte."
    )
    label = "loss (nats a byte)"
    figure = [
        Lines(
            {"with memory": by_memory}, [str(slots) for slots in MEMORIES],
            ("memory in evaluation", label), at=str(SLOTS),
        ),
        Lines(curves, middles, (f"position in a segment of {LENGTH}", label), ".-"),
    ]  # fmt: skip
    holds = longest < trained_at < none and gain > DIFFERENCE and gain > 2 * later
    return study.outcome(holds, sentence, memory=figure)


def text_of(study: Study, length: int, held_out: int) -> TextDataset:
    """The data in segments, with so many bytes of its held-out part."""
    text = load(source=study.source, length=length).running_text
    assert text is not None
    return dataclasses.replace(text, validation=text.validation[:held_out])


def in_order(model: Model, text: TextDataset, slots: int) -> dict[str, Any]:
    """The evaluation of the whole held-out part, read in order with so long a memory."""
    for memory in memories_of(model):
        memory.slots = slots
    return evaluate_long(model, text, mode="recurrent", streams=4) or {}


def at_positions(parts: list[dict[str, Any]], first: int, last: int) -> float:
    """Mean loss of the positions of a segment after the ``first`` up to the ``last`` one."""
    chosen = [one for one in parts if first < one["from"] and one["to"] <= last]
    count = sum(one["targets"] for one in chosen)
    return sum(one["loss"] * one["targets"] for one in chosen) / count


def speed(model: Model, text: TextDataset, study: Study) -> float:
    """Targets a second read in order, over those of a window that slides byte by byte."""
    longest, slid = MEMORIES[-1], study.steps(96)
    ordered = in_order(model, text, longest)["tokens_per_second"]
    for memory in memories_of(model):
        memory.slots = 0
    validation = text.validation[: longest + slid + 1]
    window = dataclasses.replace(text, length=longest, validation=validation)
    sliding: Any = evaluate_long(model, window, mode="sliding", stride=1, batch=8)
    # the first window scores all of its targets at once: only those that slid in count
    share = slid / sliding["scored"]
    return float(ordered / (sliding["tokens_per_second"] * share))


KEYS, VALUES, NOISE = 12, 4, 4
FACTS, QUESTIONS, ANSWERS = 0, KEYS * VALUES, KEYS * (VALUES + 1)
VOCABULARY = ANSWERS + VALUES + NOISE
"""facts, then questions, then answers, then noise"""
PERIOD = 16
"""tokens from one fact to the next"""
QUESTIONS_AT = range(2, PERIOD, 2)
"""places of questions between them, each with its answer next to it"""
REACH = 10
"""facts back that a question asks for at most, all of different keys"""
REACHED, LOST = 32, 96
"""lags in tokens: up to ``REACHED`` the segment and every memory reach, from ``LOST`` on plain
memories do not (64 rows and a segment of 32)"""
NEAR, FAR = slice(REACHED // PERIOD), slice(LOST // PERIOD, None)
"""the same in facts"""
ROWS = 16
PLAIN: dict[str, Any] = {"memory": "segment", "slots": 2 * SLOTS, "same_length": "never"}
COMPRESSORS: dict[str, dict[str, Any]] = {
    "conv": {},
    "conv, auto-encoding": {"reconstruction": "auto-encoding"},
    "conv, gradient": {"reconstruction": "none", "gradient": "one-segment"},
    "dilated": {"function": "dilated"},
    "most used": {"function": "most-used"},
    "mean": {"function": "mean"},
    "max": {"function": "max"},
}
MARGIN = 0.2
"""share of far questions that compressed rows answer beyond what a plain memory does"""


@experiment(
    "of facts further back than Transformer-XL's memory reaches, a Compressive Transformer "
    f"with as many rows answers at least {MARGIN:.0%} more, by the paper's convolution",
    members=("compressive",),
    minutes=25,
)
def lags(study: Study) -> Outcome:
    """Share of questions answered, by lag, for every compressor and for Transformer-XL.

    A stream has facts (a key and its value in one token), questions (a key) and noise. The answer
    is up to a known number of tokens back. One layer reads exactly its memory, so what lies
    beyond it can be answered by what was compressed alone.
    """
    arms: dict[str, dict[str, Any]] = {"transformer-xl": PLAIN}
    sizes = {"memory": "compressive", "slots": SLOTS, "compressed": SLOTS, "rate": 4}
    arms |= {name: {**sizes, **options} for name, options in COMPRESSORS.items()}
    study.order(f"{name}, {where}" for where in ("far", "near") for name in arms)
    curves: dict[str, np.ndarray] = {}
    for seed in study.seeds():
        for name, options in study.arms(arms.items()):
            model = create_model(
                "transformer-xl" if options is PLAIN else "compressive",
                width=64, layers=1, heads=2, vocabulary=VOCABULARY, max_length=LENGTH,
                dropout=0.0, embedding_dropout=0.0, **options,
            )  # fmt: skip
            terms = fit(study, model, 4000)
            if terms:
                ends = max(1, len(terms) // 20)
                fallen = mean(terms[-ends:]) / mean(terms[ends : 2 * ends])
                study.keep(f"{name}, loss of the compression", fallen)
            curve = answered(model, study.steps(120), seed)
            for where, part in (("far", FAR), ("near", NEAR)):
                hits, questions = curve[:, part].sum(-1)
                study.keep(f"{name}, {where}", float(hits / max(questions, 1)))
            curves[name] = curves.get(name, 0) + curve
        far = {name: study.numbers[f"{name}, far"][-1] for name in arms}
        study.say(f"far questions answered: {joined(far, '.2f')}")
    sentence = (
        f"Of questions about facts {LOST} to {REACH * PERIOD} tokens back, Transformer-XL with "
        f"{2 * SLOTS} rows answers [transformer-xl, far|.0%] (chance {1 / VALUES:.0%}), with as "
        f"many rows, half of them compressed: {study.joined('.0%', '{}, far', COMPRESSORS)}. Up to "
        f"{REACHED} tokens back Transformer-XL answers [transformer-xl, near|.0%] and conv "
        "[conv, near|.0%]."
    )
    places = range(4, REACH * PERIOD, PERIOD)
    shares = {name: hits / np.maximum(count, 1) for name, (hits, count) in curves.items()}
    by_lag = Lines(
        shares, places, ("tokens from fact to question", "share answered"), ".-", at=LOST,
        levels={"chance": 1 / VALUES}, limits=(0, 1.02),
    )  # fmt: skip
    label = f"questions answered, {LOST} tokens back and more"
    by_arm = Bars({n: study.numbers[f"{n}, far"] for n in arms}, label, level=1 / VALUES)
    holds = study.mean("conv, far") > study.mean("transformer-xl, far") + MARGIN
    return study.outcome(holds, sentence, lag=by_lag, compressors=by_arm)


def stream(random: np.random.Generator, periods: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens (periods x `PERIOD`), targets (-100 but for answers) and the answers' lags."""
    tokens = random.integers(ANSWERS + VALUES, VOCABULARY, (periods, PERIOD))
    targets, lag = np.full(tokens.shape, -100), np.zeros(tokens.shape, dtype=np.int64)
    # keys in shuffled rounds, so that the last `REACH` facts hardly ever share one
    rounds = [random.permutation(KEYS) for _ in range(-(-periods // KEYS))]
    keys = np.concatenate(rounds)[:periods]
    values = random.integers(0, VALUES, periods)
    tokens[:, 0] = FACTS + keys * VALUES + values
    latest: dict[int, int] = {}
    for n in range(periods):
        latest[int(keys[n])] = n
        for position in QUESTIONS_AT:
            back = latest[int(keys[n - int(random.integers(0, min(REACH, n + 1)))])]
            tokens[n, position] = QUESTIONS + keys[back]
            tokens[n, position + 1] = targets[n, position] = ANSWERS + values[back]
            lag[n, position] = (n - back) * PERIOD + position
    return tokens.ravel(), targets.ravel(), lag.ravel()


def streams(seed: int, count: int) -> Iterator[tuple[Tensor, ...]]:
    """``count`` segments of `ROWS` streams: tokens, targets, lags (B, L)."""
    periods = count * LENGTH // PERIOD
    rows = [stream(np.random.default_rng((seed, row)), periods) for row in range(ROWS)]
    parts = [torch.from_numpy(np.stack(part)) for part in zip(*rows, strict=True)]
    for n in range(count):
        yield tuple(part[:, n * LENGTH : (n + 1) * LENGTH] for part in parts)


def falling(step: int, steps: int) -> float:
    """Learning rate that rises over a twentieth of the steps, and falls by equal amounts."""
    return 3e-3 * min(1.0, (step + 1) / (steps // 20 + 1)) * (1 - step / steps)


def fit(study: Study, model: Model, steps: int) -> list[float]:
    """Train on streams in order; the compression's own loss at every step, if it has one."""
    texts = streams(1000 + study.seed, study.steps(steps))
    state: Any = None
    terms: list[float] = []

    def batches(_: torch.Generator) -> tuple[Tensor, Tensor]:
        tokens, targets, _lags = next(texts)
        return tokens, targets

    def loss(model: Model, tokens: Tensor, targets: Tensor) -> Tensor:
        nonlocal state
        before = model.init_state(ROWS) if state is None else state
        out: Any = model(tokens, targets=targets, state=before)
        state = out.state.detach()
        if "compression" in out.losses:
            terms.append(float(out.losses["compression"].detach()))
        total: Tensor = out.loss
        return total

    study.fit(model, batches, steps, lr=falling, loss_of=loss)
    return terms


@torch.no_grad()
def answered(model: Model, count: int, seed: int) -> np.ndarray:
    """(2, `REACH`): questions answered and questions at each lag in facts, read in order."""
    hits, questions = np.zeros(REACH + KEYS), np.zeros(REACH + KEYS)
    # the memory that training had, not keys and values
    state: Any = model.init_state(ROWS)
    for tokens, targets, lag in streams(5000 + seed, count):
        out = model(tokens, state=state)
        state = out.state
        scored = targets != -100
        right = (out.logits.argmax(-1) == targets)[scored].numpy()
        where = (lag[scored] // PERIOD).numpy()
        np.add.at(hits, where, right)
        np.add.at(questions, where, 1)
    return np.stack((hits, questions))[:, :REACH]


SIZE, PARTS = 60, 6
"""rows of each region, and parts that each is measured in"""
REGIONS = ("compressed memory", "memory", "sequence")
HEADS, STREAMS, WARM = 4, 8, 6
"""heads of a layer, stretches of text read side by side, segments until all regions are full"""


@experiment(
    "a row of the compressed memory gets more attention than one of the oldest sixth of the "
    "memory, and one of the segment itself gets most",
    members=("compressive",),
    minutes=15,
    data=WANTS,
)
def regions(study: Study) -> Outcome:
    """Mean attention of a query to one row of each part of each region, 60 segments a stretch."""
    text = text_of(study, SIZE, STREAMS * SIZE * (WARM + study.steps(60)) + 1)
    names = [f"{region}, part {n + 1}" for region in REGIONS for n in range(PARTS)]
    parts: list[np.ndarray] = []
    for _ in study.seeds():
        model = create_model(
            "compressive", width=128, layers=3, heads=HEADS, vocabulary=256, max_length=SIZE,
            slots=SIZE, compressed=SIZE, rate=3, dropout=0.0, embedding_dropout=0.0,
        )  # fmt: skip
        study.train(model, text, 1200, **HOW)
        parts.append(attention_by_part(model, text))
        for name, share in zip(names, parts[-1].mean(0).tolist(), strict=True):
            study.keep(name, share)
        study.say(f"{np.round(parts[-1].mean(0), 4).tolist()}")
    compressed, memory, sequence = (
        mean(study.series(region + ", part {}", range(1, PARTS + 1))) for region in REGIONS
    )
    sentence = (
        f"A query gives a row of the compressed memory {compressed:.2%} of its attention on "
        "average, one of the oldest sixth of the memory [memory, part 1|.2%], one of the memory "
        f"{memory:.2%} and one of its own segment {sequence:.2%} (each region has {SIZE} rows)."
    )
    # two standard errors over segments
    every = np.concatenate(parts)
    error = 2 * every.std(0) / np.sqrt(len(every))
    means = dict(zip(names, every.mean(0).tolist(), strict=True))
    spans = {n: (m - e, m + e) for (n, m), e in zip(means.items(), error.tolist(), strict=True)}
    figure = Bars(means, "attention to one row", spans, log="y")
    holds = compressed > study.mean("memory, part 1") and sequence > max(memory, compressed)
    return study.outcome(holds, sentence, mass=figure)


@torch.no_grad()
def attention_by_part(model: Model, text: TextDataset) -> np.ndarray:
    """(segments, 3 x `PARTS`) attention of a query to one row, mean over heads, layers, queries."""
    state: Any = model.init_state(STREAMS)
    parts = []
    for number, batch in enumerate(text.in_order(STREAMS)):
        with trace(model) as traced:
            state = model(batch.inputs, state=state).state
        layers = [received[:, -3 * SIZE :] for received in traced.find("received").values()]
        received = torch.stack(layers).mean((0, 1)) / (HEADS * SIZE)
        if number >= WARM and received.numel() == 3 * SIZE:
            parts.append(received.view(3 * PARTS, -1).mean(1).numpy())
    return np.stack(parts)
