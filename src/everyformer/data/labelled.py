"""Texts with a class each: a folder for each class, or a table with the columns text and label."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from everyformer.core.errors import DataError
from everyformer.data.batch import Batch
from everyformer.data.cache import FORMAT, cache_root, cached, digest
from everyformer.data.config import DataConfig
from everyformer.data.corpus import checked, tokenizer_kind
from everyformer.data.dataset import ClassedDataset
from everyformer.data.layout import class_entries, class_names, find_layout
from everyformer.data.records import TABLES, has_labels, labelled_rows
from everyformer.data.selection import held_out_draw
from everyformer.data.sources import Entry, Source
from everyformer.data.tokenizers.base import Tokenizer
from everyformer.data.tokenizers.load import fit_tokenizer, load_tokenizer

MOST_CLASSES = 0.5
"""Different labels for each row of a table, above which the label column is taken for a mistake."""
ENOUGH_ROWS = 20
"""Rows from which on that is judged."""
ARRAYS = ("bounds", "labels", "train_rows", "validation_rows")
"""Fields of the data that are saved as files of numpy."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelledTextDataset(ClassedDataset):
    """Texts cut to ``length`` tokens, padded on the right with zeros that ``keep`` marks."""

    tokens: np.ndarray
    """All texts' tokens in one row, memory-mapped."""
    bounds: np.ndarray
    """(texts + 1,) where each text begins in it."""

    @property
    def closing(self) -> tuple[int, ...]:
        """Tokens that a text ends with, even where it is cut."""
        return () if self.tokenizer is None else self.tokenizer.closing

    def rows(self, chosen: np.ndarray) -> Batch:
        inputs = np.zeros((len(chosen), self.length), dtype=np.int64)
        keep = np.zeros((len(chosen), self.length), dtype=bool)
        for index, row in enumerate(chosen):
            start, stop = self.bounds[row], self.bounds[row + 1]
            count = min(stop - start, self.length)
            inputs[index, :count] = self.tokens[start : start + count]
            if self.closing and count < stop - start:
                inputs[index, max(count - len(self.closing), 0) : count] = self.closing[-count:]
            keep[index, :count] = True
        labels = torch.from_numpy(self.labels[chosen])
        return Batch(torch.from_numpy(inputs), labels, torch.from_numpy(keep))


def holds_labels(source: Source) -> bool:
    """Whether a source is naturally labelled text.

    That is: nothing but tables with labels; or .txt files in two or more folders, two or more in
    each and no deeper ones.
    """
    if all(entry.suffix in TABLES for entry in source.entries):
        return all(has_labels(source, entry) for entry in source.entries)
    layout = find_layout(source.entries)
    entries = (*layout.train, *(layout.validation or ()))
    if any(len(e.parts) != 2 or e.suffix != ".txt" for e in entries):
        return False
    counts = Counter(entry.parts[0] for entry in layout.train)
    return len(counts) > 1 and min(counts.values()) > 1


def load_labelled(
    source: Source, config: DataConfig, tokenizer: Tokenizer | None = None
) -> LabelledTextDataset:
    """A source as texts to classify, encoded once into the cache.

    Raises:
        DataError: no classes or only one, a class without files, a broken table, binary files.
    """
    spec = config.tokenizer if tokenizer is None else tokenizer.to_dict()
    draw = config.validation, config.seed, config.part
    key = digest(FORMAT, "labelled", source.stamp(), *draw, spec)

    def build(folder: Path) -> dict[str, Any]:
        return _build(_LabelledTexts(source, config, tokenizer), folder, config, tokenizer)

    folder, facts = cached(cache_root(config.cache), f"labelled-{key}", build, source.stamp)
    fitted = load_tokenizer(folder)
    arrays = {name: np.load(folder / f"{name}.npy") for name in ARRAYS}
    lengths = np.diff(arrays["bounds"])
    length = int(min(config.length, lengths.max()))
    cut = int((lengths > length).sum())
    split = facts["split"]
    if cut:
        split += f"; {cut:,} of the {len(lengths):,} texts are cut to {length:,} tokens"
    return LabelledTextDataset(
        name=source.name,
        task="classify-text",
        kind="text",
        vocabulary=fitted.vocabulary,
        classes=tuple(facts["classes"]),
        length=length,
        split=split,
        fingerprint=facts["fingerprint"],
        tokenizer=fitted,
        tokens=np.memmap(folder / "tokens.bin", fitted.dtype, mode="r"),
        **arrays,
    )


