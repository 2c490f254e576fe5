"""The neighbours of a text: the numbers are the model's, the sources those of the files."""

import json
import math
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import everyformer as ef
from datastores.store.stores import SMALL
from everyformer.data.tokenizers.plain import ByteTokenizer
from everyformer.datastores.indexing import Indexing, index_texts
from everyformer.datastores.neighbours import Explained, Neighbour, explain
from everyformer.datastores.reader import with_store
from everyformer.genes.retrieval import KnnOptions
from everyformer.report.neighbours import write_neighbours

FILES = {"a.txt": b"the cat sat on the mat, and the dog lay", "b.txt": b"<b>\na hat & a bat</b>"}


@pytest.fixture
def folder(call: Callable[..., tuple[int, str, str]]) -> None:
    Path("texts").mkdir()
    for name, text in FILES.items():
        Path("texts", name).write_bytes(text)


@pytest.fixture
def reading(folder: None) -> Any:
    torch.manual_seed(0)
    made = ef.create_model("rope", width=16, heads=2, layers=1, vocabulary=256, max_length=32)
    how = Indexing(context=8, stride=8, dtype="float32")
    index_texts(made.eval(), ByteTokenizer(), "texts", "store", how, say=lambda _: None)
    options = KnnOptions(k=6, weight=0.3, temperature=4.0)
    return with_store(made, ByteTokenizer(), "store", options, say=lambda _: None)


def test_numbers_of_tokens_are_those_of_the_model_with_and_without(reading: Any) -> None:
    text = b"a hat that sat"
    told = explain(reading, ByteTokenizer(), np.frombuffer(text, np.uint8), 8, 4)
    ids = torch.tensor([list(text)])
    assert [token.text for token in told] == [chr(code) for code in text[1:]]
    for first in (0, 8):
        part = ids[:, first : min(first + 8, 13)]
        columns = []
        for weight in (0.3, 0.0, 1.0):
            reading.options = KnnOptions(k=6, weight=weight, temperature=4.0)
            logs = reading.eval()(part).logits.log_softmax(-1)[0]
            goals = ids[0, first + 1 : first + 1 + part.shape[1]]
            columns.append(logs.gather(-1, goals[:, None])[:, 0].tolist())
        for token, mixed, alone, store in zip(told[first:], *columns, strict=False):
            assert (token.mixed, token.of_model) == pytest.approx((mixed, alone), abs=1e-5)
            assert token.of_neighbours == pytest.approx(store, abs=1e-4)
            assert token.gain == token.mixed - token.of_model


def test_neighbours_stand_where_the_files_have_them(reading: Any) -> None:
    text = np.frombuffer(b"on the mat", np.uint8)
    told = explain(reading, ByteTokenizer(), text, 8, 4)
    for token in told:
        assert [n.distance for n in token.neighbours] == sorted(
            n.distance for n in token.neighbours
        )
        assert len(token.neighbours) == 4
        for near in token.neighbours:
            source = FILES[near.document].decode()
            at = near.offset
            assert near.token == source[at]
            # the first token of a document is no value of a store
            assert near.before == source[max(1, at - 48) : at]
            assert near.after == source[at + 1 : at + 17]
            assert near.right == (near.token == token.text)
    told = explain(reading, ByteTokenizer(), text, 8, 6)
    for token in told:
        assert sum(n.weight for n in token.neighbours) == pytest.approx(1, abs=1e-5)
        own = sum(n.weight for n in token.neighbours if n.right)
        assert math.exp(token.of_neighbours) == pytest.approx(own, abs=1e-6)


