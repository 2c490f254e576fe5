"""Runs of SPALM: a frozen model, a store of the training text, and tables of neighbours.

retrieval/trained/    the frozen model's own training, where none was given
retrieval/model/      the frozen model
retrieval/store/      keys of the training text by it, and the index
"""

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from everyformer.core.errors import ConfigError, UnsupportedError
from everyformer.data.text import TextDataset
from everyformer.data.tokenizers.base import Tokenizer
from everyformer.data.tokenizers.load import require_same
from everyformer.genes.config import ModelConfig
from everyformer.genes.retrieval.spalm import SpalmOptions
from everyformer.models.build import build_model, configure
from everyformer.models.language import LanguageModel
from everyformer.stores.chunks import Chunks
from everyformer.stores.indexing import Indexing
from everyformer.stores.job import StoreJob, how_of, options_of
from everyformer.stores.runs import JobOutcome, Say
from everyformer.stores.spalm_reading import SpalmLanguageModel
from everyformer.stores.store.index import Index
from everyformer.stores.store.store import Store
from everyformer.stores.table import PhraseTable
from everyformer.training.config import TrainingConfig
from everyformer.training.loop import train
from everyformer.training.result import TrainResult
from everyformer.training.run import RunDirectory, describe_run
from everyformer.training.saved import is_model, load_model, save_model
from everyformer.training.warmstart import read_start

TRAINED, MODEL, STORE = "trained", "model", "store"
VANILLA = "rope"
"""the member by which contexts are compared where none is given: attention by distances sooner
finds what a token stands behind than attention by places"""


def train_with(*given: Any) -> JobOutcome:
    """The frozen model, the store, the tables, and then the training."""
    job = StoreJob(*given)
    folder, options = job.folder, job.options
    if job.run is not None and job.run.writes and job.run.config() is None:
        # so that a stop before the first step leaves a run to resume
        more = job.more.get("extra_config") or {}
        job.run.write_config(describe_run(job.model, job.dataset, job.config) | more)
    stopped = _frozen(job, folder)
    if stopped is not None:
        return job.outcome(stopped)
    frozen = _open(folder)
    how = _how(options, job.dataset, frozen)
    texts = Chunks(job.dataset.train[:], options.size, how.context, how.stride)
    store, signal = job.store(folder / STORE, frozen, texts, how)
    if store is None:
        # stopped before its training began
        nothing = TrainResult(0, 0, 0.0, 0, 0.0, None, None, None, job.path, signal=signal)
        return job.outcome(nothing)
    index = Index(store)
    job.say(f"neighbours from {store.describe()}")
    dataset = _with_tables(job.dataset, frozen, index, how, options, texts)
    result = job.train(dataset)
    reading = SpalmLanguageModel(job.model, frozen, index, how, options.k)
    return job.outcome(result, reading, dataset)


def open_model(
    folder: Path, model: LanguageModel, tokenizer: Tokenizer | None, say: Say
) -> SpalmLanguageModel:
    """The model, which looks up neighbours of what it reads."""
    return SpalmLanguageModel(model, *_opened(folder), options_of(model.config).k)


def extra_inputs(reading: SpalmLanguageModel, inputs: Tensor) -> dict[str, Tensor]:
    """Each token's neighbours."""
    return {"neighbours": reading.neighbours_of(inputs)}


def open_data(folder: Path, config: ModelConfig, dataset: TextDataset, say: Say) -> TextDataset:
    """The data with tables of neighbours."""
    return _with_tables(dataset, *_opened(folder), options_of(config), None)


def _opened(folder: Path) -> tuple[LanguageModel, Index, Indexing]:
    """The frozen model of a run, its store, and the windows in which that was read."""
    index = Index(Store.open(folder / STORE))
    origin = index.store.record.origin
    return _open(folder), index, Indexing(origin.tap, origin.context, origin.stride)


def _with_tables(
    dataset: TextDataset,
    frozen: LanguageModel,
    index: Index,
    how: Indexing,
    options: SpalmOptions,
    texts: Chunks | None,
) -> TextDataset:
    """``dataset`` with the neighbours of both parts; ``texts``: what of the first is stored."""
    read: dict[str, Any] = {
        "model": frozen, "index": index, "k": min(options.k, len(index.store)),
        "context": how.context, "stride": how.stride, "tap": how.tap,
    }  # fmt: skip
    own = None if texts is None else texts.positions
    tables = (
        PhraseTable(dataset.train[:], own=own, near=options.near, **read),
        PhraseTable(dataset.validation[:], **read),
    )
    return dataclasses.replace(dataset, neighbours=tables)


def _how(options: SpalmOptions, dataset: TextDataset, frozen: LanguageModel) -> Indexing:
    how = how_of(options, dataset)
    longest = frozen.longest
    if longest is not None and how.context > longest:
        raise ConfigError(
            f"`retrieval.context={how.context}`, but the frozen model reads at most {longest} "
            f"tokens: give up to that"
        )
    return how


def _frozen(job: StoreJob, folder: Path) -> TrainResult | None:
    """Put the frozen model into its folder; what came of its training if that was stopped."""
    if is_model(folder / MODEL):
        return None
    options, tokenizer = job.options, job.dataset.tokenizer
    if options.model is not None:
        start = read_start(options.model)
        if start.tokenizer is not None and tokenizer is not None:
            require_same(start.tokenizer, tokenizer)
        frozen, known = load_model(options.model), job.dataset.vocabulary
        if not isinstance(frozen, LanguageModel) or frozen.config.vocabulary != known:
            raise ConfigError(
                f"`retrieval.model={options.model}` is to compare contexts of this text, but it is "
                f"no language model of its {known:,} tokens: give a run of task lm with the same "
                "tokenizer"
            )
        save_model(frozen, folder / MODEL, tokenizer=tokenizer)
        return None
    config = job.model.config
    sizes = {name: getattr(config, name) for name in ("width", "layers", "heads", "vocabulary")}
    sizes["max_length"] = max(config.tokens, options.context or 0)
    torch.manual_seed(job.config.seed)
    vanilla = build_model(configure(VANILLA, "lm", **sizes))
    training = _part(job.config, options.share)
    job.say(
        f"no --retrieval.model is given: a model '{VANILLA}' is trained first, by which "
        f"contexts are compared, for {training.budget_words} (--retrieval.share {options.share:g})"
    )
    apart = folder / TRAINED
    if job.run is None:
        result = train(vanilla, job.dataset, training, None, show=job.more.get("show", True))
    else:
        with RunDirectory(apart, resume=apart.exists()) as run:
            result = train(
                vanilla, job.dataset, training, run,
                resume=apart.exists() and run.config() is not None,
                show=job.more.get("show", True),
            )  # fmt: skip
    if result.interrupted:
        return dataclasses.replace(result, evaluation=None, path=job.path)
    save_model(vanilla, folder / MODEL, tokenizer=tokenizer)
    return None


def _part(config: TrainingConfig, share: float) -> TrainingConfig:
    """Training for a part of a budget, measured at its end alone."""
    kind, amount = config.budget
    less: dict[str, Any] = {"evaluate_every": None, "stages": ()}
    if kind == "steps":
        less["steps"] = max(1, round(amount * share))
    else:
        less[f"budget_{kind}"] = amount * share
    return dataclasses.replace(config, **less)


def _open(folder: Path) -> LanguageModel:
    frozen = load_model(folder / MODEL)
    if not isinstance(frozen, LanguageModel):
        raise UnsupportedError(f"{folder / MODEL} holds no language model")
    return frozen.requires_grad_(False)
