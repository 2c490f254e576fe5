"""A hundred thousand tokens through a model whose state is constant, in constant memory."""

import gc
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import everyformer as ef
from everyformer.family import list_members
from everyformer.system.process import return_freed_memory

CONSTANT = [
    member.name
    for member in list_members(task="lm", abilities=("streaming",))
    if member.cost.grows is False
]
LENGTH, PIECE, WARM = 100_000, 250, 20_000
SMALLER: dict[str, dict[str, Any]] = {
    **{name: {"slots": 64} for name in ("transformer-xl", "gtrxl", "spalm", "compressive")},
    "memorizing": {"slots": 64, "size": 512},
    "longformer": {"window": 64},
    "aft-local": {"max_length": LENGTH},
}
"""windows and memories that are read in a second, and a table that is as long"""
ROOM = 20 * 2**20
"""bytes by which what is resident may rise"""


def resident() -> int:
    gc.collect()
    return_freed_memory()  # what the allocator keeps of other tests is not held
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.full("half a minute", parts=6)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the system does not tell")
@pytest.mark.parametrize("member", CONSTANT)
def test_what_is_held_stays_the_same(member: str) -> None:
    torch.manual_seed(0)
    sizes = {"width": 16, "heads": 2, "layers": 1, "vocabulary": 64}
    model = ef.create_model(member, **{**sizes, **SMALLER.get(member, {})}).eval()
    state: Any = model.init_state(1)
    before = held = 0
    with torch.inference_mode():
        for read in range(PIECE, LENGTH + 1, PIECE):
            state = model(torch.randint(64, (1, PIECE)), state=state).state
            if read <= WARM:
                before, held = resident(), max(held, state.nbytes)
            # what is dropped many at a time is held for a while
            assert state.nbytes <= held
    assert state.num_tokens.tolist() == [LENGTH]
    assert resident() - before < ROOM


def test_there_are_some() -> None:
    assert len(CONSTANT) > 9
