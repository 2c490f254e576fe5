"""Biological sequences through the verbs."""

import gzip
import json
import random
from pathlib import Path

import pytest
from commands import Refused, Say, Train


def records(count: int, length: int, motif: str = "") -> str:
    drawn = random.Random(motif)
    letters = ("".join(drawn.choices("ACGT", k=length)) + motif for _ in range(count))
    return "".join(f">{motif or 'r'}{n} a name\n{one.lower()}\n" for n, one in enumerate(letters))


@pytest.fixture
def genome(tree: Path) -> Path:
    """Records of DNA, packed."""
    path = tree / "genome.fa.gz"
    path.write_bytes(gzip.compress(records(12, 60).encode()))
    return path


def test_a_genome_is_trained_on_evaluated_and_continued_in_bits_per_base(
    genome: Path, trained: Train, say: Say
) -> None:
    run = str(trained("attention", "--data", genome.name))
    code, out, err = say("eval", run)
    assert code == 0, err
    assert "bits_per_base" in out
    assert "counting_bits_per_base" in out
    assert "counting tokens (bits per base" in out
    assert "byte" not in out
    assert "DNA by their letters, 720 bases" in err
    code, out, err = say("generate", run, "--prompt", "ACGT", "--tokens", "20")
    assert code == 0, err
    assert out.startswith("ACGT")
    assert {*out.strip()} <= {*"ACGTRYSWKMBDHVN\ufffd"}
    found = json.loads(say("eval", run, "--json")[1])
    assert "bits_per_base_interval" in found["evaluation"]
    out = say("eval", run, "--lengths", "8", "16")[1]
    assert "bits_per_base" in out


@pytest.mark.full("half a minute", parts=3)
def test_k_mers_are_compared_in_bits_per_base_beside_counting(genome: Path, say: Say) -> None:
    sizes = ("--width", "8", "--layers", "1", "--heads", "1", "--length", "8", "--batch", "4")
    code, out, err = say(
        *("compare", "attention", "gmlp", "--data", genome.name, "--tokenizer", "kmer:3"),
        *("--steps", "3", "--lengths", "--out", "cmp", *sizes, "--data.strands", "both"),
    )
    assert code == 0, err
    assert "bits per base" in out
    assert "byte" not in out.partition("report")[0]
    page = Path("cmp/report.html").read_text()
    assert "bits per base" in page
    assert "per byte" not in page


def test_a_file_of_sequences_is_answered_by_the_names_of_its_records(
    tree: Path, trained: Train, say: Say
) -> None:
    for motif in ("GGCC", "TATA"):
        (tree / "classes" / motif).mkdir(parents=True)
        (tree / "classes" / motif / "all.fa").write_text(records(8, 20, motif))
    run = str(trained("attention", "--data", "classes"))
    (tree / "new.fastq").write_text("@x 1\nacgtTATA\n+\nIIIIIIII\n@y\nACGTGGCC\n+\nIIIIIIII\n")
    out = say("predict", run, "new.fastq", "--format", "jsonl")[1]
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["input"] for row in rows] == ["x", "y"]
    said = say("predict", run, "ACGTTATA", "ACGTGGCC", "--format", "jsonl")[1]
    for row, word in zip(rows, map(json.loads, said.splitlines()), strict=True):
        assert row["label"] == word["label"] in ("GGCC", "TATA")
        assert row["probability"] == pytest.approx(word["probability"])
    assert "there is no file or folder 'gone.fa.gz'" in say("predict", run, "gone.fa.gz")[2]


def test_what_cannot_be_read_is_one_sentence(genome: Path, refused: Refused) -> None:
    genome.write_bytes(genome.read_bytes()[:-20])
    assert "genome.fa.gz' cannot be unpacked" in refused(
        "train", "attention", "--data", genome.name
    )
    Path("p.fa").write_text(">p\nMKLVEF\n")
    said = refused("train", "attention", "--data", "p.fa", "--data.alphabet", "dna")
    assert "the record 'p' has 'L' as its letter 3, which DNA has not" in said
    Path("e.fa").write_text(">a\nACGT\n>b\n")
    assert "the record 'b' has no letters" in refused("train", "attention", "--data", "e.fa")
    said = refused("train", "attention", "--data", "text.txt", "--tokenizer", "kmer:6")
    assert "k-mers are of bases or amino acids" in said
