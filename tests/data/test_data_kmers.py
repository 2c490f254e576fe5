"""K-mers: no text is lost, letters side by side, cut anew in every run of letters."""

import json
from pathlib import Path

import numpy as np
import pytest
from data_files import Load, delimited, write
from hypothesis import given
from hypothesis import strategies as st

from everyformer.core.errors import ConfigError, DataError
from everyformer.data import encode_prompt, load_tokenizer
from everyformer.data.corpus import StreamEncoder
from everyformer.data.tokenizers.base import PIECE
from everyformer.data.tokenizers.kmer import BYTES, KmerTokenizer
from everyformer.data.tokenizers.load import fit_tokenizer

SIZES = st.integers(1, 8)
LETTERS = st.text(alphabet="ACGTNacgt\n\0", max_size=60)


@given(st.one_of(st.text(max_size=40), LETTERS), SIZES)
def test_decoding_undoes_encoding_of_every_text(text: str, size: int) -> None:
    made = KmerTokenizer(size, "ACGT")
    tokens = made.encode_array(text)
    assert made.decode(tokens.tolist()) == text
    assert tokens.dtype == made.dtype
    assert (tokens < made.vocabulary).all()


@given(LETTERS, SIZES)
def test_runs_of_letters_are_cut_from_their_start_and_the_rest_are_letters(
    text: str, size: int
) -> None:
    made = KmerTokenizer(size, "ACGT")
    expected, run = [], ""
    for letter in f"{text}|":
        if letter in "ACGT":
            run += letter
            if len(run) == size:
                expected.append(run)
                run = ""
        else:
            expected += [*run, letter]
            run = ""
    assert [made.decode([token]) for token in made.encode(text)] == expected[:-1]


def test_tokens_are_bytes_and_then_k_mers_in_alphabetical_order() -> None:
    made = KmerTokenizer(2, "ACGT")
    assert made.vocabulary == BYTES + 16
    assert made.encode("AAACTTN\0") == [256, 257, 271, ord("N"), 0]
    assert made.separator == 0
    every = [made.decode([token]) for token in range(BYTES, made.vocabulary)]
    assert every == sorted(every)
    assert len(set(every)) == 16


@given(st.lists(st.text(alphabet="ACGTN", max_size=30), max_size=6), SIZES)
def test_text_in_chunks_gives_the_tokens_of_the_whole(chunks: list[str], size: int) -> None:
    made = KmerTokenizer(size, "ACGT")
    # one long line, which an encoder does not keep back as a whole
    chunks = ["ACGTT" * (PIECE // 5 + 1), *chunks]
    encoder = StreamEncoder(made)
    parts = [encoder.feed(chunk.encode()) for chunk in chunks]
    whole = np.concatenate((*parts, encoder.feed(b"", final=True)))
    assert (whole == made.encode_array("".join(chunks))).all()
    assert len(parts[0])


@pytest.mark.parametrize(
    ("texts", "plain"),
    [
        (["ACGTN", "RYK\0ACG\n"], "ACGT"),
        (["ACGUN"], "ACGU"),
        (["MKLV*"], "ACDEFGHIKLMNPQRSTVWY"),
        (["ACGTU"], "ACDEFGHIKLMNPQRSTVWY"),
    ],
)
def test_the_letters_are_of_the_first_alphabet_that_has_all(
    texts: list[str], plain: str, tmp_path: Path
) -> None:
    made = fit_tokenizer("kmer:3", texts)
    assert isinstance(made, KmerTokenizer)
    assert made == KmerTokenizer(3, plain)
    made.save(tmp_path)
    for again in (load_tokenizer(tmp_path), load_tokenizer(json.loads(json.dumps(made.to_dict())))):
        assert again == made
        assert again.name == "kmer:3"


@pytest.mark.parametrize(
    ("spec", "text", "said"),
    [
        ("kmer", "ACGT", "needs the letters of a k-mer, 1 to 8, for example kmer:6"),
        ("kmer:0", "ACGT", "1 to 8"),
        ("kmer:9", "ACGT", "1 to 8"),
        ("kmer:5", "MKLV", "protein has 3,200,000 k-mers, of 1,000,000 at most"),
    ],
)
def test_a_size_that_does_not_fit_is_refused(spec: str, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        fit_tokenizer(spec, [text])


@pytest.mark.parametrize("text", ["acgt", "to be or not", "ACGT!", "ÄCGT"])
def test_text_that_is_no_sequence_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="k-mers are of bases or amino acids in upper case"):
        fit_tokenizer("kmer:2", [text])


def test_a_prompt_is_of_whole_k_mers_and_of_letters() -> None:
    made = KmerTokenizer(3, "ACGT")
    assert encode_prompt(made, "ACGNACGACG").shape == (1, 4)
    with pytest.raises(DataError, match=r"the end of the prompt, 'AC', is no whole token"):
        encode_prompt(made, "ACGAC")
    with pytest.raises(DataError, match="write it in upper case"):
        encode_prompt(made, "acg")
    with pytest.raises(DataError, match="has '!'"):
        encode_prompt(made, "ACG!")


def test_a_column_of_sequences_is_cut_into_k_mers(tmp_path: Path, load: Load) -> None:
    rows = [["sequence", "label"], *(["ACGTAC" * 3, str(n % 2)] for n in range(20))]
    path = write(tmp_path, {"a.csv": delimited(rows)}) / "a.csv"
    data = load(path, "classify", tokenizer="kmer:6", text_column="sequence")
    assert data.length == 3
    assert data.tokenizer.name == "kmer:6"


def test_lower_case_outside_files_of_sequences_is_refused_with_what_to_do() -> None:
    said = "give sequences in upper case .lower case is read so in FASTA, not in tables., or take"
    with pytest.raises(DataError, match=said):
        KmerTokenizer.fit(3, ["acgtACGTN"])
    with pytest.raises(DataError, match="give sequences, or take"):
        KmerTokenizer.fit(3, ["what is this?"])
