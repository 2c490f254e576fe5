"""One training of a comparison, in a process of its own: `python -m everyformer.comparison.worker`.

So a member that runs out of memory or crashes takes nothing with it, and memory is its own. Reads
``job.json`` in the folder it is given and leaves ``result.json`` beside it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import Any, cast

from filelock import FileLock

from everyformer.benchmark.measure import memory_peak
from everyformer.comparison.decoding import decoding_times, loss_by_position, sample
from everyformer.comparison.files import read_job, write_result
from everyformer.comparison.results import Evaluation, Result, Trained
from everyformer.core.allocator import keep_freed_memory
from everyformer.core.config import from_dict, to_dict
from everyformer.core.errors import DataError, EveryformerError
from everyformer.core.files import write_text
from everyformer.core.mixer import leak_of
from everyformer.core.tasks import TASKS
from everyformer.data import load_dataset
from everyformer.training import RunDirectory, train
from everyformer.training.spec import RunSpec, build_run

LONGEST_STEP = 600.0
"""seconds"""


def main(folder: Path) -> int:
    """Train the job in ``folder``; 143 if a signal stopped it, else 0, however it ended."""
    keep_freed_memory()
    job = read_job(folder)
    # a comparison that was killed leaves its process behind for as long as one step takes
    with FileLock(folder / ".lock", timeout=LONGEST_STEP):
        result: Result | None
        try:
            result = work(folder, job)
        except EveryformerError as error:
            result = {"status": "failed", "error": str(error)}
        except Exception as error:  # whatever a member does, the others go on
            trace = folder / "error.txt"
            write_text(trace, traceback.format_exc())
            short = (str(error).splitlines() or [""])[0]
            sentence = f"{type(error).__name__}: {short} (traceback in {trace})"
            result = {"status": "failed", "error": sentence}
        if result is None:
            return 143
        write_result(folder, result)
    return 0


def work(folder: Path, job: dict[str, Any]) -> Trained | None:
    """Train, then look at what came of it; None if a signal stopped it."""
    spec = from_dict(RunSpec, job["run"])
    dataset = load_dataset(spec.data, spec.task)
    if dataset.fingerprint != job["fingerprint"]:
        raise DataError(f"{dataset.name} has changed since the comparison was begun")
    model, training = build_run(spec, dataset), spec.training
    config = model.config
    before = memory_peak() or 0
    resume = (folder / "run").exists()
    with RunDirectory(folder / "run", resume=resume) as run:
        trained = train(
            model, dataset, training, run, resume=resume, extra_config={"run": to_dict(spec)}
        )
    if trained.interrupted:
        return None
    peak = trained.peak_device or (memory_peak() or 0) - before
    # a sitting without a step of its own knows neither speed nor memory of training
    speed = trained.tokens_per_second or trained.tokens / trained.seconds
    found: Trained = {
        "status": "done",
        "steps": trained.steps,
        "tokens": trained.tokens,
        "seconds": trained.seconds,
        "flops": trained.flops,
        "tokens_per_second": speed,
        "evaluation": cast(Evaluation, trained.evaluation),
        "peak_bytes": peak if trained.tokens_per_second else None,
        "config": to_dict(config),
    }
    model.eval()
    if leak := leak_of(model):
        found["leaks"] = leak
    if TASKS[dataset.task].writes and not TASKS[dataset.task].encodes:
        found["decoding"] = decoding_times(config)
    if TASKS[dataset.task].continues:
        found["by_position"] = loss_by_position(model, dataset, training.evaluate_sequences)
        found["sample"] = sample(model, dataset)
    return found


def stop_with_parent() -> None:
    """Stop as on SIGTERM, with a checkpoint, when the standard input ends: the parent has died."""

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    stop_with_parent()
    sys.exit(main(Path(sys.argv[1])))
