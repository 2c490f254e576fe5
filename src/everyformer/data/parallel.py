"""Parallel text for sequence-to-sequence models: pairs of sentences that stay on disk, encoded.

One tokenizer serves both languages. Source and target both end with the separator token, which of
the target is scored (a source ends so too, as in Marian and tensor2tensor).
"""

import itertools
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from everyformer.core.errors import ConfigError, DataError
from everyformer.data.batch import IGNORED, WHOLE, Batch, Portion, batched
from everyformer.data.cache import FORMAT, cache_root, cached, digest, write_tokens
from everyformer.data.config import DataConfig
from everyformer.data.corpus import tokenizer_kind
from everyformer.data.counting import ROWS, counted_loss
from everyformer.data.dataset import Dataset
from everyformer.data.kind import OF_LABELS, OF_PAIRS, Request, TextFiles
from everyformer.data.pairs import SentencePairs
from everyformer.data.selection import spread, told_copies
from everyformer.data.text import encode_prompt
from everyformer.data.tokenizers.base import SEPARATOR, Tokenizer
from everyformer.data.tokenizers.load import fit_tokenizer, load_tokenizer
from everyformer.system.plain import from_json, to_json

CHUNK = 2000
"""Pairs encoded at a time."""
GRAIN = 2
"""Tokens; a coarser one shuffles more and pads more."""


