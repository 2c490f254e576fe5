"""Staged training: lengths, windows and rates by stage; nothing is lost by cutting rows."""

import dataclasses
import math
import shutil
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close
from training_stand_ins import tiny_text

import everyformer as ef
from everyformer.core.errors import ConfigError
from everyformer.genes.mixers.longformer import Longformer
from everyformer.training.config import TrainingConfig
from everyformer.training.loop import train
from everyformer.training.run import RunDirectory
from everyformer.training.schedule import learning_rate, narrowed, pieces_of, stage_of

PAPER = (430.0, 50.0, 50.0, 35.0, 5.0)
CONFIG = TrainingConfig(
    steps=6, stages=(3, 2, 1), batch=2, warmup=0.0, schedule="constant", lr=1e-3, log_every=1,
    evaluate_every=None, checkpoint_every=2, keep=4,
)  # fmt: skip


def model(member: str = "longformer", **options):
    torch.manual_seed(0)
    options = {"window": 8, **options} if member == "longformer" else options
    return ef.create_model(
        member, "lm", width=8, layers=2, heads=2, vocabulary=11, max_length=12, **options
    )


@pytest.mark.parametrize(
    ("thousands", "stage"),
    [(0, 0), (429.9, 0), (430, 1), (479, 1), (480, 2), (530, 3), (565, 4), (569.9, 4), (570, 4)],
)
def test_stages_begin_where_the_paper_says(thousands, stage):
    done = thousands / sum(PAPER)
    assert stage_of(PAPER, done) == stage
    assert pieces_of(PAPER, done) == 2 ** (4 - stage)
    rates = dataclasses.replace(CONFIG, stages=PAPER, lr=2.5e-4)
    assert math.isclose(learning_rate(rates, done, 1), 2.5e-4 / 2**stage)
    # without stages nothing is cut
    assert pieces_of((), done) == pieces_of((1.0,), done) == 1
    assert learning_rate(dataclasses.replace(CONFIG, stages=()), done, 5) == CONFIG.lr


def test_cut_rows_hold_all_tokens_and_targets_of_whole_ones():
    batch = tiny_text(12).train_batch(0, 2, 0)
    cut = batch.folded(4)
    assert cut.inputs.shape == (8, 3)
    assert_close(cut.inputs.reshape(2, 12), batch.inputs)
    assert_close(cut.targets[:, :-1], cut.inputs[:, 1:])
    assert_close(cut.targets.reshape(2, 12), batch.targets)


@pytest.mark.parametrize(("window", "by", "half"), [(8, 2, 2), (8, 4, 1), (6, 2, 1), (8, 64, 1)])
def test_narrow_windows_are_those_of_a_narrow_model(window, by, half):
    wide, narrow = model(window=window), model(window=2 * half)
    x = torch.randint(11, (1, 12))
    whole = wide(x).logits
    with narrowed(wide, by):
        assert_close(wide(x).logits, narrow(x).logits)
    assert_close(wide(x).logits, whole)
    with pytest.raises(RuntimeError), narrowed(wide, by):
        raise RuntimeError
    assert_close(wide(x).logits, whole)


def test_each_stage_trains_on_its_lengths_windows_and_rate(tmp_path):
    made, seen = model(), []

    def note(module, args, kwargs):
        if module.training:
            (mixer, _) = (m for m in module.modules() if isinstance(m, Longformer))
            seen.append((tuple(args[0].shape), mixer.plan(12).span))

    made.register_forward_pre_hook(note, with_kwargs=True)
    found = train(made, tiny_text(12), CONFIG, RunDirectory(tmp_path), show=False)
    assert seen == [((8, 3), 1)] * 3 + [((4, 6), 2)] * 2 + [((2, 12), 4)]
    assert found.tokens == 6 * 24
    rows = [line for line in (tmp_path / "metrics.jsonl").read_text().splitlines() if "lr" in line]
    rates = [float(line.split('"lr": ')[1].split(",")[0]) for line in rows]
    assert rates == [1e-3] * 3 + [5e-4] * 2 + [2.5e-4]


def weights(run: Path) -> dict[str, torch.Tensor]:
    return dict(ef.load(run).state_dict())


def test_a_run_goes_on_in_the_stage_where_it_stopped(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    train(model(), tiny_text(12), CONFIG, RunDirectory(whole), show=False)
    train(model(), tiny_text(12), CONFIG, RunDirectory(cut), show=False)
    shutil.rmtree(sorted((cut / "checkpoints").iterdir())[-1])
    train(model(), tiny_text(12), CONFIG, RunDirectory(cut, resume=True), resume=True, show=False)
    for name, value in weights(whole).items():
        assert_close(weights(cut)[name], value, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("stages", "data", "made", "said"),
    [
        ((1, 1, 1, 1), tiny_text(12), model, "no multiple of 8"),
        ((1, 1), tiny_text(12), lambda: model("transformer-xl"), "carries a memory"),
        ((1, 1), dataclasses.replace(tiny_text(12), task="mlm"), model, "of language models"),
    ],
)
def test_stages_that_cannot_be_say_why(stages, data, made, said):
    config = dataclasses.replace(CONFIG, stages=stages)
    with pytest.raises(ConfigError, match=said):
        train(made(), data, config, show=False)
    with pytest.raises(ConfigError, match="above 0"):
        TrainingConfig(stages=(1, 0))
