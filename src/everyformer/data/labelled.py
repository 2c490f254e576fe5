"""Texts with a class or a number each: a folder for each class, or a table with both columns."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from everyformer.core.errors import DataError
from everyformer.data.batch import Batch
from everyformer.data.cache import FORMAT, cache_root, cached, digest, write_tokens
from everyformer.data.classes import (
    SHOWN,
    classes_of,
    describe,
    hold_out,
    numbers_of,
    refuse_groups,
    refuse_unlabelled,
)
from everyformer.data.config import DataConfig
from everyformer.data.corpus import checked, tokenizer_kind
from everyformer.data.dataset import ClassedDataset, Spread
from everyformer.data.kind import OF_PAIRS, Request, TextFiles, refuse
from everyformer.data.layout import class_entries, find_layout, without_notes
from everyformer.data.options import ParallelOptions, RowOptions
from everyformer.data.selection import told_copies
from everyformer.data.sources import Entry, Source
from everyformer.data.table import TABLES
from everyformer.data.tables import TableReader, labelled_reader
from everyformer.data.tokenizers.base import Tokenizer
from everyformer.data.tokenizers.load import fit_tokenizer, load_tokenizer

ARRAYS = ("bounds", "labels", "train_rows", "validation_rows")
"""Fields of the data that are saved as files of numpy."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelledTextDataset(ClassedDataset):
    """Texts cut to ``length`` tokens, padded on the right with zeros."""

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
        padding_mask = np.zeros((len(chosen), self.length), dtype=bool)
        for index, row in enumerate(chosen):
            text = self.tokens[self.bounds[row] : self.bounds[row + 1]]
            text = cut(text, self.length, self.closing)
            inputs[index, : len(text)] = text
            padding_mask[index, : len(text)] = True
        return Batch(torch.from_numpy(inputs), self.answers(chosen), torch.from_numpy(padding_mask))


def cut(tokens: np.ndarray, length: int, closing: Sequence[int] = ()) -> np.ndarray:
    """At most ``length`` tokens of a text, which ends with those that every text ends with."""
    if len(tokens) <= length:
        return tokens
    short = np.array(tokens[:length])
    if closing:
        short[max(length - len(closing), 0) :] = closing[-length:]
    return short


def _is_table(source: Source) -> bool:
    """True where a source is tables and notes alone."""
    return all(entry.suffix in TABLES for entry in without_notes(source.entries))


class LabelledTexts:
    """The labelled texts of a source, read anew at every pass: the files in each class's folder, a
    text each, or the rows of tables."""

    def __init__(self, source: Source, config: DataConfig, utf8: bool) -> None:
        self.source, self.utf8 = source, utf8
        self.layout = find_layout(source.entries, config.part)
        self.skips = config.unlabelled != "refuse"
        self.loose = self.empty = self.unlabelled = 0
        self.table: TableReader | None = None
        if _is_table(source):
            self.table = labelled_reader(source, config, self.layout.train[0])
        else:
            self.layout, self.loose = class_entries(source, self.layout)
            refuse_groups(config, f"'{source.spec}' is no table and has no columns")
        if self.layout.validation is not None:
            refuse_groups(config, f"'{source.spec}' is split already ({self.layout.note})")
        self.grouped = config.group_column is not None

    @property
    def notes(self) -> Sequence[str]:
        """Remarks on what is read, half a sentence each."""
        return () if self.table is None else self.table.notes

    def read(self) -> Iterator[tuple[bool, str, str, str]]:
        """(held out by the source itself, text, label, group); texts of white space alone are left
        out.

        Raises:
            DataError: texts without a label, when all are read.
        """
        self.empty = self.unlabelled = 0
        self._lines: list[str] = []
        for part, entries in enumerate((self.layout.train, self.layout.validation or ())):
            for entry in entries:
                for text, label, group in self._rows(entry):
                    if not text.strip():
                        self.empty += 1
                    elif label or not self.skips:
                        yield bool(part), text, label, group
        if not self.skips:
            refuse_unlabelled(self._lines, self.unlabelled, f"'{self.source.spec}'")

    def _rows(self, entry: Entry) -> Iterator[tuple[str, str, str]]:
        """The texts of one file, each with its label and its group ('': none)."""
        if self.table is None:
            raw = b"".join(checked(self.source, entry, self.utf8))
            text = raw.decode("utf-8", "strict" if self.utf8 else "surrogateescape")
            yield text, entry.parts[0], ""
            return
        for row in self.table.rows(entry):
            text, label = row.text(0), row.label(1)
            if text.strip() and not label:
                self.unlabelled += 1
                if len(self._lines) < SHOWN:
                    self._lines.append(row.at if len(self.source.entries) > 1 else row.line)
            yield text, label, row.group(2)


