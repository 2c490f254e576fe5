"""One training of a comparison, in its process (`everyformer.lab.compare.processes`).

So a member that runs out of memory or crashes takes nothing with it, and its memory is measured
alone. Reads ``job.json`` in its folder and writes ``result.json`` there.
"""

import sys
import traceback
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from everyformer.core.config import from_dict, to_dict
from everyformer.core.errors import DataError, EveryformerError
from everyformer.core.leaks import leak_of
from everyformer.core.mixer import Mixer
from everyformer.core.position import Position
from everyformer.data import load_dataset
from everyformer.family import info
from everyformer.genes.retrieval import RETRIEVAL
from everyformer.lab.compare.decoding import loss_by_position, sample
from everyformer.lab.compare.files import read_job, write_result
from everyformer.lab.compare.results import Result, Trained
from everyformer.models.base import Model
from everyformer.stores.runs import train_run
from everyformer.system.files import write_text
from everyformer.system.machine import LoadMeter
from everyformer.system.plain import from_json
from everyformer.system.process import keep_freed_memory
from everyformer.system.status import status
from everyformer.training import RunDirectory
from everyformer.training.evaluate import evaluate
from everyformer.training.progress import Part
from everyformer.training.spec import RunSpec, build_run
from sequence_laws.foreign import FAILURES, describe

LONGEST_STEP = 600.0
"""seconds"""


def main(folder: Path, word: str | None = None, quiet: bool = False) -> int:
    """Train the job in ``folder``; 143 if a signal stopped it, else 0, however it ended.

    ``word``: what it is of the comparison, to tell its progress by: a `Part` as JSON; ``quiet``:
    not to tell any.
    """
    part = None if word is None else from_dict(Part, from_json(word))
    keep_freed_memory()
    job = read_job(folder)
    # a comparison that was killed leaves its process alive for as long as one step takes
    with FileLock(folder / ".lock", timeout=LONGEST_STEP):
        result: Result | None
        try:
            result = work(folder, job, part, quiet)
        except EveryformerError as error:
            result = {"status": "failed", "error": str(error)}
        except FAILURES as error:  # whatever a member does, the others go on
            trace = folder / "error.txt"
            write_text(trace, traceback.format_exc())
            result = {"status": "failed", "error": f"{describe(error)} (traceback in {trace})"}
        if result is None:
            return 143
        write_result(folder, result)
    return 0


def work(
    folder: Path, job: dict[str, Any], part: Part | None = None, quiet: bool = False
) -> Trained | None:
    """Train, then look at what came of it; None if a signal stopped it."""
    spec = from_dict(RunSpec, job["run"])
    if spec.training.threads is not None:
        # what reads the model afterwards keeps to them too
        torch.set_num_threads(spec.training.threads)
    dataset = load_dataset(spec.data, spec.task, stored=spec.data)
    if dataset.fingerprint != job["fingerprint"]:
        raise DataError(f"{dataset.name} has changed since the comparison was started")
    model, training = build_run(spec, dataset), spec.training
    config = model.config
    resume = (folder / "run").exists()
    more: dict[str, Any] = {"extra_config": {"run": spec.record()}, "part": part}
    with RunDirectory(folder / "run", resume=resume) as run, LoadMeter() as load:
        outcome = train_run(
            model, dataset, training, run, resume=resume, show=not quiet, say=_say, **more
        )
    trained, reading, dataset = outcome.result, outcome.model, outcome.dataset
    if trained.interrupted:
        return None
    assert trained.evaluation is not None
    # a session without a step knows no speed of training
    speed = trained.tokens_per_second or trained.tokens / trained.seconds
    result: Trained = {
        "status": "done",
        "steps": trained.steps,
        "tokens": trained.tokens,
        "seconds": trained.seconds,
        "flops": trained.flops,
        "tokens_per_second": speed,
        "evaluation": trained.evaluation,
        "load": load.mean,
        "limits": limits_of(model),
        "config": to_dict(config),
    }
    if dataset.tested is not None:
        # rates are chosen by what is held out for that, and judged by what is not
        result["chosen_by"] = trained.evaluation["loss"]
        judged = evaluate(reading, dataset.tested, precision=trained.precision)
        assert judged is not None
        result["evaluation"] = judged
    model.eval()
    if leak := leak_of(model, dataset.length):
        result["leaks"] = leak
    if dataset.does.continues and dataset.shortcut is None:
        with status(f"reading and writing with {config.member}"):
            result["by_position"] = loss_by_position(reading, dataset)
            result["sample"] = sample(reading, dataset)
    return result


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def limits_of(model: Model) -> list[str]:
    """Limits of a model that others do not have, in sentences without a full stop."""
    limits = []
    parts = (part for part in model.modules() if isinstance(part, Mixer | Position))
    tables = [part.max_length for part in parts if part.max_length is not None]
    if tables and not model.config.does.pictures:
        limits.append(f"reads at most {min(tables):,} tokens, where its tables end")
    streaming = info(model.config.member).streaming
    if model.config.does.continues and isinstance(streaming, str):
        limits.append(
            "has no exact state, so every token that it writes reads the whole text again"
        )
    retrieval = RETRIEVAL.of(model.config)
    return limits if retrieval is None else [*limits, retrieval.cost]
