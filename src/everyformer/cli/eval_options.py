"""The options of `everyformer eval`."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from everyformer.cli.parsing import TrainedOptions
from everyformer.core.bounds import Bounds, Count, Whole
from everyformer.core.config import Options
from everyformer.data.config import DataConfig
from everyformer.generation.config import BeamConfig
from everyformer.genes.retrieval import KnnOptions
from everyformer.lab.exits.options import ExitConfig


@dataclass(frozen=True)
class MemorySize(Options):
    """The memory of a run, for one evaluation."""

    slots: Whole | None = None
    """tokens of the past that each layer's memory holds (default: as in training)"""


@dataclass(frozen=True, kw_only=True)
class EvalOptions(TrainedOptions, BeamConfig):
    """The words of `everyformer eval`."""

    data: DataConfig = field(default_factory=DataConfig)
    """other data, all of which is measured; its tokenizer is the run's (defaults: those of the run,
    as help shows them where RUN is named; a saved model needs to be told its data, of which a part
    is held out)"""
    sequences: Count | None = None
    """validation sequences read (default: all)"""
    batch: Count = 16
    """sequences a forward pass"""
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16 computes under autocast"""
    each: Literal["line", "document"] | None = None
    """write the bits of each line, or document (a file, a row of a table), as CSV, most bits a byte
    first (lm); windows slide unless another mode is given, so that tokens have text before them"""
    mode: Literal["nonoverlapping", "sliding", "recurrent"] | None = None
    """how windows of --length tokens lie over a text (lm): side by side, or a stride apart, each
    scoring what is new in it, or in order, each going on from the one before; draws the loss by
    place and by context (default: side by side, with what a memory needs before each)"""
    stride: Count | None = None
    """tokens between sliding windows (default: half a window)"""
    streams: Count = 1
    """stretches of the text that are read side by side in mode recurrent"""
    memory: MemorySize = field(default_factory=MemorySize)
    """how much past is read"""
    lengths: tuple[Count, ...] = ()
    """measure windows of each of these lengths in turn and draw the loss against them (lm)"""
    out: str | None = None
    """with --lengths or --mode: the picture to write (default: RUN/lengths.png or RUN/MODE.png);
    with --each: the CSV (default: RUN/each-line.csv)"""
    store: str | None = None
    """folder of a datastore that the model reads (`everyformer index`; lm)"""
    knn: KnnOptions = field(default_factory=KnnOptions)
    """how it is read"""
    exits: ExitConfig = field(default_factory=ExitConfig)
    """where tokens leave (models with early exits)"""
    search_exits: Annotated[int, Bounds(1, 10_000)] | None = None
    """try so many thresholds of early exits on the data, where each layer may have its own drawn
    ones too; prints and draws those than which none loses less with no more layers"""
    average: Count | None = None
    """take the mean of the weights in so many of the newest checkpoints (default: the best one)"""
    bleu: bool = False
    """translate the held-out sentences too and give BLEU and chrF (seq2seq)"""
    translations: str | None = None
    """the file to write the translations into, one a line (seq2seq)"""
    json: bool = False
    """machine output"""
