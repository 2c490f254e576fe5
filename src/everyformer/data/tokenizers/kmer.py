"""K-mers: sequences of bases or amino acids cut into pieces of k letters, side by side.

    ids 0 ... 255           the bytes of UTF-8; 0 ends a document
    ids 256 ... 255 + n^k   the k-mers of the n plain letters, in alphabetical order

Runs of plain letters are cut from their start; what is left of a run, shorter than k, and all that
is no plain letter (N, other ambiguous ones, line ends) are bytes. So no text is lost, and N does
not move the cuts of what follows it for longer than a run.

K-mers do not overlap: of overlapping ones the next shares k - 1 letters with the one before it, so
that a model which predicts it has one letter to find, and is told of a loss k times too small.
"""

from __future__ import annotations

import string
from collections.abc import Iterable
from typing import Any

import numpy as np

from everyformer.core.errors import ConfigError, DataError
from everyformer.data.alphabets import alphabet_of
from everyformer.data.tokenizers.base import SEPARATOR, Tokenizer
from everyformer.data.tokenizers.names import LARGEST_BPE

BYTES = 256


class KmerTokenizer(Tokenizer):
    """K-mers of ``plain`` letters side by side, and bytes for all else: nothing is unknown.

    Args:
        size: k, letters of a k-mer.
        plain: letters that k-mers are made of, ASCII.
    """

    kind = "kmer"
    separator = 0

    def __init__(self, size: int, plain: str) -> None:
        self.size, self.plain = size, plain
        alphabet = alphabet_of(plain)
        self.characters = f"{plain if alphabet is None else alphabet.letters}\n{SEPARATOR}"
        self.name = f"kmer:{size}"
        self.vocabulary = BYTES + len(plain) ** size
        self._codes = np.full(BYTES, -1, dtype=np.int64)
        self._codes[np.frombuffer(plain.encode(), np.uint8)] = np.arange(len(plain))
        self._powers = len(plain) ** np.arange(size)[::-1]

    @classmethod
    def fit(cls, size: int, texts: Iterable[str]) -> KmerTokenizer:
        """The k-mers of the alphabet that has the letters of ``texts``, white space aside.

        Raises:
            DataError: none has all of them. ConfigError: there are too many k-mers.
        """
        seen: set[str] = set()
        for text in texts:
            seen.update(text)
        seen -= {SEPARATOR, *string.whitespace}
        alphabet = alphabet_of(seen)
        if alphabet is None:
            known = alphabet_of({letter.upper() for letter in seen}) is not None
            mend = " in upper case (lower case is read so in FASTA, not in tables)" * known
            strange = ", ".join(map(repr, sorted(seen - set(string.ascii_uppercase))[:5]))
            raise DataError(
                f"k-mers are of bases or amino acids in upper case, and the training text has "
                f"{strange or 'letters of neither'}: give sequences{mend}, or take "
                "--data.tokenizer chars or bpe:SIZE"
            )
        if (count := len(alphabet.plain) ** size) > LARGEST_BPE:
            raise ConfigError(
                f"tokenizer 'kmer:{size}': {alphabet.name} has {count:,} k-mers, of "
                f"{LARGEST_BPE:,} at most; take a smaller one"
            )
        return cls(size, alphabet.plain)

    def encode_array(self, text: str) -> np.ndarray:
        raw = np.frombuffer(text.encode("utf-8", "surrogateescape"), np.uint8)
        codes, at = self._codes[raw], np.arange(len(raw))
        # of each plain letter, its place in its run and the run's length
        before = np.maximum.accumulate(np.where(codes < 0, at, -1))
        after = np.minimum.accumulate(np.where(codes < 0, at, len(raw))[::-1])[::-1]
        place, length = at - before - 1, after - before - 1
        inside = (codes >= 0) & (place < length // self.size * self.size)
        first = inside & (place % self.size == 0)
        tokens = raw.astype(self.dtype)
        letters = codes[np.flatnonzero(first)[:, None] + np.arange(self.size)]
        tokens[first] = BYTES + letters @ self._powers
        return tokens[first | ~inside]

    def decode(self, ids: Iterable[int]) -> str:
        return b"".join(map(self._bytes, map(int, ids))).decode("utf-8", "replace")

    def loose(self, text: str) -> int:
        return (len(text) - len(text.rstrip(self.plain))) % self.size

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "size": self.size, "plain": self.plain}

    def _bytes(self, token: int) -> bytes:
        if token < BYTES:
            return bytes((token,))
        places = (token - BYTES) // self._powers % len(self.plain)
        return "".join(self.plain[place] for place in places).encode()
