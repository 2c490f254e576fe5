"""A language model reads texts into a store: keys are its inside, values the tokens that follow.

Texts are read in windows, as `eval` reads them side by side, so that the contexts of keys are like
those of queries. Batches are of a fixed number of windows whatever happened between them: who stops
and goes on comes to the same bytes.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from tqdm import tqdm

from everyformer.core.errors import ConfigError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.core.modules import evaluating, memories_of
from everyformer.core.taps import Tap
from everyformer.core.wording import pluralise
from everyformer.data.batch import batched
from everyformer.data.cache import digest
from everyformer.data.config import DataConfig
from everyformer.data.sources import open_source
from everyformer.data.tokenizers.base import Tokenizer
from everyformer.models.base import Model
from everyformer.models.language import LanguageModel
from everyformer.stores.store.record import Dtype, Origin, bytes_needed
from everyformer.stores.store.store import Store
from everyformer.stores.store.writing import Writer, is_unfinished
from everyformer.stores.texts import Texts, Window, windows
from everyformer.system.fingerprint import weights_digest
from sequence_laws.memory import size

COMMIT = 64
"""batches between two commits"""
TOGETHER = 16
"""windows of queries that are read at a time"""


@dataclass(frozen=True)
class Indexing:
    """Windows, tap and numbers by which texts become keys."""

    tap: str = "ffn-input:-1"
    """what of the model a key is (`everyformer.core.taps`)"""
    context: int = 256
    """tokens of a window"""
    stride: int = 256
    """tokens from one to the next"""
    batch: int = 16
    """windows a forward pass"""
    dtype: Dtype = "float16"
    """of keys on the disk"""


def origin_of(
    model: Model,
    tokenizer: Tokenizer | None,
    tap: str,
    context: int = 0,
    stride: int = 0,
    run: str = "",
) -> Origin:
    """Origin of the keys of this model; equal for equal weights, tokenizers and taps.

    Raises:
        ConfigError: the model has no such tap. UnsupportedError: it is no causal language model.
    """
    if not isinstance(model, LanguageModel):
        raise UnsupportedError(
            f"a store is read by language models (task lm), not by one of task "
            f"'{model.config.task}'"
        )
    if memories_of(model):
        raise UnsupportedError(
            f"{model.config.member} carries a memory from window to window, but the keys of a "
            "store are of single windows: take a model without one"
        )
    name, layer = Tap.of(tap, len(model.stack.order))
    known = weights_digest(model)
    read = digest(None if tokenizer is None else tokenizer.to_dict())
    return Origin(known, read, f"{name}:{layer}", context, stride, run)


def index_texts(
    model: Model,
    tokenizer: Tokenizer,
    data: str,
    folder: str | Path,
    how: Indexing,
    *,
    tables: DataConfig | None = None,
    run: str = "",
    resume: bool = False,
    say: Callable[[str], None],
    should_stop: Callable[[], bool] = lambda: False,
) -> Store | None:
    """Read the texts of ``data`` into the store ``folder``; None if it was stopped.

    Args:
        tables: which column of tables is read; None: the one that is called like a text.
        resume: go on where an earlier call was stopped.
        should_stop: called between batches.

    Raises:
        ConfigError: no such tap, or a stride that leaves tokens out.
        UnsupportedError: a model that has no store.
        DataError, CheckpointError: see `Writer`.
    """
    longest = model.longest
    if longest is not None and how.context > longest:
        raise ConfigError(f"`context={how.context}`, but the model reads at most {longest} tokens")
    if not 1 <= how.stride <= how.context:
        raise ConfigError(f"`stride={how.stride}` must be from 1 to `context={how.context}`")
    origin = origin_of(model, tokenizer, how.tap, how.context, how.stride, run)
    assert isinstance(model, LanguageModel)
    with open_source(data) as source:
        texts = Texts(source, tokenizer, tables or DataConfig())
        notes = "".join(f"; {note}" for note in texts.notes)
        width = key_width(model, how.tap)
        rows = texts.size if tokenizer.kind in ("bytes", "chars") else texts.size // 2
        if resume and is_unfinished(folder):
            writer = Writer.resume(folder, origin)
        else:
            writer = Writer.create(folder, origin, width, how.dtype, rows)
        needed = size(bytes_needed(rows, width, writer.record.dtype))
        files = f"{pluralise(len(texts.entries), 'file')}"
        say(f"{files}, about {rows:,} keys of width {width}: {needed}{notes}")
        return written(model, writer, texts, how, texts.stamp, should_stop)


class Sized(Protocol):
    """Texts in an order that is always the same."""

    @property
    def size(self) -> int:
        """Bytes, or tokens, of all."""

    def __iter__(self) -> Iterator[np.ndarray]: ...


def written(
    model: LanguageModel,
    writer: Writer,
    texts: Sized,
    how: Indexing,
    stamp: str,
    should_stop: Callable[[], bool],
) -> Store | None:
    """The store with all windows after the writer's cursor; None if it was stopped.

    Raises:
        ConfigError: the texts or the batch are not those that the cursor counts.
    """
    with writer, evaluating(model), torch.inference_mode():
        counted = {"texts": stamp, "batch": how.batch}
        known = writer.cursor or {"done": 0, **counted}
        done = known["done"]
        for name, now in counted.items():
            if known[name] != now:
                same = "data, unchanged" if name == "texts" else f"batch {known[name]}"
                raise ConfigError(
                    f"the store {writer.folder} was started with another {name}: continue with the "
                    f"same --{same}, or remove the folder and start over"
                )
        everything = (w for text in texts for w in windows(text, how.context, how.stride))
        with tqdm(
            total=texts.size, unit="B", unit_scale=True, desc="indexing", disable=None
        ) as bar:
            for number, batch in enumerate(batched(everything, how.batch)):
                fresh = sum(len(w.inputs) - w.new for w in batch)
                if number < done:
                    bar.update(fresh)
                    continue
                keys = keys_of(model, batch, how.tap)
                for window, of_window in zip(batch, keys, strict=True):
                    after = window.text[window.first + window.new + 1 : window.end + 1]
                    writer.add(of_window[window.new :], after.astype(np.int64))
                bar.update(fresh)
                if (number + 1) % COMMIT == 0 or should_stop():
                    writer.commit({"done": number + 1, **counted})
                if should_stop():
                    return None
        writer.finish()
    return Store.open(writer.folder, verify=False)


def keys_of(model: LanguageModel, batch: list[Window], tap: str) -> list[torch.Tensor]:
    """Keys (L, width) of the tokens of each window."""
    lengths = [len(window.inputs) for window in batch]
    tokens = torch.zeros(len(batch), max(lengths), dtype=torch.long)
    for row, window in enumerate(batch):
        tokens[row, : lengths[row]] = torch.from_numpy(window.inputs.astype(np.int64))
    device = next(model.parameters()).device
    mask = None
    if min(lengths) < max(lengths):
        mask = Mask.from_lengths(torch.tensor(lengths, device=device), max(lengths))
    # the head need not see the other tokens
    keys = model(tokens.to(device), mask=mask, taps=[tap], last=1).taps[tap].float().cpu()
    return [keys[row, :length] for row, length in enumerate(lengths)]


def new_keys(model: LanguageModel, windows: Iterable[Window], tap: str) -> torch.Tensor:
    """Keys (n, width) of the tokens that are new in ``windows``, in order."""
    with evaluating(model), torch.inference_mode():
        keys = [
            of_window[window.new :]
            for some in batched(windows, TOGETHER)
            for window, of_window in zip(some, keys_of(model, some, tap), strict=True)
        ]
    return torch.cat(keys)


def key_width(model: LanguageModel, tap: str) -> int:
    """Numbers of a key."""
    with evaluating(model), torch.inference_mode():
        device = next(model.parameters()).device
        one = torch.zeros(1, 1, dtype=torch.long, device=device)
        return int(model(one, taps=[tap]).taps[tap].shape[-1])
