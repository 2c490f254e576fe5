"""Stores of a language model's states: books of two authors (kNN-LM), and rare facts (SPALM).

Sources: Khandelwal et al. 2020, arXiv 1911.00172, sections 4.1 and 4.3: the loss falls as the store
grows, and a store alone makes a model of Wikipedia one of books, with a larger lambda. Yogatama et
al. 2021, arXiv 2102.02557, section 5: gains over Transformer-XL come from names and rare words,
where the gate is open, and not from words that the model knows by itself.
"""

import itertools
import math
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from everyformer.core.errors import DataError
from everyformer.core.trace import trace
from everyformer.data.dataset import Dataset
from everyformer.data.sources import open_source
from everyformer.data.text import TextDataset
from everyformer.data.tokenizers.plain import ByteTokenizer
from everyformer.genes.retrieval import KnnOptions
from everyformer.lab.experiments.figures import Lines
from everyformer.lab.experiments.measures import model_for
from everyformer.lab.experiments.study import Outcome, Study, experiment
from everyformer.models.build import create_model
from everyformer.models.knn_lm import KnnLanguageModel, best_weight, mixed
from everyformer.models.language import LanguageModel
from everyformer.stores.chunks import Chunks, stored
from everyformer.stores.indexing import Indexing
from everyformer.stores.reader import StoreReader
from everyformer.stores.runs import train_run
from everyformer.stores.store.index import Index
from everyformer.stores.tuning import Likelihoods, likelihoods
from everyformer.training.config import TrainingConfig
from everyformer.training.evaluate import read_windows
from everyformer.training.parallel.world import World

