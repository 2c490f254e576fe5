"""Biological sequences: records are documents or rows, headers are names, letters have a unit."""

import gzip
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_files import Load, pack, write
from hypothesis import given
from hypothesis import strategies as st

import everyformer as ef
from everyformer.core.errors import ConfigError, DataError
from everyformer.data.alphabets import ALPHABETS
from everyformer.data.sequence_files import Record, read_records
from everyformer.data.sequences import Records, draw_records
from everyformer.data.sources import open_source
from everyformer.data.tokenizers.plain import ByteTokenizer, CharTokenizer
from everyformer.datastores.texts import Texts
from everyformer.training.evaluate import evaluate

DNA = "ACGGTTTACAGATTACA"
GENBANK = """LOCUS       {0}  17 bp DNA
ACCESSION   Z{0}
FEATURES
     note="ORIGIN of
     LOCUS"
ORIGIN      from somewhere
        1 acggtttaca gattaca
//
"""
FORMS: dict[str, tuple[str, str]] = {
    "a.fa": (">one first of two\nACGGTTT\nACAGATTACA\n>two\nACGGTTTACAGATTACA\n", "one two"),
    "a.FASTA": (
        "; a comment\r\n>one\tfirst\r\nACGGTTTacag\r\n\r\n;inside\r\n ATT ACA\r\n>two\r\n"
        "ACGGTTTACAGATTACA",
        "one two",
    ),
    "a.fastq": (f"@one 1\n{DNA}\n+\n{'@' * 17}\n\n@two\n{DNA}\n+two\n{'>' * 17}\n", "one two"),
    "b.fq": (
        f"@one\n{DNA[:9]}\n{DNA[9:]}\n+\n{'+' * 9}\n{'@' * 8}\n@2\n{DNA}\n+\n{'I' * 17}",
        "one 2",
    ),
    "a.gb": (GENBANK.format("one") + "\n" + GENBANK.format("two"), "one two"),
    "a.gbk": (GENBANK.format("one").replace("LOCUS       one", "DEFINITION"), "Zone"),
    "b.genbank": ("ACCESSION   one two\nORIGIN\n 1 acggtttacagattaca\n//\n", "one"),
    "b.fna": (f"\ufeff>one\n{DNA}\n>\n{DNA}\n", "one of,line,3"),
}


def fasta(*records: str, name: str = "r") -> str:
    return "".join(f">{name}{n}\n{letters}\n" for n, letters in enumerate(records))


def drawn(n: int, letters: str = "ACGT", seed: int = 0) -> str:
    return "".join(np.random.default_rng(seed).choice(list(letters), n))


def texts(data: Any, part: str) -> list[str]:
    """The documents of a part."""
    return data.tokenizer.decode(getattr(data, part).tolist()).rstrip("\0").split("\0")


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", FORMS)
def test_every_form_gives_its_names_and_upper_case_letters(
    name: str, packed: bool, tmp_path: Path
) -> None:
    content, names = FORMS[name]
    raw = content.encode()
    path = tmp_path / (name + ".gz" * packed)
    path.write_bytes(gzip.compress(raw) if packed else raw)
    with open_source(str(path)) as source:
        records = [*read_records(source, source.entries[0])]
    assert {record.letters for record in records} == {DNA.encode()}
    assert [record.name.replace(" ", ",") for record in records] == names.split()


def test_a_record_knows_the_line_of_its_header(tmp_path: Path) -> None:
    path = write(tmp_path, {"a.fa": ">a\nAC\nGT\n\n>b\nA\n"}) / "a.fa"
    with open_source(str(path)) as source:
        records = [*read_records(source, source.entries[0])]
    assert records == [Record("a", b"ACGT", 1), Record("b", b"A", 5)]


