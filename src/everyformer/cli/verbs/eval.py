"""`everyformer eval RUN [--data ...]`: how good a run or a saved model is."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from everyformer.cli.eval_data import TO_BE_GIVEN, for_source, measured, refuse_idle
from everyformer.cli.exits import search_exits, settle_exits
from everyformer.cli.parsing import Line, TrainedOptions, say
from everyformer.core.bounds import Bounds, Count, Whole
from everyformer.core.config import MISSING, Options
from everyformer.core.errors import ConfigError, DivergedError
from everyformer.data.config import DataConfig
from everyformer.generation.config import BeamConfig
from everyformer.genes.retrieval import KnnOptions
from everyformer.lab.exits.options import ExitConfig
from everyformer.system.console import emit, facts, table
from everyformer.system.files import expanded, named_as, write_text
from everyformer.system.status import status

if TYPE_CHECKING:
    from everyformer.cli.trained import TrainedRun
    from everyformer.data.dataset import Dataset
    from everyformer.models.base import Model

FIGURES = (".png", ".svg")
"""what figures are written as"""
CHANGED = "no measure of what the run can do: what is held out now may have been learned"
"""baseline comparison of an evaluation whose data have changed since the run was trained"""
OWN_DATA = "what the run was trained on"
"""stands for the source in help that is about no run in particular"""


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
    as help shows them where RUN is named; a saved model needs to be given its data, of which a part
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
    """segments of the text that are read side by side in mode recurrent"""
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


def run(words: Sequence[str]) -> int:
    """Evaluate and print every number with its 95% interval."""
    line = Line(EvalOptions, words, "eval")
    default = _default(line)
    options = line.parse(
        about="Measure a trained run on its validation data, or on other data.",
        examples=(
            "everyformer eval runs/gmlp --data other.txt",
            "everyformer eval runs/transformer-xl --mode recurrent --memory.slots 512",
        ),
        default=default,
    )
    if options.out is not None:
        # before it is measured
        named_as(options.out, FIGURES if options.each is None else (".csv",))
    if options.each is not None:
        options = _in_turn(options)
    from everyformer.cli.trained import open_run
    from everyformer.core.leaks import leak_of
    from everyformer.core.wording import NOT_WRITING

    trained = open_run(options.run, options.device)
    options = dataclasses.replace(options, data=_data(trained, options, default))
    dataset = trained.dataset(options.data)
    say(f"{dataset.name}: {dataset.split}")
    changed = trained.changed(options.data, dataset)
    model = trained.reading(options.average, options.store, options.knn)
    # said, since `train` ends with its last
    if (step := trained.step(options.average)) is not None:
        say(f"the weights of step {step:,} are measured")
    if options.search_exits is None:
        settle_exits(trained, model, options.exits, dataset.fingerprint)
    if options.memory.slots is not None:
        set_memory(model, options.memory.slots)
    if leak := leak_of(model, dataset.length):
        say(f"the loss is {NOT_WRITING}: {leak}")
    rules: dict[str, Any] = {"batch": options.batch, "limit": options.sequences}
    rules["precision"] = options.precision
    if options.search_exits is not None:
        return search_exits(trained, model, dataset, options, rules)
    if options.lengths:
        return _lengths(trained, model, options, default, rules)
    evaluation = _evaluated(trained, model, dataset, options, rules)
    if options.json:
        found = {"data": dataset.summary() | {"changed": changed}, "evaluation": evaluation}
        emit({"run": options.run, "step": step, **found})
    else:
        _print(evaluation, trained, dataset, CHANGED if changed else leak and NOT_WRITING)
    return 0


def _default(line: Line[EvalOptions]) -> EvalOptions:
    """The default options: the data are those of the run that the words name."""
    folder = next(iter(line.placed()), None) or line.peek("run")
    known = None if folder is None else _data_of(folder)
    known = None if known is None else for_source(known, line.peek("data.source"))
    return EvalOptions(
        run=MISSING if folder is None else folder,
        data=known or DataConfig(source=TO_BE_GIVEN if folder else OWN_DATA),
    )


def _data_of(folder: str) -> DataConfig | None:
    """The data of a run; of a saved model, sequences that it takes, from no source yet."""
    from everyformer.cli.trained import open_run

    if not expanded(folder).is_dir():
        raise ConfigError(f"there is no run at {folder}: give the directory that `train` made")
    run = open_run(folder, quiet=True)
    if not run.saved:
        return run.data
    if run.does.acts:
        return DataConfig(source=TO_BE_GIVEN, context=run.config.episodes.context)
    return DataConfig(source=TO_BE_GIVEN, length=min(DataConfig.length, max(run.length, 2)))


def _in_turn(options: EvalOptions) -> EvalOptions:
    """The options for lines, with windows that slide by default; options by which not
    every token is scored once, in order, are refused."""
    several = options.lengths or options.search_exits is not None
    if several or options.sequences is not None or options.streams > 1:
        raise ConfigError(
            "--each reads the whole text once, in order: leave out --sequences, --streams, "
            "--lengths and --search-exits"
        )
    return dataclasses.replace(options, mode=options.mode or "sliding")


def _data(trained: TrainedRun, options: EvalOptions, default: EvalOptions) -> DataConfig:
    """The data to measure on; options that would change nothing are refused."""
    if trained.saved and options.data.source == TO_BE_GIVEN:
        raise ConfigError(
            f"{options.run} holds a saved model, which does not know its data: say what to measure "
            "it on with --data"
        )
    tokenizer = trained.tokenizer()
    name = None if tokenizer is None else tokenizer.name
    refuse_idle(options.data, default.data, trained.does, name)
    return measured(trained, options.data)


def set_memory(model: Model, slots: int) -> None:
    """Let every layer remember ``slots`` tokens, however many it was trained with."""
    from everyformer.core.modules import memories_of

    memories = memories_of(model)
    if not memories or slots < 0:
        raise ConfigError(
            f"--memory.slots {slots} sets how many tokens of the past the layers hold, 0 or more, "
            f"but {model.config.member} has {'a memory' if memories else 'no memory'}"
        )
    for memory in memories:
        memory.slots = slots


def _lengths(
    trained: TrainedRun,
    model: Model,
    options: EvalOptions,
    default: EvalOptions,
    rules: dict[str, Any],
) -> int:
    """Evaluate at every length, print the table, draw the curve."""
    from everyformer.lab.show.lengths import draw_lengths

    if options.bleu or options.translations is not None or options.search != BeamConfig():
        raise ConfigError(
            "--lengths measures a language model: leave out the translations and their search"
        )
    if options.data.length != default.data.length:
        raise ConfigError("--lengths sets how long windows are: leave out --length")
    evaluations = []
    for length in sorted(set(options.lengths)):
        dataset = trained.dataset(dataclasses.replace(options.data, length=length))
        with status(f"evaluating in windows of {length:,}"):
            evaluations.append(_in_windows(model, dataset, options, rules))
        say(f"{length:,} tokens a window: loss {evaluations[-1]['loss']:.4f}")
    out = _picture(trained, options, "lengths.png")
    known = None if trained.saved else int(trained.values["data"]["length"])
    draw_lengths(evaluations, known, out)
    if options.json:
        emit({"run": options.run, "evaluations": evaluations, "figure": str(out)})
        return 0
    names = [name for name in ("loss", "perplexity", "bits_per_byte") if name in evaluations[0]]
    rows = [
        [f"{one['window']:,}", f"{one['stride']:,}", f"{one['scored']:,}"]
        + [f"{one[name]:.4f}" for name in names]
        for one in evaluations
    ]
    print(table(["window", "stride", "scored", *names], rows))
    print(out)
    return 0


def _evaluated(
    trained: TrainedRun, model: Model, dataset: Dataset, options: EvalOptions, rules: dict[str, Any]
) -> dict[str, Any]:
    """The numbers of one evaluation; the files that it draws or writes are reported."""
    from everyformer.cli.account import say_evaluated
    from everyformer.cli.threads import choose_threads
    from everyformer.training.evaluate import evaluate

    windowed = options.mode is not None or options.stride is not None or options.streams != 1
    if options.out is not None and not windowed:
        raise ConfigError(
            "--out is of --each, or of the picture of --lengths or --mode: leave it out"
        )
    many = options.sequences is None or options.sequences > 2 * options.batch
    if many and not trained.does.acts:
        one = rules | {"limit": options.batch}
        choose_threads(lambda: evaluate(model, dataset, remember=False, **one))
    translations = _translations(model, dataset, options)
    if not windowed:
        with status(f"evaluating on the held-out part of {dataset.name}"):
            result = evaluate(model, dataset, details=True, **rules)
        if trained.does.continues:
            say_evaluated(model, dataset, options.batch, options.precision)
        return _finite(model, result, options.run) | translations
    from everyformer.lab.show.lengths import draw_positions
    from everyformer.training.scored import write_scores

    losses: list[Any] = []
    rules |= {} if options.each is None else {"each": losses}
    with status(f"evaluating in windows of {dataset.length:,}"):
        evaluation = _in_windows(model, dataset, options, rules)
    if options.each is None:
        out = _picture(trained, options, f"{options.mode or 'nonoverlapping'}.png")
        draw_positions(evaluation, out)
        say(f"loss by place and by context: {out}")
    else:
        out = _picture(trained, options, f"each-{options.each}.csv")
        write_scores(dataset, losses, options.each, out)
        say(f"bits of every {options.each}, the strangest first: {out}")
    say_evaluated(model, dataset, options.batch, options.precision)
    return evaluation | translations


def _translations(model: Model, dataset: Dataset, options: EvalOptions) -> dict[str, Any]:
    """BLEU and chrF of the held-out sentences' translations, where they are requested."""
    if not options.bleu and options.translations is None:
        if options.search != BeamConfig():
            raise ConfigError("options of beam search need --bleu or --translations FILE")
        return {}
    from everyformer.generation.beam import quality, sacrebleu_package, translate_all

    sources, references = dataset.held_out_pairs(options.sequences)
    assert dataset.tokenizer is not None
    if options.bleu:
        sacrebleu_package()
    translations = translate_all(
        model, dataset.tokenizer, sources, options.search, batch=options.batch
    )
    if options.translations is not None:
        write_text(expanded(options.translations), "".join(f"{line}\n" for line in translations))
        say(f"{len(translations):,} translations in {options.translations}")
    return quality(translations, references) if options.bleu else {}


