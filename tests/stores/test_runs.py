"""Runs with a store of their training text: what is stored, what a token finds, what is kept."""

import dataclasses
import gc
import json
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import everyformer as ef
from everyformer.cli import main
from everyformer.cli.trained import open_run
from everyformer.core.errors import CheckpointError, ConfigError
from everyformer.data.text import TextDataset
from everyformer.genes.retrieval import KnnOptions
from everyformer.genes.retrieval.knn import KnnRunOptions
from everyformer.models.knn_lm import KnnLanguageModel
from everyformer.stores import indexing, runs
from everyformer.stores.chunks import Chunks, stored
from everyformer.stores.indexing import Indexing
from everyformer.stores.knn_run import _choose
from everyformer.stores.reader import StoreReader
from everyformer.stores.runs import train_run
from everyformer.stores.spalm_reading import SpalmLanguageModel
from everyformer.stores.store.index import Index
from everyformer.stores.store.store import Store
from everyformer.stores.table import PhraseTable
from everyformer.training.config import TrainingConfig
from everyformer.training.evaluate import evaluate
from everyformer.training.parallel.world import Launch
from everyformer.training.saved import load_model, save_model

CONTEXT, STRIDE, TOKENS = 8, 4, 11
HOW = Indexing(context=CONTEXT, stride=STRIDE, batch=3, dtype="float32")
SIZES = {"width": 8, "heads": 2, "layers": 1, "vocabulary": TOKENS}
TRAINING = TrainingConfig(steps=2, batch=2, evaluate_sequences=4, threads=1, device="cpu")
QUIET: dict[str, Any] = {"say": lambda text: None, "show": False}


