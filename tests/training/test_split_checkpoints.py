"""Checkpoints of split weights: whole or not there, and gone on from under any splitting."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from split_stand_ins import SELDOM, check_weights, losses, split, trained
from training_stand_ins import processes, two_processes

import everyformer as ef
from everyformer.training.checkpoint import checkpoints, newest_checkpoint

WAYS: list[tuple[int, str]] = [(1, "ddp"), (2, "ddp"), (2, "fsdp"), (3, "fsdp")]
RESUMED = [((2, "fsdp"), way) for way in WAYS] + [(way, (2, "fsdp")) for way in WAYS[:2]]


def some_way(folder: Path, parallel: Any, steps: int) -> None:
    trained(folder, ("gpt", "transformer-xl"), steps, parallel=parallel)


@pytest.mark.full("seconds each", parts=3)
@pytest.mark.parametrize(
    ("before", "after"),
    [RESUMED[2], *(pytest.param(*case, marks=SELDOM) for case in RESUMED if case != RESUMED[2])],
)
def test_a_checkpoint_goes_on_under_any_splitting(children, tmp_path, before, after):
    for (size, parallel), steps in ((before, 3), (after, 5)):
        processes(children, size, some_way, tmp_path / "run", parallel, steps)
    trained(tmp_path / "one", ("gpt", "transformer-xl"), 5)
    for member in ("gpt", "transformer-xl"):
        one, run = tmp_path / "one" / member, tmp_path / "run" / member
        found, expected = losses(run, begin=3), losses(one, begin=3)
        # an evaluation at the end of the first session has no partner
        assert found[0] == pytest.approx(expected[0], rel=1e-12), member
        assert found[-2:] == pytest.approx(expected[-2:], rel=1e-9), member
        assert (checkpoints(run / "checkpoints")[-1] / "model.safetensors").exists()
        check_weights(one, run)


def killed_while_saving(folder: Path, moment: str, rank: int) -> None:
    """The second save ends one process: before it writes, after, or as the folder is sealed."""
    from everyformer.training import checkpoint
    from everyformer.training.parallel import saving

    saves = []

    def die(now: str) -> None:
        if now == moment and len(saves) == 2 and int(os.environ["RANK"]) == rank:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(function: Callable[..., Any], before: str, after: str) -> Callable[..., Any]:
        def run(*inputs: Any, **options: Any) -> Any:
            if before == "write":
                saves.append(1)
            die(before)
            result = function(*inputs, **options)
            die(after)
            return result

        return run

    saving.dcp.save = around(saving.dcp.save, "write", "written")  # type: ignore[assignment]
    checkpoint._seal = around(checkpoint._seal, "seal", "sealed")
    try:
        trained(folder, ("gpt",), 6, parallel="fsdp", evaluate_every=None)
    except BaseException:
        # what the other process says of it is asked elsewhere
        os._exit(1)


@pytest.mark.full("seconds each", parts=3)
@pytest.mark.parametrize(
    ("moment", "rank"),
    [
        ("seal", 0),
        *(
            pytest.param(*case, marks=SELDOM)
            for case in (("write", 1), ("written", 1), ("written", 0), ("sealed", 0))
        ),
    ],
)
def test_a_save_that_is_cut_off_leaves_the_checkpoint_before(children, tmp_path, moment, rank):
    with pytest.raises(AssertionError):
        two_processes(children, killed_while_saving, tmp_path, moment, rank)
    folder = tmp_path / "gpt" / "checkpoints"
    found = newest_checkpoint(folder)
    assert found[1].steps == 2
    trained(tmp_path, ("gpt",), 6, evaluate_every=None)
    trained(tmp_path / "one", ("gpt",), 6, evaluate_every=None)
    assert losses(tmp_path / "gpt")[-1] == pytest.approx(losses(tmp_path / "one" / "gpt")[-1])
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


@pytest.mark.full("seconds each", parts=3)
def test_a_damaged_part_is_noticed_whoever_wrote_it(children, tmp_path):
    two_processes(children, split, tmp_path, ("gpt",), 4, 1)
    folder = tmp_path / "gpt" / "checkpoints"
    for part in checkpoints(folder)[-1].glob("shard-00002*"):
        raw = bytearray(part.read_bytes())
        raw[-1] ^= 1
        part.write_bytes(raw)
    with pytest.warns(UserWarning, match="step-00000004 is skipped.*shard-00002"):
        found = newest_checkpoint(folder)
    assert found[1].steps == 2


def without_room(folder: Path) -> None:
    from everyformer.training.parallel import saving

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    if os.environ["RANK"] == "1":
        saving.dcp.HuggingFaceStorageWriter.write_data = full  # type: ignore[assignment]
    with pytest.raises(ef.EveryformerError, match="the disk is full"):
        trained(folder, ("gpt",), 6, parallel="fsdp", evaluate_every=None)


@pytest.mark.full("seconds each", parts=3)
def test_a_disk_that_is_full_on_one_machine_ends_all(children, tmp_path):
    two_processes(children, without_room, tmp_path)
