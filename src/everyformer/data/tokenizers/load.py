"""Tokenizers by name, learned from text, or read from where they were saved."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from everyformer.core.errors import ConfigError, DataError
from everyformer.data.tokenizers.base import Tokenizer
from everyformer.data.tokenizers.marian import restored
from everyformer.data.tokenizers.names import tokenizer_parts
from everyformer.data.tokenizers.package import BPETokenizer, HubTokenizer
from everyformer.data.tokenizers.plain import ByteTokenizer, CharTokenizer
from everyformer.system.files import expanded, require_regular
from everyformer.system.plain import from_json, to_json


def fit_tokenizer(spec: str, texts: Iterable[str]) -> Tokenizer:
    """The tokenizer that ``spec`` names, learned from ``texts`` where it learns at all."""
    kind, size = tokenizer_parts(spec)
    if kind == "hub":
        raise ConfigError(
            "the tokenizer 'hub' is the one that a converted checkpoint came with and cannot be "
            "learned: start from that model (`from_run`), or take bytes, chars or bpe:SIZE"
        )
    if kind == "bytes":
        return ByteTokenizer()
    return CharTokenizer.fit(texts) if kind == "chars" else BPETokenizer.fit(texts, size)


def load_tokenizer(saved: str | Path | dict[str, Any]) -> Tokenizer:
    """A tokenizer from `Tokenizer.to_dict`'s values, or from the folder it was saved in."""
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


def _restored(saved: Any) -> Tokenizer:
    match saved:
        case {"kind": "bytes"}:
            return ByteTokenizer()
        case {"kind": "chars", "characters": str(characters)}:
            return CharTokenizer(characters)
        case {"kind": "bpe", "size": int(size), "model": dict(model)}:
            return BPETokenizer(size, to_json(model))
        case {
            "kind": "hub",
            "size": int(size),
            "end": int() | None as end,
            "mask": int() | None as mask,
            "names": dict(names),
            "model": dict(model),
        }:
            return HubTokenizer(to_json(model), size, end, mask, names)
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
            return restored(saved)
    raise DataError("it has not the fields of a tokenizer; restore the run's tokenizer.json")


def require_same(run: Tokenizer | None, data: Tokenizer | None) -> None:
    """Raise unless both give every text the same tokens."""
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
