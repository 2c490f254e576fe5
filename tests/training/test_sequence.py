"""Texts split over processes: the loss and every gradient of one process that reads them whole."""

from collections.abc import Iterator
from multiprocessing.context import ForkServerContext
from typing import Any

import pytest
import torch
from sequence_stand_ins import (
    Answer,
    Ranks,
    agree,
    alone,
    gradients,
    in_segments,
    streaming_members,
    texts,
    tiny,
    variants,
)
from torch import nn

from everyformer.core.state import State, innermost
from everyformer.training.distributed import World
from everyformer.training.parallel.sequence import Sequence, sequence_reason, sums_alone
from everyformer.training.step import seed_step

MEMBERS = streaming_members()


@pytest.fixture(scope="module")
def started(children: ForkServerContext) -> Iterator[dict[int, Ranks]]:
    running: dict[int, Ranks] = {}
    yield running
    for ranks in running.values():
        ranks.close()


@pytest.fixture
def ranks(started: dict[int, Ranks], children: ForkServerContext) -> Any:
    """Gives so many processes; the same ones to all tests, as long as they live."""

    def of(size: int) -> Ranks:
        if size not in started or started[size].closed:
            started[size] = Ranks(children, size)
        return started[size]

    return of


def split(
    world: World, member: str, number: int, batch: dict[str, Any], parts: int, slices: int,
    waits: bool,
) -> Answer:  # fmt: skip
    """One process's answer; runs in a child."""
    model = tiny(member, number)
    seed_step(0, 1)
    losses = Sequence(model, world, parts, waits).backward(texts(**batch), slices=slices)
    return losses, gradients(model)


def cuts(model: nn.Module) -> bool:
    """True if a memory in it takes no gradient."""
    states: list[State] = [*innermost(model.init_state(1))]  # type: ignore[operator]
    return any(state.cut for state in states)


def of_one(member: str, number: int, batch: dict[str, Any], parts: int) -> Answer:
    """The answer of one process."""
    model = tiny(member, number)
    if model.config.genes["memory"].name is not None:
        return in_segments(model, texts(**batch), parts)
    return alone(model, texts(**batch))


@pytest.mark.parametrize("padding", [None, "right", "left"])
@pytest.mark.parametrize("member", MEMBERS)
def test_two_halves_are_one_text(member: str, padding: str | None, ranks: Any) -> None:
    number = MEMBERS.index(member) % len(variants(member))
    batch = {"padding": padding}
    slices = 1 if padding == "left" else 3
    for answer in ranks(2).run(split, member, number, batch, 2, slices, True):
        agree(answer, of_one(member, number, batch, 2))