def _in_windows(
    model: Model, dataset: Dataset, options: EvalOptions, rules: dict[str, Any]
) -> dict[str, Any]:
    """Evaluate with the windows laid as the options say."""
    from everyformer.training.long_text import evaluate_long

    windows: dict[str, Any] = {"stride": options.stride, "streams": options.streams}
    windows["mode"] = options.mode or "nonoverlapping"
    return _finite(model, evaluate_long(model, dataset, **windows, **rules), options.run)


def _picture(trained: TrainedRun, options: EvalOptions, name: str) -> Path:
    """Path of the picture, or of the CSV."""
    return expanded(options.out) if options.out is not None else trained.path / name


def _finite(model: Model, evaluation: dict[str, Any] | None, folder: str) -> dict[str, Any]:
    from everyformer.training.evaluate import why_not_finite

    assert evaluation is not None
    if not math.isfinite(evaluation["loss"]):
        raise DivergedError(
            f"the loss of {folder} is {evaluation['loss']}, which measures nothing: "
            f"{why_not_finite(model, evaluation['loss'])}"
        )
    return evaluation


def _print(
    evaluation: dict[str, Any], trained: TrainedRun, dataset: Dataset, nothing: str | None
) -> None:
    """An evaluation for people; ``nothing``: why no baseline is compared, if none is."""
    against = nothing or trained.does.against_baseline(evaluation)
    tables = trained.does.table(evaluation, dataset)
    if tables is not None:
        print(tables)
        if against is not None:
            print(f"\n{against}")
        if "by_class" in evaluation and "confusion" not in evaluation:
            say(f"{len(dataset.classes):,} classes are too many for a confusion matrix")
        return
    rows = {}
    for name, value in evaluation.items():
        if isinstance(value, int | float):
            around = evaluation.get(f"{name}_interval")
            span = f"   95% interval {around[0]:.5g} to {around[1]:.5g}" if around else ""
            if signature := evaluation.get(f"{name}_signature"):
                span = f"   {signature}"
            rows[name] = f"{value:.6g}{span}"
    print(facts(rows if against is None else {**rows, "baseline": against}))
