"""Marian with its text: the tokens, the text and the translations are those of transformers."""

import json
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import Say
from marian_files import ENGLISH, FILES, GERMAN, learned, pieces, table, tokens_of, transformers
from marian_files import checkpoint as write_checkpoint
from safetensors.torch import load_file

import everyformer as ef
from everyformer.core.errors import CheckpointError, EveryformerError
from everyformer.data.tokenizers.load import load_tokenizer
from everyformer.data.tokenizers.marian import MarianTokenizer
from everyformer.lab.convert.tokenizer import import_tokenizer
from everyformer.models.seq2seq import EncoderDecoder

# transformers would have a package that it does not use for this
pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")


TEXTS = [
    "the quick brown fox",
    "The  quick   brown\tfox ",
    " a",
    "",
    " ",
    "Ωmega ☃ 東京 ça",
    "schläft der Baum? 12,5 %",
    "wir sehen die ﬁrst Ⅳ e\u0301",
    ">>deu<< the tree",
    ">>deu<<the tree",
    ">>fra<< the tree",
    ">>nds<<",
    "the >>deu<< tree",
    ">>open the tree",
    "the tree</s>we sleep",
    "a<pad> <unk> b </s>",
    "</s>>>deu<< we",
    "\n we \n sleep",
]


def imported(folder: Path, held: dict[str, int]) -> MarianTokenizer:
    (folder / "config.json").write_text(json.dumps({"model_type": "marian"}))
    found = import_tokenizer(folder, max(held.values()) + 1).tokenizer
    assert isinstance(found, MarianTokenizer)
    return found


@pytest.mark.parametrize("left_out", [(), ("e", "▁", "▁boy", "▁de")], ids=["all", "fewer"])
def test_sources_and_targets_have_the_tokens_of_transformers(left_out, tmp_path):
    held = table(left_out)
    theirs, ours, end = tokens_of(tmp_path, held), imported(tmp_path, held), [held["</s>"]]
    for text in TEXTS:
        [source, target] = (found.tolist() for found in ours.encode_pairs([(text, text)]))
        assert ours.encode(text) == source
        assert [*source, *end] == theirs(text)["input_ids"], text
        assert [*target, *end] == theirs(text_target=text)["input_ids"], text
        assert ours.encode(f"{text}\0{text}") == [*source, *end, *source]
    drawn = torch.randint(0, len(held), (8, 12), generator=torch.Generator().manual_seed(0))
    for ids in drawn.tolist():
        assert ours.decode(ids) == theirs.decode(ids, use_source_tokenizer=False)


def test_tokens_beyond_the_table_stand_for_no_text(tmp_path: Path) -> None:
    held = table()
    tokens_of(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "marian"}')
    made, note = import_tokenizer(tmp_path, len(held) + 3)
    assert note == f"Marian's, {len(held)} tokens, and 3 of the model stand for no text"
    assert made.decode([len(held), held["▁nun"], len(held) + 2]) == "nun"


def test_added_tokens_are_single_ones(tmp_path: Path) -> None:
    held = table()
    added = {str(len(held)): {"content": "<2nds>", "special": True}}
    theirs = tokens_of(tmp_path, added_tokens_decoder=added)
    (tmp_path / "config.json").write_text('{"model_type": "marian"}')
    ours, _ = import_tokenizer(tmp_path, len(held) + 1)
    text = "the <2nds>tree"
    assert len(held) in ours.encode(text)
    assert [*ours.encode(text), held["</s>"]] == theirs(text)["input_ids"]


def test_pieces_without_a_number_are_counted(tmp_path: Path) -> None:
    held = table(("▁", "▁boy", "▁de"))
    tokens_of(tmp_path, held)
    (tmp_path / "config.json").write_text('{"model_type": "marian"}')
    note = import_tokenizer(tmp_path, len(held)).note
    lost = [sum(p in ("▁", "▁boy", "▁de") for p in pieces(learned(x))) for x in (ENGLISH, GERMAN)]
    assert f"read as <unk>: {lost[0]} of source.spm, {lost[1]} of target.spm" in note


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    folder = tmp_path_factory.mktemp("marian")
    return folder, *write_checkpoint(folder)


