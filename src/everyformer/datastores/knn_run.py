"""Runs of kNN-LM: behind the training its text is stored, and how the store is read is chosen.

    retrieval/store/         keys of the training text by the finished model, and the index
    retrieval/reading.json   k, lambda, T and the distance, and what they came to

Lambda and T are those under which a stretch at the end of the training text, which is not stored,
is most likely: the model has learned from it too, so lambda is rather too low than too high. Of n
tokens there lambda is at most n / (n + 1) (`everyformer.models.knn_lm.highest_weight`).
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

from torch import Tensor

from everyformer.core.config import from_dict, to_dict
from everyformer.core.errors import ConfigError
from everyformer.data.text import TextDataset
from everyformer.data.tokenizers.base import Tokenizer
from everyformer.datastores.indexing import Indexing
from everyformer.datastores.reader import StoreReader, with_store
from everyformer.datastores.runs import Job, Outcome, Say, how_of
from everyformer.datastores.stretches import Stretches, indexed, stored
from everyformer.datastores.sweep import sweep
from everyformer.genes.config import ModelConfig
from everyformer.genes.retrieval.knn import KnnOptions as Wanted
from everyformer.models.knn_lm import KnnLanguageModel
from everyformer.models.language import LanguageModel
from everyformer.retrieval.index import Index
from everyformer.retrieval.options import Distance, Grid, KnnOptions
from everyformer.system.sealed import read_json, write_json
from everyformer.system.stopping import Gentle
from everyformer.training.checkpoint import load_model
from everyformer.training.evaluate import evaluate, why_not_finite

STORE, READING = "store", "reading.json"
FORMAT = "everyformer-reading"
TEMPERATURES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""that are tried"""


def train_with(job: Job) -> Outcome:
    """The training, the store, and how it is read; measured with it.

    Raises:
        ConfigError: too little text is kept apart to choose by, or is left to store.
    """
    how, tokens = how_of(job.options, job.dataset), job.dataset.train
    apart = _kept_apart(job.options, how, len(tokens))
    result = job.train()
    if result.interrupted:
        return job.outcome(result)
    folder, wanted = job.folder, job.options
    model = job.model if job.run is None else load_model(job.run.path)
    assert isinstance(model, LanguageModel)
    model = model.to(next(job.model.parameters()).device)
    texts = Stretches(tokens[: len(tokens) - apart], wanted.size, how.context, how.stride)
    with Gentle("stopping after this batch; go on with --resume") as stop:
        store = stored(
            folder / STORE, model, job.dataset.tokenizer, texts, how, job.dataset.fingerprint,
            lambda: stop.received is not None,
        )  # fmt: skip
    if store is None:
        stopped = dataclasses.replace(result, evaluation=None, signal=stop.received)
        return job.outcome(stopped)
    index = indexed(store, wanted.kind, _distance(wanted), job.say)
    held = dataclasses.replace(job.dataset, validation=tokens[len(tokens) - apart :], packed=False)
    options = _choose(model, index, held, how, wanted, job.say)
    reading = KnnLanguageModel(model, StoreReader(index), options, how.tap)
    rules: dict[str, Any] = {"batch": job.config.batch, "limit": job.config.evaluate_sequences}
    found = evaluate(reading, job.dataset, precision=job.config.precision, **rules)
    # of the weights that are kept: those of the best evaluation
    without = result.evaluation if job.run is None else result.best
    assert found is not None
    assert without is not None
    job.say(
        f"with {store.describe()}, k {options.k:,}, lambda {options.weight:.6g} and T "
        f"{options.temperature:g}: validation loss {found['loss']:.4f}, "
        f"{without['loss']:.4f} without"
    )
    if not math.isfinite(found["loss"]):
        job.say(f"that loss is {found['loss']}: {why_not_finite(reading, found['loss'])}")
    kept = {"reading": to_dict(options), "evaluation": found, "without": without}
    write_json(folder / READING, {"format": FORMAT, **kept})
    measured = dataclasses.replace(result, evaluation={"step": without["step"], **found})
    return job.outcome(measured, reading)


def open_model(
    folder: Path, model: LanguageModel, tokenizer: Tokenizer | None, say: Say
) -> KnnLanguageModel:
    """The model with its store."""
    options = from_dict(KnnOptions, read_json(folder / READING, FORMAT)["reading"])
    return with_store(model, tokenizer, folder / STORE, options, say=say)


def beside(reading: KnnLanguageModel, inputs: Tensor) -> dict[str, Tensor]:
    """Nothing: predictions are mixed behind the model."""
    return {}


def open_data(folder: Path, config: ModelConfig, dataset: TextDataset, say: Say) -> TextDataset:
    """The same: neighbours are looked up as texts are read."""
    return dataset


def _kept_apart(wanted: Wanted, how: Indexing, there: int) -> int:
    """Training tokens, of so many, that are not stored: at most half of them."""
    apart, least = min(wanted.tune, there // 2), how.context + 1
    if wanted.tune < least:
        raise ConfigError(
            f"--retrieval.tune {wanted.tune:,} keeps less than a window and its next token: give "
            f"at least {least:,}"
        )
    if apart < least:
        raise ConfigError(
            f"the training text has {there:,} tokens, but to store some and choose by others "
            f"takes {2 * least:,}: give more text, or a smaller --data.length"
        )
    return apart


def _distance(wanted: Wanted) -> Distance:
    return "cosine" if wanted.distance == "cosine" else "l2"


def _choose(
    model: LanguageModel,
    index: Index,
    dataset: TextDataset,
    how: Indexing,
    wanted: Wanted,
    say: Say,
) -> KnnOptions:
    """How the store is read: as is wanted, and for the rest as makes the held-out part of
    ``dataset``, read in overlapping windows, most likely."""
    k = min(wanted.k, len(index.store))
    temperatures = (wanted.temperature,) if wanted.temperature else TEMPERATURES
    given = () if wanted.weight is None else (wanted.weight,)
    options = KnnOptions(k, distance=wanted.distance)
    reading = KnnLanguageModel(model, StoreReader(index), options, how.tap)
    text = dataclasses.replace(dataset, length=how.context, stride=how.stride)
    found = sweep(reading, text, Grid((k,), temperatures, given), batch=how.batch)
    best = min((c for c in found.cells if c.tuned == (not given)), key=lambda cell: cell.loss)
    if not given and (told := found.at_most(best.weight)):
        say(told)
    return dataclasses.replace(options, weight=best.weight, temperature=best.temperature)
