"""A model reads texts into a store: what rows are, that stops change no byte, what is refused."""

import dataclasses
import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from store_stand_ins import SMALL

import everyformer as ef
from everyformer.core.errors import CheckpointError, ConfigError, DataError, EveryformerError
from everyformer.data.config import DataConfig
from everyformer.data.tokenizers.plain import ByteTokenizer, CharTokenizer
from everyformer.genes.retrieval import KnnOptions
from everyformer.stores.indexing import Indexing, index_texts
from everyformer.stores.reader import with_store
from everyformer.stores.store.store import Store
from everyformer.stores.texts import windows

HOW = Indexing(context=16, stride=16, batch=3, dtype="float32")


def model(member: str = "rope", seed: int = 0, **options: Any) -> Any:
    torch.manual_seed(seed)
    sizes = {"width": 16, "heads": 2, "layers": 2, "vocabulary": 256, "max_length": 64}
    return ef.create_model(member, **{**sizes, **options}).eval()


@pytest.fixture
def texts(tmp_path: Path, call: Callable[..., Any]) -> Path:
    """Three documents: of some windows, of a window and a token, of two tokens; one is empty."""
    folder = tmp_path / "texts"
    folder.mkdir()
    draw = random.Random(0)
    for name, size in (("a.txt", 100), ("b.txt", 17), ("c.txt", 2), ("d.txt", 0)):
        (folder / name).write_bytes(bytes(draw.choices(b"abcdef ", k=size)))
    return folder


def indexed(made: Any, texts: Path, out: str, **more: Any) -> Store:
    how = more.pop("how", HOW)
    said: list[str] = []
    found = index_texts(made, ByteTokenizer(), str(texts), out, how, say=said.append, **more)
    assert found is not None
    return found


@pytest.mark.parametrize(("context", "stride"), [(16, 16), (16, 4), (5, 3), (1, 1), (40, 40)])
def test_every_token_but_the_last_is_new_in_one_window(context: int, stride: int) -> None:
    for length in (1, 2, 16, 17, 18, 33):
        found = list(windows(np.arange(length), context, stride))
        new = [w.inputs[w.new :].tolist() for w in found]
        assert list(itertools.chain.from_iterable(new)) == list(range(length - 1))
        assert all(1 <= len(w.inputs) <= context for w in found)
        # what is new in a later window has at least so much in front
        assert all(w.new >= context - stride for w in found[1:])


@pytest.mark.parametrize(
    ("tap", "stride"),
    [("ffn-input:-1", 16), ("ffn-input:1", 16), ("attention-output:-1", 4), ("block-output:1", 16)],
)
def test_keys_are_what_the_model_knew_and_values_what_came(texts, tap, stride):
    made = model()
    store = indexed(made, texts, "store", how=Indexing(tap, 16, stride, 3, "float32"))
    keys, values = [], []
    for name in ("a.txt", "b.txt", "c.txt"):
        tokens = torch.tensor(list((texts / name).read_bytes()))
        values += tokens[1:].tolist()
        for at in range(len(tokens) - 1):
            # the window in which the token is new
            first = 0 if at < 16 else -(-(at - 15) // stride) * stride
            out = made(tokens[None, first : at + 1], taps=[tap])
            keys.append(out.taps[tap][0, -1].detach())
    assert store.values.tolist() == values
    torch.testing.assert_close(torch.from_numpy(np.array(store.keys)), torch.stack(keys))


def stopped(made: Any, texts: Path, out: str, batches: int, **more: Any) -> Any:
    """Indexing that ends after so many batches, or before."""
    calls = itertools.count()
    stop = lambda: next(calls) // 2 >= batches - 1  # noqa: E731
    return index_texts(
        made, ByteTokenizer(), str(texts), out, HOW, say=lambda _: None, should_stop=stop, **more
    )


@pytest.mark.parametrize("stops", [(2, 3), (1, 1, 1)])
def test_who_stops_and_goes_on_comes_to_the_same_bytes(texts: Path, stops: tuple[int, ...]) -> None:
    made = model()
    indexed(made, texts, "whole")
    for number, batches in enumerate(stops):
        if stopped(made, texts, "parts", batches, resume=number > 0) is not None:
            break
    else:
        indexed(made, texts, "parts", resume=True)
    assert bytes_of("parts") == bytes_of("whole")


def test_what_was_begun_is_not_gone_on_with_otherwise(texts: Path) -> None:
    made = model()
    assert stopped(made, texts, "store", 1) is None
    with pytest.raises(ConfigError, match=r"another batch.*batch 3"):
        indexed(made, texts, "store", resume=True, how=dataclasses.replace(HOW, batch=2))
    other = texts.rename("others")
    (other / "a.txt").write_bytes(b"something else than before")
    with pytest.raises(ConfigError, match="another texts"):
        indexed(made, other, "store", resume=True)


def bytes_of(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder, "rows").glob("*.bin")}