@pytest.fixture
def theirs(saved: tuple[Path, Any, Any], tree: Path) -> tuple[Any, Any]:
    """Model and tokenizer of transformers, of which the folder ``theirs`` is."""
    shutil.copytree(saved[0], tree / "theirs")
    return saved[1:]


@pytest.fixture
def made(say: Say) -> Callable[..., str]:
    """What a command line that must succeed writes."""

    def run(*words: str) -> str:
        code, out, err = say(*words)
        assert code == 0, err
        return out

    return run


SENTENCES = ["the quick brown fox", "we see the boy, who runs home.", "a tree", ">>deu<< a ☃ fox"]


def test_translations_are_those_of_transformers(theirs, made):
    model, read = theirs
    out = made("convert", "theirs", "--out", "ours")
    assert "everyformer generate ours" in out
    Path("lines").write_text("\n".join(SENTENCES), encoding="utf-8")
    greedy = ("--beam", "1", "--extra", "12")
    lines = made("generate", "ours", "--prompts", "lines", *greedy).split("\n")[:-1]
    expected = []
    for text in SENTENCES:
        ids = read(text, return_tensors="pt")
        longest = ids["input_ids"].shape[1] + 12
        found = model.generate(**ids, num_beams=1, do_sample=False, max_new_tokens=longest)
        body = found[0, 1:].tolist()
        body = body[: body.index(0)] if 0 in body else body
        expected.append(read.decode(body, use_source_tokenizer=False))
    assert lines == expected
    assert len(set(lines)) == len(lines)


def test_the_loss_of_pairs_is_that_of_transformers(theirs, made):
    model, read = theirs
    made("convert", "theirs", "--out", "ours")
    sources, targets = [*ENGLISH, "a</s>b"], [*GERMAN, "ein</s>x"]
    Path("x.tsv").write_text(
        "".join(f"{a}\t{b}\n" for a, b in zip(sources, targets, strict=True)), encoding="utf-8"
    )
    whole = ("--data", "x.tsv", "--data.validation", "1", "--data.header", "no", "--json")
    told = json.loads(made("eval", "ours", *whole))
    total, count = 0.0, 0
    for source, target in zip(sources, targets, strict=True):
        ids, labels = read(source, return_tensors="pt"), read(text_target=target)["input_ids"]
        wanted = torch.tensor([labels])
        with torch.no_grad():
            total += float(model(**ids, labels=wanted).loss) * len(labels)
        count += len(labels)
    assert told["evaluation"]["loss"] == pytest.approx(total / count, abs=1e-4)


def test_it_goes_back_as_it_came(theirs, made):
    model, read = theirs
    made("convert", "theirs", "--out", "ours")
    made("convert", "ours", "--to", "hf", "--type", "marian", "--out", "back")
    for name in FILES[:2]:
        assert Path("back", name).read_bytes() == Path("theirs", name).read_bytes()
    again = transformers.AutoTokenizer.from_pretrained("back")
    assert type(again) is transformers.MarianTokenizer
    for text in TEXTS:
        assert again(text)["input_ids"] == read(text)["input_ids"]
    ids = read(ENGLISH[0], return_tensors="pt")["input_ids"]
    back = transformers.MarianMTModel.from_pretrained("back").eval()
    with torch.no_grad():
        there, here = (m(input_ids=ids, decoder_input_ids=ids).logits for m in (model, back))
    torch.testing.assert_close(here, there, rtol=0, atol=1e-5)
    made("convert", "back", "--out", "again")
    assert load_tokenizer("again") == load_tokenizer("ours")
    first, second = (load_file(f"{name}/model.safetensors") for name in ("ours", "again"))
    assert all(torch.equal(second[name], weight) for name, weight in first.items())
    assert isinstance(ef.load("again"), EncoderDecoder)


