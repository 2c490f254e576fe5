"""Text to tokens and back: bytes, characters, byte-level BPE, or what a checkpoint came with.

U+0000 marks the end of a document in all of them (text with NUL bytes is refused as binary, so it
cannot be confused with content). Every tokenizer is saved as one `tokenizer.json`. BPE and those of
checkpoints are computed by the package `tokenizers`, Marian's (`everyformer.data.marian`) by
`sentencepiece`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from everyformer.core.errors import ConfigError, DataError, MissingExtraError
from everyformer.core.files import expanded, require_regular, write_text
from everyformer.core.plain import from_json
from everyformer.data.config import tokenizer_parts

SEPARATOR = "\0"
TRAINING_TEXT = 64 << 20
"""Characters of text that a BPE vocabulary is learned from, at most."""
PIECE = 1 << 16
"""Characters encoded at a time; cut after a line's end, so that the cut changes no token inside."""
CONTEXT = 16
"""Tokens before a piece of text that may change how its first characters are written."""


class Tokenizer(ABC):
    """Encodes and decodes text; equal when every text gives the same tokens."""

    kind: str
    mask: int | None = None
    """The token that stands for a hidden one, where the vocabulary has its own."""
    opening: tuple[int, ...] = ()
    """Tokens that a text which stands by itself begins with, and every prompt."""
    closing: tuple[int, ...] = ()
    """Tokens that a text which stands by itself ends with."""

    @property
    @abstractmethod
    def name(self) -> str:
        """As the option is written: ``bytes``, ``chars``, ``bpe:8000``, ``hub``."""

    @property
    @abstractmethod
    def vocabulary(self) -> int:
        """Number of different tokens; ids are 0 up to this."""

    @property
    @abstractmethod
    def separator(self) -> int | None:
        """The token that ends a document, or None where the training text had just one."""

    @abstractmethod
    def encode_array(self, text: str) -> np.ndarray:
        """The tokens of ``text`` in the smallest unsigned dtype that holds the vocabulary."""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """The text of ``ids``; what is no valid UTF-8 becomes the replacement character."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Everything needed to make it again, as plain values."""

    def encode(self, text: str) -> list[int]:
        """The tokens of ``text``."""
        return self.encode_array(text).tolist()

    def encode_alone(self, text: str) -> np.ndarray:
        """The tokens of a ``text`` that stands by itself, such as one to classify."""
        found = self.encode_array(text)
        if not self.opening and not self.closing:
            return found
        return np.concatenate((self.opening, found, self.closing)).astype(self.dtype)

    def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[np.ndarray]:
        """The tokens of each source and of each target, in turn, without their ends."""
        return [self.encode_array(text) for pair in pairs for text in pair]

    def decode_after(self, before: Iterable[int], ids: Iterable[int]) -> str:
        """What the tokens ``ids`` add to the text of those ``before`` them."""
        return self.decode(ids)

    @property
    def dtype(self) -> type[np.unsignedinteger]:
        """The smallest unsigned dtype that holds every token."""
        if self.vocabulary <= 1 << 8:
            return np.uint8
        return np.uint16 if self.vocabulary <= 1 << 16 else np.uint32

    def save(self, folder: str | Path) -> None:
        """Write ``tokenizer.json`` into ``folder``, which exists."""
        text = json.dumps(self.to_dict(), ensure_ascii=False)
        write_text(expanded(folder) / "tokenizer.json", text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.kind, self.vocabulary))

    def __repr__(self) -> str:
        return f"{self.name} ({self.vocabulary} tokens)"


class ByteTokenizer(Tokenizer):
    """UTF-8 bytes: 256 tokens, nothing to learn, nothing unknown."""

    kind = "bytes"
    name = "bytes"
    vocabulary = 256
    separator = 0

    def encode_array(self, text: str) -> np.ndarray:
        return np.frombuffer(text.encode("utf-8", "surrogateescape"), np.uint8)

    def decode(self, ids: Iterable[int]) -> str:
        return bytes(int(i) for i in ids).decode("utf-8", "replace")

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind}


class CharTokenizer(Tokenizer):
    """The characters of the training text in code order from 1; 0 stands for all others."""

    kind = "chars"
    name = "chars"
    unknown = 0

    def __init__(self, characters: str) -> None:
        self.characters = characters
        points = np.array([ord(c) for c in characters], dtype=np.int64)
        self._ids = np.zeros(0x110000, dtype=self.dtype)
        self._ids[points] = np.arange(1, len(points) + 1)
        self._texts = ["\ufffd", *characters]

    @classmethod
    def fit(cls, texts: Iterable[str]) -> CharTokenizer:
        """The vocabulary of all characters that occur in ``texts``."""
        seen: set[str] = set()
        for text in texts:
            seen.update(text)
        return cls("".join(sorted(seen)))

    @property
    def vocabulary(self) -> int:
        return len(self.characters) + 1

    @property
    def separator(self) -> int | None:
        return int(self._ids[0]) or None

    def encode_array(self, text: str) -> np.ndarray:
        return self._ids[np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)]

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(self._texts[int(i)] for i in ids)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "characters": self.characters}