class Buckets:
    """Buckets of pairs that are alike in length, every pair once an epoch.

    Pairs are sorted by target and source length, both rounded up to a multiple of `GRAIN`; the
    source lengths run up and down in turn, so that neighbours are always close. In every epoch
    pairs of equal rounded lengths are shuffled among each other and the batches among themselves.
    Where the sorted row is cut into batches depends on the rounded lengths alone, so an epoch
    always has as many.
    """

    def __init__(self, lengths: np.ndarray, positions: int | None = None) -> None:
        """``lengths`` (pairs, 2) of source and target; ``positions`` in a batch, or None."""
        rounded = -(-lengths.astype(np.int64) // GRAIN)
        source, target = rounded.T
        most = int(source.max(initial=0)) + 1
        self._key = target * most + np.where(target % 2, most - 1 - source, source)
        self._sorted = GRAIN * rounded[np.argsort(self._key, kind="stable")]
        self._cuts = None if positions is None else _even_cuts(self._sorted, positions)
        self._latest: tuple[tuple[int, int], np.ndarray] | None = None

    def batches(self, size: int) -> int:
        """Number of batches in an epoch, of about ``size`` pairs without a limit of positions."""
        return len(self._cut_points(size)) - 1

    def rows(self, step: int, size: int, seed: int) -> np.ndarray:
        """The pairs of training step ``step``: a pure function of its arguments."""
        cuts = self._cut_points(size)
        epoch, number = divmod(step, len(cuts) - 1)
        order = np.random.default_rng((seed, epoch, len(cuts))).permutation(len(cuts) - 1)
        start, stop = cuts[order[number]], cuts[order[number] + 1]
        return self._epoch(seed, epoch)[start:stop]

    def _cut_points(self, size: int) -> np.ndarray:
        if self._cuts is not None:
            return self._cuts
        count = len(self._key)
        batches = -(-count // size)
        return np.arange(batches + 1) * count // batches

    def _epoch(self, seed: int, epoch: int) -> np.ndarray:
        """All pairs, sorted, with equal ones in an order drawn for the epoch."""
        if self._latest is None or self._latest[0] != (seed, epoch):
            drawn = np.random.default_rng((seed, epoch)).permutation(len(self._key))
            order = drawn[np.argsort(self._key[drawn], kind="stable")]
            self._latest = ((seed, epoch), order)
        return self._latest[1]


@dataclass(frozen=True, kw_only=True, eq=False)
class ParallelDataset(Dataset):
    """Pairs in batches of like lengths, padded on the right; ``padding_mask`` is the source's.

    Training pairs come in batches of about ``size`` sentences, or, with ``--data.tokens N``, of at
    most N positions, source, target and padding together (`Buckets`).
    """

    tokens: np.ndarray
    """All pairs' tokens in one row, source before target, memory-mapped."""
    bounds: np.ndarray
    """(2 pairs + 1,) where each sentence begins in it."""
    train_rows: np.ndarray
    """Which pairs are trained on."""
    validation_rows: np.ndarray
    """Which pairs are held out, in the order of their files."""
    buckets: Buckets | None
    """Batches of ``train_rows``; None when there are none."""
    languages: tuple[str, str]
    """Names of both sides, source first."""
    sides: tuple[str, str] | None = None
    """Those of the columns or endings, by which other data are read in the same direction; None
    where there are none."""
    references: Path
    """JSON file with the held-out targets as they were written."""

    def summary(self) -> dict[str, Any]:
        return super().summary() | {"sides": self.sides and [*self.sides]}

    def train_batch(self, step: int, size: int, seed: int, portion: Portion = WHOLE) -> Batch:
        """The batch of a step; an epoch has every pair once, ``size`` of them at a time or so."""
        self.training_rows(len(self.train_rows))
        assert self.buckets is not None
        rows = self.train_rows[self.buckets.rows(step, size, seed)]
        return self._batch(rows, portion)

    def validation_batches(self, size: int, limit: int | None = None) -> Iterator[Batch]:
        """Every held-out pair once, the short ones first, ``size`` at a time."""
        rows = self.validation_rows
        rows = rows[np.lexsort(self.lengths(rows).T)]
        rows = rows[spread(len(rows), limit)]
        for first in range(0, len(rows), size):
            yield self._batch(rows[first : first + size])

    @cached_property
    def counting(self) -> float | None:
        """Of target tokens, each sentence by itself."""
        train, held_out = (
            [self.tokens[self.bounds[2 * row + 1] : self.bounds[2 * row + 2]] for row in rows]
            for rows in (self.train_rows[:ROWS], self.validation_rows[:ROWS])
        )
        return counted_loss(train, held_out, self.vocabulary)

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """(rows, 2) tokens of source and target, end tokens included."""
        return np.diff(self.bounds[2 * rows[:, None] + np.arange(3)], axis=1)

    def held_out_pairs(self, limit: int | None = None) -> tuple[list[Tensor], list[str]]:
        chosen = spread(len(self.validation_rows), limit)
        texts = from_json(self.references.read_text(encoding="utf-8"))
        sources = [
            torch.from_numpy(
                self.tokens[self.bounds[2 * row] : self.bounds[2 * row + 1]].astype(np.int64)
            )
            for row in self.validation_rows[chosen]
        ]
        return sources, [texts[index] for index in chosen]

    def _batch(self, rows: np.ndarray, portion: Portion = WHOLE) -> Batch:
        own = slice(*portion.of(len(rows)))
        inputs, padding_mask = self._padded(2 * rows, own, 0)
        targets, _ = self._padded(2 * rows + 1, own, IGNORED)
        return Batch(inputs, targets, padding_mask, separate=True)

    def _padded(self, sentences: np.ndarray, own: slice, fill: int) -> tuple[Tensor, Tensor]:
        """(own rows, longest of all) tokens, and which of them are real."""
        starts, stops = self.bounds[sentences], self.bounds[sentences + 1]
        longest = (stops - starts).max()
        starts, stops = starts[own], stops[own]
        positions = starts[:, None] + np.arange(longest)
        real = positions < stops[:, None]
        tokens = self.tokens[np.minimum(positions, len(self.tokens) - 1)].astype(np.int64)
        return torch.from_numpy(np.where(real, tokens, fill)), torch.from_numpy(real)


class ParallelText(TextFiles):
    """Sentences with their translations, in pairs of files or in tables."""

    name = "parallel text"
    reads = (*TextFiles.reads, *OF_PAIRS, "languages", "tokens")
    why: ClassVar = dict.fromkeys(
        ("text_column", *OF_LABELS),
        "; choose the columns of pairs with `data.source_column` and `data.target_column`",
    )

    @classmethod
    def recognises(cls, request: Request) -> bool:
        return request.text_task.reads == cls.name

    def load(self) -> ParallelDataset:
        """Pairs of sentences, encoded once into the cache."""
        source, config, tokenizer = self.request.source, self.config, self.request.tokenizer
        tokenizer_kind(config, tokenizer)
        if tokenizer is not None and tokenizer.separator is None:
            raise DataError(
                f"the tokenizer {tokenizer} has no token that ends a sentence, as translation "
                "needs: its run learned one text alone. Read the data with its own tokenizer"
            )
        known = self.request.sides
        pairs = SentencePairs(source, config, known)
        spec = config.tokenizer if tokenizer is None else tokenizer.to_dict()
        cut = config.validation, config.part, pairs.languages, source.stamp()
        key = digest(FORMAT, "parallel", *cut, spec, config.columns, *(known or ()))

        def build(folder: Path) -> dict[str, Any]:
            return _build(pairs, folder, config, tokenizer)

        folder, facts = cached(cache_root(config.cache), f"parallel-{key}", build, source.stamp)
        fitted = load_tokenizer(folder)
        bounds = np.load(folder / "bounds.npy", mmap_mode="r")
        lengths = np.diff(bounds).reshape(-1, 2)
        longest = lengths.max(1)
        training = facts["training"]
        short = np.flatnonzero(longest[:training] <= config.length)
        if training and not len(short):
            raise DataError(
                f"no training pair of '{source.spec}' is short enough: the shortest has "
                f"{longest[:training].min()} tokens on its longer side, `data.length` is "
                f"{config.length}"
            )
        split = facts["split"]
        if (long := training - len(short)) > 0:
            split += f"; {long:,} pairs longer than {config.length:,} tokens left out of training"
        if pairs.turnable:
            turned = "-".join(reversed(pairs.languages))
            split += f"; --data.languages {turned} turns the direction"
        return ParallelDataset(
            name=source.name,
            task=self.task,
            kind="text",
            vocabulary=fitted.vocabulary,
            length=max(config.length, int(longest[training:].max())),
            bytes_per_token=facts["bytes_per_token"],
            split=split,
            fingerprint=facts["fingerprint"],
            tokenizer=fitted,
            tokens=np.memmap(folder / "tokens.bin", fitted.dtype, mode="r"),
            bounds=bounds,
            train_rows=short,
            validation_rows=np.arange(training, len(longest)),
            buckets=Buckets(lengths[short], config.tokens) if len(short) else None,
            languages=pairs.languages,
            sides=pairs.sides,
            references=folder / "references.json",
        )


def encode_source(tokenizer: Tokenizer, text: str) -> Tensor:
    """(S,) int64 tokens of a sentence to translate, with its end token."""
    return encode_prompt(tokenizer, text.strip() + SEPARATOR)[0]


def _build(
    pairs: SentencePairs, folder: Path, config: DataConfig, tokenizer: Tokenizer | None
) -> dict[str, Any]:
    """Write tokens, bounds and references into ``folder``; give the facts."""
    spec = pairs.source.spec
    flags, hashed = bytearray(), array("q")
    for held_out, sentence, _ in pairs.read():
        flags.append(held_out)
        hashed.append(hash(sentence))
    count, training = len(flags), flags.count(0)
    if not flags:
        raise DataError(f"'{spec}' holds no pair of sentences; give files with content")
    if not pairs.own_split:
        training = count - max(1, round(config.validation * count))
        pairs.note = f"the last {config.validation:.0%} of the pairs are held out"
    if training == count:
        raise DataError(f"the held-out part of '{spec}' has no pair; add some")
    if training == 0 and config.validation < 1:
        raise DataError(f"the training part of '{spec}' has no pair; add some")
    copies = told_copies(np.array(hashed), np.arange(count) >= training, "sources")
    texts = (text for pair in itertools.islice(pairs.read(), training) for text in pair[1:])
    # whatever the kind, the end token is in the vocabulary
    fitted = tokenizer or fit_tokenizer(config.tokenizer, itertools.chain((SEPARATOR,), texts))
    fitted.save(folder)
    bounds, checksum = write_tokens(folder, _sentences(pairs, fitted, count))
    np.save(folder / "bounds.npy", bounds)
    references = [target for _, _, target in itertools.islice(pairs.read(), training, None)]
    (folder / "references.json").write_text(to_json(references), encoding="utf-8")
    lengths = np.diff(bounds).reshape(-1, 2)[training:]
    size = sum(len(text.encode()) + 1 for text in references)
    counts = f"{training:,} training and {count - training:,} validation pairs"
    split = f"{pairs.note}: {counts} from {' to '.join(pairs.languages)}"
    split += "".join(f"; {each}" for each in (pairs.table.notes if pairs.table else ()))
    split += f"; {pairs.empty:,} empty pairs left out" * bool(pairs.empty)
    return {
        "training": training,
        "bytes_per_token": size / int(lengths[:, 1].sum()),
        "split": split + copies,
        "fingerprint": digest(checksum, training, fitted.to_dict()),
    }


def _sentences(pairs: SentencePairs, tokenizer: Tokenizer, count: int) -> Iterator[np.ndarray]:
    """Tokens of every sentence with their end, source and target in turn."""
    texts = (pair[1:] for pair in pairs.read())
    end = np.array([tokenizer.separator], tokenizer.dtype)
    with tqdm(total=count, unit="pairs", unit_scale=True, desc="encoding", disable=None) as bar:
        for chunk in batched(texts, CHUNK):
            # a text may hold the end written out, so that ends alone tell no sentences apart
            yield from (np.append(tokens, end) for tokens in tokenizer.encode_pairs(chunk))
            bar.update(len(chunk))


def _even_cuts(lengths: np.ndarray, positions: int) -> np.ndarray:
    """Cuts into as few batches of at most ``positions`` as can be, evened out.

    Without that the last batch would be whatever is left over, down to a single pair.
    """
    low = int(lengths.sum(1).max())
    if low > positions:
        raise ConfigError(
            f"the longest training pair has {low} positions, more than `data.tokens={positions}`; "
            "give more tokens or a smaller `data.length`"
        )
    fewest, limits = -len(_cuts(lengths, positions)), range(low + 1, positions)
    at = bisect_left(limits, fewest, key=lambda limit: -len(_cuts(lengths, limit)))
    return _cuts(lengths, limits[at] if at < len(limits) else positions)


def _cuts(lengths: np.ndarray, limit: int) -> np.ndarray:
    """Each batch takes pairs until one more would bring it, padded, above ``limit`` positions."""
    cuts = [0]
    while cuts[-1] < len(lengths):
        start = cuts[-1]
        most = limit // int(lengths[start].sum())
        longest = np.maximum.accumulate(lengths[start : start + most], axis=0).sum(1)
        padded = longest * np.arange(1, len(longest) + 1)
        cuts.append(start + int(np.searchsorted(padded, limit, side="right")))
    return np.array(cuts)
