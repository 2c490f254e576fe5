"""Filling in hidden bytes: reading both sides of a gap, the left side alone, or nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyformer.core.errors import DataError
from everyformer.data.masking import MaskedTextDataset
from everyformer.experiments.base import Outcome, Study, experiment, load
from everyformer.experiments.figures import bars
from everyformer.models.build import create_model

LENGTH, BATCH, STEPS, WINDOWS = 64, 32, 1500, 4096
SIZES: dict[str, Any] = {
    "width": 96, "layers": 3, "heads": 4, "max_length": LENGTH, "position": "rope",
    "dropout": 0.0, "embedding_dropout": 0.0,
}  # fmt: skip
"""rotary positions for both: from a learned table of positions a masked model of bytes takes some
thousand steps to find a gap's neighbours, and until then knows the commonest byte alone"""
RATE, SINGLE = 0.3, 0.01
"""of the bytes are hidden: in training twice as many as in the paper, for more targets a step; when
measured hardly more than one of a window, so that what each model reads is whole (a causal model is
shown every byte to the left, a masked one would miss hidden ones on both sides)"""
MARGIN = 0.05
"""of all hidden bytes, how many more must be guessed right"""
NAMES = ("bert", "gpt", "unigram")


@experiment(
    "BERT guesses at least 5% of single hidden bytes more than GPT of the same sizes, which "
    "reads the left side alone, and than the commonest byte, with fewer nats",
    members=("bert",),
    minutes=15,
)
def fill_in(study: Study) -> Outcome:
    """The same hidden bytes for all, mostly one of a window of `LENGTH`.

    Only bytes behind the mask token count, so nobody can read the answer. The causal model is
    trained on every byte of its windows, the masked one on the 30% that are hidden.
    """
    practice = load("mlm", length=LENGTH, mask_rate=RATE)
    data = load("mlm", length=LENGTH, mask_rate=SINGLE)
    if not isinstance(data, MaskedTextDataset):
        raise DataError("the standard library's text cannot be masked")
    steps, windows = study.steps(STEPS), study.steps(WINDOWS)
    study.order([f"{name}, accuracy" for name in NAMES])
    numbers = study.numbers
    for seed in study.seeds():
        both = create_model("bert", "mlm", vocabulary=data.vocabulary, **SIZES)
        left = create_model("gpt", "lm", vocabulary=256, **SIZES)
        study.fit(both, (practice, BATCH), STEPS, lr=2e-3)
        study.fit(left, (data.text, BATCH), STEPS, lr=2e-3)
        for name, (accuracy, nats) in measured(data, both, left, seed, windows).items():
            study.keep(f"{name}, accuracy", accuracy)
            study.keep(f"{name}, nats", nats)
        listed = ", ".join(f"{name} {numbers[f'{name}, accuracy'][-1]:.3f}" for name in NAMES)
        study.say(f"accuracy {listed}")
    right, bits = (
        {name: study.mean(f"{name}, {unit}") for name in NAMES} for unit in ("accuracy", "nats")
    )
    sentence = (
        f"After {steps} steps of {BATCH} x {LENGTH} bytes of the standard library BERT (3 layers, "
        f"width 96), which reads both sides, guesses {right['bert']:.1%} of single hidden bytes "
        f"({bits['bert']:.2f} nats a byte), GPT of the same sizes, which reads the left side, "
        f"{right['gpt']:.1%} ({bits['gpt']:.2f}), and the commonest byte is right for "
        f"{right['unigram']:.1%} ({bits['unigram']:.2f})."
    )
    figure = bars(right, colours=("C0", "C1", "C7"), ylabel="hidden bytes guessed", ylim=(0, 1))
    better = right["bert"] > max(right["gpt"], right["unigram"]) + MARGIN
    surer = bits["bert"] < min(bits["gpt"], bits["unigram"])
    return Outcome(numbers, better and surer, sentence, {"accuracy": figure})


@torch.no_grad()
def measured(
    data: MaskedTextDataset, both: nn.Module, left: nn.Module, seed: int, windows: int
) -> dict[str, tuple[float, float]]:
    """Accuracy and mean loss in nats of each of `NAMES` on the same hidden bytes."""
    counts = torch.ones(256, dtype=torch.float64)
    for step in range(200):
        counts += torch.bincount(
            data.text.train_batch(step, BATCH, seed).inputs.flatten(), minlength=256
        )
    common = (counts / counts.sum()).log()
    scores: dict[str, list[Tensor]] = {name: [] for name in NAMES}
    answers = []
    for inputs, tokens, hidden in gaps(data, windows):
        answers.append(tokens[hidden])
        scores["bert"].append(both(inputs).logits[hidden])
        # what the causal model says of a byte, it says at the byte before
        ahead = hidden.roll(-1, 1)
        scores["gpt"].append(left(tokens).logits[ahead])
        scores["unigram"].append(common.expand(int(hidden.sum()), -1))
    goals = torch.cat(answers)
    found = {}
    for name, parts in scores.items():
        logits = torch.cat(parts).double()
        right = (logits.argmax(-1) == goals).double().mean()
        found[name] = float(right), float(F.cross_entropy(logits, goals))
    return found


def gaps(data: MaskedTextDataset, windows: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Held-out windows as the model reads them, as they were, and where the mask token stands.

    Gaps at the very start, which have no left side, are not counted.
    """
    for batch in data.validation_batches(BATCH, windows):
        hidden = batch.inputs == data.mask_token
        hidden[:, 0] = False
        tokens = torch.where(batch.targets >= 0, batch.targets, batch.inputs)
        yield batch.inputs, tokens, hidden
