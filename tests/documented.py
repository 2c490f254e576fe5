"""Commands that README and docs show, and small stand-ins for the files that they name."""

import io
import random
import re
import shlex
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from every_task import write_data
from everyformer.cli import VERBS

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))]

VALUES = {
    "--steps": "2",
    "--budget-seconds": "1",
    "--budget-tokens": "64",
    "--seeds": "1",
    "--width": "8",
    "--layers": "2",
    "--batch": "4",
    "--tokens": "4",
    "--images": "2",
    "--prompts": "60",
    "--data": {"stdlib": "mytext.txt"},
    "--data.size": "4",
    "--data.small": "2",
    "--data.tokens": "64",
    "--tokenizer": {"bpe:8000": "bpe:300"},
    "--retrieval.size": "128",
    "--average": "1",
    "--length": "32",
    "--memory.slots": "16",
    "--depth.first-exit": "1",
    "--depth.every": "1",
}
"""what stands behind these options while commands run, whatever the page says there"""
BUDGETS = {"train": ("--steps", "2"), "compare": ("--budget-seconds", "1")}
"""what ends a training where the page gives no budget"""
QUICK = (
    *(("--width", "8"), ("--heads", "2"), ("--layers", "2"), ("--batch", "4"), ("--overwrite",)),
    *(("--training.threads", "1"), ("--training.evaluate-sequences", "2")),
)
ADDED = {
    "train": QUICK,
    "compare": (*QUICK, ("--lengths",)),
    "calibrate": (("--prompts", "60"), ("--tokens", "4")),
}
"""options that a verb gets besides, where the page does not give the first of them; --overwrite,
since a page may show two ways to a run of one name"""
ANY = {
    "RUN": "runs/rope",
    **dict.fromkeys(("MEMBER", "NAMES", "NAME", "A"), "attention"),
    "B": "gmlp",
    "C": "bert",
}
"""what capitals stand for in a sentence"""
OF_RUNS = {"eval", "generate", "predict", "show", "calibrate", "index"}


MODEL = """
from torch import nn


class Net(nn.Module):
    def __init__(self, vocabulary, width):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.reads = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        return self.head(self.reads(self.embedding(tokens))[0])
"""
"""a whole model of the reader's own, which has never heard of everyformer"""


class Command(NamedTuple):
    """One command of a page."""

    page: str
    words: tuple[str, ...]
    """what follows `everyformer`"""
    stdin: str = ""
    """the text that is piped into it"""

    def __str__(self) -> str:
        return f"{self.page}: everyformer {shlex.join(self.words)}"


def shown(page: str) -> Iterator[Command]:
    """Commands of a page's blocks, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            piped = ""
            for part in re.split(r' \| | && |"\$\(|\)"| > |(?:^| )# .*', line):
                words = shlex.split(part)
                if words[:1] == ["torchrun"]:
                    words = words[words.index("everyformer") :]
                if words[:1] == ["everyformer"]:
                    yield Command(page, (*words[1:],), piped)
                piped = " ".join(words[1:]) if words[:1] == ["echo"] else ""


def other_blocks(page: str) -> str:
    """Blocks of a page that are not said to be commands."""
    text = (ROOT / page).read_text(encoding="utf-8")
    text = re.sub(r"```sh\n.*?```", "", text, flags=re.DOTALL)
    return "".join(re.findall(r"```.*?```", text, re.DOTALL))


def mentioned(page: str) -> Iterator[Command]:
    """Whole commands inside a page's sentences and tables; capitals stand for any of a kind."""
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    for code in re.findall(r"`([^`\n]+)`", text):
        called = re.match(r"(?:everyformer )?([a-z]+) ", code)
        if called is None or called[1] not in VERBS or {"...", "VERB"} & {*code.split()}:
            continue
        words = [ANY.get(word, word) for word in shlex.split(code.removeprefix("everyformer "))]
        if words[0] in OF_RUNS and words[1].startswith("--"):
            words.insert(1, ANY["RUN"])
        yield Command(page, tuple(words))


def smaller(words: tuple[str, ...]) -> list[str]:
    """A command in a size that takes a second or so, by `VALUES` and `ADDED`."""
    small: list[str] = []
    for word in words:
        value = VALUES.get(small[-1]) if small else None
        small.append(value.get(word, word) if isinstance(value, dict) else value or word)
    budget = any(word in ("--steps", "--budget-seconds", "--budget-tokens") for word in small)
    small += [] if budget else BUDGETS.get(words[0], ())
    given = {word.lstrip("-").rpartition(".")[2] for word in small if word.startswith("--")}
    for option in ADDED.get(words[0], ()):
        small += [] if option[0].lstrip("-").rpartition(".")[2] in given else option
    return small


