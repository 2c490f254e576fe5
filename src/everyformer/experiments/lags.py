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

from everyformer.experiments.base import Outcome, Study, experiment, mean
from everyformer.experiments.figures import bars, panels, plot
from everyformer.models.base import Model
from everyformer.models.build import create_model

KEYS, VALUES, NOISE = 12, 4, 4
FACTS, QUESTIONS, ANSWERS = 0, KEYS * VALUES, KEYS * (VALUES + 1)
VOCABULARY = ANSWERS + VALUES + NOISE
"""facts, then questions, then answers, then noise"""
PERIOD = 16
"""tokens from one fact to the next"""
QUESTIONS_AT = range(2, PERIOD, 2)
"""places of questions between them, each with its answer behind"""
LENGTH, SLOTS, COMPRESSED, RATE = 32, 32, 32, 4
"""tokens of a segment, rows of either memory, tokens to a compressed row"""
REACH = 10
"""facts back that a question asks for at most, all of different keys"""
REACHED, LOST = 32, 96
"""lags in tokens: up to ``REACHED`` the segment and every memory reach, from ``LOST`` on plain
memories do not (64 rows and a segment of 32)"""
NEAR, FAR = slice(REACHED // PERIOD), slice(LOST // PERIOD, None)
"""the same in facts"""
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


@experiment(
    "of facts further back than Transformer-XL's memory reaches, a Compressive Transformer "
    f"with as many rows answers at least {MARGIN:.0%} more, by the paper's convolution",
    members=("compressive",),
    minutes=25,
)
def lags(study: Study) -> Outcome:
    """Share of questions answered, by lag, for every compressor and for Transformer-XL."""
    arms: dict[str, dict[str, Any]] = {
        "transformer-xl": {"memory": "segment", "slots": SLOTS + COMPRESSED, "same_length": "never"}
    }
    sizes = {"slots": SLOTS, "compressed": COMPRESSED, "rate": RATE}
    arms |= {name: {"memory": "compressive", **sizes, **o} for name, o in COMPRESSORS.items()}
    curves: dict[str, list[np.ndarray]] = {name: [] for name in arms}
    for seed in study.seeds():
        for name, options in study.arms(arms.items()):
            model = create_model(
                "compressive" if options["memory"] == "compressive" else "transformer-xl",
                width=64, layers=1, heads=2, vocabulary=VOCABULARY, max_length=LENGTH,
                dropout=0.0, embedding_dropout=0.0, **options,
            )  # fmt: skip
            terms = fit(model, study.steps(4000), seed)
            if terms:
                ends = max(1, len(terms) // 20)
                fallen = mean(terms[-ends:]) / mean(terms[ends : 2 * ends])
                study.keep(f"{name}, loss of the compression", fallen)
            curves[name].append(answered(model, study.steps(120), seed))
        listed = ", ".join(f"{name} {share(curves[name][-1], FAR):.2f}" for name in arms)
        study.say(f"far questions answered: {listed}")
    numbers = {
        f"{name}, {where}": [share(curve, part) for curve in found]
        for where, part in (("far", FAR), ("near", NEAR))
        for name, found in curves.items()
    }
    numbers |= study.numbers
    shares = {name: mean(numbers[f"{name}, far"]) for name in arms}
    ours, plain = shares["conv"], shares["transformer-xl"]
    listed = ", ".join(f"{name} {shares[name]:.0%}" for name in COMPRESSORS)
    sentence = (
        f"Of questions about facts {LOST} to {REACH * PERIOD} tokens back, Transformer-XL with "
        f"{SLOTS + COMPRESSED} rows answers {plain:.0%} (chance {1 / VALUES:.0%}), with as many "
        f"rows, half of them compressed: {listed}. Up to {REACHED} tokens back Transformer-XL "
        f"answers {mean(numbers['transformer-xl, near']):.0%} and conv "
        f"{mean(numbers['conv, near']):.0%}."
    )
    label = f"questions answered, {LOST} tokens back and more"
    figures = {"lag": curve_figure(curves), "compressors": bars(shares, (10, 3), ylabel=label)}
    figures["compressors"].axes[0].axhline(1 / VALUES, color="grey", linestyle=":")
    return Outcome(numbers, ours > plain + MARGIN, sentence, figures)


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


def segments(seed: int, count: int) -> Iterator[tuple[Tensor, ...]]:
    """``count`` segments of `ROWS` streams: tokens, targets, lags (B, L)."""
    periods = count * LENGTH // PERIOD
    streams = [stream(np.random.default_rng((seed, row)), periods) for row in range(ROWS)]
    parts = [torch.from_numpy(np.stack(part)) for part in zip(*streams, strict=True)]
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
        before = model.init_state(ROWS) if state is None else state
        out = model(tokens, targets=targets, state=before)
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
    hits, questions = np.zeros(REACH + KEYS), np.zeros(REACH + KEYS)
    # the memory that training had: its own form, not keys and values
    state: Any = model.init_state(ROWS)
    for tokens, targets, lag in segments(5000 + seed, count):
        out = model(tokens, state=state)
        state = out.state
        scored = targets != -100
        right = (out.logits.argmax(-1) == targets)[scored].numpy()
        where = (lag[scored] // PERIOD).numpy()
        np.add.at(hits, where, right)
        np.add.at(questions, where, 1)
    return np.stack((hits, questions))[:, :REACH]


def share(curve: np.ndarray, part: slice) -> float:
    """The share of questions that is answered, of those at these lags in facts."""
    hits, questions = curve[:, part].sum(-1)
    return float(hits / max(questions, 1))


def curve_figure(curves: dict[str, list[np.ndarray]]) -> Figure:
    """Share answered against the lag."""
    figure, [axis] = panels(size=(8, 3.4))
    where = np.arange(REACH) * PERIOD + 4
    counts = {name: np.sum(found, 0) for name, found in curves.items()}
    shares = {name: hits / np.maximum(count, 1) for name, (hits, count) in counts.items()}
    labels: dict[str, Any] = {"xlabel": "tokens from fact to question", "ylabel": "share answered"}
    plot(axis, shares, where.tolist(), ".-", level=1 / VALUES, ylim=(0, 1.02), **labels)
    axis.axvspan(LOST, where[-1], color="grey", alpha=0.12, lw=0)
    return figure
