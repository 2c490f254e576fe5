"""Biological sequences: records of FASTA, FASTQ and GenBank files as documents, or as rows.

A header is a name and never learned. The letters are those of one alphabet, guessed by what is
there or said; the vocabulary of characters, and of k-mers, is the alphabet's, whatever the training
records have of it. Whole records are held out, so that no record is on both sides.
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from everyformer.core.errors import ConfigError, DataError
from everyformer.core.tasks import LM, MLM, TASKS, TEXT
from everyformer.data.alphabets import ALPHABETS, Alphabet
from everyformer.data.config import DataConfig
from everyformer.data.corpus import Documents
from everyformer.data.dataset import Dataset
from everyformer.data.kind import Request, TextFiles, holds_sequences, refuse
from everyformer.data.labelled import LabelledText, LabelledTexts
from everyformer.data.layout import find_layout
from everyformer.data.masking import masked
from everyformer.data.options import (
    LengthOptions,
    MaskOptions,
    PackingOptions,
    PartOptions,
    SequenceOptions,
    SharedOptions,
    TokenOptions,
)
from everyformer.data.sequence_files import FASTQ, Record, read_records
from everyformer.data.sources import CHUNK, Entry, Source
from everyformer.data.text import load_text
from everyformer.data.tokenizers.base import SEPARATOR

BASES = 0.9
"""share of A, C, G, T, U and N from which letters are taken to be bases; of proteins, it is 0.3"""


class Records:
    """The records of some files, looked through once and read anew at every pass.

    Args:
        said: the alphabet, or auto.

    Raises:
        DataError: a record has a letter of another alphabet, or none; a file is broken.
    """

    def __init__(self, source: Source, entries: Sequence[Entry], said: str) -> None:
        self.source, self.entries = source, entries
        lengths, counts = array("q"), np.zeros(256, dtype=np.int64)
        for entry in entries:
            for record in read_records(source, entry):
                lengths.append(len(record.letters))
                for start in range(0, len(record.letters), CHUNK):
                    part = np.frombuffer(record.letters[start : start + CHUNK], np.uint8)
                    counts += np.bincount(part, minlength=256)
        self.lengths = np.array(lengths, dtype=np.int64)
        """(records,) letters of each"""
        count = {letter: int(counts[ord(letter)]) for letter in map(chr, np.flatnonzero(counts))}
        self.alphabet = _guessed(count) if said == "auto" else ALPHABETS[said]
        if not count.keys() <= {*self.alphabet.letters}:
            raise self._foreign()
        self.found = _described(self.alphabet, count, guessed=said == "auto")
        """half a sentence on the letters"""
        if any(entry.suffix in FASTQ for entry in entries):
            self.found += ", their qualities left out"

    def of(self, entry: Entry) -> Iterator[Record]:
        """The records of one file."""
        return read_records(self.source, entry)

    def __iter__(self) -> Iterator[Record]:
        for entry in self.entries:
            yield from self.of(entry)

    def _foreign(self) -> DataError:
        """The refusal of the first letter that the alphabet lacks."""
        known = self.alphabet.letters.encode()
        entry, record, strange = next(
            (entry, record, strange)
            for entry in self.entries
            for record in self.of(entry)
            if (strange := record.letters.translate(None, known))
        )
        place = record.letters.index(strange[0]) + 1
        return DataError(
            f"{self.source.where(entry)}, line {record.line}: the record '{record.name}' has "
            f"{chr(strange[0])!r} as its letter {place:,}, which {self.alphabet.name} has not "
            f"({self.alphabet.letters}); mend or remove it, or say what the records are with "
            "--data.alphabet dna, rna or protein"
        )


def _guessed(count: dict[str, int]) -> Alphabet:
    bases = sum(count.get(letter, 0) for letter in "ACGTUN")
    if bases < BASES * sum(count.values()):
        return ALPHABETS["protein"]
    return ALPHABETS["rna" if count.get("U", 0) > count.get("T", 0) else "dna"]


def _described(alphabet: Alphabet, count: dict[str, int], guessed: bool) -> str:
    others = [f"{count[one]:,} {one}" for one in alphabet.others if one in count]
    among = f", {', '.join(others)} among them" if others else ""
    how = " by their letters" if guessed else ""
    return f"{alphabet.name}{how}, {sum(count.values()):,} {alphabet.unit}s{among}"


def draw_records(lengths: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """(records,) flags of those held out: a seeded draw of about ``fraction`` of the letters.

    Records are taken in a random order, each that brings the letters nearer to the fraction; where
    none does, the shortest is. One at least stays for training; ``fraction`` 1 takes all.
    """
    if fraction == 1:
        return np.ones(len(lengths), dtype=bool)
    drawn, wanted = np.zeros(len(lengths), dtype=bool), fraction * int(lengths.sum())
    for index in np.random.default_rng(seed).permutation(len(lengths))[1:]:
        if lengths[index] <= 2 * wanted:
            drawn[index] = True
            wanted -= int(lengths[index])
    if not drawn.any():
        drawn[lengths.argmin()] = True
    return drawn


class SequenceCorpus(Documents):
    """The records of a source as documents, and which of them are held out."""

    @staticmethod
    def cut(config: DataConfig) -> list[Any]:
        return [config.validation, config.part, config.seed, config.alphabet, config.strands]

    def __init__(self, source: Source, config: DataConfig, utf8: bool) -> None:
        layout = find_layout(source.entries, config.part)
        groups = (layout.train, layout.validation or ())
        self._records = Records(source, [*groups[0], *groups[1]], config.alphabet)
        lengths, alphabet = self._records.lengths, self._records.alphabet
        self.note, self.unit, self._at = layout.note, alphabet.unit, 0
        if config.strands == "both" and not alphabet.complements:
            raise ConfigError(
                f"a protein has no second strand: leave out --data.strands both (the records of "
                f"'{source.spec}' are {self._records.found})"
            )
        self._strands = 1 + (config.strands == "both")
        if layout.validation is not None:
            first = sum(1 for entry in groups[0] for _ in self._records.of(entry))
            self._drawn = np.arange(len(lengths)) >= first
        elif len(lengths) == 1 and config.validation < 1:
            self._drawn, self._at = np.zeros(1, bool), int(lengths[0] * (1 - config.validation))
            self.note = f"the last {config.validation:.0%} of the only record are held out"
        else:
            self._drawn = draw_records(lengths, config.validation, config.seed)
            share = lengths[self._drawn].sum() / lengths.sum()
            self.note = (
                f"whole records, {share:.0%} of the letters (seed {config.seed}), are held out"
            )
            if config.validation == 1:
                self.note = "everything is held out"
        held_out = int(self._drawn.sum()) + (self._at > 0)
        training = (len(lengths) - int(self._drawn.sum())) * self._strands
        self.documents = [training, held_out]
        self._joined = max(self.documents) > 1
        self.ends = held_out * self._joined
        self.size = int(lengths.sum())

    @property
    def notes(self) -> str:
        both = "; training records on both strands" if self._strands > 1 else ""
        return f"; {self._records.found}{both}"

    def parts(self) -> Iterator[tuple[bool, bytes]]:
        waiting = bytearray(), bytearray()
        for held_out, letters in self._documents():
            waiting[held_out].extend(letters + SEPARATOR.encode() * self._joined)
            for part, text in enumerate(waiting):
                if len(text) >= CHUNK:
                    yield from _sliced(bool(part), text)
                    text.clear()
        for part, text in enumerate(waiting):
            yield from _sliced(bool(part), text)

    def training_text(self) -> Iterator[str]:
        """The alphabet, so that the vocabulary has all of it, and the training records."""
        yield self._records.alphabet.letters + SEPARATOR * self._joined
        for held_out, chunk in self.parts():
            if not held_out:
                yield chunk.decode()

    def _documents(self) -> Iterator[tuple[bool, bytes]]:
        for held_out, record in zip(self._drawn, self._records, strict=True):
            letters = record.letters
            if self._at:
                letters = record.letters[: self._at]
                yield True, record.letters[self._at :]
            yield bool(held_out), letters
            if self._strands > 1 and not held_out:
                yield False, self._records.alphabet.reverse_complement(letters)


def _sliced(held_out: bool, text: bytearray) -> Iterator[tuple[bool, bytes]]:
    for start in range(0, len(text), CHUNK):
        yield held_out, bytes(text[start : start + CHUNK])


class LabelledRecords(LabelledTexts):
    """The records of the files in each class's folder, a row each."""

    def __init__(self, source: Source, config: DataConfig, utf8: bool) -> None:
        super().__init__(source, config, utf8)
        self._records = Records(source, self.layout.entries, config.alphabet)
        self.known = (self._records.alphabet.letters,)

    @property
    def notes(self) -> Sequence[str]:
        return (self._records.found,)

    def rows(self, entry: Entry) -> Iterator[tuple[str, str, str]]:
        for record in self._records.of(entry):
            yield record.letters.decode(), entry.parts[0], ""


