"""Models of text and of pixels against the simplest readers: counting, one side, plain averages."""

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyformer.data.dataset import Dataset
from everyformer.data.masking import MaskedTextDataset
from everyformer.lab.experiments.figures import Bars, Lines
from everyformer.lab.experiments.measures import held_out, joined, load, model_for
from everyformer.lab.experiments.study import Outcome, Study, experiment
from everyformer.models.build import create_model

PIXELS: dict[str, dict] = {
    "attention": {},
    "aft-local": {"window": 32},
    "aft-simple": {},
    "aft-conv": {"kernel": 31},
}


@experiment(
    "an AFT with a position bias is within 5% of attention in bits/dim and ahead of AFT-simple",
    members=("attention", "aft-local", "aft-conv", "aft-simple"),
    minutes=20,
)
def density(study: Study) -> Outcome:
    """Equal width, depth and steps; 784 pixels an image (or 64 of the built-in digits)."""
    data = load("pixels", source=study.source or "digits")
    study.measure(
        PIXELS, (data, 8), 250,
        lambda model: held_out(model, data, "bits_per_dim", batch=8, limit=200),
        "{:.3f} bits/dim", width=64, layers=3, heads=4,
    )  # fmt: skip
    m = study.means()
    best = min((name for name in m if name != "attention"), key=m.__getitem__)
    sentence = (
        f"Bits/dim on {data.name} after equal steps: {study.joined('.3f')}; the best AFT is {best}."
    )
    holds = m[best] < 1.05 * m["attention"] and m[best] < m["aft-simple"]
    figure = Lines(study.losses, labels=("step", "loss (nats a pixel)"), smooth=10)
    return study.outcome(holds, sentence, loss=figure)


ORDER, BATCH, STEPS = 5, 8, 4000
"""tokens of an n-gram, rows a step, steps"""


@experiment(
    "GPT needs at least 5% fewer bits per byte than an interpolated 5-gram",
    members=("gpt",),
    minutes=12,
    name="bytes",
    data="about 1 MB of natural text (on source code 5-grams win at this size)",
)
def bytes_against_counts(study: Study) -> Outcome:
    """Both read the same training bytes, batch by batch."""
    data = load("lm", source=study.source, length=128)
    steps, curves = study.steps(STEPS), []
    sizes = {"width": 128, "layers": 4, "heads": 4, "dropout": 0.0, "embedding_dropout": 0.0}
    for seed in study.seeds():
        model = model_for(data, "gpt", **sizes)
        losses = study.fit(model, (data, BATCH), STEPS, lr=2e-3)
        curves.append([loss / math.log(2) for loss in losses])
        study.keep("gpt", held_out(model, data, "bits_per_byte", limit=512))
        study.keep("5-gram", ngram_bits(data, steps, seed))
        study.say(study.latest(".3f"))
    sentence = (
        f"After {steps} steps of {BATCH} x 128 bytes of {data.name} GPT (4 layers, width 128) "
        "needs [gpt|.3f] bits per byte, an interpolated 5-gram that counted the same bytes "
        "[5-gram|.3f]."
    )
    m = study.means()
    held = {f"{name}, held out": m[name] for name in ("gpt", "5-gram")}
    labels = "step", "bits per byte"
    figure = Lines({"gpt": curves}, labels=labels, smooth=100, levels=held, limits=(0, 6))
    return study.outcome(m["gpt"] < 0.95 * m["5-gram"], sentence, loss=figure)


def ngram_bits(data: Dataset, steps: int, seed: int) -> float:
    """Bits per byte of an interpolated n-gram model of contexts of 0 to `ORDER` - 1 bytes.

    Each order mixes with the shorter one by Witten and Bell's weight n / (n + distinct followers).
    """
    follows: dict[bytes, Counter[int]] = {}
    for step in range(steps):
        for row in data.train_batch(step, BATCH, seed).inputs.numpy().astype(np.uint8):
            text = row.tobytes()
            for i in range(ORDER - 1, len(text)):
                for order in range(ORDER):
                    follows.setdefault(text[i - order : i], Counter())[text[i]] += 1
    totals = {context: (counts.total(), len(counts)) for context, counts in follows.items()}
    bits, scored = 0.0, 0
    for batch in data.validation_batches(BATCH, 512):
        for row, goals in zip(batch.inputs.numpy(), batch.targets.numpy(), strict=True):
            text = row.astype(np.uint8).tobytes() + bytes([max(int(goals[-1]), 0)])
            for i in range(ORDER - 1, len(text)):
                if goals[i - 1] != -100:
                    p = 1 / 256
                    for order in range(ORDER):
                        context = text[i - order : i]
                        if context not in totals:
                            break
                        count, distinct = totals[context]
                        p = (follows[context][text[i]] + distinct * p) / (count + distinct)
                    bits -= math.log2(p)
                    scored += 1
    return bits / scored