LENGTH = 128
SIZES = (4_096, 16_384, 65_536, 262_144)
"""keys in a store"""
KEYS = ("no store", *(f"{size:,} keys" for size in SIZES))
NUMBERS, TEMPERATURES = (16, 256, 1024), (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
WEIGHTS = tuple(n / 20 for n in range(21))
"""k, T and lambda that are tried"""
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
    """Bits per byte by the size of the store, and by lambda.

    The two authors with the most text are taken; of each the first nine tenths are what is learned
    or stored, of the rest one half chooses k, T and lambda and the other is scored.
    """
    (home, text), (other, strange) = two_authors(str(study.source))
    kinds = {"other": (other, strange), "own": (home, text)}
    by_weight: dict[str, list[list[float]]] = {f"of {who}": [] for who, _ in kinds.values()}
    for _ in study.seeds():
        data = parts(home, text)[0]
        model = model_for(data, "rope", width=96, layers=3, heads=4)
        study.fit(model, (data, 16), 800, lr=2e-3)
        assert isinstance(model, LanguageModel)
        for kind, (who, tokens) in kinds.items():
            for size, name in zip(SIZES, KEYS[1:], strict=True):
                chosen, scored = read(model, who, tokens, size)
                choice, of_weights = bits(chosen), bits(scored)
                if size == SIZES[0]:
                    study.keep(f"{kind}: no store", float(of_weights[0, 0, 0]))
                best = np.unravel_index(choice.argmin(), choice.shape)
                study.keep(f"{kind}: {name}", float(of_weights[best]))
            weight, k, heat = tuned(chosen)
            study.keep(f"{kind}: lambda", weight)
            by_weight[f"of {who}"].append(of_weights[:-1, k, heat].tolist())
        study.say(study.latest(".3f"))
    most = KEYS[-1]
    sentence = (
        f"A byte model of {home} needs [other: no store|.3f] bits per byte for {other}, and "
        f"[other: {most}|.3f] with {most} of {other} in its store; for {home} [own: no store|.3f] "
        f"and [own: {most}|.3f]. The best lambda is [other: lambda|.2f] for {other} and "
        f"[own: lambda|.2f] for {home}."
    )
    curves = {f"of {who}": study.curves(f"{kind}: {{}}", KEYS) for kind, (who, _) in kinds.items()}
    figure = [
        Lines(curves, KEYS, ("store", "bits per byte")),
        Lines(by_weight, WEIGHTS[:-1], ("lambda", "bits per byte"), "-"),
    ]
    losses, m = study.series("other: {}", KEYS), study.means()
    falls = all(later < earlier for earlier, later in itertools.pairwise(losses))
    inside = all(0 < w < 1 for kind in kinds for w in study.numbers[f"{kind}: lambda"])
    larger = m["other: lambda"] > m["own: lambda"] and losses[0] - losses[-1] >= MARGIN
    return study.outcome(falls and inside and larger, sentence, store=figure)


def two_authors(source: str) -> list[tuple[str, np.ndarray]]:
    """The two authors of the most bytes, and all their books on end.

    Raises:
        DataError: there is none, or one alone.
    """
    books: dict[str, list[bytes]] = defaultdict(list)
    with open_source(source) as opened:
        for entry in opened.entries:
            author, dash, _ = Path(entry.name).stem.partition(" - ")
            if dash:
                books[author].append(opened.read(entry))
    joined = {author: b"\n".join(texts) for author, texts in books.items()}
    most = sorted(joined, key=lambda author: len(joined[author]), reverse=True)[:2]
    if len(most) < 2:
        raise DataError(f"'{source}' has no books of two authors, in files named AUTHOR - TITLE")
    return [(name, np.frombuffer(joined[name], np.uint8)) for name in most]


def parts(name: str, text: np.ndarray) -> list[TextDataset]:
    """The first nine tenths of an author's text, with either half of the rest held out."""
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


def read(model: LanguageModel, who: str, text: np.ndarray, size: int) -> list[Likelihoods]:
    """All ways to read a store of so many keys of an author, on either half of the rest."""
    how = Indexing(context=LENGTH, stride=LENGTH // 2)
    choosing, scoring = parts(who, text)
    texts = Chunks(choosing.train[:], size, how.context, how.stride)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        store = stored(path, model, choosing.tokenizer, texts, how, who, lambda: False)
        assert store is not None
        options = KnnOptions(k=max(NUMBERS))
        reading = KnnLanguageModel(model, StoreReader(Index(store)), options, how.tap)
        return [
            likelihoods(reading, half, NUMBERS, TEMPERATURES, limit=WINDOWS)
            for half in (choosing, scoring)
        ]


def bits(known: Likelihoods) -> np.ndarray:
    """Bits a token (lambda, k, T)."""
    of_model = known.of_model[:, None, None].expand_as(known.of_neighbours)
    each = [mixed(of_model, known.of_neighbours, weight).mean(0) for weight in WEIGHTS]
    return -torch.stack(each).numpy() / math.log(2)


def tuned(known: Likelihoods) -> tuple[float, int, int]:
    """The best lambda, and the places of the k and the T that it belongs to."""
    tried = []
    for k, heat in np.ndindex(len(NUMBERS), len(TEMPERATURES)):
        of_neighbours = known.of_neighbours[:, k, heat]
        weight = best_weight(known.of_model, of_neighbours)
        loss = -float(mixed(known.of_model, of_neighbours, weight).mean())
        tried.append((loss, weight, k, heat))
    return min(tried)[1:]


NAMES, SYLLABLES, VALUES, FILLERS = 2048, 64, 32, 16
CLASSES = (4, 2)
"""of values, by the first and by the second syllable"""
MARK, FIRST = 0, 1
SECOND = FIRST + SYLLABLES
VALUE = SECOND + SYLLABLES
FILLER = VALUE + VALUES
VOCABULARY = FILLER + FILLERS
SEGMENT, STEPS = 64, 500
NATS, OPEN = 0.5, 0.1
"""by which the loss of values is lower than that of either Transformer-XL, and by which the share
of neighbours is larger at values than at filler"""
XL = {"slots": SEGMENT}
ARMS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "transformer-xl": ("transformer-xl", STEPS, XL),
    "transformer-xl, twice as long": ("transformer-xl", 2 * STEPS, XL),
    "knn-lm": ("knn-lm", STEPS, {"position": "rope", "retrieval_options": {"k": 64, "tune": 2048}}),
    "spalm": ("spalm", STEPS, {**XL, "retrieval_options": {"share": 1.0}}),
}
"""member, steps, options"""
NEIGHBOURS = "share of neighbours: {}"


@experiment(
    f"with as many steps the values of rare names cost SPALM at least {NATS} nats less than "
    "Transformer-XL, and than one that was trained as long as SPALM and its frozen model together; "
    f"the share of neighbours, 1 - g, is at least {OPEN} larger at values than at filler",
    members=("spalm",),
    minutes=6,
)
def facts(study: Study) -> Outcome:
    """Loss by kind of token, and the gate's.

    A sentence of eight tokens is a mark, a name of two syllables and the name's value, and four
    tokens of filler that follow one another by a few rules. The syllables say which four of 32
    values it may be, the name alone which of them it is. Each of 2,048 names is in the training
    text four times, far apart; the held-out text asks for all of them again.

    Changed after pilots of one seed, in which no model predicted values: 512 names without rules,
    whose syllables no model came to read, and a frozen model with absolute positions.
    """
    gates: dict[str, list[np.ndarray]] = {"values": [], "filler": []}
    for seed in study.seeds():
        data = facts_text(seed)
        for name in study.arms(ARMS):
            member, steps, options = ARMS[name]
            model = create_model(
                member, width=64, layers=2, heads=4, vocabulary=VOCABULARY, max_length=SEGMENT,
                **options,
            )  # fmt: skip
            config = TrainingConfig(
                steps=study.steps(steps), batch=8, lr=3e-3, seed=seed, evaluate_every=None
            )
            run = train_run(model, data, config, say=lambda text: None, show=False)
            losses, shares = measured(run.model, run.dataset)
            for kind, loss in losses.items():
                study.keep(f"{name}: {kind}", loss)
        # of SPALM, which is the last
        for kind, values in shares.items():
            gates[kind].append(values)
            study.keep(NEIGHBOURS.format(kind), float(values.mean()))
        study.say(study.latest(".3f"))
    m = study.means()
    sentence = (
        "The value of a rare name costs Transformer-XL [transformer-xl: values|.2f] nats, "
        "[transformer-xl, twice as long: values|.2f] when it is trained twice as long, and SPALM "
        "[spalm: values|.2f]; kNN-LM [knn-lm: values|.2f]. Filler costs "
        "[transformer-xl: filler|.2f] and [spalm: filler|.2f]. Neighbours have "
        f"[{NEIGHBOURS.format('values')}|.0%] of the state at values and "
        f"[{NEIGHBOURS.format('filler')}|.0%] at filler."
    )
    bins = [n / 40 for n in range(41)]
    counts = {
        kind: np.histogram(np.concatenate(each), bins, density=True)[0].tolist()
        for kind, each in gates.items()
    }
    middles = [n / 40 + 1 / 80 for n in range(40)]
    figure = Lines(counts, middles, ("share of neighbours in the state, 1 - g", "density"), "-")
    best = min(m["transformer-xl: values"], m["transformer-xl, twice as long: values"])
    at_values, at_filler = study.series(NEIGHBOURS, gates)
    holds = best - m["spalm: values"] >= NATS and at_values - at_filler >= OPEN
    return study.outcome(holds, sentence, gate=figure)


def facts_text(seed: int) -> TextDataset:
    """Both parts, of the same facts."""
    draw = np.random.default_rng(seed)
    names = draw.choice(SYLLABLES * SYLLABLES, NAMES, replace=False)
    first, second = (draw.integers(0, classes, SYLLABLES) for classes in CLASSES)
    kind = first[names // SYLLABLES] * CLASSES[1] + second[names % SYLLABLES]
    among = VALUES // (CLASSES[0] * CLASSES[1])
    values = kind * among + draw.integers(0, among, NAMES)
    rules = draw.integers(0, FILLERS, (FILLERS, 3))

    def part(repeats: int) -> np.ndarray:
        order = np.concatenate([draw.permutation(NAMES) for _ in range(repeats)])
        filler = [int(draw.integers(FILLERS))]
        while len(filler) < 4 * len(order):
            filler.append(int(rules[filler[-1], draw.integers(3)]))
        columns = (
            np.full(len(order), MARK),
            FIRST + names[order] // SYLLABLES,
            SECOND + names[order] % SYLLABLES,
            VALUE + values[order],
            *(FILLER + np.array(filler).reshape(-1, 4)).T,
        )
        return np.stack(columns, 1).ravel().astype(np.uint16)

    return TextDataset(
        name="facts", task="lm", kind="text", vocabulary=VOCABULARY, length=SEGMENT, split="",
        fingerprint=f"facts {seed}", train=part(4), validation=part(1),
    )  # fmt: skip


@torch.no_grad()
def measured(model: Any, data: Dataset) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Mean loss of held-out values and filler, and the shares of neighbours there, if any."""
    model.eval()
    losses: dict[str, list[Tensor]] = {"values": [], "filler": []}
    shares: dict[str, list[Tensor]] = {"values": [], "filler": []}
    with trace(model) as traced:
        for window in read_windows(model, data, 8, None, World(torch.device("cpu"))):
            assert window is not None
            targets = window.batch.targets
            each = F.cross_entropy(window.out.logits.transpose(1, 2), targets, reduction="none")
            kinds = {"values": (targets >= VALUE) & (targets < FILLER), "filler": targets >= FILLER}
            for kind, where in kinds.items():
                losses[kind].append(each[where])
                shares[kind] += [1 - gate[where] for gate in traced.find("gate").values()]
    means = {kind: float(torch.cat(parts).mean()) for kind, parts in losses.items()}
    return means, {kind: torch.cat(parts).numpy() for kind, parts in shares.items() if parts}
