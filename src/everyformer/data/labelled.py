"""Texts with a class or a number each: a folder for each class, or a table with both columns."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from everyformer.core.errors import DataError
from everyformer.data.batch import Batch
from everyformer.data.cache import FORMAT, cache_root, cached, digest, write_tokens
from everyformer.data.classes import (
    SHOWN,
    describe,
    hold_out,
    refuse_groups,
    refuse_unlabelled,
    targets_of,
)
from everyformer.data.config import UNFIT
from everyformer.data.corpus import checked, tokenizer_kind
from everyformer.data.dataset import ClassedDataset, Spread
from everyformer.data.kind import OF_LABELS, OF_PAIRS, Kind, Request, TextFiles
from everyformer.data.layout import class_entries, find_layout, without_notes
from everyformer.data.selection import told_copies
from everyformer.data.sources import Entry
from everyformer.data.table import TABLES
from everyformer.data.tables import TableReader, labelled_reader
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


class LabelledTexts:
    """The labelled texts of a source, read again at every pass: the files in each class's folder, a
    text each, or the rows of tables."""

    def __init__(self, data: Kind) -> None:
        source, config = data.request.source, data.config
        self.data, self.source = data, source
        self.utf8 = tokenizer_kind(config, data.request.tokenizer) != "bytes"
        self.layout = find_layout(source.entries, config.part)
        self.skips = config.unlabelled != "refuse"
        self.loose = self.empty = self.unlabelled = 0
        self.table: TableReader | None = None
        if all(entry.suffix in TABLES for entry in without_notes(source.entries)):
            self.table = labelled_reader(source, config, self.layout.train[0])
        elif data.does.measures:
            raise DataError(
                f"'{source.spec}' is no table, so no text has a number that task {data.task} could "
                "learn; give a .csv, .tsv, .jsonl or .parquet with `data.label_column`, or tokens "
                "with their targets as arrays in an .npz"
            )
        else:
            self.layout, self.loose = class_entries(source, self.layout)
            refuse_groups(config, f"'{source.spec}' is no table and has no columns")
        if self.layout.validation is not None:
            refuse_groups(config, f"'{source.spec}' is split already ({self.layout.note})")

    def read(self) -> Iterator[tuple[bool, str, str, str]]:
        """(held out by the source itself, text, label, group) of texts that are not white space."""
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

    def build(self, folder: Path) -> dict[str, Any]:
        """Write tokens, bounds, labels and split into ``folder``; give the facts."""
        spec, config = self.source.spec, self.data.config
        codes, numbers = dict[str, int](), dict[str, int]()
        # a million rows are held as numbers, not as strings
        labels, flags, groups, hashes = array("q"), bytearray(), array("q"), array("q")
        for held_out, text, label, group in self.read():
            hashes.append(hash(text))
            labels.append(codes.setdefault(label, len(codes)))
            flags.append(held_out)
            groups.append(numbers.setdefault(group, len(numbers)))
        if not codes:
            raise DataError(f"'{spec}' holds no texts; give rows or files with content")
        chosen, how = np.array(flags, dtype=bool), self.layout.note
        coded, ids, hashed = (np.array(each, dtype=np.int64) for each in (labels, groups, hashes))
        targets, classes = targets_of(self.data, codes, coded, chosen, self.table)
        remedy = "take them out"
        if self.layout.validation is None:
            grouped = config.group_column is not None
            names = np.array([*numbers])[ids] if grouped else None
            chosen, how = hold_out(targets, classes, config, spec, names)
            if self.table is not None and not grouped:
                remedy = f"keep copies together with --data.split group COLUMN, or {remedy}"
        if not chosen.any():
            raise DataError(f"the held-out part of '{spec}' has no text; add some")
        texts = zip(self.read(), chosen, strict=True)
        training = (text for (_, text, *_), out in texts if not out)
        fitted = self.data.request.tokenizer or fit_tokenizer(config.tokenizer, training)
        fitted.save(folder)
        tokens = (fitted.encode_alone(text) for _, text, *_ in self.read())
        bounds, checksum = write_tokens(folder, tokens)
        rows = np.flatnonzero(~chosen), np.flatnonzero(chosen)
        for name, values in zip(ARRAYS, (bounds, targets, *rows), strict=True):
            np.save(folder / f"{name}.npy", values)
        about = describe(targets, chosen, classes) + self._split(*rows, how)
        facts = checksum, targets.tobytes(), chosen.tobytes(), classes, fitted.to_dict()
        return {
            "classes": classes,
            "split": about + told_copies(hashed, chosen, "texts", remedy),
            "fingerprint": digest(*facts),
        }

    def _split(self, train: np.ndarray, validation: np.ndarray, how: str) -> str:
        left = (
            (self.empty, "empty ones left out"),
            (self.unlabelled, "without a label left out"),
            (self.loose, "files outside the class folders left aside"),
        )
        notes = [f"{count:,} {words}" for count, words in left if count]
        notes += () if self.table is None else self.table.notes
        counts = f"{len(train):,} training and {len(validation):,} validation texts"
        return f"{how}: {'; '.join((counts, *notes))}"


class LabelledText(TextFiles):
    """Texts in a folder for each class, or in a table with a label or a number each."""

    name = "labelled text"
    reads = (*TextFiles.reads, "text_column", *OF_LABELS, "split")
    why: ClassVar = dict.fromkeys(OF_PAIRS, UNFIT)

    @classmethod
    def recognises(cls, request: Request) -> bool:
        return request.text_task.reads == cls.name

    def load(self) -> LabelledTextDataset:
        """Texts with a class or, of a task that predicts numbers, a number; encoded once into the
        cache.
        """
        source, config, tokenizer = self.request.source, self.config, self.request.tokenizer
        spec = config.tokenizer if tokenizer is None else tokenizer.to_dict()
        draw = config.validation, config.seed, config.part
        measures = self.does.measures
        what = [*(["numbers"] if measures else []), *(["skip"] * (config.unlabelled != "refuse"))]
        key = digest(FORMAT, "labelled", source.stamp(), *draw, spec, config.columns, *what)
        key = digest(key, *self.request.classes) if self.request.classes else key

        folder, facts = cached(
            cache_root(config.cache),
            f"labelled-{key}",
            lambda folder: LabelledTexts(self).build(folder),
            source.stamp,
        )
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
