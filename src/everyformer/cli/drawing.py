"""Pictures of `everyformer generate`: whole images, completions, enlargements.

Every picture that is written is a grid. Completions: what is given, what was drawn, the original;
enlargements: the small picture, what was drawn, the original where it is known.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from everyformer.cli.parsing import say
from everyformer.core.errors import ConfigError, unknown
from everyformer.data.images import read_images, shrunk
from everyformer.generation.pixels import draw_images
from everyformer.generation.sampling import initial_state
from everyformer.lab.show.pictures import picture_path, save_images
from everyformer.system.console import facts
from sequence_laws.memory import check_memory

if TYPE_CHECKING:
    from everyformer.cli.trained import TrainedRun
    from everyformer.cli.verbs.generate import GenerateOptions
    from everyformer.models.pixels import DrawingModel

HELD_OUT = "held-out"
"""instead of a path: pictures that the run was not trained on"""
BLANK = 128
"""intensity that stands for what is not given"""


def draw(trained: TrainedRun, options: GenerateOptions) -> Path:
    """Draw what ``options`` ask for; the picture that was written.

    Raises:
        ConfigError: options that do not fit the run, unknown classes.
        DataError: pictures of another size than the run's.
    """
    model = cast("DrawingModel", trained.model(options.average))
    enlarges = model.config.source_image is not None
    if enlarges and options.complete is not None:
        raise ConfigError("the run enlarges pictures: say which with --enlarge, not --complete")
    if not enlarges and options.enlarge is not None:
        raise ConfigError(
            "the run draws pictures from nothing, or their second half with --complete; enlarging "
            "is the task super-resolution"
        )
    kind = "enlarged" if enlarges else "samples" if options.complete is None else "completed"
    # before hours of drawing
    out = picture_path(options.out or trained.path / f"{kind}.png")
    exact = initial_state(model, 1) is not None
    how = "a state" if exact else "recomputing (the member has no exact state)"
    say(f"{model.sequence.steps:,} tokens an image, with {how}")
    if enlarges:
        return _enlarged(trained, model, options, out)
    if options.complete is not None:
        return _completed(trained, model, options, options.complete, out)
    if options.draws != type(options).draws:
        raise ConfigError("--draws is of completions: say how many images with --images")
    count = 16 if options.images is None else options.images
    labels = _labels(model, options.class_name, count)
    return save_images(draw_images(model, count, options.sampling, labels=labels), out)


def _completed(
    trained: TrainedRun, model: DrawingModel, options: GenerateOptions, source: str, out: Path
) -> Path:
    """Rows of: the given half, its completions, the original."""
    assert model.config.image is not None
    count = 6 if options.images is None else options.images
    if source == HELD_OUT:
        images, labels = _held_out(trained, count)
    else:
        images, labels = read_images(source, [model.config.image], count), None
    labels = _labels(model, options.class_name, len(images), labels)
    rules = _repeated(options.draws, given=images, labels=labels)
    drawn = draw_images(model, len(images) * options.draws, options.sampling, **rules)
    sequence = model.sequence
    there = images.to(next(model.parameters()).device)
    tokens = sequence.tokens(sequence.flatten(there)).clone()
    tokens[:, sequence.steps // 2 :] = BLANK
    visible = sequence.unflatten(sequence.values(tokens))
    return _rows(options.draws, [visible], drawn, [images], out)


def _enlarged(
    trained: TrainedRun, model: DrawingModel, options: GenerateOptions, out: Path
) -> Path:
    """Rows of: the small picture, what was drawn from it, the original where there is one."""
    image, source = model.config.image, model.config.source_image
    assert image is not None
    assert source is not None
    count = 6 if options.images is None else options.images
    path, labels, true = options.enlarge or HELD_OUT, None, None
    if path == HELD_OUT:
        true, labels = _held_out(trained, count)
    else:
        read = read_images(path, [source, image], count)
        small, true = (read, None) if read.shape[1:] == source else (None, read)
    if true is not None:
        small = shrunk(true, source[1:])
    assert small is not None
    labels = _labels(model, options.class_name, len(small), labels)
    rules = _repeated(options.draws, labels=labels)
    drawn = draw_images(model, len(small) * options.draws, options.sampling, small=small, **rules)
    seen = torch.nn.functional.interpolate(small, image[1:], mode="nearest")
    return _rows(options.draws, [seen], drawn, [] if true is None else [true], out)


def _rows(draws: int, before: list[Tensor], drawn: Tensor, after: list[Tensor], out: Path) -> Path:
    parts = [*before, *drawn.unflatten(0, (-1, draws)).unbind(1), *after]
    return save_images(
        torch.stack([part.cpu() for part in parts], 1).flatten(0, 1), out, columns=len(parts)
    )


def _repeated(draws: int, **rows_of: Tensor | None) -> dict[str, Any]:
    """Each row ``draws`` times in succession."""
    there = {name: rows for name, rows in rows_of.items() if rows is not None}
    needed = draws * sum(rows.nbytes for rows in there.values())
    check_memory(needed, f"drawing each picture {draws:,} times", "choose fewer --draws")
    return {name: rows.repeat_interleave(draws, 0) for name, rows in there.items()}


def _held_out(trained: TrainedRun, count: int) -> tuple[Tensor, Tensor | None]:
    """Validation pictures (n, C, H, W) of the run, and their classes if it is class-conditional."""
    flag = "enlarge" if trained.config.source_image else "complete"
    dataset = trained.own_dataset(f"give the pictures, as a path, with --{flag}")
    say(f"{dataset.name}: {dataset.split}")
    return dataset.held_out_pictures(count)


def _labels(
    model: DrawingModel, requested: tuple[str, ...], count: int, known: Tensor | None = None
) -> Tensor | None:
    """The class of each image: as requested, in turn; else its own, or all in turn."""
    names = model.config.class_names
    if not names:
        if requested:
            raise ConfigError(
                f"--class {requested[0]}: the run was trained without classes (--data.labels): "
                "leave it out"
            )
        return None
    for name in requested:
        if name not in names:
            raise unknown("class", name, names)
    if not requested and known is not None:
        return known
    chosen = [names.index(name) for name in requested] or list(range(len(names)))
    if not requested:
        say(facts({"classes, in turn": ", ".join(names)}))
    return torch.tensor([chosen[n % len(chosen)] for n in range(count)])
