"""kNN-LM on books: a byte model of one author reads stores of its author and of another one.

The two authors with the most text are taken; of each the first nine tenths are what is learned or
stored, of the rest one half chooses k, T and lambda and the other is scored.

Source: Khandelwal et al. 2020, arXiv 1911.00172, sections 4.1 and 4.3: the loss falls as the store
grows, and a store alone makes a model of Wikipedia one of books, with a larger lambda.
"""

from __future__ import annotations

import itertools
import math
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np

from everyformer.core.errors import DataError
from everyformer.data.sources import open_source
from everyformer.data.text import TextDataset
from everyformer.data.tokenizers.plain import ByteTokenizer
from everyformer.datastores.indexing import Indexing
from everyformer.datastores.reader import StoreReader
from everyformer.datastores.stretches import Stretches, indexed, stored
from everyformer.datastores.sweep import Cell, Sweep, sweep
from everyformer.experiments.base import Outcome, Study, experiment, fitting
from everyformer.experiments.figures import panels, plot
from everyformer.models.knn_lm import KnnLanguageModel
from everyformer.models.language import LanguageModel
from everyformer.neighbours import Grid, KnnOptions

LENGTH, BATCH, STEPS = 128, 16, 800
SIZES = (4_096, 16_384, 65_536, 262_144)
"""keys in a store"""
GRID = Grid(k=(16, 256, 1024))
WINDOWS = 96
"""held-out windows that are read to choose, and as many to score"""
MARGIN = 0.05
"""bits per byte that a store of the other author saves at least"""
HALVES = ("choosing", "scoring")


@experiment(
    f"a byte model of one author reads another one: the loss falls as a store of that one grows "
    f"from 0 over {' and '.join(f'{size:,}' for size in SIZES)} keys, by at least {MARGIN} bits "
    "per byte in all; the best lambda lies inside (0, 1) and is larger there than with a store of "
    "the model's own author",
    members=("knn-lm",),
    minutes=20,
    data="books of several authors, in files named AUTHOR - TITLE",
)
def authors(study: Study) -> Outcome:
    """Bits per byte by the size of the store, and by lambda."""
    (own, other), (text, strange) = zip(*two_authors(str(study.source)), strict=True)
    curves: dict[str, list[list[float]]] = {f"of {other}": [], f"of {own}": []}
    by_weight: dict[str, list[list[float]]] = {f"of {other}": [], f"of {own}": []}
    for _ in study.seeds():
        data = parts(own, text)[0]
        model = fitting(data, "rope", width=96, layers=3, heads=4)
        study.fit(model, (data, BATCH), STEPS, lr=2e-3)
        assert isinstance(model, LanguageModel)
        for who, tokens, kind in ((other, strange, "other"), (own, text, "own")):
            curve: list[float] = []
            for size in SIZES:
                chosen, scored = read(model, who, tokens, size)
                if not curve:
                    curve.append(scored.plain["loss"] / math.log(2))
                    study.keep(f"{kind}: no store", curve[0])
                best = min((cell for cell in chosen.cells if not cell.tuned), key=lambda c: c.loss)
                found = same(scored, best)
                curve.append(found.loss / math.log(2))
                study.keep(f"{kind}: {size:,} keys", curve[-1])
            tuned = chosen.tuned[0]
            study.keep(f"{kind}: lambda", tuned.weight)
            curves[f"of {who}"].append(curve)
            line = [
                c for c in scored.cells
                if not c.tuned and (c.k, c.temperature) == (tuned.k, tuned.temperature)
            ]  # fmt: skip
            by_weight[f"of {who}"].append([c.loss / math.log(2) for c in line[:-1]])
        study.say(study.latest(".3f"))
    m = study.means()
    steps = ["other: no store", *(f"other: {size:,} keys" for size in SIZES)]
    gain = m[steps[0]] - m[steps[-1]]
    falls = all(m[later] < m[earlier] for earlier, later in itertools.pairwise(steps))
    inside = all(0 < w < 1 for kind in ("own", "other") for w in study.numbers[f"{kind}: lambda"])
    larger = m["other: lambda"] > m["own: lambda"]
    sentence = (
        f"A byte model of {own} needs {m[steps[0]]:.3f} bits per byte for {other}, and "
        f"{m[steps[-1]]:.3f} with {SIZES[-1]:,} keys of {other} in its store; for {own} "
        f"{m['own: no store']:.3f} and {m[f'own: {SIZES[-1]:,} keys']:.3f}. The best lambda is "
        f"{m['other: lambda']:.2f} for {other} and {m['own: lambda']:.2f} for {own}."
    )
    figure, [left, right] = panels(2, (8, 3))
    plot(left, curves, range(len(SIZES) + 1), xlabel="keys in the store", ylabel="bits per byte")
    left.set_xticks(range(len(SIZES) + 1), ["0", *(f"{size // 1024}k" for size in SIZES)])
    plot(right, by_weight, [n / 20 for n in range(20)], "-", xlabel="lambda",
         ylabel="bits per byte")  # fmt: skip
    holds = falls and inside and larger and gain >= MARGIN
    return Outcome(study.numbers, holds, sentence, {"store": figure})