def test_another_model_tokenizer_or_tap_is_refused_by_name(texts: Path) -> None:
    made = model()
    indexed(made, texts, "store")
    for other, tokenizer, word in (
        (model(seed=1), ByteTokenizer(), "model"),
        (model(layers=1), ByteTokenizer(), "model"),
        (made, CharTokenizer("abcdef "), "tokenizer"),
    ):
        with pytest.raises(CheckpointError, match=word):
            with_store(other, tokenizer, "store", KnnOptions(k=1), say=lambda _: None)


@pytest.mark.parametrize(
    ("made", "how", "words"),
    [
        (lambda: model("transformer-xl"), HOW, ["transformer-xl", "memory"]),
        (lambda: model("gmlp"), HOW, ["feed-forward", "attention-output"]),
        (lambda: model(), Indexing("ffn-input:7", 16, 16), ["ffn-input:7", "ffn-input:2"]),
        (lambda: model(), Indexing("nothing:1", 16, 16), ["nothing"]),
        (lambda: model(), Indexing(context=16, stride=17), ["stride=17", "context=16"]),
        (lambda: model(), Indexing(context=16, stride=0), ["stride=0", "context=16"]),
        (lambda: model("learned"), Indexing(context=65, stride=65), ["65", "64"]),
        (lambda: ef.create_model("bert", "mlm", width=16, heads=2, layers=1, vocabulary=256), HOW,
         ["lm", "mlm"]),
    ],
)  # fmt: skip
def test_what_cannot_be_indexed_is_refused_before_anything_is_written(made, how, words, texts):
    with pytest.raises(EveryformerError) as error:
        indexed(made(), texts, "store", how=how)
    for word in words:
        assert word in str(error.value)
    assert not Path("store").exists()


def test_empty_texts_are_no_documents(texts: Path) -> None:
    for name in ("a.txt", "b.txt", "c.txt"):
        (texts / name).unlink()
    with pytest.raises(DataError, match="empty"):
        indexed(model(), texts, "store")


ROWS = ["the first, and", "", "a second\nof two lines", "x", "fourth"]
LONG = [row for row in ROWS if len(row) > 1]


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_every_row_of_a_table_is_a_document(texts: Path, kind: str) -> None:
    made = model()
    for number, row in enumerate(LONG):
        (texts / f"{number}.txt").write_text(row)
    for name in ("a.txt", "b.txt", "c.txt"):
        (texts / name).unlink()
    plain = indexed(made, texts, "plain")
    table = Path(f"rows.{kind}")
    if kind == "jsonl":
        table.write_text("".join(json.dumps({"n": 1, "text": row}) + "\n" for row in ROWS))
    elif kind == "csv":
        cells = (f'1,"{row}"' for row in ROWS)
        table.write_text("\n".join(("n,text", *cells)) + "\n")
    else:
        arrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.table({"n": [1] * len(ROWS), "text": ROWS}), table)
    found = indexed(made, table, "rows", tables=DataConfig(text_column="text"))
    assert found.values.tolist() == plain.values.tolist()
    assert np.array_equal(found.keys, plain.keys)


def test_a_column_of_tables_must_be_chosen(texts: Path) -> None:
    table = Path("rows.jsonl")
    table.write_text(json.dumps({"one": "a b c", "two": "d e f"}))
    with pytest.raises(ConfigError, match="text_column"):
        indexed(model(), table, "rows")
    assert not Path("rows").exists()


def test_a_store_from_the_command_line_to_its_end(texts: Path, call: Callable[..., Any]) -> None:
    Path("text.txt").write_text(" ".join(random.Random(1).choices(("a", "tree", "fox"), k=900)))
    assert call("train", "rope", "--data", "text.txt", *SMALL, "--out", "made")[0] == 0
    code, out, err = call("index", "made", "--data", "text.txt", "--out", "store", "--json")
    assert code == 0, err
    size = Path("text.txt").stat().st_size
    assert json.loads(out) == {"store": "store", "keys": size - 1, "width": 16}

    def loss(*words: str) -> float:
        code, out, err = call("eval", "made", "--data", "text.txt", "--json", *words)
        assert code == 0, err
        return float(json.loads(out)["evaluation"]["loss"])

    plain, reading = loss(), ("--store", "store", "--knn.k", "8")
    assert loss(*reading, "--knn.weight", "0") == plain
    assert loss(*reading) < plain
    assert loss(*reading, "--knn.distance", "cosine", "--knn.temperature", "0.1") < plain
    code, out, err = call("generate", "made", "--prompt", "a tree", "--tokens", "5", *reading)
    assert code == 0, err
    assert out.startswith("a tree")
    for words, told in (
        ("eval made --store nowhere", "nowhere"),
        ("eval made --knn.k 5", "give --store"),
        ("index made --out store", "--data"),
        ("index made --data text.txt --out store", "already"),
    ):
        code, _, err = call(*words.split())
        assert (code in (1, 2), told in err) == (True, True), (words, err)
        assert len(err.strip().splitlines()[-1]) < 400
