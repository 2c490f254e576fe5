"""Long documents classified whole, by Longformer and BigBird, or cut to what attention reads.

Source: Beltagy et al. 2020, arXiv 2004.05150, section 6 (IMDB and Hyperpartisan: 95.7 and 94.8
against 95.3 and 87.4 of RoBERTa on 512 tokens, the gain lying with long documents); Zaheer et al.
2020, arXiv 2007.14062, table 4.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from everyformer.experiments.base import Outcome, Study, experiment, held_out, load
from everyformer.experiments.figures import bars
from everyformer.models.base import Model
from everyformer.models.build import create_model

LONG, SHORT = 512, 64
"""tokens of a generated document, and those of one that is cut"""
TEXT, CUT = 1024, 128
"""the same of given texts, in BPE tokens of about four bytes"""
NOISE, CLASSES, CUES = 4, 4, 4
"""symbols of a generated document: noise, and one a class, `CUES` times side by side"""
ARMS: dict[str, tuple[str, bool, dict[str, Any]]] = {
    "longformer": ("longformer", True, {"window": 32}),
    "bigbird": ("bigbird", True, {"block_size": 16, "random_blocks": 2}),
    "attention": ("attention", True, {}),
    "attention, cut": ("attention", False, {}),
}
"""arm -> member, whether it reads documents whole, options"""
MARGIN, GAIN = 0.3, 0.02
"""share of generated documents, and of given texts"""
Classify = Callable[[Study, str, int, dict[str, Any]], float]


@experiment(
    "documents of 512 tokens are classified at least 30% more often on all of them than on "
    "the first 64",
    members=("longformer", "bigbird"),
    minutes=10,
)
def documents(study: Study) -> Outcome:
    """Share of held-out generated documents whose class is found."""
    what = f"documents of {LONG} symbols, of which {CUES}, anywhere, tell the class of {CLASSES},"
    return _compared(study, _generated, (LONG, SHORT), what, MARGIN)


@experiment(
    "long texts are classified at least 2% more often on 1,024 tokens than on the first 128",
    members=("longformer", "bigbird"),
    minutes=30,
    data="long texts in a folder for each class",
)
def reviews(study: Study) -> Outcome:
    """Share of held-out given texts whose class is found."""
    what = f"texts of {Path(str(study.source)).name}, cut to {TEXT:,} tokens,"
    return _compared(study, _given, (TEXT, CUT), what, GAIN)


def _compared(
    study: Study, classify: Classify, tokens: tuple[int, int], what: str, margin: float
) -> Outcome:
    """All arms, on ``tokens`` of a document whole and cut."""
    for _ in study.seeds():
        for name, (member, whole, options) in study.arms(ARMS.items()):
            length = tokens[0] if whole else tokens[1]
            study.keep(name, classify(study, member, length, options))
        study.say(f"right: {study.latest('.1%')}")
    shares = study.means()
    sentence = (
        f"Of {what} Longformer classifies {shares['longformer']:.1%}, BigBird "
        f"{shares['bigbird']:.1%} and attention {shares['attention']:.1%}; on the first "
        f"{tokens[1]} tokens attention {shares['attention, cut']:.1%}."
    )
    figure = bars(shares, (5, 3), ylabel="documents classified", ylim=(0, 1))
    least = min(shares["longformer"], shares["bigbird"])
    holds = least > shares["attention, cut"] + margin
    return Outcome(study.numbers, holds, sentence, {"accuracy": figure})


def cued(generator: torch.Generator, rows: int = 16) -> tuple[Tensor, Tensor]:
    """Noise with cues at one place anywhere, and their class."""
    inputs = torch.randint(0, NOISE, (rows, LONG), generator=generator)
    classes = torch.randint(0, CLASSES, (rows,), generator=generator)
    positions = torch.randint(0, LONG - CUES, (rows, 1), generator=generator) + torch.arange(CUES)
    return inputs.scatter(1, positions, NOISE + classes[:, None].expand(-1, CUES)), classes


def _generated(study: Study, member: str, length: int, options: dict[str, Any]) -> float:
    model = _model(member, length, NOISE + CLASSES, CLASSES, options)

    def cut(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs, classes = cued(generator)
        return inputs[:, :length], classes

    study.fit(model, cut, 200, lr=3e-3)
    inputs, classes = cued(torch.Generator().manual_seed(5000 + study.seed), 256)
    with torch.no_grad():
        guesses = torch.cat(
            [model(part).logits.argmax(-1) for part in inputs[:, :length].split(32)]
        )
    return float((guesses == classes).float().mean())


def _given(study: Study, member: str, length: int, options: dict[str, Any]) -> float:
    sizes: dict[str, Any] = {"length": length, "tokenizer": "bpe:2000"}
    data = load("classify-text", source=study.source, seed=study.seed, **sizes)
    model = _model(member, length, data.vocabulary, len(data.classes), options, "sinusoidal")
    how: dict[str, Any] = {"warmup": 0.1, "weight_decay": 0.1, "checkpoint_every": None}
    study.train(model, data, 800, batch=8, lr=1e-3, **how)
    return held_out(model, data, "accuracy", batch=8)


def _model(
    member: str,
    length: int,
    vocabulary: int,
    classes: int,
    options: dict[str, Any],
    position: str | None = None,
) -> Model:
    """Two layers; the class token, which is read, is a global one in both."""
    return create_model(
        member, "classify-text", width=32, layers=2, heads=2, vocabulary=vocabulary,
        classes=classes, max_length=length, pooling="class", position=position, **options,
    )  # fmt: skip
