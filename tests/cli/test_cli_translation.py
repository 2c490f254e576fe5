"""`train`, `eval --bleu` and `generate` on parallel text, as a user runs them."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
import torch
from commands import Say
from torch import Tensor

from everyformer.core.errors import DataError
from everyformer.generation.beam import translate_all
from everyformer.generation.config import BeamConfig
from everyformer.models.base import Model
from helpers import overridden

WORDS = {"a": "x", "b": "y", "c": "z"}
SIZES = ("--width", "32", "--layers", "1", "--heads", "2", "--training.threads", "1")


def sentences(count: int, start: int = 0) -> list[str]:
    """Number ``start`` and the following ones in base 3, written as words."""
    digits = list(WORDS)
    return [
        " ".join(digits[number // 3**place % 3] for place in range(2 + number // 7 % 3))
        for number in range(start, start + count)
    ]


def german(text: str) -> str:
    return " ".join(WORDS[word] for word in text.split())


@pytest.fixture
def corpus(tree: Path) -> Path:
    """data/ with train, val and test files in the languages en and de."""
    folder = tree / "data"
    folder.mkdir()
    for part, count in (("train", 120), ("val", 9), ("test_a", 7)):
        lines = sentences(count)
        (folder / f"{part}.en").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (folder / f"{part}.de").write_text("\n".join(map(german, lines)) + "\n", encoding="utf-8")
    return folder


@pytest.fixture
def trained(corpus: Path, trained: Callable[..., Path]) -> Callable[..., str]:
    data = ("--data", str(corpus), "--data.languages", "en-de", "--length", "20", "--steps", "2")

    def run(member: str = "transformer", *words: str) -> str:
        return str(trained(member, *overridden((*data, *SIZES), words)))

    return run


@pytest.mark.full("a translation is learned; beams and BLEU have tests of their own")
def test_a_copying_of_words_is_learned_and_translated(trained, say, corpus, monkeypatch):
    run = trained(
        *("transformer", "--tokenizer", "chars", "--data.tokens", "1200", "--steps", "150"),
        *("--lr", "0.01", "--model.block.dropout", "0", "--model.embedding-dropout", "0"),
    )
    saved = json.loads((Path(run) / "config.json").read_text(encoding="utf-8"))
    assert saved["model"]["start_token"] == saved["model"]["end_token"] == 1
    code, out, err = say("eval", run, "--bleu", "--json", "--translations", "made.txt")
    assert code == 0, err
    found = json.loads(out)["evaluation"]
    made = Path("made.txt").read_text(encoding="utf-8").splitlines()
    wanted = [german(line) for line in sentences(9)]
    assert made == wanted
    assert found["bleu"] == sacrebleu.corpus_bleu(made, [wanted]).score
    assert found["chrf"] == sacrebleu.corpus_chrf(made, [wanted]).score == 100
    assert "tok:13a" in found["bleu_signature"]
    code, out, err = say("generate", run, "--prompt", "a b c", "--beam", "2")
    assert (code, out) == (0, "x y z\n"), err
    given = io.TextIOWrapper(io.BytesIO(b"a b\n\nc c a b\n"), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", given)
    code, out, err = say("generate", run, "--prompt", "-", "--beam", "1")
    assert (code, out) == (0, "x y\n\nz z x y\n"), err


def test_other_members_translate_and_other_parts_are_measured(trained, say, refused, monkeypatch):
    run = trained("gmlp")
    code, out, err = say("eval", run, "--data.part", "test_a", "--bleu", "--beam", "1")
    assert code == 0, err
    assert "120 training and 7 validation pairs" in err
    lines = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert lines["sequences"] == "7"
    assert "tok:13a" in lines["bleu"]
    assert "nc:6" in lines["chrf"]
    assert {"loss", "perplexity", "accuracy", "bits_per_byte"} <= set(lines)
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    assert "everyformer[text]" in refused("eval", run, "--bleu")
    lm = trained("attention", "--data", "text.txt", "--data.languages", "none", "--steps", "1")
    assert "only parallel text can be translated" in refused("eval", lm, "--bleu")
    assert "beam search is for seq2seq runs" in refused("generate", lm, "--beam", "2")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("generate",), "there is nothing to translate"),
        (("generate", "--prompt", "a b ü", "--beam", "1"), "'ü', which the training text never"),
        (("generate", "--prompt", "a " * 30), "sentence 1 has 60 tokens, but the model takes 20"),
        (("generate", "--prompt", "a", "--top-k", "2"), "searched, not drawn"),
        (("generate", "--prompt", "a", "--tokens", "9"), "leave out --tokens"),
        (("generate", "--prompt", "a", "--beam", "0"), "'--beam' must be at least 1"),
        (("eval", "--beam", "2"), "need --bleu or --translations"),
        (("eval", "--data.part", "test_b"), "no part 'test_b'; did you mean 'test_a'"),
        (("eval", "--data.part", "batch"), "no part 'batch'; "),
        (("eval", "--translations", "no/such/folder.txt"), "cannot write no/such/folder.txt"),
        (("eval", "--data", "copy", "--data.languages", "none"), "different tokens"),
    ],
)
def test_wrong_questions_are_refused(words, message, trained, refused):
    run = trained("transformer", "--tokenizer", "chars")
    verb, *rest = words
    assert message in refused(verb, run, *rest)


LINES = [f"{word} {n}" for n in range(9) for word in ("one", "two", "six")]
TURNED = [line[::-1] for line in LINES]


def table(first: str, second: str, turned: bool, cells: str = ",") -> str:
    sides = (TURNED, LINES) if turned else (LINES, TURNED)
    head = [f"{first}{cells}{second}"] if first else []
    return "\n".join([*head, *(f"{a}{cells}{b}" for a, b in zip(*sides, strict=True)), ""])


def short_run(say: Say, data: str, *words: str) -> None:
    common = ("--steps", "1", "--length", "20", "--out", "run", *SIZES)
    code, _, err = say("train", "transformer", "--data", data, *words, *common)
    assert code == 0, err


def loss_of(say: Say, data: str, *words: str) -> float:
    code, out, err = say("eval", "run", "--data", data, *words, "--json")
    assert code == 0, err
    return float(json.loads(out)["evaluation"]["loss"])


@pytest.mark.parametrize(
    "columns", [(), ("--data.source-column", "1", "--data.target-column", "2")]
)
def test_other_data_are_read_in_the_direction_of_the_run_by_their_names(
    columns, tree, say, refused
):
    (tree / "pairs.csv").write_text(table("english", "german", turned=False))
    (tree / "same.csv").write_text(table("english", "german", turned=False) + "a,b\n")
    (tree / "swapped.csv").write_text(table("german", "english", turned=True) + "b,a\n")
    (tree / "bare.csv").write_text(table("", "", turned=False))
    (tree / "turned.csv").write_text(table("", "", turned=True))
    (tree / "french.csv").write_text(table("german", "french", turned=True))
    short_run(say, "pairs.csv", *columns)
    same = loss_of(say, "same.csv")
    assert loss_of(say, "swapped.csv") == pytest.approx(same)
    # what is said outweighs the run
    other = ("--data.source-column", "german", "--data.target-column", "english")
    assert loss_of(say, "swapped.csv", *other) != pytest.approx(same, rel=1e-4)
    # without names the columns' order is all that is known
    no = ("--data.header", "no")
    bare, turned = loss_of(say, "bare.csv", *no), loss_of(say, "turned.csv", *no)
    assert bare != pytest.approx(turned, rel=1e-4)
    told = refused("eval", "run", "--data", "french.csv")
    assert "has the columns german, french, but the run translates 'english' to 'german'" in told
    assert "--data.source-column" in told


def test_files_by_language_are_read_in_the_direction_of_a_table(tree, say, refused):
    (tree / "pairs.tsv").write_text(table("en", "de", turned=False, cells="\t"))
    (tree / "same.tsv").write_text(table("en", "de", turned=False, cells="\t") + "a\tb\n")
    for folder, (first, second) in (("twins", ("en", "de")), ("others", ("en", "fr"))):
        (tree / folder).mkdir()
        (tree / folder / f"t.{first}").write_text("\n".join([*LINES, "a", ""]))
        (tree / folder / f"t.{second}").write_text("\n".join([*TURNED, "b", ""]))
    short_run(say, "pairs.tsv")
    same = loss_of(say, "same.tsv")
    assert loss_of(say, "twins") == pytest.approx(same)
    assert loss_of(say, "twins", "--data.languages", "de-en") != pytest.approx(same, rel=1e-4)
    told = refused("eval", "run", "--data", "others")
    assert "end in 'en', 'fr', but the run translates 'en' to 'de'" in told
    assert "--data.languages" in told


class Backwards:
    """Stands where beam search does: every source turned round, its end token left out."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def __call__(self, model: Model, source: Tensor, mask: Any, search: BeamConfig) -> Any:
        from everyformer.generation.beam import Hypothesis

        lengths = mask.padding_mask.sum(1).tolist()
        self.batches.append(lengths)
        rows = [row[: n - 1].tolist()[::-1] for row, n in zip(source, lengths, strict=True)]
        return [[Hypothesis(0.0, tuple(row)), Hypothesis(-1.0, (65,))] for row in rows]


def test_sentences_are_searched_by_length_and_given_back_in_order(monkeypatch):
    import everyformer as ef
    from everyformer.data.parallel import encode_source
    from everyformer.data.tokenizers.plain import ByteTokenizer

    search = Backwards()
    monkeypatch.setattr("everyformer.generation.beam.beam_search", search)
    model = ef.create_model("transformer", "seq2seq", width=8, layers=1, heads=1, max_length=9)
    texts = ["abc", "d", "efghij", "k  l", "mn"]
    tokenizer = ByteTokenizer()
    sources = [encode_source(tokenizer, text) for text in texts]
    made = translate_all(model, tokenizer, sources, BeamConfig(), batch=2)
    assert made == ["cba", "d", "jihgfe", "l k", "nm"]
    assert search.batches == [[7, 5], [4, 3], [2]]
    with pytest.raises(DataError, match="sentence 2 has 10 tokens, but the model takes 9"):
        translate_all(model, tokenizer, [sources[0], torch.ones(10)], BeamConfig())