class LabelledText(TextFiles):
    """Texts in a folder for each class, or in a table with a label or a number each."""

    name = "labelled text"
    reads = (*TextFiles.reads, RowOptions)

    @classmethod
    def recognises(cls, request: Request) -> bool:
        return request.text_task.reads == cls.name

    def check(self) -> None:
        super().check()
        refuse(self.config, OF_PAIRS, self.called, ParallelOptions.elsewhere)

    def load(self) -> LabelledTextDataset:
        """Texts with a class or, of a task that predicts numbers, a number; encoded once into the
        cache.

        Raises:
            DataError: no classes or only one, a class without files, a broken table, rows without
                a label, labels that are no classes, binary files.
            ConfigError: columns that are not there, or that could be several.
        """
        source, config, tokenizer = self.request.source, self.config, self.request.tokenizer
        spec = config.tokenizer if tokenizer is None else tokenizer.to_dict()
        draw = config.validation, config.seed, config.part
        measures = self.does.measures
        what = [*(["numbers"] if measures else []), *(["skip"] * (config.unlabelled != "refuse"))]
        key = digest(FORMAT, "labelled", source.stamp(), *draw, spec, config.columns, *what)
        known = self.request.classes
        key = digest(key, *known) if known else key

        def build(folder: Path) -> dict[str, Any]:
            if measures and not _is_table(source):
                raise DataError(
                    f"'{source.spec}' is no table, so no text has a number that task {self.task} "
                    "could learn; give a .csv, .tsv, .jsonl or .parquet with --data.label-column, "
                    "or tokens with their targets as arrays in an .npz"
                )
            texts = LabelledTexts(source, config, tokenizer_kind(config, tokenizer) != "bytes")
            return _build(texts, folder, config, tokenizer, measures, known)

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
            task=self.task,
            kind="text",
            vocabulary=fitted.vocabulary,
            classes=tuple(facts["classes"]),
            length=length,
            numbers=Spread.of(arrays["labels"][arrays["train_rows"]]) if measures else None,
            split=split,
            fingerprint=facts["fingerprint"],
            tokenizer=fitted,
            tokens=np.memmap(folder / "tokens.bin", fitted.dtype, mode="r"),
            **arrays,
        )


def _build(
    texts: LabelledTexts,
    folder: Path,
    config: DataConfig,
    tokenizer: Tokenizer | None,
    measures: bool,
    known: Sequence[str],
) -> dict[str, Any]:
    """Write tokens, bounds, labels and split into ``folder``; give the facts."""
    spec = texts.source.spec
    codes: dict[str, int] = {}
    labels, chosen, groups, hashes = _first_pass(texts, codes)
    if not codes:
        raise DataError(f"'{spec}' holds no texts; give rows or files with content")
    classes: list[str] = []
    if measures:
        assert texts.table is not None
        column = texts.table.first.column(texts.table.indices[1])
        labels = numbers_of(codes, f"{column} of '{spec}'")[labels]
    else:
        sure = config.label_column is not None
        labels, classes = classes_of(codes, labels, chosen, texts.table, spec, sure, known)
    how = texts.layout.note
    if texts.layout.validation is None:
        chosen, how = hold_out(labels, classes, config, spec, groups if texts.grouped else None)
    if not chosen.any():
        raise DataError(f"the held-out part of '{spec}' has no text; add some")
    remedy = "take them out"
    if texts.table is not None and texts.layout.validation is None and not texts.grouped:
        remedy = f"keep copies together with --data.split group COLUMN, or {remedy}"
    training = (text for (_, text, *_), out in zip(texts.read(), chosen, strict=True) if not out)
    fitted = tokenizer or fit_tokenizer(config.tokenizer, training)
    fitted.save(folder)
    tokens = (fitted.encode_alone(text) for _, text, *_ in texts.read())
    bounds, checksum = write_tokens(folder, tokens)
    rows = np.flatnonzero(~chosen), np.flatnonzero(chosen)
    for name, values in zip(ARRAYS, (bounds, labels, *rows), strict=True):
        np.save(folder / f"{name}.npy", values)
    return {
        "classes": classes,
        "split": describe(labels, chosen, classes)
        + _split(texts, *rows, how)
        + told_copies(hashes, chosen, "texts", remedy),
        "fingerprint": digest(
            checksum, labels.tobytes(), chosen.tobytes(), classes, fitted.to_dict()
        ),
    }


def _first_pass(
    texts: LabelledTexts, codes: dict[str, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(texts,) the label of each, numbered into ``codes`` as they come, whether it is held out, its
    group, where texts are grouped, and its hash.

    A million rows are held as numbers, not as strings.
    """
    labels, chosen, groups, hashes = array("q"), bytearray(), array("q"), array("q")
    numbers: dict[str, int] = {}
    for held_out, text, label, group in texts.read():
        hashes.append(hash(text))
        labels.append(codes.setdefault(label, len(codes)))
        chosen.append(held_out)
        groups.append(numbers.setdefault(group, len(numbers)))
    whole = (np.array(each, dtype=np.int64) for each in (labels, groups, hashes))
    labelled, ids, hashed = whole
    values = np.array([*numbers])[ids] if texts.grouped else ids
    return labelled, np.array(chosen, dtype=bool), values, hashed


def _split(texts: LabelledTexts, train: np.ndarray, validation: np.ndarray, how: str) -> str:
    left = (
        (texts.empty, "empty ones left out"),
        (texts.unlabelled, "without a label left out"),
        (texts.loose, "files outside the class folders left aside"),
    )
    notes = [*(f"{count:,} {words}" for count, words in left if count), *texts.notes]
    counts = f"{len(train):,} training and {len(validation):,} validation texts"
    return f"{how}: {'; '.join((counts, *notes))}"
