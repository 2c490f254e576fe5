"""Data of every task at the smallest sizes, and members for each."""

import random
from pathlib import Path

import numpy as np
from PIL import Image

from everyformer.core.tasks import ALL_TASKS
from everyformer.data.episodes.walks import GraphWalk
from everyformer.family import list_members
from recorded import as_files

TEXT = ("--data", "text.txt", "--tokenizer", "chars", "--length", "16")
DATA = {
    "lm": TEXT,
    "mlm": TEXT,
    "classify-text": ("--data", "labelled.csv", "--length", "16"),
    "classify-image": ("--data", "pictures", "--model.patch", "2"),
    "seq2seq": ("--data", "pairs", "--tokenizer", "chars", "--length", "16"),
    "pixels": ("--data", "pictures"),
    "super-resolution": (
        *("--data", "pictures", "--data.small", "2", "--data.validation", "0.34"),
    ),
    "classify-series": ("--data", "waves", "--length", "16"),
    "regress-text": ("--data", "numbers.csv", "--length", "16"),
    "regress-image": ("--data", "numbers.npz", "--model.patch", "2"),
    "regress-series": ("--data", "waves", "--length", "16"),
    "decision": ("--data", "paths", "--data.context", "4"),
}
SIZES = (
    *("--width", "8", "--layers", "1", "--heads", "2", "--batch", "2", "--steps", "2"),
    *("--training.threads", "1", "--training.evaluate-sequences", "2"),
)
PAIRS = [(task, member.name) for task in ALL_TASKS for member in list_members(task=task)]
"""tasks with all of their members"""


def write_data(place: Path) -> None:
    """A text, labelled texts, pairs of sentences, pictures of 4x4 in two classes, and episodes."""
    draw = random.Random(0)
    words = [draw.choice(("warm", "tree", "fox", "and", "quick")) for _ in range(300)]
    (place / "text.txt").write_text(" ".join(words), encoding="utf-8")
    rows = [f"{' '.join(words[n : n + 2])},{n % 2}" for n in range(40)]
    (place / "labelled.csv").write_text("\n".join(("text,label", *rows)), encoding="utf-8")
    rows = [f"{' '.join(words[n : n + 2])},{n / 4}" for n in range(40)]
    (place / "numbers.csv").write_text("\n".join(("text,rating", *rows)), encoding="utf-8")
    pixels = np.random.default_rng(0).integers(0, 256, (12, 4, 4), dtype=np.uint8)
    np.savez(place / "numbers.npz", images=pixels, y=pixels.mean((1, 2)))
    (place / "pairs").mkdir()
    for part, count in (("train", 24), ("val", 4)):
        for language, made in (("en", words[:count]), ("de", [w[::-1] for w in words[:count]])):
            file = place / "pairs" / f"{part}.{language}"
            file.write_text("\n".join(made) + "\n", encoding="utf-8")
    drawn = np.random.default_rng(0).integers(0, 256, (2, 6, 4, 4), dtype=np.uint8)
    for name, held in zip(("cat", "dog"), drawn, strict=True):
        (place / "pictures" / name).mkdir(parents=True)
        for n, picture in enumerate(held):
            Image.fromarray(picture).save(place / "pictures" / name / f"{n}.png")
    as_files(GraphWalk(nodes=5, edges=6, steps=6).record(6, 0), place / "paths")
