"""The example of a kind of data: records of FASTA, FASTQ and GenBank files by Biopython."""

import gzip
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everyformer.cli import main
from everyformer.core.errors import DataError
from everyformer.data import DataConfig, load_dataset

EXAMPLE = Path(__file__).parents[2] / "examples" / "dna"
FASTA = "; a comment\n>r1 the first\nACGTacgt\nNN\n>r2\nGGGG\n>r3\nTTTTTTCC\n"
FASTQ = "@r1 the first\nACGTACGTNN\n+\nIIIIIIII@@\n@r2\nGGGG\n+\n@III\n@r3\nTTTTTTCC\n+\nIIIIIIII\n"
GENBANK = "".join(
    f"LOCUS       {name:<16} {len(letters):11} bp    DNA     linear   UNK 01-JAN-2000\nORIGIN\n"
    f"        1 {letters}\n//\n"
    for name, letters in (("r1", "acgtacgtnn"), ("r2", "gggg"), ("r3", "ttttttcc"))
)
RECORDS = ["ACGTACGTNN", "GGGG", "TTTTTTCC"]
SIZES = ("--width", "8", "--layers", "1", "--heads", "2", "--batch", "2", "--steps", "1")

pytestmark = pytest.mark.full("it needs Biopython, which nothing else does")


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with the example installed as its pyproject.toml says."""
    pytest.importorskip("Bio", reason="the example reads with Biopython")
    site = tmp_path / "site"
    about = site / "everyformer_dna-0.1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: everyformer-dna\nVersion: 0.1")
    text = (EXAMPLE / "pyproject.toml").read_text()
    assert 'entry-points."everyformer.data"]\ndna = "everyformer_dna:Records"' in text
    (about / "entry_points.txt").write_text("[everyformer.data]\ndna = everyformer_dna:Records\n")
    shutil.copy(EXAMPLE / "everyformer_dna.py", site)
    monkeypatch.syspath_prepend(site)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVERYFORMER_CACHE", str(tmp_path / "cache"))
    return tmp_path


def parts(data: Any) -> list[list[str]]:
    """Documents of the training part and of the held-out one."""
    return [
        data.tokenizer.decode(np.asarray(part)).split("\0")[:-1]
        for part in (data.train, data.validation)
    ]


@pytest.mark.parametrize(
    ("name", "text"), [("a.fa", FASTA), ("a.fastq.gz", FASTQ), ("a.gb", GENBANK)]
)
def test_records_are_documents_of_letters_alone(name: str, text: str, records: Path) -> None:
    raw = text.encode()
    (records / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    data: Any = load_dataset(DataConfig(name, validation=0.2, length=3))
    # GGGG alone is nearer to a fifth of 22 letters than with any other: 4.4
    assert parts(data) == [[RECORDS[0], RECORDS[2]], [RECORDS[1]]]
    assert data.bytes_per_token == 1.0
    assert data.split.startswith("whole records are held out, drawn by the seed: 20 training")
    assert data.tokenizer.kind == "chars"
    assert load_dataset(DataConfig(name, length=3, validation=0.2), "mlm").task == "mlm"


def test_of_one_record_the_end_is_held_out(records: Path) -> None:
    (records / "a.fa").write_text(">one\n" + "ACGTA" * 8)
    data: Any = load_dataset(DataConfig("a.fa", length=3, validation=0.25))
    letters = [data.tokenizer.decode(np.asarray(part)) for part in (data.train, data.validation)]
    assert letters == ["ACGTA" * 6, "ACGTA" * 2]


@pytest.mark.parametrize(("validation", "documents"), [(0.2, [8, 2]), (0.01, [9, 1]), (1, [0, 10])])
def test_as_many_records_are_held_out_as_there_are_to_be(
    validation: float, documents: list[int], records: Path
) -> None:
    (records / "a.fa").write_text("".join(f">r{n}\nACGTA\n" for n in range(10)))
    data = load_dataset(DataConfig("a.fa", tokenizer="bytes", length=3, validation=validation))
    assert f"({documents[0]} and {documents[1]} documents" in data.split


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.fa", "ACGT\n", "'a.fa' holds no record of fasta"),
        ("a.fa", ">a\n>b\nAC\n", "the record 'a' has no letters"),
        ("a.fq", "@a\nACGT\n+\nII\n", "'a.fq' is no whole fastq: Lengths"),
        ("a.gb", "nothing\n", "'a.gb' holds no record of genbank"),
        ("a.gb", GENBANK.partition("ORIGIN")[0] + "//\n", "'a.gb' is no whole genbank"),
        ("a.gb", GENBANK[:-3], "'a.gb' is no whole genbank"),
    ],
)
@pytest.mark.filterwarnings("default")
def test_what_is_no_record_is_refused(name: str, text: str, said: str, records: Path) -> None:
    (records / name).write_text(text)
    with pytest.raises(DataError, match=said):
        load_dataset(DataConfig(name, length=3))


def test_a_member_is_trained_on_records(records: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw = np.random.default_rng(0)
    letters = ("".join(draw.choice([*"ACGT"], 60)) for _ in range(9))
    (records / "genome.fa").write_text("".join(f">r{n}\n{one}\n" for n, one in enumerate(letters)))
    words = ("--data", "genome.fa", "--length", "8", "--out", "run", "--training.threads", "1")
    assert main(["train", "attention", *words, *SIZES]) == 0
    assert "bits_per_byte" in capsys.readouterr().out
    assert main(["train", "bert", *words, *SIZES, "--task", "classify", "--overwrite"]) == 2
    assert "serves the tasks lm and mlm, not classify-text" in capsys.readouterr().err
