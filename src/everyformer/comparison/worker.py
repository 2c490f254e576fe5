"""One training of a comparison, in a process of its own: `python -m everyformer.comparison.worker`.

So a member that runs out of memory or crashes takes nothing with it, and memory is its own. Reads
``job.json`` in the folder it is given and leaves ``result.json`` beside it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from everyformer.comparison.decoding import decoding_times, loss_by_position, sample
from everyformer.core.config import from_dict
from everyformer.core.errors import EveryformerError
from everyformer.data import load_dataset
from everyformer.data.config import DataConfig
from everyformer.models.build import build_model
from everyformer.models.config import ModelConfig
from everyformer.training import RunDirectory, train
from everyformer.training.config import TrainingConfig
from everyformer.training.result import peak_rss


def main(folder: Path) -> int:
    """Train the job in ``folder``; the exit code is the run's."""
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    try:
        result = work(folder, job)
    except (EveryformerError, RuntimeError, MemoryError) as error:
        result = {"status": "failed", "error": f"{type(error).__name__}: {error}"}
    if result.pop("signal", None):
        return 143
    written = folder / "result.json.new"
    written.write_text(json.dumps(result, indent=1), encoding="utf-8")
    os.replace(written, folder / "result.json")
    return 0


def work(folder: Path, job: dict[str, Any]) -> dict[str, Any]:
    """Train, then look at what came of it."""
    dataset = load_dataset(from_dict(DataConfig, job["data"]), job["task"])
    config = from_dict(ModelConfig, job["model"])
    training = from_dict(TrainingConfig, job["training"])
    torch.manual_seed(training.seed)
    model = build_model(config)
    before = peak_rss() or 0
    resume = (folder / "run").exists()
    with RunDirectory(folder / "run", resume=resume) as run:
        trained = train(model, dataset, training, run, resume=resume)
    if trained.interrupted:
        return {"signal": trained.signal}
    peak = trained.peak_device or max(0, (trained.peak_rss or 0) - before)
    found: dict[str, Any] = {
        "status": "done",
        "steps": trained.steps,
        "tokens": trained.tokens,
        "seconds": trained.seconds,
        "flops": trained.flops,
        "tokens_per_second": trained.tokens_per_second,
        "evaluation": trained.evaluation,
        "peak_bytes": peak,
        "config": dataclasses.asdict(config),
    }
    model.eval()
    if dataset.task in ("lm", "pixels"):
        found["decoding"] = decoding_times(config)
    if dataset.task == "lm":
        found["by_position"] = loss_by_position(model, dataset, training.evaluate_sequences)
        found["sample"] = sample(model, dataset)
    return found


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
