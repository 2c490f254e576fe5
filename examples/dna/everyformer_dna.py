"""Records of FASTA, FASTQ and GenBank files as texts: a kind of data of another package.

Biopython reads them. Each record is a document of its letters, in upper case since many genomes
write repeats in lower case; names, qualities and features are left out. Whole records are held out,
of a single one its end. A token is a letter, so that a bit per byte is a bit per base.
"""

import io
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePath
from typing import Any, TextIO

import numpy as np
from Bio import SeqIO

from everyformer.core.errors import DataError
from everyformer.core.tasks import LM, MLM
from everyformer.data.config import DataConfig
from everyformer.data.corpus import Documents
from everyformer.data.dataset import Dataset
from everyformer.data.kind import Kind, Request, first_served
from everyformer.data.masking import masked
from everyformer.data.sources import CHUNK, Source, reading
from everyformer.data.text import load_text
from everyformer.data.tokenizers.base import SEPARATOR

FORMATS = {
    **dict.fromkeys((".fa", ".fasta", ".fna", ".ffn", ".faa", ".frn"), "fasta-pearson"),
    **dict.fromkeys((".fastq", ".fq"), "fastq"),
    **dict.fromkeys((".gb", ".gbk", ".genbank"), "genbank"),
}
"""ending of a file -> what Biopython calls its format; that of Pearson may have comments"""


def read_records(source: Source) -> Iterator[tuple[str, bytes]]:
    """The name and the letters of every record, file after file.

    Raises:
        DataError: a file is of another format than its ending names, cut short or without records,
            or a record has no letters.
    """
    for entry in source.entries:
        where, kind, name = source.where(entry), FORMATS.get(entry.suffix), None
        if kind is None:
            raise DataError(f"{where} is beside records and none itself: give those by a glob")
        with reading(where), io.TextIOWrapper(source.stream(entry), "utf-8-sig") as stream:
            try:
                for name, letters in _parsed(stream, kind):
                    if not letters:
                        raise ValueError(f"the record '{name}' has no letters")
                    yield name, letters
            except (TypeError, ValueError, Warning) as error:  # TypeError: letters are left out
                why = str(error).partition("\n")[0]
                raise DataError(f"{where} is no whole {kind}: {why}; fetch it again") from error
        if name is None:
            raise DataError(f"{where} holds no record of {kind}, which its name ends in")


def _parsed(stream: TextIO, kind: str) -> Iterator[tuple[str, bytes]]:
    records = SeqIO.parse(stream, kind)
    while True:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "Premature end of file")
            if (record := next(records, None)) is None:
                return
        yield record.id, bytes(record.seq).upper()


def draw_records(lengths: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """(records,) flags of those held out: a seeded draw of about ``fraction`` of the letters."""
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


class RecordDocuments(Documents):
    """Records as documents, and which of them are held out."""

    def __init__(self, source: Source, config: DataConfig, utf8: bool) -> None:
        self._source, self._at = source, 0
        lengths = np.array([len(letters) for _, letters in read_records(source)], dtype=np.int64)
        if len(lengths) == 1 and config.validation < 1:
            self._drawn, self._at = np.zeros(1, bool), int(lengths[0] * (1 - config.validation))
            self.note = f"the last {config.validation:.0%} of the only record are held out"
        else:
            self._drawn = draw_records(lengths, config.validation, config.seed)
            self.note = "whole records are held out, drawn by the seed"
        held_out = int(self._drawn.sum())
        self.documents = [len(lengths) - held_out, held_out + (self._at > 0)]
        self.size = int(lengths.sum())

    @staticmethod
    def cut(config: DataConfig) -> list[Any]:
        return ["records", config.validation, config.seed]

    def parts(self) -> Iterator[tuple[bool, bytes]]:
        end = SEPARATOR.encode() * (max(self.documents) > 1)
        for held_out, (_, letters) in zip(self._drawn, read_records(self._source), strict=True):
            parts = [(bool(held_out), letters)]
            if self._at:
                parts = [(False, letters[: self._at]), (True, letters[self._at :])]
            for part, text in parts:
                text += end
                for start in range(0, len(text), CHUNK):
                    yield part, text[start : start + CHUNK]


class Records(Kind):
    """Files of records, a name or a glob by its ending."""

    name = "records of sequences"
    reads = ("tokenizer", "length", "packing", "mask_rate")

    @classmethod
    def recognises(cls, request: Request) -> bool:
        return PurePath(request.config.source.removesuffix(".gz")).suffix.lower() in FORMATS

    @property
    def task(self) -> str:
        task = self.request.task_of("text")
        said = None if task is None else task.name
        if said not in (None, LM, MLM):
            raise DataError(f"'{self.config.source}' serves the tasks {LM} and {MLM}, not {said}")
        return said or first_served((LM, MLM), self.request.able)

    def load(self) -> Dataset:
        auto = self.config.tokenizer == "auto"
        config = replace(self.config, tokenizer="chars") if auto else self.config
        text = load_text(self.request.source, config, self.request.tokenizer, RecordDocuments)
        return masked(text, config) if self.task == MLM else text