LENGTH, ROWS, WINDOWS = 64, 32, 4096
"""bytes of a window of the models that fill gaps, rows a step, and windows that are measured"""
SIZES: dict[str, Any] = {
    "width": 96, "layers": 3, "heads": 4, "max_length": LENGTH, "position": "rope",
    "dropout": 0.0, "embedding_dropout": 0.0,
}  # fmt: skip
"""rotary positions for both: from a learned table of positions a masked model of bytes takes some
thousand steps to find a gap's neighbours, and until then knows the commonest byte alone"""
RATE, SINGLE = 0.3, 0.01
"""of the bytes are hidden: in training twice as many as in the paper, for more targets a step; when
measured hardly more than one of a window, so that what each model reads is whole (a causal model
reads every byte to the left, a masked one would miss hidden ones on both sides)"""
MARGIN = 0.05
"""of all hidden bytes, how many more must be guessed right"""
READERS = ("bert", "gpt", "unigram")


@experiment(
    "BERT guesses at least 5% of single hidden bytes more than GPT of the same sizes, which "
    "reads the left side alone, and than the commonest byte, with fewer nats",
    members=("bert",),
    minutes=15,
)
def fill_in(study: Study) -> Outcome:
    """Hidden bytes, the same for all, mostly one of a window of `LENGTH`.

    Only bytes behind the mask token count, so nobody can read the answer. The causal model is
    trained on every byte of its windows, the masked one on the 30% that are hidden.
    """
    practice = load("mlm", length=LENGTH, mask_rate=RATE)
    data = cast(MaskedTextDataset, load("mlm", length=LENGTH, mask_rate=SINGLE))
    study.order(f"{name}, accuracy" for name in READERS)
    for seed in study.seeds():
        both = create_model("bert", "mlm", vocabulary=data.vocabulary, **SIZES)
        left = create_model("gpt", "lm", vocabulary=256, **SIZES)
        study.fit(both, (practice, ROWS), 1500, lr=2e-3)
        study.fit(left, (data.text, ROWS), 1500, lr=2e-3)
        scores = measured(data, both, left, seed, study.steps(WINDOWS))
        for name, (share, nats) in scores.items():
            study.keep(f"{name}, accuracy", share)
            study.keep(f"{name}, nats", nats)
        right = {name: share for name, (share, _) in scores.items()}
        study.say(f"accuracy {joined(right, '.3f')}")
    m = study.means()
    sentence = (
        f"After {study.steps(1500)} steps of {ROWS} x {LENGTH} bytes of the standard library BERT "
        "(3 layers, width 96), which reads both sides, guesses [bert, accuracy|.1%] of single "
        "hidden bytes ([bert, nats|.2f] nats a byte), GPT of the same sizes, which reads the left "
        "side, [gpt, accuracy|.1%] ([gpt, nats|.2f]), and the commonest byte is right for "
        "[unigram, accuracy|.1%] ([unigram, nats|.2f])."
    )
    right = {name: m[f"{name}, accuracy"] for name in READERS}
    guessed = {name: study.numbers[f"{name}, accuracy"] for name in READERS}
    figure = Bars(guessed, "hidden bytes guessed", top=1)
    better = right["bert"] > max(right["gpt"], right["unigram"]) + MARGIN
    surer = m["bert, nats"] < min(m["gpt, nats"], m["unigram, nats"])
    return study.outcome(better and surer, sentence, accuracy=figure)


@torch.no_grad()
def measured(
    data: MaskedTextDataset, both: nn.Module, left: nn.Module, seed: int, windows: int
) -> dict[str, tuple[float, float]]:
    """Accuracy and mean loss in nats of each of `READERS` on the same hidden bytes."""
    counts = torch.ones(256, dtype=torch.float64)
    for step in range(200):
        tokens = data.text.train_batch(step, ROWS, seed).inputs
        counts += torch.bincount(tokens.flatten(), minlength=256)
    common = (counts / counts.sum()).log()
    logits: dict[str, list[Tensor]] = {name: [] for name in READERS}
    answers = []
    for inputs, tokens, hidden in gaps(data, windows):
        answers.append(tokens[hidden])
        logits["bert"].append(both(inputs).logits[hidden])
        # the causal model predicts a byte at the one before it
        logits["gpt"].append(left(tokens).logits[hidden.roll(-1, 1)])
        logits["unigram"].append(common.expand(int(hidden.sum()), -1))
    goals = torch.cat(answers)
    scores = {}
    for name, parts in logits.items():
        every = torch.cat(parts).double()
        right = (every.argmax(-1) == goals).double().mean()
        scores[name] = float(right), float(F.cross_entropy(every, goals))
    return scores


def gaps(data: MaskedTextDataset, windows: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Held-out windows as the model reads them, their tokens, and the places of the mask token.

    Gaps at the very start, which have no left side, are not counted.
    """
    for batch in data.validation_batches(ROWS, windows):
        hidden = batch.inputs == data.mask_token
        hidden[:, 0] = False
        tokens = torch.where(batch.targets >= 0, batch.targets, batch.inputs)
        yield batch.inputs, tokens, hidden
