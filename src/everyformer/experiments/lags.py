"""Recall at long lags: what a compressed memory keeps that a plain one of equal size has lost.

A stream of facts (a key and its value in one token), questions (a key) and noise. The answer stands
up to a known number of tokens back. One layer reads exactly its memory, so what lies beyond it can
be answered by what was compressed alone.

Source: Rae et al. 2020, arXiv 1911.05507, sections 4.2 and 5.1 (compressions compared on enwik8).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from everyformer.experiments.base import Experiment, Outcome, Setting, Trials, mean
from everyformer.models.base import Model
from everyformer.models.build import create_model

KEYS, VALUES, NOISE = 12, 4, 4
FACTS, QUESTIONS, ANSWERS = 0, KEYS * VALUES, KEYS * (VALUES + 1)
VOCABULARY = ANSWERS + VALUES + NOISE
"""facts, then questions, then answers, then noise"""
PERIOD = 16
"""tokens from one fact to the next"""
ASKED = range(2, PERIOD, 2)
"""places of questions between them, each with its answer behind"""
LENGTH, SLOTS, COMPRESSED, RATE = 32, 32, 32, 4
"""tokens of a segment, rows of either memory, tokens to a compressed row"""
REACH = 10
"""facts back that a question asks for at most, all of different keys"""
NEAR, FAR = 32, 96
"""lags in tokens: up to ``NEAR`` the segment and every memory reach, from ``FAR`` on plain memories
do not (64 rows and a segment of 32)"""
ROWS = 16
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


def lags(setting: Setting) -> Outcome:
    """Share of questions answered, by lag, for every compressor and for Transformer-XL."""
    arms: dict[str, dict[str, Any]] = {
        "transformer-xl": {"memory": "segment", "slots": SLOTS + COMPRESSED, "same_length": "never"}
    }
    sizes = {"slots": SLOTS, "compressed": COMPRESSED, "rate": RATE}
    arms |= {name: {"memory": "compressive", **sizes, **o} for name, o in COMPRESSORS.items()}
    curves: dict[str, list[np.ndarray]] = {name: [] for name in arms}
    trials = Trials(setting, "lags")
    for seed in trials.seeds():
        for name, options in trials.arms(arms.items()):
            model = create_model(
                "compressive" if options["memory"] == "compressive" else "transformer-xl",
                width=64, layers=1, heads=2, vocabulary=VOCABULARY, max_length=LENGTH,
                dropout=0.0, embedding_dropout=0.0, **options,
            )  # fmt: skip
            terms = fit(model, setting.steps(4000), seed)
            if terms:
                ends = max(1, len(terms) // 20)
                fallen = mean(terms[-ends:]) / mean(terms[ends : 2 * ends])
                trials.keep(f"{name}, loss of the compression", fallen)
            curves[name].append(answered(model, setting.steps(120), seed))
        shown = ", ".join(f"{name} {far(curves[name][-1]):.2f}" for name in arms)
        trials.say(f"far questions answered: {shown}")
    numbers = {f"{name}, far": [far(curve) for curve in found] for name, found in curves.items()}
    numbers |= {f"{name}, near": [near(curve) for curve in found] for name, found in curves.items()}
    numbers |= trials.numbers
    best = max(COMPRESSORS, key=lambda name: mean(numbers[f"{name}, far"]))
    ours, plain = mean(numbers["conv, far"]), mean(numbers["transformer-xl, far"])
    shown = ", ".join(f"{name} {mean(numbers[f'{name}, far']):.0%}" for name in COMPRESSORS)
    sentence = (
        f"Of questions about facts {FAR} to {REACH * PERIOD} tokens back, Transformer-XL with "
        f"{SLOTS + COMPRESSED} rows answers {plain:.0%} (chance {1 / VALUES:.0%}), with as many "
        f"rows, half of them compressed: {shown}. Up to {NEAR} tokens back Transformer-XL answers "
        f"{mean(numbers['transformer-xl, near']):.0%} and conv {mean(numbers['conv, near']):.0%}."
    )
    holds = ours > plain + MARGIN and mean(numbers[f"{best}, far"]) > plain + MARGIN
    figures = {"lag": curve_figure(curves), "compressors": bars(numbers)}
    return Outcome(numbers, holds, sentence, figures)


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
        for place in ASKED:
            back = latest[int(keys[n - int(random.integers(0, min(REACH, n + 1)))])]
            tokens[n, place] = QUESTIONS + keys[back]
            tokens[n, place + 1] = targets[n, place] = ANSWERS + values[back]
            lag[n, place] = (n - back) * PERIOD + place
    return tokens.ravel(), targets.ravel(), lag.ravel()


def segments(seed: int, count: int) -> Iterator[tuple[Tensor, ...]]:
    """``count`` segments of `ROWS` streams: tokens, targets, lags (B, L)."""
    periods = count * LENGTH // PERIOD
    made = [stream(np.random.default_rng((seed, row)), periods) for row in range(ROWS)]
    parts = [torch.from_numpy(np.stack(part)) for part in zip(*made, strict=True)]
    for n in range(count):
        yield tuple(part[:, n * LENGTH : (n + 1) * LENGTH] for part in parts)


def fit(model: Model, steps: int, seed: int) -> list[float]:
    """Train on streams in order; the compression's own loss at every step, if it has one."""
    own = [p for p in model.parameters() if getattr(p, "apart", False)]
    common = [p for p in model.parameters() if not getattr(p, "apart", False)]
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    warm, state, terms = steps // 20 + 1, None, []
    model.train()
    for step, (tokens, targets, _) in enumerate(segments(1000 + seed, steps)):
        for settings in optimiser.param_groups:
            settings["lr"] = 3e-3 * min(1.0, (step + 1) / warm) * (1 - step / steps)
        held = model.init_state(ROWS) if state is None else state
        out = model(tokens, targets=targets, state=held)
        assert out.state is not None
        assert out.loss is not None
        state = out.state.detach()
        optimiser.zero_grad(set_to_none=True)
        out.loss.backward()
        for group in (common, own):
            torch.nn.utils.clip_grad_norm_(group, 1.0)
        optimiser.step()
        if "compression" in out.losses:
            terms.append(float(out.losses["compression"].detach()))
    return terms


