"""GPT on bytes of real text, against counting: an interpolated 5-gram model."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

from everyformer.data.dataset import Dataset
from everyformer.experiments.base import Outcome, Study, experiment, fitting, held_out, load
from everyformer.experiments.figures import lines

ORDER = 5
BATCH, LENGTH, STEPS = 8, 128, 4000


@experiment(
    "GPT needs at least 5% fewer bits per byte than an interpolated 5-gram",
    members=("gpt",),
    minutes=12,
    name="bytes",
    data="about 1 MB of natural text (on source code 5-grams win at this size)",
)
def bytes_against_counts(study: Study) -> Outcome:
    """Both read the same training bytes, batch by batch."""
    data = load("lm", source=study.source, length=LENGTH)
    steps = study.steps(STEPS)
    curves = []
    for seed in study.seeds():
        how = {"dropout": 0.0, "embedding_dropout": 0.0}
        model = fitting(data, "gpt", width=128, layers=4, heads=4, **how)
        curves.append(study.fit(model, (data, BATCH), STEPS, lr=2e-3))
        study.keep("gpt", held_out(model, data, "bits_per_byte", limit=512))
        study.keep("5-gram", ngram_bits(data, steps, seed))
        study.say(study.latest(".3f"))
    ours, theirs = study.means().values()
    sentence = (
        f"After {steps} steps of {BATCH} x {LENGTH} bytes of {data.name} GPT (4 layers, width 128) "
        f"needs {ours:.3f} bits per byte, an interpolated 5-gram that counted the same bytes "
        f"{theirs:.3f}."
    )
    bits = {"gpt": [[loss / math.log(2) for loss in losses] for losses in curves]}
    figure = lines(bits, smooth=100, level=ours, ylabel="bits per byte", ylim=(0, 6))
    figure.axes[0].axhline(theirs, color="C1", linestyle="--", label="5-gram, validation")
    figure.axes[0].legend()
    return Outcome(study.numbers, ours < 0.95 * theirs, sentence, {"loss": figure})


def ngram_bits(data: Dataset, steps: int, seed: int) -> float:
    """Bits per byte of an interpolated n-gram model of orders 0 to `ORDER` - 1 contexts.

    Each order mixes with the shorter one by Witten and Bell's weight n / (n + distinct followers).
    """
    follows: list[dict[bytes, Counter[int]]] = [{} for _ in range(ORDER)]
    for step in range(steps):
        for row in data.train_batch(step, BATCH, seed).inputs.numpy().astype(np.uint8):
            text = row.tobytes()
            for i in range(ORDER - 1, len(text)):
                for order in range(ORDER):
                    context = text[i - order : i]
                    follows[order].setdefault(context, Counter())[text[i]] += 1
    totals = [{c: (sum(f.values()), len(f)) for c, f in table.items()} for table in follows]
    bits, scored = 0.0, 0
    for batch in data.validation_batches(BATCH, 512):
        for row, goals in zip(batch.inputs.numpy(), batch.targets.numpy(), strict=True):
            text = row.astype(np.uint8).tobytes() + bytes([max(int(goals[-1]), 0)])
            for i in range(ORDER - 1, len(text)):
                if goals[i - 1] != -100:
                    bits -= math.log2(_probability(follows, totals, text, i))
                    scored += 1
    return bits / scored


def _probability(
    follows: list[dict[bytes, Counter[int]]],
    totals: list[dict[bytes, tuple[int, int]]],
    text: bytes,
    i: int,
) -> float:
    p = 1 / 256
    for order in range(ORDER):
        context = text[i - order : i]
        seen = totals[order].get(context)
        if seen is None:
            break
        count, distinct = seen
        p = (follows[order][context][text[i]] + distinct * p) / (count + distinct)
    return p