class BPETokenizer(Tokenizer):
    """Byte-level BPE: pieces learned from the training text; every text can be encoded."""

    kind = "bpe"

    def __init__(self, size: int, model: str) -> None:
        self.size, self.model = size, model
        self._inner = _understood(model)
        self._end = np.array(self._inner.encode(SEPARATOR).ids, dtype=self.dtype)

    @classmethod
    def fit(cls, texts: Iterable[str], size: int) -> BPETokenizer:
        """Learn up to ``size`` tokens from the first 64 million characters of ``texts``.

        Text too small for so many repeated pairs gives a smaller vocabulary.
        """
        package = tokenizers_package()
        inner = package.Tokenizer(package.models.BPE())
        inner.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = package.decoders.ByteLevel()
        trainer = package.trainers.BpeTrainer(
            vocab_size=size,
            min_frequency=2,
            show_progress=False,
            initial_alphabet=package.pre_tokenizers.ByteLevel.alphabet(),
        )
        inner.train_from_iterator(_training_pieces(texts), trainer)
        return cls(size, inner.to_str())

    @property
    def name(self) -> str:
        return f"bpe:{self.size}"

    @property
    def vocabulary(self) -> int:
        return self._inner.get_vocab_size()

    @property
    def separator(self) -> int | None:
        return int(self._end[0])

    def encode_array(self, text: str) -> np.ndarray:
        return _encode_documents(self._inner, text, self._end)

    def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[np.ndarray]:
        return _encode_each(self._inner, [text for pair in pairs for text in pair], self.dtype)

    def decode(self, ids: Iterable[int]) -> str:
        return self._inner.decode([int(i) for i in ids], skip_special_tokens=False)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "size": self.size, "model": json.loads(self.model)}


class HubTokenizer(Tokenizer):
    """What a checkpoint of others was trained with, a file of the package `tokenizers` kept whole.

    Running text gets none of the marks that the file puts around a text ([CLS], <s> ...), a text by
    itself all of them, a prompt those in front. A mark that is written out in a text is read as the
    mark. Where long text is cut, a file that marks the beginning of a text does so anew.

    Args:
        model: the file's JSON.
        size: tokens that the model has; those beyond the file's own stand for no text.
        end: ends a document; None: documents follow each other unmarked.
        mask: stands for a hidden token, where there is one for that.

    Raises:
        DataError: the package cannot read it, or it has more tokens than the model.
        MissingExtraError: the package tokenizers is not installed.
    """

    kind = "hub"
    name = "hub"

    def __init__(self, model: str, size: int, end: int | None, mask: int | None) -> None:
        self.model, self.size, self.end, self.mask = model, size, end, mask
        self._inner = _understood(model)
        if self.known > size:
            raise DataError(
                f"it has {self.known:,} tokens, the model only {size:,}: they do not belong "
                "together"
            )
        for mark in (end, mask):
            if mark is not None and not 0 <= mark < size:
                raise DataError(f"its mark {mark} is none of the model's {size:,} tokens")
        # a file may keep how its makers cut and filled their batches
        self._inner.no_truncation()
        self._inner.no_padding()
        self._end = np.array([] if end is None else [end], dtype=self.dtype)
        marked = self._inner.encode("a")
        inside = [place for place, mark in enumerate(marked.special_tokens_mask) if not mark]
        first, last = (inside[0], inside[-1]) if inside else (len(marked.ids),) * 2
        self.opening, self.closing = tuple(marked.ids[:first]), tuple(marked.ids[last + 1 :])

    @property
    def known(self) -> int:
        """Tokens that the file itself has, counted up to the highest."""
        return 1 + max(self._inner.get_vocab(with_added_tokens=True).values(), default=-1)

    def token(self, number: int) -> str | None:
        """How the file writes a token, special ones too; None beyond its own."""
        text: str | None = self._inner.id_to_token(number)
        return text

    @property
    def vocabulary(self) -> int:
        return self.size

    @property
    def separator(self) -> int | None:
        return self.end

    def encode_array(self, text: str) -> np.ndarray:
        return _encode_documents(self._inner, text, self._end)

    def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[np.ndarray]:
        return _encode_each(self._inner, [text for pair in pairs for text in pair], self.dtype)

    def decode(self, ids: Iterable[int]) -> str:
        return self._inner.decode([int(i) for i in ids], skip_special_tokens=False)

    def decode_after(self, before: Iterable[int], ids: Iterable[int]) -> str:
        """As `decode`, but with the space that some files leave out where a text begins."""
        context = list(before)[-CONTEXT:]
        return self.decode([*context, *ids])[len(self.decode(context)) :]

    def to_dict(self) -> dict[str, Any]:
        model = json.loads(self.model)
        marks = {"end": self.end, "mask": self.mask}
        return {"kind": self.kind, "size": self.size, **marks, "model": model}