class _LabelledTexts:
    """The labelled texts of a source, read anew at every pass."""

    def __init__(self, source: Source, config: DataConfig, tokenizer: Tokenizer | None) -> None:
        self.source = source
        self.utf8 = tokenizer_kind(config, tokenizer) != "bytes"
        self.tables = all(entry.suffix in TABLES for entry in source.entries)
        self.layout = find_layout(source.entries, config.part)
        self.loose = self.empty = 0
        if not self.tables:
            self.layout, self.loose = class_entries(source, self.layout)

    def read(self) -> Iterator[tuple[bool, str, str]]:
        """(held out by the source itself, text, label); texts of white space alone are left out."""
        self.empty = 0
        for part, entries in enumerate((self.layout.train, self.layout.validation or ())):
            for entry in entries:
                for text, label in self._rows(entry):
                    if text.strip():
                        yield bool(part), text, label
                    else:
                        self.empty += 1

    def _rows(self, entry: Entry) -> Iterator[tuple[str, str]]:
        if self.tables:
            yield from labelled_rows(self.source, entry)
        else:
            raw = b"".join(checked(self.source, entry, self.utf8))
            yield raw.decode("utf-8", "strict" if self.utf8 else "surrogateescape"), entry.parts[0]


def _build(
    texts: _LabelledTexts, folder: Path, config: DataConfig, tokenizer: Tokenizer | None
) -> dict[str, Any]:
    """Write tokens, bounds, labels and split into ``folder``; give the facts."""
    given = texts.source.given
    found = [(held_out, label) for held_out, _, label in texts.read()]
    names = [label for _, label in found]
    if not names:
        raise DataError(f"'{given}' holds no texts; give rows or files with content")
    if texts.tables and len(names) >= ENOUGH_ROWS and len(set(names)) > MOST_CLASSES * len(names):
        raise DataError(
            f"'{given}' has {len(set(names)):,} different labels in {len(names):,} rows, so its "
            "label column is probably another one; name the columns text and label in a header"
        )
    train, rest = ({label for held_out, label in found if held_out == part} for part in (0, 1))
    classes = class_names(train, rest, given)
    ids = {name: index for index, name in enumerate(classes)}
    labels = np.array([ids[name] for name in names], dtype=np.int64)
    chosen = np.array([held_out for held_out, _ in found])
    if texts.layout.validation is None:
        chosen[held_out_draw(labels, config.validation, config.seed)] = True
    if not chosen.any():
        raise DataError(f"the held-out part of '{given}' has no text; add some")
    training = (text for (_, text, _), out in zip(texts.read(), chosen, strict=True) if not out)
    fitted = tokenizer or fit_tokenizer(config.tokenizer, training)
    fitted.save(folder)
    bounds, checksum = _encode(texts, fitted, folder)
    rows = np.flatnonzero(~chosen), np.flatnonzero(chosen)
    for name, array in zip(ARRAYS, (bounds, labels, *rows), strict=True):
        np.save(folder / f"{name}.npy", array)
    return {
        "classes": classes,
        "split": _split(texts, len(rows[0]), len(rows[1]), config),
        "fingerprint": digest(
            checksum, labels.tobytes(), chosen.tobytes(), classes, fitted.to_dict()
        ),
    }


def _encode(texts: _LabelledTexts, tokenizer: Tokenizer, folder: Path) -> tuple[np.ndarray, bytes]:
    bounds, checksum = [0], hashlib.blake2b(digest_size=16)
    with (folder / "tokens.bin").open("wb") as file:
        for _, text, _ in texts.read():
            found = tokenizer.encode_alone(text)
            raw = found.tobytes()
            file.write(raw)
            checksum.update(raw)
            bounds.append(bounds[-1] + len(found))
    return np.array(bounds, dtype=np.int64), checksum.digest()


def _split(texts: _LabelledTexts, train: int, validation: int, config: DataConfig) -> str:
    drawn = f"a draw of {config.validation:.0%} within each class (seed {config.seed})"
    note = f"{texts.layout.note or drawn}: {train:,} training and {validation:,} validation texts"
    if texts.empty:
        note += f"; {texts.empty:,} empty ones left out"
    if texts.loose:
        note += f"; {texts.loose:,} files outside the class folders left aside"
    return note
