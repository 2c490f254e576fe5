"""Pictures of the inside of a model: of a run, of a saved model, or of a fresh member."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from everyformer.cli.exits import settle_exits
from everyformer.cli.parsing import say
from everyformer.cli.show.options import ShowOptions
from everyformer.core.errors import ConfigError, EveryformerError, nearest
from everyformer.core.tasks import LM, TASKS
from everyformer.family import info, list_members
from everyformer.lab.exits.options import ExitConfig
from everyformer.system.console import emit
from everyformer.system.files import expanded
from everyformer.system.status import status

if TYPE_CHECKING:
    from torch import Tensor

    from everyformer.data.dataset import Dataset
    from everyformer.lab.show.confusion import Measured
    from everyformer.models.base import Model

FRESH = {"width": 128, "layers": 2, "heads": 4}
"""size of a member that is shown untrained: positions look as in Vaswani et al.'s figure"""
LENGTH = 64
EXAMPLE = "def mean(values):\n    return sum(values) / len(values)\n"


class Subject(NamedTuple):
    """Model, inputs and labels of a picture."""

    model: Model
    start: Model | None
    """the same model before training"""
    inputs: Tensor
    labels: list[str] | None
    folder: Path
    measure: Callable[[], Measured] | None = None
    """evaluates on the held-out part of the run's data"""
    extra: dict[str, Tensor] | None = None
    """what the model reads besides the inputs, where the run has it"""


def draw_inside(options: ShowOptions) -> int:
    """Draw the picture that is named, or all that a model has, and print where they are."""
    from everyformer.lab.report.figures import FIGURES
    from everyformer.lab.show.pictures import Inside, require_picture
    from everyformer.lab.show.style import save_figure

    subject = _open(options)
    require_picture(subject.model, options.what, ("curves", "table", "page", *FIGURES))
    inside = Inside(
        subject.model,
        subject.inputs,
        start=subject.start,
        labels=subject.labels,
        length=options.length,
        measure=subject.measure,
        extra=subject.extra or {},
    )
    drawn = []
    for kind in inside.able() if options.what == "all" else [options.what]:
        for name, figure in inside.require(kind).items():
            path = save_figure(figure, subject.folder / f"{name}.{options.format}")
            drawn.append({"picture": str(path), "shows": figure.get_label()})
            if not options.json:
                print(f"{path}\n    {figure.get_label()}")
    if options.json:
        emit({"target": options.run, "pictures": drawn})
    elif not drawn:
        say(f"{subject.model.config.member} has nothing to show")
    return 0


def _open(options: ShowOptions) -> Subject:
    folder = expanded(options.run)
    if folder.is_dir() and options.task is not None:
        raise ConfigError(f"{folder} has the task that it was trained for: leave --task out")
    names = [member.name for member in list_members()]
    if folder.is_dir():
        subject = _trained(folder, options)
    elif options.run in names:
        subject = _fresh(options)
    else:
        raise ConfigError(
            f"'{options.run}' is neither the directory of a run or saved model nor a member; "
            f"{nearest(options.run, names)}"
        )
    return subject if options.out is None else subject._replace(folder=expanded(options.out))


def _trained(folder: Path, options: ShowOptions) -> Subject:
    from everyformer.cli.trained import open_run
    from everyformer.lab.report.learned import rebuilt

    trained = open_run(str(folder))
    inputs, labels = _run_inputs(trained, options)
    start = None if trained.saved else rebuilt(trained.values)
    model = trained.model()
    settle_exits(trained, model, ExitConfig())
    measure = _measure(trained, model, options)
    extra = None if trained.saved else trained.extra_inputs(inputs)
    return Subject(model, start, inputs, labels, trained.path / "pictures", measure, extra)


def _measure(trained: Any, model: Model, options: ShowOptions) -> Callable[[], Measured] | None:
    """Evaluation of a classifier; None where there are no classes, or the data is not at hand."""
    from everyformer.lab.show.confusion import MEASURED, Measured
    from everyformer.training.evaluate import evaluate

    if not trained.does.classifies:
        return None

    @functools.cache
    def dataset() -> Dataset:
        loaded: Dataset = trained.own_dataset(
            f"{options.what} is drawn of held-out rows; everyformer eval {options.run} --data FILE "
            "prints the measures"
        )
        return loaded

    @functools.cache
    def measure() -> Measured:
        with status("evaluating on the held-out part"):
            measured = evaluate(model, dataset(), details=True)
        assert measured is not None
        return Measured(measured, dataset().classes)

    try:
        if options.what in (*MEASURED, "all"):
            dataset()
    except EveryformerError:
        if options.what in MEASURED:
            raise
        return None
    return measure


def _fresh(options: ShowOptions) -> Subject:
    import torch

    from everyformer.models.build import create_model

    member = info(options.run)
    task = options.task or (LM if LM in member.tasks else member.tasks[0])
    if task not in member.tasks:
        raise ConfigError(
            f"{member.name} does not do the task {task}; it does {', '.join(member.tasks)}"
        )
    folder = Path("pictures") / member.name
    torch.manual_seed(0)
    if TASKS[task].pictures:
        model = create_model(member.name, task, image=(3, 32, 32), **FRESH)
        images = torch.randint(256, (1, 3, 32, 32), dtype=torch.uint8)
        return Subject(model, None, images, None, folder)
    if TASKS[task].acts:
        from everyformer.models.states import random_states

        model = create_model(member.name, task, **FRESH)
        return Subject(model, None, random_states(model.config.episodes), None, folder)
    text = (EXAMPLE if options.text is None else options.text).encode()
    ids = torch.tensor([list(text[: options.length or LENGTH])])
    if not ids.numel():
        raise ConfigError("the text is empty: give at least one character")
    model = create_model(member.name, task, max_length=ids.shape[1], **FRESH)
    return Subject(model, None, ids, [chr(token) for token in ids[0].tolist()], folder)


def _run_inputs(trained: Any, options: ShowOptions) -> tuple[Tensor, list[str] | None]:
    """Inputs of the model, and a text for each token where it has one."""
    import torch

    from everyformer.data.text import token_texts

    tokenizer = trained.tokenizer()
    longest = min(options.length or LENGTH, trained.length)
    if options.text is not None:
        if tokenizer is None:
            raise ConfigError(f"{trained.no_text()}; --text cannot be used")
        ids = list(tokenizer.encode(options.text))[:longest]
        if not ids:
            raise ConfigError("the text is empty: give at least one character")
    else:
        inputs = _validation(trained)
        if inputs.dim() == 4 or trained.does.acts:
            return inputs, None
        ids = inputs[0, :longest].tolist()
    labels = None if tokenizer is None else token_texts(tokenizer, ids)
    return torch.tensor([ids]), labels


def _validation(trained: Any) -> Tensor:
    """One validation sequence or picture; random values where the data cannot be read again."""
    import torch

    model = trained.values["model"]
    try:
        if trained.data is None:
            raise ConfigError(f"{trained.path} does not say where its data is")
        inputs: Tensor = next(iter(trained.dataset(trained.data).validation_batches(1, 1))).inputs
    except EveryformerError as error:
        say(f"{error}; the model reads random values instead")
        if trained.does.acts:
            from everyformer.models.states import random_states

            return random_states(trained.config.episodes)
        if model["image"] is not None:
            shape = model.get("source_image") or model["image"]
            return torch.randint(256, (1, *shape), dtype=torch.uint8)
        return torch.randint(model["vocabulary"], (1, min(trained.length, LENGTH)))
    return inputs
