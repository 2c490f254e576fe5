"""Processes that hold parts of the same texts, and small models of every member that streams."""

import functools
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from training_stand_ins import free_port

import everyformer as ef
from everyformer.core.trials import HEADS, LONGEST, WIDTH
from everyformer.data.batch import Batch
from everyformer.family import list_members
from everyformer.genes import GENES
from everyformer.training.parallel.world import World
from everyformer.training.sequence.chain import Chain
from everyformer.training.step import backward, seed_step
from helpers import shifted

VOCABULARY = 11
WORLD = World(torch.device("cpu"))
NEEDED: dict[str, dict[str, Any]] = {
    "learned-per-layer": {"lookahead": 0.0},
    "performer": {"redraw": None},
    "rfa": {"redraw": None},
    "sinkhorn": {"gumbel": False},
}
"""options without which a member cannot be split, or draws in training"""


class Ranks:
    """So many processes of one run, which do the same work, one piece after the other."""

    def __init__(self, children: ForkServerContext, size: int) -> None:
        self.lines, self.processes, port = [], [], free_port()
        for rank in range(size):
            own, other = children.Pipe()
            process = children.Process(target=_serve, args=(rank, size, port, other), daemon=True)
            process.start()
            self.lines.append(own)
            self.processes.append(process)

    def run(self, work: Callable[..., Any], *arguments: Any, **options: Any) -> list[Any]:
        """What ``work(world, *arguments, **options)`` gives in each process."""
        for line in self.lines:
            line.send((work, arguments, options))
        answers = []
        for rank, line in enumerate(self.lines):
            if not line.poll(60):
                self.close()
                pytest.fail(f"process {rank} hangs")
            try:
                answers.append(line.recv())
            except EOFError:
                self.close()
                pytest.fail(f"process {rank} has ended")
        for failed in (answer for done, answer in answers if not done):
            self.close()
            pytest.fail(failed)
        return [answer for _, answer in answers]

    @property
    def closed(self) -> bool:
        return not all(process.is_alive() for process in self.processes)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join(60)


def _serve(rank: int, size: int, port: str, line: Connection) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    where = f"tcp://127.0.0.1:{port}"
    dist.init_process_group(
        "gloo", init_method=where, rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    world = World(torch.device("cpu"), rank, size)
    # groups are made once in a run, and not let go of
    Chain.of = functools.cache(Chain.of)  # type: ignore[method-assign]
    while True:
        work, arguments, options = line.recv()
        try:
            line.send((True, work(world, *arguments, **options)))
        except BaseException:
            line.send((False, f"process {rank}:\n{traceback.format_exc()}"))
            time.sleep(60)


def streaming_members() -> list[str]:
    """Members that write and have an exact state."""
    return [row.name for row in list_members(task="lm", abilities=("streaming",))]


def variants(member: str) -> list[Mapping[str, Any]]:
    """Options on which the laws try a member's causal form, at least none."""
    row = next(row for row in list_members() if row.name == member)
    trials = GENES[row.gene].alternatives.get(row.genes[row.gene].name).trials
    return [*trials.variants, *trials.causal] or [{}]


def tiny(member: str, number: int = 0, layers: int = 2, **options: Any) -> nn.Module:
    """A model of a member in training, of the options of one of its `variants`, float64 and without
    dropout; its weights lie apart from where they start, which may be a special place."""
    torch.manual_seed(0)
    sizes = {"width": WIDTH, "heads": HEADS, "layers": layers, "vocabulary": VOCABULARY}
    chosen = {**NEEDED.get(member, {}), **variants(member)[number], **options}
    made = ef.create_model(
        member,
        **{"max_length": LONGEST, "dropout": 0.0, "embedding_dropout": 0.0, **sizes, **chosen},
    )
    return shifted(made.double(), 0.1).train()


def texts(rows: int = 5, length: int = 31, padding: str | None = None) -> Batch:
    """Texts of tokens drawn evenly; padded, the last but one ends in the first half, the fourth
    begins with what is scored nowhere."""
    generator = torch.Generator().manual_seed(length)
    row = torch.randint(VOCABULARY, (rows, length + 1), generator=generator)
    tokens, targets = row[:, :-1], row[:, 1:].clone()
    targets[:, ::7] = -100
    if padding is None:
        return Batch(tokens, targets)
    count = torch.tensor([length, length - 5, length // 2 + 1, 2, length // 3]).repeat(rows)[:rows]
    keep = torch.arange(length) < count[:, None]
    keep = keep if padding == "right" else keep.flip(1)
    return Batch(tokens, targets.masked_fill(~keep, -100), keep)


def in_parts(world: World, parts: int) -> World:
    """The same processes, of which so many read one text together."""
    return replace(world, parallel="sequence", shards=parts)


def own_rows(world: World, **options: Any) -> Batch:
    """A process's rows of `texts`."""
    batch = texts(**options)
    return batch.rows(*world.own.of(len(batch.targets)))


def columns(batch: Batch, start: int, stop: int) -> Batch:
    """Tokens ``start`` to ``stop`` of the texts."""
    keep = None if batch.keep is None else batch.keep[:, start:stop]
    return Batch(batch.inputs[:, start:stop], batch.targets[:, start:stop], keep)


def gradients(model: nn.Module) -> dict[str, np.ndarray[Any, Any]]:
    named = model.named_parameters()
    return {name: p.grad.numpy().copy() for name, p in named if p.grad is not None}


Answer = tuple[dict[str, float], dict[str, np.ndarray[Any, Any]]]
"""terms of a loss and gradients by name"""


def alone(model: nn.Module, batch: Batch, slices: int = 1) -> Answer:
    """One process's answer."""
    seed_step(0, 1)
    return backward(model, batch, WORLD, slices=slices), gradients(model)


def in_segments(model: nn.Module, batch: Batch, parts: int) -> Answer:
    """The answer of one process that reads the parts of its texts as segments, where no gradient
    goes through memories; terms other than the task's are means over tokens."""
    seed_step(0, 1)
    length, sums = batch.inputs.shape[1], dict[str, Tensor]()
    state: Any = model.init_state(len(batch.inputs))  # type: ignore[operator]
    for n in range(parts):
        start, stop = n * length // parts, (n + 1) * length // parts
        piece = columns(batch, start, stop)
        out = model(piece.inputs, targets=piece.targets, mask=piece.mask, state=state)
        scored = int((piece.targets != -100).sum()) / int((batch.targets != -100).sum())
        for name, loss in out.losses.items():
            share = scored if name == "task" else (stop - start) / length
            sums[name] = sums.get(name, torch.zeros_like(loss)) + loss * share
        layers = tuple(each.detach() if each.cut else each for each in out.state.layers)
        state = replace(out.state, layers=layers)
    torch.stack([*sums.values()]).sum().backward()
    return {name: float(value.detach()) for name, value in sums.items()}, gradients(model)


def agree(found: Answer, expected: Answer, tolerance: float = 1e-10) -> None:
    """Equal terms of the loss, and gradients, to ``tolerance`` of the largest entry of each; of
    those that are zero but for rounding, absolute."""
    assert found[0].keys() == expected[0].keys()
    assert found[0] == pytest.approx(expected[0], rel=1e-12)
    assert found[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        largest = np.abs(gradient).max()
        bound = tolerance * largest if largest > 1e-9 else 1e-12
        assert np.abs(found[1][name] - gradient).max() <= bound, name
