"""Every member under every way of splitting, beside processes that are not there.

Torch's fake group answers every collective at once, with nothing of use; what is wired wrongly
fails all the same. Numbers are those of real processes (`test_sharding`), and so is all of DDP,
which the fake group does not serve.
"""

from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from training_stand_ins import become_rank, free_port
from whole_members import PAIRS, model_and_batch

from everyformer.training.parallel.world import World
from everyformer.training.step import backward

SIZE = 4
CPU = torch.device("cpu")


def wire(parallel: Any, told: Path) -> None:
    """Writes which members fail, and how."""
    become_rank(0, free_port(), SIZE)
    dist.init_process_group("fake", rank=0, world_size=SIZE, store=FakeStore())
    world = World(CPU, 0, SIZE, parallel, 2 if parallel == "hybrid" else None)
    failed = []
    for member, task in PAIRS:
        try:
            model, batch = model_and_batch(member, task)
            module = world.wrap(model)
            backward(module, batch, world)
            split = [isinstance(weight, DTensor) for weight in model.parameters()]
            assert all(split)
        except Exception as error:  # all that fail are told
            failed.append(f"{member} {task}: {error!r}"[:300])
    told.write_text("\n".join(failed))


@pytest.mark.full("seconds each", parts=3)
@pytest.mark.parametrize("parallel", ["fsdp", "hybrid"])
def test_every_member_is_wired(parallel: str, children: ForkServerContext, tmp_path: Path) -> None:
    process = children.Process(target=wire, args=(parallel, tmp_path / "told.txt"))
    process.start()
    process.join(120)
    assert process.exitcode == 0
    assert (tmp_path / "told.txt").read_text() == ""
