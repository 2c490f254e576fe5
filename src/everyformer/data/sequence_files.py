"""Records of FASTA, FASTQ and GenBank files: a name and letters each, read line by line.

    FASTA     a line >name ..., then letters in any number of lines; lines that begin with ; and
              blank ones are passed over
    FASTQ     a line @name ..., letters, a line that begins with +, and a quality for each letter,
              which are left out
    GenBank   LOCUS name ..., anything, ORIGIN, lines of a number and letters, //

Letters come in upper case: many genomes write repeats in lower case, which are bases like others.
"""

import codecs
import string
from collections.abc import Callable, Iterator
from typing import NamedTuple

from everyformer.core.errors import DataError
from everyformer.data.sources import Entry, Source, reading

FASTA = {".fa", ".fasta", ".fna", ".ffn", ".faa", ".frn"}
FASTQ = {".fastq", ".fq"}
GENBANK = {".gb", ".gbk", ".genbank"}
SEQUENCES = FASTA | FASTQ | GENBANK
"""endings of files of biological sequences"""
BLANKS = b" \t"
Lines = Iterator[tuple[int, bytes]]
"""numbers from 1, and lines without their ends"""


class Record(NamedTuple):
    """One sequence."""

    name: str
    """the first word of its header"""
    letters: bytes
    line: int
    """of its header, from 1"""


def read_records(source: Source, entry: Entry) -> Iterator[Record]:
    """The records of one file, in their order.

    Raises:
        DataError: it is not of the format that its ending names, or cut short; a record has no
            letters.
    """
    where, record = source.where(entry), None
    parse: Callable[[Lines, str], Iterator[Record]] = _fasta
    if entry.suffix not in FASTA:
        parse = _fastq if entry.suffix in FASTQ else _genbank
    with reading(where), source.stream(entry) as stream:
        lines = ((number, line.rstrip()) for number, line in enumerate(_unmarked(stream), 1))
        for record in parse(lines, where):
            if not record.letters:
                raise DataError(
                    f"{where}, line {record.line}: the record '{record.name}' has no letters; "
                    "remove it, or fetch it whole"
                )
            yield record
    if record is None:
        raise DataError(f"{where} holds no record of the format that its name ends in")


def _unmarked(stream: Iterator[bytes]) -> Iterator[bytes]:
    """Lines without a byte-order mark."""
    yield next(stream, b"").removeprefix(codecs.BOM_UTF8)
    yield from stream


def _fasta(lines: Lines, where: str) -> Iterator[Record]:
    name, at, letters = "", 0, bytearray()
    for number, line in lines:
        if line.startswith(b">"):
            if at:
                yield _record(name, letters, at)
            name, at, letters = _first_word(line[1:]), number, bytearray()
        elif line and not line.startswith(b";"):
            if not at:
                raise DataError(
                    f"{where}, line {number} is no header: a record of FASTA begins with a line "
                    "'>name', its letters follow; give each a header, or end the file's name in "
                    "what it is"
                )
            letters += line
    if at:
        yield _record(name, letters, at)


def _fastq(lines: Lines, where: str) -> Iterator[Record]:
    for at, header in lines:
        if not header:
            continue
        if not header.startswith(b"@"):
            raise DataError(
                f"{where}, line {at} is no header: a record of FASTQ is a line '@name', letters, a "
                "line '+', and as many qualities as letters; mend the record before it, or end the "
                "file's name in what it is"
            )
        name, letters, qualities = _first_word(header[1:]), bytearray(), 0
        for _, line in lines:
            if line.startswith(b"+"):
                break
            letters += line
        else:
            raise _cut(where, name, at)
        while qualities < len(letters):
            if (following := next(lines, None)) is None:
                raise _cut(where, name, at)
            qualities += len(following[1])
        if qualities > len(letters):
            raise DataError(
                f"{where}, line {at}: the record '{name}' has {len(letters):,} letters, but "
                f"{qualities:,} qualities; mend or remove it"
            )
        yield _record(name, letters, at)


def _genbank(lines: Lines, where: str) -> Iterator[Record]:
    name, at, letters, inside = "", 0, bytearray(), False
    for number, line in lines:
        if line.startswith(b"//"):
            yield _record(name, letters, at or number)
            name, at, letters, inside = "", 0, bytearray(), False
        elif inside:
            letters += line.translate(None, string.digits.encode())
        elif line.startswith((b"LOCUS", b"ACCESSION")):
            name, at = name or _first_word(line.partition(b" ")[2]), at or number
        elif line.startswith(b"ORIGIN"):
            inside = True
    if at or inside:
        raise _cut(where, name, at)


def _record(name: str, letters: bytearray, at: int) -> Record:
    return Record(name or f"of line {at}", bytes(letters.translate(None, BLANKS).upper()), at)


def _first_word(line: bytes) -> str:
    return (line.split(maxsplit=1) or [b""])[0].decode("utf-8", "replace")


def _cut(where: str, name: str, at: int) -> DataError:
    return DataError(
        f"{where} ends within the record '{name}' (line {at}): it is cut short; fetch it again"
    )
