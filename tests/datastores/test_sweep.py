"""A sweep reads a text once, and every cell of it is an evaluation with those very options."""

import itertools
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import everyformer as ef
from datastores.store.stores import SMALL
from everyformer.core.errors import ResourceError
from everyformer.data.text import TextDataset
from everyformer.datastores.sweep import sweep
from everyformer.genes.retrieval import Grid, KnnOptions
from everyformer.models.knn_lm import KnnLanguageModel, Neighbours
from everyformer.training.evaluate import evaluate

DRAW = torch.Generator().manual_seed(0)
GRID = Grid(k=(1, 4, 9), temperature=(0.5, 3.0), weight=(0.0, 0.3, 1.0))


class Near:
    """A store in memory, searched by brute force; it remembers what it is asked."""

    def __init__(self, width: int, vocabulary: int, count: int = 60) -> None:
        self.keys = torch.randn(count, width, generator=DRAW).double()
        self.values = torch.randint(0, vocabulary, (count,), generator=DRAW)
        self.asked: list[tuple[int, int]] = []
        self.silent = False

    def read(self, queries: Tensor, k: int, scored: Any = None) -> Neighbours:
        self.asked.append((len(queries), k))
        squares = (queries[:, None].double() - self.keys[None]).square().sum(-1)
        best = squares.sort(-1)
        rows, distances = best.indices[:, :k].clone(), best.values[:, :k].clone()
        if self.silent:  # every other query finds nothing
            rows[::2], distances[::2] = -1, math.inf
        return Neighbours(distances, self.values[rows.clamp(min=0)], rows)


@pytest.fixture
def reading() -> KnnLanguageModel:
    torch.manual_seed(0)
    made: Any = ef.create_model("rope", width=8, heads=2, layers=1, vocabulary=5, max_length=16)
    return KnnLanguageModel(made.double().eval(), Near(8, 5), KnnOptions(k=3)).eval()


@pytest.fixture
def text() -> TextDataset:
    """53 tokens in windows of 10, of which the last reaches back."""
    tokens = np.random.default_rng(0).integers(0, 5, 53)
    return TextDataset(
        name="t", task="lm", kind="text", vocabulary=5, length=10, bytes_per_token=1.5, split="",
        fingerprint="", train=tokens, validation=tokens,
    )  # fmt: skip


@pytest.mark.parametrize("distance", ["squared", "root"])
@pytest.mark.parametrize("silent", [False, True])
def test_every_cell_is_an_evaluation_with_those_options(
    reading: KnnLanguageModel, text: TextDataset, distance: Any, silent: bool
) -> None:
    reading.reader.silent = silent  # type: ignore[attr-defined]
    reading.options = KnnOptions(k=2, distance=distance)
    found = sweep(reading, text, GRID, batch=2)
    cells = [cell for cell in found.cells if not cell.tuned]
    assert [(c.k, c.temperature, c.weight) for c in cells] == [
        *itertools.product(GRID.k, GRID.temperature, GRID.weight)
    ]
    for cell in found.cells:
        options = KnnOptions(cell.k, cell.weight, cell.temperature, distance)
        alone = evaluate(KnnLanguageModel(reading.model, reading.reader, options), text, batch=3)
        assert alone is not None
        if math.isinf(alone["loss"]):
            assert (cell.loss, cell.weight) == (math.inf, 1)
            continue
        for name in ("loss", "loss_interval", "perplexity", "bits_per_byte"):
            assert getattr(cell, name) == pytest.approx(alone[name], rel=1e-9), (cell, name)
    assert found.plain == evaluate(reading.model, text, batch=2)


def test_the_model_is_called_as_often_as_by_one_evaluation(
    reading: KnnLanguageModel, text: TextDataset
) -> None:
    calls: list[int] = []
    reading.model.register_forward_hook(lambda *_: calls.append(1))
    evaluate(reading.model, text, batch=2)
    once = len(calls)
    calls.clear()
    sweep(reading, text, GRID, batch=2)
    assert len(calls) == once == 3
    # at the largest k alone
    assert reading.reader.asked == [(20, 9), (20, 9), (20, 9)]  # type: ignore[attr-defined]


def test_the_tuned_lambda_is_no_worse_than_any_other(
    reading: KnnLanguageModel, text: TextDataset
) -> None:
    weights = tuple(n / 50 for n in range(51))
    found = sweep(reading, text, Grid((4, 9), (0.5, 3.0), weights))
    assert [c.loss for c in found.tuned] == sorted(c.loss for c in found.cells if c.tuned)
    for best in found.tuned:
        others = [c for c in found.cells if (c.k, c.temperature) == (best.k, best.temperature)]
        assert len(others) == 52
        assert best.loss <= min(c.loss for c in others) + 1e-6
    assert any(0 < c.weight < 1 for c in found.tuned)


def test_what_does_not_fit_into_memory_is_refused_before_it_is_read(
    reading: KnnLanguageModel, text: TextDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("everyformer.system.memory.free_memory", lambda: 1 << 10)
    monkeypatch.setattr("everyformer.system.memory.LARGE", 1 << 10)
    with pytest.raises(ResourceError, match="6 combinations"):
        sweep(reading, text, GRID)
    assert not reading.reader.asked  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("keys", "distance", "ks", "last"),
    [(70, "squared", (1, 4, 16, 64), 30.0), (3, "cosine", (1,), 3.0), (5000, "root", None, 30.0)],
)
def test_what_is_tried_fits_the_store(keys: int, distance: str, ks: Any, last: float) -> None:
    grid = Grid().resolved(keys, distance)
    assert grid.k == (ks or (1, 4, 16, 64, 256, 1024))
    assert (grid.temperature[-1], grid.weight[0], grid.weight[-1]) == (last, 0.0, 1.0)
    assert Grid(k=(9, 2, 9)).resolved(4, distance).k == (2, 9)


