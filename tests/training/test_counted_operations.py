"""Operations of a training whose batches are of many lengths, beside torch's own count."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import everyformer as ef
from everyformer.data import DataConfig
from everyformer.data.batch import Batch
from everyformer.data.load import load_dataset
from everyformer.training.config import TrainingConfig
from everyformer.training.loop import train
from everyformer.training.run import RunDirectory

LENGTHS = (2, 2, 9, 50, 60, 85)
STEPS = 30


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder, draw = tmp_path_factory.mktemp("pairs"), random.Random(0)
    words = [" ".join(draw.choices("abc", k=draw.choice(LENGTHS))) for _ in range(200)]
    (folder / "a.en").write_text("\n".join(words) + "\n")
    (folder / "a.de").write_text("\n".join(line[::-1] for line in words) + "\n")
    config = DataConfig(source=str(folder), length=200, tokenizer="chars")
    return load_dataset(config, "seq2seq")


def model(pairs: Any) -> Any:
    torch.manual_seed(0)
    options = pairs.model_options | {"max_length": 200}
    return ef.create_model("transformer", "seq2seq", width=16, layers=1, heads=2, **options)


def counted(model: Any, batch: Batch) -> int:
    with FlopCounterMode(display=False) as counter:
        model(batch.inputs, targets=batch.targets, mask=batch.mask, **batch.extra).loss.backward()
    return counter.get_total_flops()


@pytest.mark.full("every operation of a training is counted")
@pytest.mark.parametrize("seed", range(4))
def test_operations_of_rows_of_many_lengths(seed: int, pairs: Any, tmp_path: Path) -> None:
    made = model(pairs).train()
    every = [counted(made, pairs.train_batch(step, 4, seed)) for step in range(STEPS)]
    # of one batch alone nothing follows
    assert max(every) > 20 * min(every)
    shared: dict[str, Any] = {"batch": 4, "device": "cpu", "evaluate_every": None, "seed": seed}
    config = TrainingConfig(steps=STEPS, **shared)
    told = train(model(pairs), pairs, config, RunDirectory(tmp_path / "run"), show=False)
    assert told.flops == pytest.approx(sum(every), rel=0.03)
    budget = sum(every[:20]) + every[20] // 2
    spent = train(model(pairs), pairs, TrainingConfig(budget_flops=budget, **shared), show=False)
    assert spent.steps == 21


def test_counts_outlive_a_stop(pairs: Any, tmp_path: Path) -> None:
    shared: dict[str, Any] = {"batch": 4, "device": "cpu", "evaluate_every": None}
    whole = train(
        model(pairs), pairs, TrainingConfig(steps=12, **shared), RunDirectory(tmp_path / "whole"),
        show=False,
    )  # fmt: skip
    made = model(pairs)
    for steps in (5, 12):
        run = RunDirectory(tmp_path / "run", resume=steps == 12)
        config = TrainingConfig(steps=steps, **shared)
        with run:
            result = train(made, pairs, config, run, resume=steps == 12, show=False)
    assert result.flops == whole.flops