def vocabulary(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def changed(folder: Path) -> None:
        held = table()
        made = change(held)
        (folder / "vocab.json").write_text(json.dumps(held if made is None else made))

    return changed


def options(**values: Any) -> Callable[[Path], None]:
    return lambda f: (f / "tokenizer_config.json").write_text(json.dumps(values)) and None


def cut(folder: Path) -> None:
    held = (folder / "target.spm").read_bytes()
    (folder / "target.spm").write_bytes(held[: len(held) // 2])


NAMES = pieces(learned(ENGLISH))
WRONG: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no table": (lambda f: (f / "vocab.json").unlink(), "lacks vocab.json: a Marian tokenizer is"),
    "one model": (lambda f: (f / "source.spm").unlink(), "lacks source.spm: a Marian tokenizer is"),
    "cut": (cut, "target.spm is no model of sentencepiece, or was cut short or damaged"),
    "no JSON": (lambda f: (f / "vocab.json").write_text("{"), "vocab.json cannot be read"),
    "a list": (vocabulary(lambda v: [*v]), "vocab.json lacks '</s>', which ends a text"),
    "no end": (vocabulary(lambda v: v.pop("</s>") and None), "vocab.json lacks '</s>'"),
    "no unknown": (vocabulary(lambda v: v.pop("<unk>") and None), "vocab.json lacks '<unk>'"),
    "words": (vocabulary(lambda v: v.update(a="b")), "gives 'a' no number, but 'b'"),
    "negative": (vocabulary(lambda v: v.update(a=-1)), "gives 'a' no number, but -1"),
    "nested": (vocabulary(lambda v: v.update(a=[[1]])), "gives 'a' no number, but [[1]]"),
    "huge": (vocabulary(lambda v: v.update(a=10**12)), "tokens, the model only"),
    "twice": (vocabulary(lambda v: v.update(a=v["</s>"])), "gives '</s>' and 'a' one number, 0"),
    "another's": (
        vocabulary(lambda v: {"</s>": 0, "<unk>": 1, "<pad>": 2}),
        f"vocab.json lacks {len(NAMES)} of the {len(NAMES)} pieces of source.spm",
    ),
    "apart": (options(separate_vocabs=True), "numbers source and target apart"),
    "strips": (
        options(added_tokens_decoder={"3": {"content": "<x>", "lstrip": True}}),
        "the added token '<x>' with lstrip or rstrip or single_word",
    ),
    "added": (options(added_tokens_decoder=[1]), "'added_tokens_decoder' must give tokens"),
    "endless": (
        options(added_tokens_decoder={"9" * 5000: {"content": "y"}}),
        "'added_tokens_decoder' must give tokens",
    ),
    "void": (
        options(added_tokens_decoder={"3": {"content": ""}}),
        "the list of added tokens gives '' no number",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_read_is_refused_in_one_sentence(case, theirs, tree, refused):
    change, told = WRONG[case]
    change(tree / "theirs")
    assert told in refused("convert", "theirs", "--out", "made")
    assert not Path("made").exists()


def test_no_flipped_bit_ends_in_anything_but_a_refusal(tmp_path: Path) -> None:
    held = table()
    tokens_of(tmp_path)
    whole = (tmp_path / "source.spm").read_bytes()
    for place in torch.randint(len(whole), (60,), generator=torch.Generator().manual_seed(1)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(place) % 8
        (tmp_path / "source.spm").write_bytes(damaged)
        # one in the rules that change letters is no longer to be seen
        with suppress(CheckpointError):
            imported(tmp_path, held).encode(TEXTS[0])


def test_a_saved_tokenizer_that_was_changed_is_refused(tmp_path: Path) -> None:
    tokens_of(tmp_path)
    values = imported(tmp_path, table()).to_dict()
    for change in (
        {"source": "no base 64!"}, {"target": ""}, {"source": values["source"][:400]},
        {"pieces": {}}, {"pieces": {"a": []}}, {"marks": {"": 3}}, {"end": "other"}, {"size": 1},
        {"size": "many"}, {"marks": None},
    ):  # fmt: skip
        with pytest.raises(EveryformerError, match="the tokenizer"):
            load_tokenizer({**values, **change})


def test_without_the_package_its_extra_is_named(theirs, refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    assert "everyformer[hf]" in refused("convert", "theirs", "--out", "made")


def test_where_there_is_no_model_of_sentencepiece_its_absence_is_said(theirs, made):
    for name in FILES:
        Path("theirs", name).unlink()
    assert "the model reads tokens, no text" in made("convert", "theirs", "--out", "ours")