@torch.no_grad()
def answered(model: Model, count: int, seed: int) -> np.ndarray:
    """(2, `REACH`): questions answered and asked at each lag in facts, read in order."""
    model.train(False)
    hits, asked = np.zeros(REACH + KEYS), np.zeros(REACH + KEYS)
    # the memory that training had: its own form, not keys and values
    state: Any = model.init_state(ROWS)
    for tokens, targets, lag in segments(5000 + seed, count):
        out = model(tokens, state=state)
        state = out.state
        scored = targets != -100
        right = (out.logits.argmax(-1) == targets)[scored].numpy()
        where = (lag[scored] // PERIOD).numpy()
        np.add.at(hits, where, right)
        np.add.at(asked, where, 1)
    return np.stack((hits, asked))[:, :REACH]


def near(curve: np.ndarray) -> float:
    """Of questions up to `NEAR` tokens back."""
    return share(curve[:, : NEAR // PERIOD])


def far(curve: np.ndarray) -> float:
    """Of questions from `FAR` tokens back on."""
    return share(curve[:, FAR // PERIOD :])


def share(counts: np.ndarray) -> float:
    """Of questions asked, those answered."""
    hits, asked = counts.sum(-1)
    return float(hits / max(asked, 1))


def curve_figure(curves: dict[str, list[np.ndarray]]) -> Figure:
    """Share answered against the lag."""
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    axes = figure.subplots()
    where = np.arange(REACH) * PERIOD + 4
    for name, found in curves.items():
        look = "k-" if name == "transformer-xl" else "-"
        hits, asked = np.sum(found, 0)
        axes.plot(where, hits / np.maximum(asked, 1), look, marker=".", label=name)
    axes.axhline(1 / VALUES, color="grey", linestyle=":")
    axes.axvspan(FAR, where[-1], color="grey", alpha=0.12, lw=0)
    axes.set(xlabel="tokens from fact to question", ylabel="share answered", ylim=(0, 1.02))
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center", frameon=False)
    return figure


def bars(numbers: dict[str, list[float]]) -> Figure:
    """Share of far questions answered, a bar each."""
    figure = Figure(figsize=(8, 3), layout="constrained")
    axes = figure.subplots()
    names = ["transformer-xl", *COMPRESSORS]
    axes.barh(names, [mean(numbers[f"{name}, far"]) for name in names])
    axes.axvline(1 / VALUES, color="grey", linestyle=":")
    axes.invert_yaxis()
    axes.set(xlabel=f"share of questions answered, {FAR} tokens back and more", xlim=(0, 1))
    return figure


EXPERIMENTS = (
    Experiment(
        "lags",
        ("compressive",),
        "of facts further back than Transformer-XL's memory reaches, a Compressive Transformer "
        f"with as many rows answers at least {MARGIN:.0%} more, by the paper's convolution",
        25,
        lags,
    ),
)