def test_the_page_escapes_all_texts_and_loads_nothing(tmp_path: Path) -> None:
    bad = "<script>alert(1)</script>"
    near = Neighbour(f"{bad}.txt", 1, 0.5, 0.25, bad, "\n", '"&', right=True)
    tokens = [
        Explained(bad, math.log(0.5), -math.inf, math.log(0.25), [near]),
        Explained("\n", math.log(0.1), 0.0, math.log(0.4), []),
        Explained("", math.log(0.1), 0.0, math.log(0.1), []),
    ]
    path = write_neighbours(tokens, bad, [bad, "k = 3"], tmp_path / "new" / "page.html")
    page = path.read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;.txt" in page
    assert not re.search(r"https?:|src=|@import|url\(", page)
    links = re.findall(r'<a href="#n(\d+)" title="([^"]*)" style="([^"]*)">', page)
    assert [number for number, _, _ in links] == ["1", "2", "3"]
    assert [title for _, title, _ in links][:2] == [
        "0.500 without the store, 0.250 with it", "0.100 without the store, 0.400 with it",
    ]  # fmt: skip
    # log 2 of 2 nats lost, log 4 of 2 nats won, nothing: a part of the deepest colour
    assert [style for _, _, style in links] == [
        "background: rgba(213, 94, 0, 0.23)", "background: rgba(0, 114, 178, 0.45)", "",
    ]  # fmt: skip
    assert set(re.findall(r'<section class="one" id="(n\d)"', page)) == {"n1", "n2", "n3"}
    assert "found no neighbour" in page


@pytest.fixture
def run(
    folder: None, call: Callable[..., tuple[int, str, str]]
) -> Callable[..., tuple[int, str, str]]:
    Path("text.txt").write_bytes(bytes(random.Random(1).choices(range(97, 123), k=900)))
    assert call("train", "rope", "--data", "text.txt", *SMALL, "--out", "made")[0] == 0
    assert call("index", "made", "--data", "texts", "--out", "store")[0] == 0
    return call


def test_the_page_from_the_command_line(run: Callable[..., tuple[int, str, str]]) -> None:
    asked = ("show", "made", "neighbours", "--store", "store", "--knn.k", "5")
    for words, tokens in (
        (("--text", "the cat"), 6),
        (("--data", "texts/b.txt", "--out", "pages"), len(FILES["b.txt"]) - 1),
        ((), 89),
        (("--length", "12"), 11),
        (("--data", "texts/a.txt", "--knn.exclude-self"), len(FILES["a.txt"]) - 1),
    ):
        code, out, err = run(*asked, *words, "--json")
        assert code == 0, err
        [page] = json.loads(out)["pictures"]
        assert f"neighbours of {tokens} tokens" in page["shows"], words
        text = Path(page["picture"]).read_text()
        assert text.count('<section class="one"') == tokens
    assert Path("pages/neighbours.html").exists()
    # the last one leaves out its own rows, which else are next to it
    assert run(*asked, "--data", "texts/a.txt", "--out", "pages")[0] == 0
    nearest = [
        re.findall(r"read there.*?<td>([\d.e-]+)</td>", Path(folder, "neighbours.html").read_text())
        for folder in ("pages", "made/pictures")
    ]
    assert sum(float(d) < 1e-3 for d in nearest[0]) == len(nearest[0]) > 30
    assert sum(float(d) < 1e-3 for d in nearest[1]) < 5


def test_a_small_store_is_read_whole_where_no_k_is_given(
    run: Callable[..., tuple[int, str, str]],
) -> None:
    """And one neighbour more, where it is said, is refused."""
    keys = sum(len(text) - 1 for text in FILES.values())
    losses = []
    for words in ((), ("--knn.k", f"{keys}"), ("--knn.k", f"{keys + 1}")):
        code, out, err = run("eval", "made", "--store", "store", "--json", *words)
        losses += [json.loads(out)["evaluation"]["loss"]] if out else []
    assert code == 2
    assert f"{keys + 1} neighbours are asked of a store that has {keys} keys" in err
    assert losses[0] == losses[1]


def test_words_that_do_not_fit_are_refused(run: Callable[..., tuple[int, str, str]]) -> None:
    store = ("--store", "store")
    for words, told in (
        (("made", "neighbours"), "--store"),
        (("made", "weights", *store), "neighbours"),
        (("made", "all", "--knn.k", "4"), "neighbours"),
        (("made", "neighbours", *store, "--text", "ab", "--data", "text.txt"), "one of them"),
        (("made", "neighbours", *store, "--text", "a"), "fewer than two tokens"),
        (("made", "neighbours", *store, "--format", "svg"), "--format"),
        (("made", "neighbours", *store, "--text", "abc", "--knn.k", "999"), "999"),
        (("made", "neighbors", *store), "neighbours"),
        (("made", "neighbors"), "did you mean 'neighbours'"),
    ):
        code, out, err = run("show", *words)
        assert (code, out) == (2, ""), (words, err)
        assert told in err.strip().splitlines()[-1], (words, err)