def two_authors(source: str) -> list[tuple[str, np.ndarray]]:
    """The two authors of the most bytes, and all their books on end.

    Raises:
        DataError: there is none, or one alone.
    """
    books: dict[str, list[bytes]] = defaultdict(list)
    with open_source(source) as found:
        for entry in found.entries:
            author, dash, _ = Path(entry.name).stem.partition(" - ")
            if dash:
                books[author].append(found.read(entry))
    joined = {author: b"\n".join(own) for author, own in books.items()}
    most = sorted(joined, key=lambda author: len(joined[author]), reverse=True)[:2]
    if len(most) < 2:
        raise DataError(f"'{source}' has no books of two authors, in files named AUTHOR - TITLE")
    return [(name, np.frombuffer(joined[name], np.uint8)) for name in most]


def parts(name: str, text: np.ndarray) -> list[TextDataset]:
    """Of an author: the first nine tenths, with either half of the rest held out."""
    at = len(text) * 9 // 10
    halves = np.array_split(text[at:], len(HALVES))
    return [
        TextDataset(
            name=f"{name}, {half}", task="lm", kind="text", vocabulary=256, length=LENGTH,
            split="", fingerprint=name, tokenizer=ByteTokenizer(), bytes_per_token=1.0,
            train=text[:at], validation=held, stride=LENGTH // 2,
        )
        for half, held in zip(HALVES, halves, strict=True)
    ]  # fmt: skip


def read(model: LanguageModel, who: str, text: np.ndarray, size: int) -> tuple[Sweep, Sweep]:
    """All ways to read a store of so many keys of an author, on either half of what is held out."""
    how = Indexing(context=LENGTH, stride=LENGTH // 2)
    choosing, scoring = parts(who, text)
    texts = Stretches(choosing.train, size, how.context, how.stride)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "store"
        store = stored(place, model, choosing.tokenizer, texts, how, who, lambda: False)
        assert store is not None
        reader = StoreReader(indexed(store, "auto", "l2", lambda said: None))
        reading = KnnLanguageModel(model, reader, KnnOptions(k=max(GRID.k)), how.tap)
        grid = GRID.resolved(len(store), "squared")
        found = [sweep(reading, half, grid, limit=WINDOWS) for half in (choosing, scoring)]
    return found[0], found[1]


def same(found: Sweep, wanted: Cell) -> Cell:
    """The cell of another text that reads its store in the same way."""
    return next(
        cell
        for cell in found.cells
        if not cell.tuned
        and (cell.k, cell.temperature, cell.weight) == (wanted.k, wanted.temperature, wanted.weight)
    )
