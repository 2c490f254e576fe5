"""Pictures of what each member of a comparison learned, from its runs where they can be read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from everyformer.core.config import from_dict
from everyformer.core.errors import EveryformerError
from everyformer.core.seeds import seed_of
from everyformer.lab.compare.results import Results, TableRow, finished
from everyformer.lab.report.selection import best_few

LONGEST = 64
"""tokens of text in a picture: more would be too small to see"""
MOST_PIXELS = 1024
"""larger images would take minutes to draw"""
MOST = 4
"""layers and heads of a picture on a page"""
FEW = 6
"""members whose insides are all shown"""
BEST = 4
"""members whose insides are shown where there are more, beside the baseline"""


@dataclass(frozen=True)
class InsidePictures:
    """The pictures of one member, or why there are none."""

    member: str
    pictures: dict[str, Figure]
    why: str = ""


def learned_of_all(results: Results, folder: Path) -> list[InsidePictures]:
    """The pictures of pictured members, best first; a failure is a reason, never an error."""
    rows = pictured(results)
    if not rows:
        return []
    try:
        inputs, labels = _example(results)
    except (EveryformerError, OSError, KeyError, StopIteration) as error:
        why = f"no example could be read from the data: {error}"
        return [InsidePictures(row["member"], {}, why) for row in rows]
    return [_one(results, row["member"], folder, inputs, labels) for row in rows]


def pictured(results: Results) -> list[TableRow]:
    """Whose inside a page shows: all members, or of many the best few and the baseline."""
    rows = finished(results)
    return rows if len(rows) <= FEW else best_few(results, BEST)


def rebuilt(values: dict[str, Any]) -> Any:
    """The model of a run's config.json as it was before training, from the run's own seed."""
    from everyformer.training.saved import build_from_values

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(values["training"]["seed"], values["model"]["member"]))
        return build_from_values(values["model"])


def _example(results: Results) -> tuple[Tensor, list[str] | None]:
    """The first validation sequence, and a text for each of its tokens."""
    from everyformer.data import DataConfig, load_dataset
    from everyformer.data.text import token_texts

    config = from_dict(DataConfig, results["config"]["data"])
    dataset = load_dataset(config, results["data"]["task"], stored=config)
    inputs = next(iter(dataset.validation_batches(1, 1))).inputs
    if dataset.kind != "text":
        return inputs, None
    inputs = inputs[:, :LONGEST]
    if dataset.tokenizer is None:
        return inputs, None
    return inputs, token_texts(dataset.tokenizer, inputs[0].tolist())


def _one(
    results: Results, member: str, folder: Path, inputs: Tensor, labels: list[str] | None
) -> InsidePictures:
    from everyformer.lab.show.pictures import drawn_images, learned_pictures
    from everyformer.system.sealed import read_json
    from everyformer.training.saved import load_model
    from everyformer.training.storage import RUN_FORMAT

    run = next(r for r in results["runs"] if r["member"] == member)
    saved = folder / run.get("folder", f"runs/{member}-seed{run['seed']}") / "run"
    try:
        model: Any = load_model(saved)
        start = rebuilt(read_json(saved / "config.json", RUN_FORMAT))
        result = learned_pictures(model, inputs, start=start, labels=labels, most=MOST)
        if model.config.does.draws and model.config.tokens <= MOST_PIXELS:
            small = None if model.config.source_image is None else inputs
            result = {"samples": drawn_images(model, small=small), **result}
    except (EveryformerError, OSError, RuntimeError, KeyError, ValueError) as error:
        return InsidePictures(member, {}, f"the trained run could not be shown: {error}")
    return InsidePictures(
        member, result, "" if result else "this member has no pictures of its own"
    )
