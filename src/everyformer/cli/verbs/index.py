"""`everyformer index RUN --data TEXTS --out STORE`: texts as a datastore that the model reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from everyformer.cli.parsing import TrainedOptions, say, verb
from everyformer.core.bounds import Count, Index
from everyformer.core.errors import ConfigError
from everyformer.core.plugins import command
from everyformer.data.config import DataConfig, TextSource
from everyformer.system.console import emit
from everyformer.system.signals import GracefulStop

if TYPE_CHECKING:
    from everyformer.stores.store.store import Store

PLACES = {
    "ffn-input": "ffn-input",
    "attention-output": "attention-output",
    "hidden": "block-output",
}
"""what keys are called, and the tap that gives them"""


@dataclass(frozen=True, kw_only=True)
class IndexOptions(TrainedOptions):
    """The words of `everyformer index`."""

    data: TextSource = field(default_factory=TextSource)
    """what is read"""
    out: str = "store"
    """folder of the store"""
    resume: bool = False
    """continue one that was not finished"""
    key: Literal["ffn-input", "attention-output", "hidden"] = "ffn-input"
    """what of the model a key is: what a layer's feed-forward reads, what its attention gives, or
    the stream behind it"""
    layer: Index = -1
    """which layer, counted from 1, or from the end if negative"""
    context: Count | None = None
    """tokens of the windows that texts are read in (default: as in training)"""
    stride: Count | None = None
    """tokens from one window to the next (default: the context)"""
    batch: Count = 16
    """windows a forward pass"""
    precision: Literal["float16", "float32"] = "float16"
    """of the keys on the disk"""
    json: bool = False
    """machine output"""


@verb(
    IndexOptions,
    about="Read texts into a datastore that the model then reads (eval, generate: --store).",
    examples=(
        "everyformer index runs/rope --data books/ --out runs/rope/store",
        "everyformer index runs/gpt2 --data books/ --key hidden --layer 6",
    ),
)
def run(options: IndexOptions) -> int:
    """Make a store."""
    if options.data.source is None:
        raise ConfigError("say which texts are to be read: --data FOLDER")
    from everyformer.cli.trained import open_run
    from everyformer.stores.indexing import Indexing, index_texts

    trained = open_run(options.run, options.device)
    tokenizer = trained.text_tokenizer()
    context = options.context or trained.length
    how = Indexing(
        f"{PLACES[options.key]}:{options.layer}",
        context,
        options.stride or context,
        options.batch,
        options.precision,
    )
    with GracefulStop("stopping after this batch; continue with --resume") as stop:
        store = index_texts(
            trained.model(),
            tokenizer,
            options.data.source,
            options.out,
            how,
            tables=DataConfig(
                text_column=options.data.text_column,
                header=options.data.header,
                separator=options.data.separator,
            ),
            run=str(trained.path),
            resume=options.resume,
            say=say,
            should_stop=lambda: stop.received is not None,
        )
    if store is None:
        say("stopped; continue with the same command and --resume")
        return 128 + (stop.received or 0)
    return _summarised(store, options)


def _summarised(store: Store, options: IndexOptions) -> int:
    if options.json:
        emit({"store": str(store.folder), "keys": len(store), "width": store.width})
        return 0
    print(f"{store.folder}: {store.describe()}")
    words = f"eval {options.run} --store {options.out}"
    print(f"next  {command(words)}")
    return 0
