"""Text for language models: windows of one long row of tokens that stays on disk."""

import hashlib
import itertools
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from everyformer.core.errors import DataError
from everyformer.data.batch import IGNORED, WHOLE, Batch, Portion
from everyformer.data.cache import FORMAT, cache_root, cached, digest
from everyformer.data.config import DataConfig
from everyformer.data.corpus import Corpus, Documents, StreamEncoder, tokenizer_kind
from everyformer.data.counting import counted_loss, sampled
from everyformer.data.dataset import Dataset
from everyformer.data.selection import spread
from everyformer.data.sources import Source
from everyformer.data.tokenizers.base import Tokenizer
from everyformer.data.tokenizers.load import fit_tokenizer, load_tokenizer
from everyformer.data.tokenizers.plain import CharTokenizer

PARTS = ("train.bin", "validation.bin")
"""files of encoded tokens"""


class NeighbourTokens(Protocol):
    """Tokens that followed contexts like those of a row (`everyformer.stores.table`)."""

    def at(self, positions: np.ndarray) -> np.ndarray:
        """(..., k) int32 tokens for the contexts that end at ``positions`` (...), -1: none."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TextDataset(Dataset):
    """Windows of ``length`` tokens at random positions; targets are the tokens one further on."""

    train: np.ndarray
    """(N,) training tokens, memory-mapped."""
    validation: np.ndarray
    """(M,) held-out tokens, memory-mapped."""
    stride: int | None = None
    """Tokens between the starts of validation windows; None sets them side by side."""
    neighbours: tuple[NeighbourTokens, NeighbourTokens] | None = None
    """Neighbours of training and of held-out tokens, where a model reads them."""
    packed: bool = False
    """True where tokens see only their document. A separator, which ends a document, counts as the
    first token of the next one, so that every token has something to be predicted from."""

    @property
    def running_text(self) -> "TextDataset":
        return self

    def train_batch(self, step: int, size: int, seed: int, portion: Portion = WHOLE) -> Batch:
        random = np.random.default_rng((seed, step))
        starts = random.integers(0, self.training_rows(len(self.train)) - self.length, size)
        return self._windows(self.train, starts[slice(*portion.of(size))])

    def validation_batches(self, size: int, limit: int | None = None) -> Iterator[Batch]:
        """Windows in order; the last reaches back to be full, and all score their new targets."""
        starts, done = self.window_starts(limit)
        for first in range(0, len(starts), size):
            rows = slice(first, first + size)
            batch = self._windows(self.validation, starts[rows])
            again = torch.from_numpy(done[rows] - starts[rows])
            batch.targets[torch.arange(self.length) < again[:, None]] = IGNORED
            yield batch

    def segment(self, step: int, size: int, portion: Portion = WHOLE) -> Batch:
        """Segment ``step`` of ``size`` streams over the training part, or a ``portion`` of them.

        Row b of B streams begins at token b N / B of the N that there are, goes on from segment to
        segment and from the last token to the first. So every token is read equally often, none is
        dropped where segments do not divide them, and a segment is a function of its number.
        """
        count = self.training_rows(len(self.train)) - 1
        starts = np.arange(size) * count // size + step * self.length
        # of any row, so that all processes read documents or none does
        begins = bool((-starts % count < self.length).any())
        positions = (starts[slice(*portion.of(size)), None] + np.arange(self.length)) % count
        return self._at(self.train, positions, begins)

    def in_order(self, streams: int) -> Iterator[Batch]:
        """The validation part in ``streams`` stretches side by side, every target once.

        Stretches are of whole segments but for the last one's end; where a row has nothing more,
        its targets are not scored.
        """
        count, length = len(self.validation) - 1, self.length
        segments = -(-count // length)
        bounds = np.arange(streams + 1) * segments // streams
        for n in range(int(np.diff(bounds).max())):
            first = (bounds[:-1] + n) * length
            ends = np.minimum(bounds[1:] * length, count)
            positions = first[:, None] + np.arange(length)
            real = torch.from_numpy(positions < ends[:, None])
            batch = self._at(self.validation, np.minimum(positions, count - 1), n == 0)
            if not self.packed:
                # rows begin with an empty state: the start of the text is no other document
                batch = replace(batch, documents=None)
            yield replace(batch, targets=batch.targets.masked_fill(~real, IGNORED))

    def warmed(
        self, size: int, limit: int | None, before: int
    ) -> Iterator[tuple[list[Batch], Batch]]:
        """The batches of `validation_batches`, each with up to ``before`` segments ahead of it;
        what would lie before the start is padding there."""
        starts, length = self.window_starts(limit)[0], self.length
        batches = self.validation_batches(size, limit)
        for first, batch in zip(range(0, len(starts), size), batches, strict=True):
            at = starts[first : first + size]
            ahead = []
            for back in range(min(before, -(-at.max() // length)), 0, -1):
                positions = (at - back * length)[:, None] + np.arange(length)
                real = torch.from_numpy(positions >= 0)
                positions = positions.clip(0)
                part = self._at(self.validation, positions, bool((positions == 0).any()))
                ahead.append(part if bool(real.all()) else replace(part, padding_mask=real))
            yield ahead, batch

    @cached_property
    def counting(self) -> float | None:
        return counted_loss(sampled(self.train), sampled(self.validation), self.vocabulary)

    def window_starts(self, limit: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Starts of the validation windows, and ends of the targets scored before them."""
        scored, stride = len(self.validation) - 1, self.stride or self.length
        chosen = spread(1 + -(-(scored - self.length) // stride), limit)
        done = np.where(chosen > 0, self.length + (chosen - 1) * stride, 0)
        return np.minimum(chosen * stride, scored - self.length), done

    def _at(self, tokens: np.ndarray, positions: np.ndarray, begins: bool) -> Batch:
        """Tokens at ``positions`` (B, L) with the next ones as targets; where a row comes to the
        start of the text, as ``begins`` says that some do, a new document begins."""
        inputs = torch.from_numpy(tokens[positions].astype(np.int64))
        targets = torch.from_numpy(tokens[positions + 1].astype(np.int64))
        neighbours = self.neighbours_of(tokens, positions)
        # ids of documents: 0 continues the one before the segment
        documents = torch.from_numpy(positions == 0).long().cumsum(1)
        if self.packed:
            documents = documents + self.documents_of(inputs)
        elif not begins:
            return Batch(inputs, targets, neighbours=neighbours)
        return Batch(inputs, targets, documents=documents, neighbours=neighbours)

    def _windows(self, tokens: np.ndarray, starts: np.ndarray) -> Batch:
        positions = starts[:, None] + np.arange(self.length + 1)
        window = torch.from_numpy(tokens[positions].astype(np.int64))
        # copies: of a single row, both parts would be views of the same memory
        batch = Batch(window[:, :-1].clone(), window[:, 1:].clone())
        batch = replace(batch, neighbours=self.neighbours_of(tokens, positions[:, :-1]))
        if not self.packed:
            return batch
        return replace(batch, documents=self.documents_of(batch.inputs))

    def neighbours_of(self, tokens: np.ndarray, positions: np.ndarray) -> Tensor | None:
        """(B, L, k) of ``positions`` (B, L) in one of the two parts; None where none are read."""
        if self.neighbours is None:
            return None
        of_part = self.neighbours[0 if tokens is self.train else 1]
        return torch.from_numpy(of_part.at(positions).astype(np.int64))

    def documents_of(self, inputs: Tensor) -> Tensor:
        """(B, L) which document of its row each token is of, counted from 0."""
        separator = None if self.tokenizer is None else self.tokenizer.separator
        assert separator is not None
        return inputs.eq(separator).long().cumsum(1)


def load_text(
    source: Source,
    config: DataConfig,
    tokenizer: Tokenizer | None = None,
    read: type[Documents] = Corpus,
) -> Dataset:
    """A source as a corpus, which ``read`` makes of it, encoded once into the cache.

    Plain bytes are copied too: a file that is edited while it is read would give other tokens to
    later steps, and one that is cut short would end the process that has it mapped.
    """
    kind = tokenizer_kind(config, tokenizer)
    spec = config.tokenizer if tokenizer is None else tokenizer.to_dict()
    key = digest(FORMAT, "text", source.stamp(), *read.cut(config), spec)

    def build(folder: Path) -> dict[str, Any]:
        corpus = read(source, config, utf8=kind != "bytes")
        fitted = tokenizer or fit_tokenizer(config.tokenizer, corpus.training_text())
        fitted.save(folder)
        return _encode(corpus, fitted, folder)

    folder, facts = cached(cache_root(config.cache), f"text-{key}", build, source.stamp)
    fitted = load_tokenizer(folder)
    sizes, mark = (facts["train_tokens"], facts["validation_tokens"]), facts["fingerprint"]
    needed = config.length + 1
    if sizes[1] < needed or (sizes[0] < needed and config.validation < 1):
        raise DataError(
            f"'{source.spec}' is too short: {sizes[0]:,} training and {sizes[1]:,} validation "
            f"tokens, where `data.length={config.length}` needs {needed:,} in either. Give more "
            "text, a smaller `data.length` or another `data.validation`"
        )
    if config.packing and (max(facts["documents"]) < 2 or fitted.separator is None):
        raise DataError(
            f"'{source.spec}' is one document, so there is nothing to pack: leave out "
            "`data.packing`, or give a folder, or JSON lines, with several"
        )
    train, validation = (
        np.memmap(folder / name, fitted.dtype, mode="r") if size else np.empty(0, fitted.dtype)
        for name, size in zip(PARTS, sizes, strict=True)
    )
    return TextDataset(
        name=source.name,
        task="lm",
        kind="text",
        vocabulary=fitted.vocabulary,
        length=config.length,
        bytes_per_token=facts["validation_bytes"] / sizes[1],
        split=_split(facts),
        fingerprint=digest(mark, "packed") if config.packing else mark,
        tokenizer=fitted,
        train=train,
        validation=validation,
        packed=config.packing,
    )


def encode_prompt(tokenizer: Tokenizer, prompt: str) -> Tensor:
    """(1, L) int64 tokens to continue; an empty prompt starts a text, a document, or a line."""
    if not prompt:
        start = tokenizer.separator
        first = tokenizer.opening or (tokenizer.encode("\n") if start is None else [start])
        return torch.tensor([first])
    if tokenizer.characters is not None:
        strange = sorted(set(prompt) - set(tokenizer.characters))
        if strange:
            mend = "leave them out, or train with `data.tokenizer=bytes`"
            if set(prompt.upper()) <= set(tokenizer.characters):
                mend = "write it in upper case"
            raise DataError(
                f"the prompt has {', '.join(map(repr, strange[:8]))}, which the training text "
                f"never had; {mend}"
            )
    return torch.tensor([[*tokenizer.opening, *tokenizer.encode(prompt)]])


def decode(tokenizer: Tokenizer, tokens: Tensor | Iterable[int]) -> str:
    """The text of (L,) or (1, L) tokens, ended where a document ends."""
    ids = tokens.flatten().tolist() if isinstance(tokens, Tensor) else [int(t) for t in tokens]
    if tokenizer.separator in ids[1:]:
        ids = ids[: ids.index(tokenizer.separator, 1)]
    return tokenizer.decode(ids[1:] if ids[:1] == [tokenizer.separator] else ids)


def token_texts(tokenizer: Tokenizer, tokens: Iterable[int]) -> list[str]:
    """The text of each token by itself; ``[mask]`` is what hides one, an id beyond all others."""
    known = tokenizer.vocabulary
    return [tokenizer.decode([token]) if token < known else "[mask]" for token in tokens]


def _encode(corpus: Documents, tokenizer: Tokenizer, folder: Path) -> dict[str, Any]:
    """Write both parts' tokens into ``folder``; give the facts."""
    encoders = StreamEncoder(tokenizer), StreamEncoder(tokenizer)
    hashes = hashlib.blake2b(digest_size=16), hashlib.blake2b(digest_size=16)
    tokens, sizes, unknown = [0, 0], [0, 0], 0
    with ExitStack() as stack:
        files = [stack.enter_context((folder / name).open("wb")) for name in PARTS]
        bar = stack.enter_context(
            tqdm(total=corpus.size, unit="B", unit_scale=True, desc="encoding", disable=None)
        )

        ends = ((False, None), (True, None))
        for part, chunk in itertools.chain(corpus.parts(), ends):
            ids = encoders[part].feed(chunk or b"", final=chunk is None)
            raw = ids.tobytes()
            hashes[part].update(raw)
            files[part].write(raw)
            tokens[part] += len(ids)
            sizes[part] += len(chunk or b"")
            bar.update(len(chunk or b""))
            if part and isinstance(tokenizer, CharTokenizer):
                unknown += int((ids == tokenizer.unknown).sum())
    return {
        "train_tokens": tokens[0],
        "validation_tokens": tokens[1],
        "validation_bytes": sizes[1],
        "unknown": unknown,
        "documents": corpus.documents,
        "note": corpus.note,
        "columns": corpus.notes,
        "fingerprint": digest(*(each.digest() for each in hashes), tokenizer.to_dict()),
    }


def _split(facts: dict[str, Any]) -> str:
    counts = facts["documents"]
    documents = " and ".join(f"{count:,}" for count in counts)
    joined = f"{documents} documents, each ended by U+0000" if max(counts) > 1 else "one document"
    unknown = facts["unknown"]
    strange = f"; {unknown:,} of them characters that training never has" if unknown else ""
    return (
        f"{facts['note']}: {facts['train_tokens']:,} training and "
        f"{facts['validation_tokens']:,} validation tokens{strange} ({joined})"
        f"{facts['columns']}"
    )
