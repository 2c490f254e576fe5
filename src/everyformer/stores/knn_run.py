"""Runs of kNN-LM: after the training its text is stored, and the reading of the store is chosen.

    retrieval/store/         keys of the training text by the finished model, and the index
    retrieval/reading.json   k, lambda, T and the distance, and what they came to

Lambda and T are those under which a chunk at the end of the training text, which is not stored,
is most likely: the model has learned from it too, so lambda is rather too low than too high. Of n
tokens there lambda is at most n / (n + 1) (`everyformer.models.knn_lm.highest_weight`).
"""

import dataclasses
import math
from pathlib import Path
from typing import Any

from torch import Tensor

from everyformer.core.config import from_dict, to_dict
from everyformer.core.errors import ConfigError
from everyformer.data.text import TextDataset
from everyformer.data.tokenizers.base import Tokenizer
from everyformer.genes.config import ModelConfig
from everyformer.genes.retrieval import K, KnnOptions
from everyformer.genes.retrieval.knn import KnnRunOptions
from everyformer.models.knn_lm import KnnLanguageModel, best_weight, highest_weight, mixed
from everyformer.models.language import LanguageModel
from everyformer.stores.chunks import Chunks
from everyformer.stores.indexing import Indexing
from everyformer.stores.job import StoreJob, how_of
from everyformer.stores.reader import StoreReader, searched_by, with_store
from everyformer.stores.runs import JobOutcome, Say
from everyformer.stores.store.index import Index
from everyformer.stores.tuning import likelihoods
from everyformer.system.sealed import read_json, write_json
from everyformer.training.evaluate import evaluate, why_not_finite
from everyformer.training.saved import load_model

STORE, READING = "store", "reading.json"
FORMAT = "everyformer-reading"
TEMPERATURES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""that are tried"""


def train_with(*given: Any) -> JobOutcome:
    """The training, the store, and the choice of its reading; measured with it.

    Raises:
        ConfigError: too little text is kept apart to choose by, or is left to store.
    """
    job = StoreJob(*given)
    options, how, tokens = job.options, how_of(job.options, job.dataset), job.dataset.train
    apart = _held_out(options, how, len(tokens))
    result = job.train()
    if result.interrupted:
        return job.outcome(result)
    folder = job.folder
    model = job.model if job.run is None else load_model(job.run.path)
    assert isinstance(model, LanguageModel)
    model = model.to(next(job.model.parameters()).device)
    texts = Chunks(tokens[: len(tokens) - apart], options.size, how.context, how.stride)
    store, signal = job.store(folder / STORE, model, texts, how)
    if store is None:
        stopped = dataclasses.replace(result, evaluation=None, signal=signal)
        return job.outcome(stopped)
    index = Index(store, searched_by(options))
    held = dataclasses.replace(job.dataset, validation=tokens[len(tokens) - apart :], packed=False)
    chosen = _choose(model, index, held, how, options, job.say)
    reading = KnnLanguageModel(model, StoreReader(index), chosen, how.tap)
    rules: dict[str, Any] = {"batch": job.config.batch, "limit": job.config.evaluate_sequences}
    measured = evaluate(reading, job.dataset, precision=job.config.precision, **rules)
    # of the weights that are kept: those of the best evaluation
    without = result.evaluation if job.run is None else result.best
    assert measured is not None
    assert without is not None
    job.say(
        f"with {store.describe()}, k {chosen.k:,}, lambda {chosen.weight:.6g} and T "
        f"{chosen.temperature:g}: validation loss {measured['loss']:.4f}, "
        f"{without['loss']:.4f} without"
    )
    if not math.isfinite(measured["loss"]):
        job.say(f"that loss is {measured['loss']}: {why_not_finite(reading, measured['loss'])}")
    values = {"reading": to_dict(chosen), "evaluation": measured, "without": without}
    write_json(folder / READING, {"format": FORMAT, **values})
    evaluation = {"step": without["step"], **measured}
    return job.outcome(dataclasses.replace(result, evaluation=evaluation), reading)


def open_model(
    folder: Path, model: LanguageModel, tokenizer: Tokenizer | None, say: Say
) -> KnnLanguageModel:
    """The model with its store."""
    stored = read_json(folder / READING, FORMAT)["reading"]
    stored.pop("exclude_self", None)  # of earlier versions
    options = from_dict(KnnOptions, stored)
    return with_store(model, tokenizer, folder / STORE, options, say=say)


def extra_inputs(reading: KnnLanguageModel, inputs: Tensor) -> dict[str, Tensor]:
    """Nothing: predictions are mixed after the model."""
    return {}


def open_data(folder: Path, config: ModelConfig, dataset: TextDataset, say: Say) -> TextDataset:
    """``dataset`` itself: neighbours are looked up as texts are read."""
    return dataset


def _held_out(options: KnnRunOptions, how: Indexing, count: int) -> int:
    """Number of training tokens, of so many, that are not stored: at most half of them."""
    apart, least = min(options.tune, count // 2), how.context + 1
    if options.tune < least:
        raise ConfigError(
            f"`retrieval.tune={options.tune:,}` keeps less than a window and its next token: give "
            f"at least {least:,}"
        )
    if apart < least:
        raise ConfigError(
            f"the training text has {count:,} tokens, but to store some and choose by others "
            f"takes {2 * least:,}: give more text, or a smaller `data.length`"
        )
    return apart


def _choose(
    model: LanguageModel,
    index: Index,
    dataset: TextDataset,
    how: Indexing,
    options: KnnRunOptions,
    say: Say,
) -> KnnOptions:
    """The reading of the store by ``options``, and where those leave it open the one that makes the
    held-out part of ``dataset``, read in overlapping windows, most likely."""
    k = min(options.k or K, len(index.store))
    temperatures = (options.temperature,) if options.temperature else TEMPERATURES
    chosen = KnnOptions(k, distance=options.distance)
    reading = KnnLanguageModel(model, StoreReader(index), chosen, how.tap)
    text = dataclasses.replace(dataset, length=how.context, stride=how.stride)
    of_model, of_neighbours = likelihoods(reading, text, (k,), temperatures, batch=how.batch)
    tried = []
    for temperature, known in zip(temperatures, of_neighbours[:, 0].unbind(-1), strict=True):
        weight = best_weight(of_model, known) if options.weight is None else options.weight
        tried.append((-float(mixed(of_model, known, weight).mean()), weight, temperature))
    _, weight, temperature = min(tried, key=lambda one: one[0])
    if options.weight is None and weight >= highest_weight(len(of_model)):
        say(
            f"lambda {weight:.9g} is the largest that {len(of_model):,} tokens can speak for, "
            "n / (n + 1): a token that no neighbour has must stay possible"
        )
    return dataclasses.replace(chosen, weight=weight, temperature=temperature)