def fit_tokenizer(spec: str, texts: Iterable[str]) -> Tokenizer:
    """The tokenizer that ``spec`` names, learned from ``texts`` where it learns at all."""
    kind, size = tokenizer_parts(spec)
    if kind == "hub":
        raise ConfigError(
            "the tokenizer 'hub' is the one that a converted checkpoint came with and cannot be "
            "learned: start from that model (--from), or take bytes, chars or bpe:SIZE"
        )
    if kind == "bytes":
        return ByteTokenizer()
    return CharTokenizer.fit(texts) if kind == "chars" else BPETokenizer.fit(texts, size)


def load_tokenizer(saved: str | Path | dict[str, Any]) -> Tokenizer:
    """A tokenizer from `Tokenizer.to_dict`'s values, or from the folder it was saved in.

    Raises:
        DataError: no readable ``tokenizer.json``, or not the values of a tokenizer.
    """
    where = "the tokenizer"
    if not isinstance(saved, dict):
        path = expanded(saved) / "tokenizer.json"
        where = str(path)
        require_regular(path)
        try:
            saved = from_json(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"no tokenizer can be read from '{path}': {error}") from error
    try:
        return _restored(saved)
    except DataError as error:
        raise DataError(f"{where} cannot be read: {error}") from error


def _restored(held: Any) -> Tokenizer:
    match held:
        case {"kind": "bytes"}:
            return ByteTokenizer()
        case {"kind": "chars", "characters": str(characters)}:
            return CharTokenizer(characters)
        case {"kind": "bpe", "size": int(size), "model": dict(model)}:
            return BPETokenizer(size, json.dumps(model))
        case {
            "kind": "hub",
            "size": int(size),
            "end": int() | None as end,
            "mask": int() | None as mask,
            "model": dict(model),
        }:
            return HubTokenizer(json.dumps(model), size, end, mask)
        case {
            "kind": "marian",
            "size": int(),
            "end": str(),
            "unknown": str(),
            "marks": dict(),
            "pieces": dict(),
            "source": str(),
            "target": str(),
        }:
            from everyformer.data.marian import restored

            return restored(held)
    raise DataError("it has not the fields of a tokenizer; restore the run's tokenizer.json")


def require_same(run: Tokenizer | None, data: Tokenizer | None) -> None:
    """Raise unless both give every text the same tokens.

    Raises:
        DataError: they differ; the message names both and what sets them apart.
    """
    if run == data:
        return
    detail = ""
    if isinstance(run, CharTokenizer) and isinstance(data, CharTokenizer):
        fewer = sorted(set(run.characters) ^ set(data.characters))
        detail = f"; only one of them knows {', '.join(map(repr, fewer[:8]))}"
    elif run is not None and data is not None and run.name == data.name:
        detail = "; they were learned from different text"
    raise DataError(
        f"the run was trained with the tokenizer {run or 'none'}, the data has {data or 'none'}"
        f"{detail}. Read the data with the run's own tokenizer"
    )


def pieces(text: str) -> Iterator[str]:
    """``text`` cut after line ends into pieces of about `PIECE` characters."""
    start = 0
    while start < len(text):
        stop = start + PIECE
        if stop < len(text):
            stop = text.rfind("\n", start, stop) + 1 or stop
        yield text[start:stop]
        start = stop


def _training_pieces(texts: Iterable[str]) -> Iterator[str]:
    left = TRAINING_TEXT
    for text in texts:
        for document in text[:left].split(SEPARATOR):
            yield from pieces(document)
        left -= len(text)
        if left <= 0:
            return


def _encode_documents(inner: Any, text: str, end: np.ndarray) -> np.ndarray:
    """The tokens of documents, with ``end`` between them, by a tokenizer of the package."""
    found = [end[:0]]
    for number, own in enumerate(_encode_each(inner, text.split(SEPARATOR), end.dtype)):
        if number:
            found.append(end)
        found.append(own)
    return np.concatenate(found)


def _encode_each(inner: Any, texts: Sequence[str], dtype: Any) -> list[np.ndarray]:
    """The tokens of each text, by a tokenizer of the package."""
    parts = [list(pieces(text)) for text in texts]
    # in one call, which is several times as fast for short texts
    joined = [piece for own in parts for piece in own]
    encoded = iter(inner.encode_batch_fast(joined, add_special_tokens=False))
    return [
        np.concatenate([np.array([], dtype), *(np.array(next(encoded).ids, dtype) for _ in own)])
        for own in parts
    ]


def _understood(model: str) -> Any:
    """The tokenizer that a file of the package is.

    Raises:
        DataError: it is none, or reads no text.
    """
    package = tokenizers_package()
    try:
        inner = package.Tokenizer.from_str(model)
        inner.encode("a")
    # the package raises nothing more special
    except Exception as error:
        raise DataError(
            f"it is no tokenizer of the package tokenizers that reads text: {error}"
        ) from error
    return inner


def tokenizers_package() -> Any:
    """The package that computes BPE and the tokenizers of checkpoints.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import tokenizers
    except ImportError as error:
        raise MissingExtraError(
            "tokenizers", "text", "a bpe tokenizer or a checkpoint's"
        ) from error
    return tokenizers