# ------------------------------------------------------------------ what commands read


def write_stand_ins(place: Path, page: str) -> None:
    """Every file and folder that the commands of a page read, a few rows each."""
    write_data(place)
    draw = random.Random(0)
    words = ("It", "was", "the", "best", "of", "times", "a", "warm", "tree", "two", "dull", "hours")
    text = " ".join(draw.choices(words, k=600))
    for name in ("mytext", "plays"):  # of whose last tenth prompts are cut
        (place / f"{name}.txt").write_text(" ".join(draw.choices(words, k=8000)), encoding="utf-8")
    for name in ("other", "book", "validation", "test", "new"):
        (place / f"{name}.txt").write_text(text, encoding="utf-8")
    for name in (
        "books/emma.txt",
        "books/b.txt",
        "more/c.txt",
        "texts/d.txt",
        "old.log",
        "new.log",
    ):
        _write(place / name, text)
    for name in ("shards/a.bin", "shards/b.bin"):
        _write(place / name, text)
    for part in ("good", "bad"):
        for n in range(6):
            _write(place / "reviews" / part / f"{n}.txt", f"a {part} film {n}")
    reviews = _reviews(draw)
    if page == "docs/data.md":
        _write(place / "reviews.csv", _table("review_body,stars_given,stars", reviews))
    else:
        _write(place / "reviews.csv", _table("text,label", [row[:2] for row in reviews]))
    _write(place / "new.csv", _table("text", [(f"a film {n}",) for n in range(5)]))
    _write(place / "en-de.tsv", "\n".join(f"1\t{a} {b}\t{b} {a}" for a in words for b in words))
    _write_articles(place / "articles.parquet", text)
    _write_arrays(place)
    _write_pictures(place)
    with zipfile.ZipFile(place / "multi30k-en-de.zip", "w") as archive:
        for part, count in (("train", 60), ("val", 8), ("test_2016_flickr", 8)):
            for language in ("en", "de"):
                lines = (" ".join(draw.choices(words, k=4)) for _ in range(count))
                archive.writestr(f"{part}.{language}", "\n".join(lines) + "\n")
    shutil.copytree(place / "paths", place / "myfolder")
    write_mixer(place)
    _write(place / "mymodel.py", MODEL)


def write_mixer(place: Path) -> None:
    """The first programs of docs/adding-a-member.md and docs/adding-a-task.md, with a series."""
    for name, page in (("mine.py", "adding-a-member"), ("forecast.py", "adding-a-task")):
        text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        _write(place / name, re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0])
    np.savetxt(place / "my.num", np.sin(np.arange(4000) / 2))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _table(header: str, rows: list[tuple[object, ...]]) -> str:
    return "\n".join((header, *(",".join(map(str, row)) for row in rows)))


def _reviews(draw: random.Random) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for n in range(60):
        kind = ("warm", "dull")[n % 2]
        found.append((f"a {kind} film of {n}", f"{kind}", round(draw.uniform(1, 5), 2)))
    return found


def _write_articles(path: Path, text: str) -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"body": [text] * 5}), path)


def _write_arrays(place: Path) -> None:
    random_ = np.random.default_rng(0)
    images = random_.integers(0, 256, (48, 8, 8), dtype=np.uint8)
    labels = np.arange(48) % 3
    np.savez(
        place / "mnist.npz",
        x_train=images[:36], y_train=labels[:36], x_test=images[36:], y_test=labels[36:],
    )  # fmt: skip
    x = random_.normal(size=(24, 12, 2)).astype(np.float32)
    np.savez(place / "sensors.npz", x=x, y=x.mean((1, 2)), lengths=np.full(24, 10))


def _write_pictures(place: Path) -> None:
    def picture() -> bytes:
        file = io.BytesIO()
        pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(file, "png")
        return file.getvalue()

    with zipfile.ZipFile(place / "myimages.zip", "w") as archive:
        for n in range(24):
            archive.writestr(f"{('cat', 'dog')[n % 2]}/{n}.png", picture())
    names = [f"{n}.png" for n in range(24)]
    with zipfile.ZipFile(place / "pets.zip", "w") as archive:
        rows: list[tuple[object, ...]] = [(name, "ab"[n % 2]) for n, name in enumerate(names)]
        archive.writestr("metadata.csv", _table("file_name,breed", rows))
        for name in names:
            archive.writestr(name, picture())
    (place / "faces").mkdir()
    for name in names:
        (place / "faces" / name).write_bytes(picture())
    rows = [(name, 20 + n / 2) for n, name in enumerate(names)]
    _write(place / "faces" / "metadata.csv", _table("file_name,age", rows))
