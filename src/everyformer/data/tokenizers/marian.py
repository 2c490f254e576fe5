"""Marian's tokenizer: pieces of two `sentencepiece` models, numbered by one table.

Sources are cut by the one model, targets by the other; both are numbered by ``vocab.json``, whose
order is that of neither, and what it lacks is ``<unk>``. The name of a language that begins a
text, as ``>>fra<<``, and marks that are written out are one token each. Computed by the package
`sentencepiece`.

Source: `transformers.MarianTokenizer`, which gives the same tokens and text.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from everyformer.core.errors import DataError
from everyformer.data.tokenizers.base import SEPARATOR, Tokenizer, check_size
from sequence_laws.extras import extra_module

SIDES = ("source", "target")
LANGUAGE = re.compile(r">>.*?<<", re.DOTALL)
SPACE = "\u2581"
"""how pieces write a space"""


class MarianTokenizer(Tokenizer):
    """Marian's tokenizer: two models of `sentencepiece` and the numbers of their pieces.

    Args:
        models: of ``source`` and ``target``, as their files are.
        pieces: the number of each piece, as ``vocab.json`` has them.
        size: tokens that the model has; those without a piece have no text.
        end: the piece that ends a text. unknown: the one for what has no number.
        marks: tokens that a text may hold written out, with their numbers.

    Raises:
        DataError: the parts cannot be read, or do not belong together; says which.
        MissingExtraError: the package sentencepiece is not installed.
    """

    kind = "marian"
    name = "hub"

    def __init__(
        self,
        models: Mapping[str, bytes],
        pieces: Mapping[str, int],
        size: int,
        end: str,
        unknown: str,
        marks: Mapping[str, int],
    ) -> None:
        self.models, self.pieces, self.vocabulary = dict(models), dict(pieces), size
        self.end, self.unknown = end, unknown
        _check_numbers("vocab.json", self.pieces)
        for piece, use in ((end, "ends a text"), (unknown, "stands for what it does not know")):
            if piece not in self.pieces:
                raise DataError(f"vocab.json lacks '{piece}', which {use}")
        self.separator: int = self.pieces[end]
        _check_numbers("the list of added tokens", marks)
        both = {mark: self.pieces[mark] for mark in (end, unknown)}
        self.marks = {**both, **marks}
        numbers = {**self.pieces, **self.marks}
        self.known = 1 + max(numbers.values())
        check_size(self.known, size)
        self._texts = {number: text for text, number in numbers.items()}
        # longest first, so that a mark which begins another does not hide it
        longest = sorted(self.marks, key=len, reverse=True)
        self._marks = re.compile(f"({'|'.join(map(re.escape, longest))})")
        self._source, self._target = (_loaded(side, models[side]) for side in SIDES)
        self.lacking = {side: self._lacking(side) for side in SIDES}

    def encode_array(self, text: str) -> np.ndarray:
        """The tokens of sources, with the end between them."""
        tokens: list[int] = []
        for number, document in enumerate(text.split(SEPARATOR)):
            if number:
                tokens.append(self.separator)
            tokens += self._encoded(document, self._source)
        return np.array(tokens, dtype=self.dtype)

    def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[np.ndarray]:
        return [
            np.array(self._encoded(text, model), dtype=self.dtype)
            for pair in pairs
            for text, model in zip(pair, (self._source, self._target), strict=True)
        ]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of a target's tokens; marks are written out."""
        out, waiting = "", list[str]()
        for number in ids:
            text = self._texts.get(int(number))
            if text is None:
                continue
            if text in self.marks:
                out += f"{self._target.decode_pieces(waiting)}{text} "
                waiting = []
            else:
                waiting.append(text)
        out += self._target.decode_pieces(waiting)
        return out.replace(SPACE, " ").strip()

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "size": self.vocabulary,
            "end": self.end,
            "unknown": self.unknown,
            "marks": self.marks,
            "pieces": self.pieces,
            **{side: base64.b64encode(self.models[side]).decode() for side in SIDES},
        }

    def _encoded(self, text: str, model: Any) -> list[int]:
        unknown, tokens = self.pieces[self.unknown], list[int]()
        for part in filter(None, self._marks.split(text)):
            if part in self.marks:
                tokens.append(self.marks[part])
                continue
            language = LANGUAGE.match(part)
            named = [language[0]] if language else []
            cut = model.encode(part[len(named[0]) :] if named else part, out_type=str)
            tokens += [self.pieces.get(piece, unknown) for piece in (*named, *cut)]
        return tokens

    def _lacking(self, side: str) -> int:
        """Number of pieces of a model without an id."""
        model = getattr(self, f"_{side}")
        count = model.get_piece_size()
        ordinary = [n for n in range(count) if not model.is_control(n) and not model.is_unknown(n)]
        lacking = sum(model.id_to_piece(n) not in self.pieces for n in ordinary)
        if 2 * lacking > len(ordinary):
            raise DataError(
                f"vocab.json lacks {lacking:,} of the {len(ordinary):,} pieces of {side}.spm: they "
                "do not belong together"
            )
        return lacking


def restored(saved: Mapping[str, Any]) -> MarianTokenizer:
    """The tokenizer that `MarianTokenizer.to_dict` described."""
    models = {}
    for side in SIDES:
        try:
            models[side] = base64.b64decode(saved[side], validate=True)
        except (binascii.Error, ValueError) as error:
            raise DataError(f"{side}.spm is not written in base 64: {error}") from error
    rest = {name: saved[name] for name in ("pieces", "size", "end", "unknown", "marks")}
    return MarianTokenizer(models, **rest)


def _loaded(side: str, model: bytes) -> Any:
    package = extra_module("sentencepiece", "hf", "a Marian checkpoint's tokenizer")
    processor = package.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)
    except RuntimeError as error:
        raise DataError(
            f"{side}.spm is no model of sentencepiece, or was cut short or damaged"
        ) from error
    return processor


def _check_numbers(where: str, texts: Mapping[str, int]) -> None:
    """Refuse a table in which a text is empty, or has no number, or the number of another."""
    seen: dict[int, str] = {}
    for text, number in texts.items():
        if type(number) is not int or number < 0 or not text:
            raise DataError(f"{where} gives '{text}' no number, but {number!r}")
        if number in seen:
            raise DataError(f"{where} gives '{seen[number]}' and '{text}' one number, {number}")
        seen[number] = text