@pytest.fixture
def run(call: Callable[..., tuple[int, str, str]]) -> Callable[..., tuple[int, str, str]]:
    """Command lines, beside a trained run and a store of another text than it was trained on."""
    draw, letters = random.Random(1), range(33, 127)
    Path("text.txt").write_bytes(bytes(draw.choices(letters, k=900)))
    # each letter once, as equal contexts are equally near and which of them are found is open
    Path("more.txt").write_bytes(bytes(draw.sample(letters, 94)))
    assert call("train", "rope", "--data", "text.txt", *SMALL, "--out", "made")[0] == 0
    assert call("index", "made", "--data", "more.txt", "--out", "store")[0] == 0
    return call


def test_a_sweep_from_the_command_line(run: Callable[..., tuple[int, str, str]]) -> None:
    asked = ("eval", "made", "--store", "store", "--sweep", "--grid.k", "4", "16",
             "--grid.temperature", "1", "5", "--grid.weight", "0.2", "0.6")  # fmt: skip
    code, out, err = run(*asked, "--json")
    assert code == 0, err
    told = json.loads(out)
    assert len(told["cells"]) == 2 * 2 * 3
    best = told["best"]
    assert best["loss"] == min(cell["loss"] for cell in told["cells"])
    assert best["loss"] < told["model"]["loss"]
    assert Path("made/sweep.png").exists()
    cell = next(c for c in told["cells"] if (c["k"], c["weight"], c["temperature"]) == (4, 0.2, 5))
    of_cell = "--knn.k 4 --knn.weight 0.2 --knn.temperature 5"
    for words, expected in ((best["options"], best), (of_cell, cell)):
        code, out, err = run("eval", "made", "--store", "store", "--json", *words.split())
        assert code == 0, err
        found = json.loads(out)["evaluation"]
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
        assert found["bits_per_byte"] == pytest.approx(expected["bits_per_byte"], rel=1e-5)
    code, out, err = run(*asked, "--out", "curves.svg")
    assert code == 0, err
    assert Path("curves.svg").exists()
    assert "loss at 0.6" in out
    assert best["options"] in out
    assert "chosen on this very text" in err


def test_a_store_that_does_not_help_is_not_recommended(
    run: Callable[..., tuple[int, str, str]],
) -> None:
    """Nothing in it ever comes in the text."""
    Path("others.txt").write_bytes(bytes(range(128, 160)))
    assert run("index", "made", "--data", "others.txt", "--out", "others")[0] == 0
    words = ("--sweep", "--grid.k", "4", "--grid.temperature", "1")
    for store, helps in (("others", False), ("store", True)):
        code, out, err = run("eval", "made", "--store", store, *words)
        assert code == 0, err
        assert ("the store does not help with this text" in err) != helps
        assert ("next" in out) == helps


def test_words_that_do_not_fit_a_sweep_are_refused(
    run: Callable[..., tuple[int, str, str]],
) -> None:
    with_store = ("--store", "store")
    for words, told in (
        (("--sweep",), "--store"),
        ((*with_store, "--grid.k", "4"), "of --sweep"),
        ((*with_store, "--sweep", "--knn.k", "4"), "--grid.k"),
        ((*with_store, "--sweep", "--knn.weight", "0.4"), "--grid.weight"),
        ((*with_store, "--sweep", "--mode", "sliding"), "--mode"),
        ((*with_store, "--sweep", "--grid.weight", "1.5"), "grid.weight"),
        ((*with_store, "--sweep", "--grid.temperature", "0"), "grid.temperature"),
        ((*with_store, "--sweep", "--grid.k", "1", "99999"), "99,999"),
    ):
        code, out, err = run("eval", "made", *words)
        assert (code, out) == (2, ""), (words, err)
        assert told in err.strip().splitlines()[-1], (words, err)


def test_a_run_with_a_store_of_its_own_needs_none_to_be_named(
    run: Callable[..., tuple[int, str, str]],
) -> None:
    made = ("--width", "8", "--layers", "1", "--heads", "2", "--length", "16", "--steps", "2",
            "--batch", "4", "--training.threads", "1")  # fmt: skip
    assert run("train", "knn-lm", "--data", "text.txt", *made, "--out", "own")[0] == 0
    code, out, err = run("eval", "own", "--sweep", "--grid.k", "2", "--grid.temperature", "1")
    assert code == 0, err
    assert "eval own --store own/retrieval/store --data OTHER.txt --knn.k 2" in out
    code, out, err = run("show", "own", "neighbours", "--text", "abc")
    assert code == 0, err
    assert "neighbours of 2 tokens" in out


def test_an_index_that_is_named_is_built_once_and_told(
    run: Callable[..., tuple[int, str, str]],
) -> None:
    asked = ("eval", "made", "--store", "store", "--knn.k", "4", "--nearest.kind", "ivf")
    for said in (2, 1):  # what it is, when it is built and when it is read
        code, _, err = run(*asked)
        assert code == 0, err
        assert err.count("recall@1 ") == said
    assert Path("store/rows/index/index.faiss").exists()