READS = (SharedOptions, PartOptions, TokenOptions, LengthOptions, SequenceOptions)


class LabelledSequences(LabelledText):
    """Biological sequences in a folder for each class."""

    reads = READS
    tokenizer = "chars"
    texts = LabelledRecords

    @classmethod
    def recognises(cls, request: Request) -> bool:
        return holds_sequences(request.source) and super().recognises(request)

    def check(self) -> None:
        super().check()
        if TASKS[self.task].measures:
            refuse_task(self)
        refuse(self.config, ("strands",), self.called, ": it is for lm and mlm")


class Sequences(TextFiles):
    """Biological sequences that are learned as they are, or with letters hidden."""

    name = "biological sequences"
    reads = (*READS, PackingOptions, MaskOptions)
    tokenizer = "chars"

    @classmethod
    def recognises(cls, request: Request) -> bool:
        return holds_sequences(request.source)

    def check(self) -> None:
        if self.task not in (LM, MLM):
            refuse_task(self)
        super().check()

    def load(self) -> Dataset:
        source, reader = self.request.source, self.request.tokenizer
        text = load_text(source, self.config, reader, SequenceCorpus)
        return masked(text, self.config) if self.task == MLM else text


def refuse_task(kind: TextFiles) -> None:
    """Refuse a task that sequences do not serve."""
    raise DataError(
        f"'{kind.config.source}' holds biological sequences, which serve the tasks {LM}, {MLM} "
        f"and {TEXT} (a folder for each class), not {kind.task}: take one of these, or a table "
        "with a column of sequences"
    )