BROKEN = {
    "a record of no letters": ("a.fa", ">a\nA\n>b\n\n>c\nG\n", "line 3: the record 'b' has no"),
    "letters before a header": ("a.fa", "ACGT\n>a\nA\n", "line 1 is no header: .* FASTA"),
    "no record": ("a.fa", "; nothing\n", "holds no record"),
    "reads without a header": ("a.fq", ">a\nACGT\n", "line 1 is no header: .* FASTQ"),
    "a read cut in its letters": ("a.fq", "@a\nACGT\n", r"'a' \(line 1\): it is cut short"),
    "a read cut in its qualities": ("a.fq", "@a\nACGT\n+\nIII", "it is cut short"),
    "too many qualities": ("a.fq", "@a\nACGT\n+\nIIIII\n", "4 letters, but 5 qualities"),
    "a record without its end": ("a.gb", "LOCUS x\nORIGIN\n 1 acgt\n", r"'x' \(line 1\): it is"),
    "a record without ORIGIN": ("a.gb", "LOCUS x\n//\n", "line 1: the record 'x' has no letters"),
    "protein where bases were said": (
        *("a.fa", ">p\nACGT\n>q\nACMET\n"),
        r"line 3: the record 'q' has 'E' as its letter 4, which DNA has not .*--data\.alphabet",
    ),
    "a gap": ("a.fa", ">p\nAC-T\n", "'-' as its letter 3"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_one_sentence_with_its_place(
    name: str, tmp_path: Path, load: Load
) -> None:
    file, content, said = BROKEN[name]
    path = write(tmp_path, {file: content}) / file
    with pytest.raises(DataError, match=said) as error:
        load(path, length=2, alphabet="dna")
    assert file in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("letters", "said", "alphabet", "found"),
    [
        ("ACGTNNACGTR" * 4, "auto", "dna", "DNA by their letters, 44 bases, 4 R, 8 N among them"),
        ("ACGUUT" * 5, "auto", "rna", None),
        ("ACGU" * 5, "auto", "rna", "RNA by their letters, 20 bases"),
        ("ACGACG" * 5, "auto", "dna", "DNA by their letters, 30 bases"),
        ("MGTKL*" * 5, "auto", "protein", "protein by their letters, 30 residues, 5 * among them"),
        ("ACGT" * 5, "protein", "protein", "protein, 20 residues"),
    ],
)  # fmt: skip
def test_an_alphabet_is_guessed_by_the_letters_or_said(
    letters: str, said: str, alphabet: str, found: str | None, tmp_path: Path
) -> None:
    path = write(tmp_path, {"a.fa": fasta(letters)}) / "a.fa"
    with open_source(str(path)) as source:
        if found is None:
            with pytest.raises(DataError, match="has 'T' as its letter 6, which RNA has not"):
                Records(source, source.entries, said)
            return
        records = Records(source, source.entries, said)
    assert records.alphabet is ALPHABETS[alphabet]
    assert records.found == found


def test_a_stray_letter_of_rna_does_not_turn_dna_into_it(tmp_path: Path) -> None:
    path = write(tmp_path, {"a.fa": fasta("ACGT" * 9, "ACGUACGT" * 3)}) / "a.fa"
    with (
        open_source(str(path)) as source,
        pytest.raises(DataError, match="'r1' has 'U' as its letter 4, which DNA has not"),
    ):
        Records(source, source.entries, "auto")


def test_a_datastore_reads_each_record_as_a_text(tmp_path: Path) -> None:
    path = write(tmp_path, {"a.fa": fasta("acgt", "GGA")}) / "a.fa"
    with open_source(str(path)) as source:
        read = [(text.name, bytes(text.tokens)) for text in Texts(source, ByteTokenizer())]
    assert read == [("a.fa:r0", b"ACGT"), ("a.fa:r1", b"GGA")]


@pytest.mark.parametrize("kind", ["dna", "rna"])
def test_the_other_strand_pairs_bases_backwards_and_twice_is_the_first(kind: str) -> None:
    alphabet = ALPHABETS[kind]
    pairs = dict(zip(alphabet.letters, alphabet.complements, strict=True))
    # what R, Y, S, W, K, M, B, D, H, V and N may be, as IUPAC says it
    means = {"R": "AG", "Y": "CT", "S": "CG", "W": "AT", "K": "GT", "M": "AC"}
    means |= {"B": "CGT", "D": "AGT", "H": "ACT", "V": "ACG", "N": "ACGT"}
    t = "U" if kind == "rna" else "T"
    for letter, bases in means.items():
        other = {pairs[base.replace("T", t)] for base in bases}
        assert other == {base.replace("T", t) for base in means[pairs[letter]]}
    whole = alphabet.letters.encode()
    assert alphabet.reverse_complement(alphabet.reverse_complement(whole)) == whole
    assert alphabet.reverse_complement(f"AACG{t}".encode()) == f"ACG{t}{t}".encode()


@given(
    st.lists(st.integers(1, 1000), min_size=2, max_size=30),
    st.floats(0.01, 0.99),
    st.integers(0, 3),
)
def test_a_draw_leaves_records_on_both_sides_and_is_near_its_share(
    lengths: list[int], fraction: float, seed: int
) -> None:
    sizes = np.array(lengths)
    held_out = draw_records(sizes, fraction, seed)
    assert (held_out == draw_records(sizes, fraction, seed)).all()
    assert held_out.any()
    assert not held_out.all()
    over = sizes[held_out].sum() - fraction * sizes.sum()
    # one record more than the share, by at most half of it, unless the shortest alone is too long
    assert over <= sizes[held_out].max() / 2 or held_out.sum() == 1
    assert draw_records(sizes, 1.0, seed).all()


def test_many_records_are_drawn_by_their_letters_and_by_the_seed() -> None:
    sizes = np.random.default_rng(1).integers(50, 150, 2000)
    first, other = (draw_records(sizes, 0.2, seed) for seed in (0, 1))
    assert sizes[first].sum() == pytest.approx(0.2 * sizes.sum(), rel=2e-3)
    assert (first != other).any()


RECORDS = [drawn(80 + 7 * n, seed=n) for n in range(10)]


def test_records_are_documents_and_whole_ones_are_held_out(tmp_path: Path, load: Load) -> None:
    path = write(tmp_path, {"a.fa": fasta(*RECORDS)}) / "a.fa"
    data = load(path, length=16, validation=0.2)
    train, held_out = texts(data, "train"), texts(data, "validation")
    assert sorted(train + held_out) == sorted(RECORDS)
    share = sum(map(len, held_out)) / sum(map(len, RECORDS))
    assert f"whole records, {share:.0%} of the letters (seed 0), are held out" in data.split
    assert "DNA by their letters, 1,115 bases" in data.split
    assert isinstance(data.tokenizer, CharTokenizer)
    # the letters of the alphabet, the separator and one for all others
    assert data.vocabulary == 15 + 2
    assert load(path, length=16, validation=0.2, seed=1).fingerprint != data.fingerprint
    packed = load(path, length=16, validation=0.2, packing=True)
    assert packed.train_batch(0, 2, 0).documents is not None


@pytest.mark.parametrize("tokenizer", ["bytes", "kmer:3", "bpe:260"])
def test_a_tokenizer_that_is_said_is_obeyed(tokenizer: str, tmp_path: Path, load: Load) -> None:
    path = write(tmp_path, {"a.fa": fasta(*RECORDS)}) / "a.fa"
    data = load(path, length=16, validation=0.2, tokenizer=tokenizer)
    assert data.tokenizer.name == tokenizer
    assert sorted(texts(data, "train") + texts(data, "validation")) == sorted(RECORDS)


def test_bits_are_of_letters_without_the_ends_of_records(tmp_path: Path, load: Load) -> None:
    path = write(tmp_path, {"a.fa": fasta(*RECORDS)}) / "a.fa"
    for tokenizer in ("auto", "kmer:2"):
        data = load(path, length=16, validation=0.3, tokenizer=tokenizer)
        letters = sum(map(len, texts(data, "validation")))
        assert data.unit == "base"
        assert data.bytes_per_token == pytest.approx(letters / len(data.validation))
    protein = load(path, length=16, alphabet="protein")
    assert protein.unit == "residue"


def test_chance_is_two_bits_a_base(tmp_path: Path, load: Load) -> None:
    path = write(tmp_path, {"a.fa": fasta(drawn(4000))}) / "a.fa"
    data = load(path, length=16)
    assert texts(data, "validation") == [drawn(4000)[3600:]]
    nats = math.log(4)
    assert nats / math.log(2) / data.bytes_per_token == pytest.approx(2)
    assert data.counting / math.log(2) / data.bytes_per_token == pytest.approx(2, abs=0.02)
    # the pairs of a k-mer are two letters, and one of sixteen is two bits a letter too
    pairs = load(path, length=16, tokenizer="kmer:2")
    assert math.log(16) / math.log(2) / pairs.bytes_per_token == pytest.approx(2)


def test_of_one_record_the_end_is_held_out_and_that_is_said(tmp_path: Path, load: Load) -> None:
    letters = drawn(400)
    path = write(tmp_path, {"a.fa": fasta(letters)}) / "a.fa"
    data = load(path, length=16, validation=0.25)
    assert (texts(data, "train"), texts(data, "validation")) == ([letters[:300]], [letters[300:]])
    assert "the last 25% of the only record are held out" in data.split
    assert "(one document)" in data.split


@pytest.mark.parametrize("records", [RECORDS, RECORDS[:1]])
def test_both_strands_are_of_training_records_alone(
    records: list[str], tmp_path: Path, load: Load
) -> None:
    path = write(tmp_path, {"a.fa": fasta(*records)}) / "a.fa"
    one, both = (load(path, length=8, validation=0.2, strands=which) for which in ("one", "both"))
    assert texts(both, "validation") == texts(one, "validation")
    reverse = ALPHABETS["dna"].reverse_complement
    expected = []
    for text in texts(one, "train"):
        expected += [text, reverse(text.encode()).decode()]
    assert texts(both, "train") == expected
    assert "training records on both strands" in both.split
    assert one.fingerprint != both.fingerprint


def test_a_protein_has_no_second_strand(tmp_path: Path, load: Load) -> None:
    path = write(tmp_path, {"a.faa": fasta("MKLVEF" * 20)}) / "a.faa"
    with pytest.raises(ConfigError, match="a protein has no second strand"):
        load(path, length=8, strands="both")


def test_a_source_keeps_its_own_split(tmp_path: Path, load: Load) -> None:
    files = {"train.fa": fasta(*RECORDS[:7]), "test.fa": fasta(*RECORDS[7:])}
    data = load(write(tmp_path / "x", files), length=8)
    assert texts(data, "train") == RECORDS[:7]
    assert texts(data, "validation") == RECORDS[7:]
    assert "the source's own train files and test files" in data.split


def test_ambiguous_letters_that_training_lacks_are_in_the_vocabulary(
    tmp_path: Path, load: Load
) -> None:
    files = {"train.fa": fasta(*RECORDS[:7]), "test.fa": fasta("ACGNRYT" * 9)}
    for tokenizer in ("auto", "kmer:2"):
        data = load(write(tmp_path / "x", files), length=8, tokenizer=tokenizer)
        assert texts(data, "validation") == ["ACGNRYT" * 9]


CLASSES = {
    "promoter/a.fa": fasta(*RECORDS[:6]),
    "promoter/b.fa": fasta(*RECORDS[6:8]),
    "other/all.fastq": "".join(f"@{n}\n{r}\n+\n{'I' * len(r)}\n" for n, r in enumerate(RECORDS)),
}


@pytest.mark.parametrize("zipped", [False, True])
def test_of_a_folder_for_each_class_every_record_is_a_row(
    zipped: bool, tmp_path: Path, load: Load
) -> None:
    source = pack(tmp_path / "x.zip", CLASSES) if zipped else write(tmp_path / "x", CLASSES)
    data = load(source, length=300)
    assert (data.task, data.classes) == ("classify-text", ("other", "promoter"))
    assert data.counts == (10, 8)
    rows = data.rows(np.arange(18))
    read = [
        data.tokenizer.decode(row[keep].tolist())
        for row, keep in zip(rows.inputs, rows.keep, strict=True)
    ]
    assert read == [*RECORDS, *RECORDS[:8]]
    assert "DNA by their letters" in data.split
    assert data.vocabulary == 15 + 1
    assert load(source, "lm", length=8).task == "lm"
    with pytest.raises(ConfigError, match=r"--data\.strands has no meaning .* lm and mlm"):
        load(source, strands="both")


def test_what_serves_no_sequences_is_refused(tmp_path: Path, load: Load) -> None:
    path = write(tmp_path, {"a.fa": fasta(*RECORDS)}) / "a.fa"
    for task in ("seq2seq", "regress", "regress-text", "pixels"):
        with pytest.raises(DataError, match="holds biological sequences, which serve"):
            load(path, task)
    with pytest.raises(DataError, match="no folders for classes"):
        load(path, "classify")
    mixed = write(tmp_path / "x", {"a.fa": fasta(*RECORDS), "genes.txt": "some words " * 9})
    for task in (None, "lm", "classify"):
        with pytest.raises(DataError, match=r"sequences \(\.fa\) beside other files"):
            load(mixed, task)


def test_two_languages_one_of_which_is_persian_stay_a_translation(
    tmp_path: Path, load: Load
) -> None:
    lines = {"a.en": "one\ntwo\nthree\n", "a.fa": "yek\ndo\nse\n"}
    assert load(write(tmp_path / "x", lines)).languages == ("en", "fa")


def test_a_run_reads_sequences_with_its_own_tokenizer(tmp_path: Path, load: Load) -> None:
    path = write(tmp_path, {"a.fa": fasta(*RECORDS)}) / "a.fa"
    data = load(path, length=8, validation=1.0, reader=ByteTokenizer())
    assert sorted(texts(data, "validation")) == sorted(RECORDS)
    assert "everything is held out" in data.split
    assert data.unit == "base"


def test_an_evaluation_tells_bits_by_the_unit(tmp_path: Path, load: Load) -> None:
    path = write(tmp_path, {"a.fa": fasta(*RECORDS)}) / "a.fa"
    data = load(path, length=8, alphabet="protein")
    sizes = {"width": 8, "layers": 1, "heads": 1, "vocabulary": data.vocabulary}
    result = evaluate(ef.create_model("attention", **sizes, max_length=8), data)
    assert result is not None
    scale = math.log(2) * data.bytes_per_token
    assert result["bits_per_residue"] == pytest.approx(result["loss"] / scale)
    assert result["counting_bits_per_residue"] == pytest.approx(data.counting / scale)
    assert not any("byte" in name for name in result)