def frozen(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    made = ef.create_model("rope", max_length=CONTEXT, **SIZES).eval()
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return made


def text(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, TOKENS, count).astype(np.uint16)


def key(model: Any, tokens: np.ndarray, position: int) -> Tensor:
    """The key of one token, from the window in which it is new, by the definition of windows."""
    first = 0
    while first + CONTEXT <= position:
        first += STRIDE
    seen = torch.from_numpy(tokens[first : position + 1].astype(np.int64))[None]
    with torch.no_grad():
        found: Tensor = model(seen, taps=["ffn-input:-1"]).taps["ffn-input:-1"][0, -1]
    return found


def store_of(model: Any, tokens: np.ndarray, size: int, folder: Path) -> tuple[Store, Chunks]:
    texts = Chunks(tokens, size, CONTEXT, STRIDE)
    found = stored(folder, model, None, texts, HOW, "stamp", lambda: False)
    assert found is not None
    return found, texts


@pytest.mark.parametrize(("count", "size"), [(50, 100), (50, 49), (200, 60), (400, 100), (90, 36)])
def test_what_is_stored_followed_its_position(count: int, size: int, tmp_path: Path) -> None:
    model, tokens = frozen(), text(count)
    store, texts = store_of(model, tokens, size, tmp_path / "store")
    assert len(texts.positions) == len(store) == texts.size
    assert len(set(texts.positions.tolist())) == len(store)
    assert len(store) >= min(size, count - 1)
    np.testing.assert_array_equal(store.values, tokens[texts.positions + 1])
    # with the keys of its windows, where the whole text is
    if size >= count:
        expected = torch.stack([key(model, tokens, p) for p in texts.positions.tolist()])
        torch.testing.assert_close(torch.from_numpy(np.array(store.keys)), expected)


def by_brute_force(
    model: Any, tokens: np.ndarray, store: Store, k: int, own: np.ndarray | None, near: int
) -> np.ndarray:
    """Followers of the k nearest keys of every position in double precision, nearest first."""
    keys, found = store.keys.astype(np.float64), []
    for position in range(len(tokens) - 1):
        query = key(model, tokens, position).double().numpy()
        distances = ((keys - query) ** 2).sum(1)
        if own is not None:
            distances[np.abs(own - position) <= near] = np.inf
        order = [n for n in np.argsort(distances, kind="stable")[:k] if np.isfinite(distances[n])]
        values = [int(store.values[n]) for n in order]
        found.append(values + [-1] * (k - len(values)))
    return np.array(found)


@pytest.mark.parametrize(
    ("count", "k", "near"), [(60, 3, 0), (60, 3, 1), (60, 3, 6), (60, 2, None), (7, 9, 1)]
)
def test_a_token_finds_the_nearest_but_itself_and_those_around(count, k, near, tmp_path):
    """Without a place of its own (None) what follows it, and -1 where there are too few."""
    model, tokens = frozen(), text(count)
    store, texts = store_of(model, tokens, 1000, tmp_path / "store")
    own = None if near is None else texts.positions
    index = Index(store)
    table = PhraseTable(tokens, model, index, k, CONTEXT, STRIDE, "ffn-input:-1", own, near or 0)
    found = table.at(np.arange(count - 1))
    np.testing.assert_array_equal(found, by_brute_force(model, tokens, store, k, own, near or 0))
    assert near is not None or (found[:, 0] == tokens[1:]).all()
    assert (found == -1).any() == (k == 9)


def test_what_is_found_does_not_depend_on_what_was_asked_before(tmp_path: Path) -> None:
    model, tokens = frozen(), text(300)
    store, texts = store_of(model, tokens, 120, tmp_path / "store")
    index = Index(store)

    def table() -> PhraseTable:
        return PhraseTable(
            tokens, model, index, 4, CONTEXT, STRIDE, "ffn-input:-1", texts.positions, 2
        )

    whole, backward = table().at(np.arange(299)), table()
    for position in (298, 150, 40, 39, 0):
        np.testing.assert_array_equal(backward.at(np.array([[position]]))[0, 0], whole[position])


def reading(tmp_path: Path, **options: Any) -> tuple[SpalmLanguageModel, PhraseTable, np.ndarray]:
    """A model that looks up as it reads, and the table of the same text."""
    model, tokens = frozen(), text(45, seed=1)
    store, _ = store_of(model, text(90), 1000, tmp_path / "store")
    index = Index(store)
    torch.manual_seed(3)
    spalm = ef.create_model("spalm", slots=6, **{**SIZES, **options}).eval()
    torch.nn.init.normal_(spalm.gating.weight)
    table = PhraseTable(tokens, model, index, 4, CONTEXT, STRIDE, "ffn-input:-1")
    return SpalmLanguageModel(spalm, model, index, HOW, 4), table, tokens


@pytest.mark.parametrize("cuts", [(44,), (1,) * 44, (3, 1, 17, 8, 15), (20, 24), (7, 1, 1, 35)])
def test_a_text_read_in_any_pieces_finds_what_its_table_says(cuts, tmp_path):
    model, table, tokens = reading(tmp_path)
    inputs = torch.from_numpy(tokens[:44].astype(np.int64))[None]
    neighbours = torch.from_numpy(table.at(np.arange(44)).astype(np.int64))[None]
    state, expected, got = model.model.init_state(1), [], []
    carried = model.init_state(1)
    first = 0
    for length in cuts:
        piece = inputs[:, first : first + length]
        out = model.model(piece, state=state, neighbours=neighbours[:, first : first + length])
        expected.append(out.logits)
        state = out.state
        own = model(piece, state=carried)
        got.append(own.logits)
        carried = own.state
        first += length
    torch.testing.assert_close(torch.cat(got, 1), torch.cat(expected, 1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("last", [1, 3, 12])
def test_the_last_tokens_find_what_they_find_in_the_whole(last: int, tmp_path: Path) -> None:
    model, _, tokens = reading(tmp_path)
    inputs = torch.from_numpy(tokens[:24].astype(np.int64)).view(2, 12)
    whole = model(inputs).logits
    torch.testing.assert_close(model(inputs, last=last).logits, whole[:, 12 - last :])
    assert (model.neighbours_of(inputs) >= 0).all()
    # of a store with fewer keys than neighbours all are read
    store, _ = store_of(model.frozen, text(5, seed=2), 100, tmp_path / "few")
    sizes = (10**11, len(store))
    ways = [SpalmLanguageModel(model.model, model.frozen, Index(store), HOW, k) for k in sizes]
    torch.testing.assert_close(*(way(inputs).logits for way in ways))
    assert ways[0].neighbours_of(inputs).shape == (2, 12, len(store))


def test_rows_with_padding_in_front_read_as_without(tmp_path: Path) -> None:
    model, _, tokens = reading(tmp_path)
    rows = [
        torch.from_numpy(tokens[n : n + size].astype(np.int64)) for n, size in ((0, 9), (20, 14))
    ]
    padded = torch.stack([torch.nn.functional.pad(row, (14 - len(row), 0)) for row in rows])
    padding_mask = torch.tensor([[n >= 14 - len(row) for n in range(14)] for row in rows])
    more = torch.tensor([[1], [2]])
    out = model(padded, mask=ef.Mask(padding_mask=padding_mask), state=model.init_state(2), last=1)
    after = model(more, state=out.state)
    for n, row in enumerate(rows):
        alone = model(row[None], state=model.init_state(1), last=1)
        torch.testing.assert_close(out.logits[n, -1], alone.logits[0, -1])
        torch.testing.assert_close(
            after.logits[n], model(more[n : n + 1], state=alone.state).logits[0]
        )


def test_generation_goes_on_from_where_a_text_was_left(tmp_path: Path) -> None:
    model, _, tokens = reading(tmp_path)
    prompt = torch.from_numpy(tokens[:12].astype(np.int64))[None]
    drawn = ef.generate(model, prompt, tokens=9)
    whole = torch.cat((prompt, drawn), 1)
    state, logits = model.init_state(1), []
    for n in range(20):
        out = model(whole[:, n : n + 1], state=state)
        logits.append(out.logits[0, 0])
        state = out.state
    again = ef.generate(model, prompt, tokens=9)
    assert torch.equal(drawn, again)
    parallel = model(whole[:, :20], state=model.init_state(1)).logits[0]
    torch.testing.assert_close(torch.stack(logits)[11:], parallel[11:], rtol=1e-4, atol=1e-4)


def dataset(count: int = 400) -> TextDataset:
    return TextDataset(
        name="numbers", task="lm", kind="text", vocabulary=TOKENS, length=CONTEXT, split="",
        fingerprint=f"numbers {count}", train=text(count), validation=text(90, seed=1),
    )  # fmt: skip


def spalm(**options: Any) -> Any:
    torch.manual_seed(0)
    table = {"size": 64, **options}
    return ef.create_model("spalm", slots=4, retrieval_options=table, **SIZES)


def test_training_reads_neighbours_and_moves_the_gate(monkeypatch) -> None:
    model = spalm()
    before = set(model.state_dict())
    outcome = train_run(model, dataset(), TRAINING, **QUIET)
    assert set(model.state_dict()) == before  # the frozen model is no part of it
    assert model.gating.weight.any()
    batch = next(outcome.dataset.validation_batches(2))
    assert batch.neighbours.shape == (2, CONTEXT, 4)
    assert all(not p.requires_grad and p.grad is None for p in outcome.model.frozen.parameters())
    monkeypatch.setattr(runs, "read_launch", lambda: Launch(size=2))
    with pytest.raises(ConfigError, match="which one process does"):
        train_run(spalm(), dataset(), TRAINING, **QUIET)


def test_training_text_does_not_find_itself() -> None:
    """Of 11 random tokens a neighbour is the right one now and then; its own place is always."""
    data = dataset()
    outcome = train_run(spalm(size=1000, k=1), data, TRAINING, **QUIET)
    assert isinstance(outcome.dataset, TextDataset)
    found = outcome.dataset.neighbours[0].at(np.arange(399))[:, 0]
    assert (found == data.train[1:]).mean() < 0.3


def test_a_dataset_gives_the_same_texts_with_and_without_neighbours() -> None:
    data = dataset()
    read = train_run(spalm(), data, TRAINING, **QUIET).dataset
    for made in (lambda d: d.train_batch(3, 2, 0), lambda d: next(d.validation_batches(3))):
        with_, without = made(read), made(data)
        assert torch.equal(with_.inputs, without.inputs)
        assert torch.equal(with_.targets, without.targets)
        assert with_.neighbours.shape == (*without.inputs.shape, 4)
        part = with_.rows(1, 2)
        assert torch.equal(part.neighbours, with_.neighbours[1:2])


@pytest.mark.full("3 s: a store is filled")
def test_a_training_without_a_directory_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    outcome = train_run(spalm(), dataset(), TRAINING, **QUIET)
    assert len(list(tmp_path.iterdir())) == 1
    outcome.model(torch.zeros(1, 3, dtype=torch.long))
    del outcome
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_knn_stores_all_but_what_it_chooses_by() -> None:
    data = dataset()
    torch.manual_seed(0)
    table = {"size": 1000, "tune": 60, "k": 5}
    model = ef.create_model("knn-lm", retrieval_options=table, max_length=CONTEXT, **SIZES)
    outcome = train_run(model, data, TRAINING, **QUIET)
    assert isinstance(outcome.model, KnnLanguageModel)
    store: Any = outcome.model.reader.index.store
    np.testing.assert_array_equal(store.values, data.train[1 : 400 - 60])
    assert outcome.result.evaluation is not None


GIVEN = [{"weight": 0.3}, {"temperature": 2.0}, {"weight": 1.0, "temperature": 0.5}, {}]


@pytest.mark.parametrize("given", GIVEN, ids=str)
def test_what_is_said_holds_and_the_rest_is_the_best(given: dict[str, Any], tmp_path: Path) -> None:
    """Of the temperatures 0.1 to 100 and any lambda; by the model's own loss on the text."""
    model, tokens = frozen(), text(40, seed=2)
    store, _ = store_of(model, text(200), 1000, tmp_path / "store")
    index = Index(store)
    wanted = KnnRunOptions(k=6, distance="squared", **given)
    held = dataclasses.replace(dataset(), validation=tokens)
    chosen = _choose(model, index, held, HOW, wanted, str)
    assert chosen.k == 6
    assert {name: getattr(chosen, name) for name in given} == given
    if "temperature" not in given:
        assert chosen.temperature in (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)

    def loss(options: Any) -> float:
        reader = KnnLanguageModel(model, StoreReader(index), options)
        windows = dataclasses.replace(held, length=CONTEXT, stride=STRIDE)
        found = evaluate(reader, windows, batch=3)
        return float(found["loss"])

    best = loss(chosen)
    others: list[Any] = []
    if "weight" not in given:
        others += [dataclasses.replace(chosen, weight=w) for w in (0.0, 0.25, 0.5, 0.9)]
    if "temperature" not in given:
        others += [dataclasses.replace(chosen, temperature=t) for t in (0.1, 3.0, 100.0)]
    assert all(best <= loss(other) + 1e-6 for other in others)


Say = Callable[..., tuple[int, str, str]]
WORDS = ("--data", "text.txt", "--length", "8", "--width", "8", "--layers", "1", "--heads", "2",
         "--batch", "2", "--steps", "4", "--training.threads", "1", "--retrieval.size", "200",
         "--training.evaluate-sequences", "4")  # fmt: skip


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVERYFORMER_CACHE", str(tmp_path / "cache"))
    letters = np.random.default_rng(0).integers(97, 105, 2000)
    (tmp_path / "text.txt").write_bytes(bytes(letters.tolist()))
    return tmp_path


def evaluation(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert main(list(words)) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["evaluation"]
    return found


@pytest.mark.parametrize("member", ["knn-lm", "spalm"])
def test_a_run_is_measured_again_as_it_was_and_predicts_as_it_generates(member, tree, capsys):
    """By the weights that are kept, with the store of the run, in another place than it was."""
    weight = ("--retrieval.weight", "0.5") if member == "knn-lm" else ()
    trained = evaluation(("train", member, *WORDS, *weight, "--out", "made", "--json"), capsys)
    shutil.move("made", "run")
    found = evaluation(("eval", "run", "--sequences", "4", "--batch", "2", "--json"), capsys)
    assert found["loss"] == pytest.approx(trained["loss"], rel=1e-6)
    save_model(load_model("run"), "alone", tokenizer=open_run("run").tokenizer())
    reading = open_run("run").reading(None, None, KnnOptions())
    inputs = torch.tensor([[*b"abcab"]])
    capsys.readouterr()
    assert main(["predict", "run", "abcab", "--top", "256", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["predictions"][0]["tokens"]
    for path, model in (("run", reading), ("alone", load_model("run"))):
        found = ef.predict(path, ["abcab"], top=256, device="cpu")[0].tokens
        p = model(inputs).logits[0, -1].double().softmax(-1)
        expected = p[[one.id for one in found]].tolist()
        assert [one.probability for one in found] == pytest.approx(expected, rel=1e-5)
        same = [one["probability"] for one in said] == pytest.approx(expected, rel=1e-5)
        assert same == (path == "run")
    assert main(["predict", "run", "--sequences", "3", "--device", "cpu"]) == 0
    if member == "knn-lm":
        return
    shutil.rmtree("run/retrieval")
    expected = "run holds a model with retrieval 'spalm', but no folder retrieval with its store"
    for words in (["eval", "run"], ["predict", "run", "abc"]):
        capsys.readouterr()
        assert main(words) == 2
        assert expected in capsys.readouterr().err
    with pytest.raises(CheckpointError, match=expected):
        ef.predict("run", ["abc"])


@pytest.mark.full("seconds each; the store is filled twice")
@pytest.mark.parametrize("call", [1, 3])
@pytest.mark.parametrize("member", ["knn-lm", "spalm"])
def test_a_run_that_is_stopped_over_its_store_and_resumed_is_as_one_in_one_go(
    member, call, tree, capsys, monkeypatch
):
    expected = evaluation(("train", member, *WORDS, "--out", "whole", "--json"), capsys)
    calls, read = [0], indexing.keys_of

    def stops(*given: Any) -> Any:
        calls[0] += 1
        if calls[0] == call:
            signal.raise_signal(signal.SIGTERM)
        return read(*given)

    with monkeypatch.context() as patched:
        patched.setattr(indexing, "keys_of", stops)
        assert main(["train", member, *WORDS, "--out", "cut"]) == 128 + signal.SIGTERM
    found = evaluation(("train", member, "--resume", "--out", "cut", "--json"), capsys)
    assert found["loss"] == expected["loss"]
    for file in sorted(Path("whole/retrieval/store").rglob("*.bin")):
        assert file.read_bytes() == (Path("cut") / file.relative_to("whole")).read_bytes()


def test_a_transformer_xl_goes_on_as_a_spalm_whose_contexts_a_named_model_compares(tree, capsys):
    for member, out in (("rope", "keys"), ("transformer-xl", "xl")):
        evaluation(("train", member, *WORDS[:-4], "--out", out, "--json"), capsys)
    more = ("--from", "xl", "--retrieval.model", "keys", "--out", "run")
    assert main(["train", "spalm", *WORDS, *more]) == 0
    assert "2 fresh: gating.weight, gating.bias" in capsys.readouterr().err
    ours, theirs = (ef.load(name).state_dict() for name in ("run/retrieval/model", "keys"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert not (tree / "run/retrieval/trained").exists()


REFUSED = [
    ("spalm", ("--retrieval.model", "nothing"), "nothing holds no saved model and no run"),
    ("spalm", ("--retrieval.tap", "ffn-input:9"), "'ffn-input:9' names no layer of a stack of 1"),
    ("spalm", ("--retrieval.tap", "keys"), "unknown tap 'keys'"),
    ("knn-lm", ("--retrieval.tune", "8"), "8 keeps less than a window and its next token"),
    ("knn-lm", ("--memory", "segment", "--position", "rope"), "single windows, but memory"),
    ("knn-lm", ("--retrieval.weight", "2"), "must be at least 0 and at most 1, not 2"),
]


@pytest.mark.parametrize(("member", "more", "said"), REFUSED)
def test_what_a_run_cannot_have_is_refused(member, more, said, tree, capsys):
    assert main(["train", member, *WORDS, *more, "--out", "run"]) == 2
    assert said in capsys.readouterr().err
