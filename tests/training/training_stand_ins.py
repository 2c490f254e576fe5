"""A model and a dataset small enough to train in milliseconds, with the library's interfaces."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyformer.core.config import from_dict
from everyformer.core.mask import Mask
from everyformer.core.outputs import ModelOutput
from everyformer.data.batch import WHOLE, Batch, Portion
from everyformer.data.dataset import Dataset
from everyformer.data.text import TextDataset
from everyformer.training.config import BUDGETS, TrainingConfig
from everyformer.training.loop import train
from everyformer.training.result import TrainResult
from everyformer.training.run import RunDirectory


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def become_rank(rank: int, port: str, size: int = 2) -> None:
    """What torchrun sets, for one of two processes."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


def as_rank(rank: int, port: str, size: int, job: Any, *arguments: Any) -> None:
    """What torchrun sets, then ``job``; runs in a child."""
    become_rank(rank, port, size)
    job(*arguments)


def processes(children: ForkServerContext, size: int, job: Any, *arguments: Any) -> None:
    """``size`` ranks, all of which have to end; a busy machine takes its time."""
    port = free_port()
    ranks = [
        children.Process(target=as_rank, args=(rank, port, size, job, *arguments))
        for rank in range(size)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(120)
        if process.exitcode is None:
            process.kill()
    assert [process.exitcode for process in ranks] == [0] * size


def two_processes(children: ForkServerContext, job: Any, *arguments: Any) -> None:
    processes(children, 2, job, *arguments)


def tiny_text(length: int, tokens: int = 203, held_out: int = 68) -> TextDataset:
    """A text of 11 tokens, drawn evenly, whose beginning is held out too."""
    row = np.random.default_rng(0).integers(0, 11, tokens).astype(np.uint8)
    return TextDataset(
        name="text", task="lm", kind="text", vocabulary=11, length=length, split="", fingerprint="",
        train=row, validation=row[:held_out],
    )  # fmt: skip


@dataclass(frozen=True)
class TinyConfig:
    width: int = 8
    vocabulary: int = 11
    dropout: float = 0.0
    extra_loss: bool = False
    break_at: int | None = None
    """forward pass in training whose loss is not a number"""


class TinyModel(nn.Module):
    """Next token from the running mean of embeddings; tied output, an unused layer, a buffer."""

    calls: Tensor

    def __init__(self, config: TinyConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or TinyConfig()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.norm = nn.LayerNorm(config.width)
        self.inner = nn.Linear(config.width, config.width)
        self.unused = nn.Linear(config.width, config.width)
        self.table = nn.Parameter(torch.zeros(4, config.width))
        self.table.no_decay = True  # type: ignore[attr-defined]
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.checkpointing = False

    def enable_checkpointing(self) -> None:
        self.checkpointing = True

    def forward(
        self, inputs: Tensor, targets: Tensor | None = None, mask: Mask | None = None
    ) -> ModelOutput:
        x = self.embedding(inputs) + self.table[torch.arange(inputs.shape[1]) % 4]
        if mask is not None and mask.padding_mask is not None:
            x = x * mask.padding_mask[..., None]
        x = x.cumsum(1) / (1 + torch.arange(inputs.shape[1]))[:, None]
        x = F.dropout(x, self.config.dropout, self.training)
        logits = self.head(torch.tanh(self.inner(self.norm(x))))
        if targets is None:
            return ModelOutput(logits, None, {}, None)
        flat = logits.flatten(0, -2)
        losses = {"task": F.cross_entropy(flat, targets.flatten())}
        if self.training:
            self.calls += 1
            if self.config.break_at is not None and self.config.break_at == int(self.calls):
                losses["task"] = losses["task"] * float("nan")
        if self.config.extra_loss:
            losses["size"] = 0.1 * x.square().mean()
        return ModelOutput(logits, torch.stack(list(losses.values())).sum(), losses, None)


@dataclass(frozen=True, kw_only=True, eq=False)
class TinyData(Dataset):
    """Counting upwards modulo the vocabulary; later rows have fewer scored targets."""

    name: str = "tiny"
    task: str = "lm"
    kind: Literal["text", "images", "series", "episodes"] = "text"
    vocabulary: int = 11
    length: int = 7
    bytes_per_token: float | None = 2.0
    split: str = ""
    fingerprint: str = "f00d"
    held_out: int = 21
    """rows"""

    def train_batch(self, step: int, size: int, seed: int, portion: Portion = WHOLE) -> Batch:
        generator = torch.Generator().manual_seed(seed * 1000 + step)
        start = torch.randint(self.vocabulary, (size, 1), generator=generator)
        stride = torch.randint(1, 3, (size, 1), generator=generator)
        tokens = (start + stride * torch.arange(self.length + 1)) % self.vocabulary
        real = torch.arange(self.length) < (self.length - torch.arange(size) % self.length)[:, None]
        whole = Batch(tokens[:, :-1], tokens[:, 1:].masked_fill(~real, -100), real)
        return whole.rows(*portion.of(size))

    def validation_batches(self, size: int, limit: int | None = None) -> Iterator[Batch]:
        rows = self.held_out if limit is None else min(limit, self.held_out)
        whole = self.train_batch(10**6, rows, 0)
        for start in range(0, rows, size):
            yield whole.rows(start, start + size)


def tiny_training(**options: Any) -> TrainingConfig:
    """Short, on one thread, logged at every step; 12 of them where nothing else ends it."""
    given = {"batch": 6, "evaluate_every": 4, "checkpoint_every": 3, "log_every": 1}
    budget = {} if options.keys() & {f"budget_{kind}" for kind in BUDGETS} else {"steps": 12}
    return TrainingConfig(**{**given, **budget, "threads": 1, "device": "cpu", **options})


def train_tiny(
    out: Path | None,
    *,
    resume: bool = False,
    model: dict[str, Any] | None = None,
    data: TinyData | None = None,
    show: bool = False,
    **options: Any,
) -> TrainResult:
    """One session with the stand-ins."""
    made = TinyModel(from_dict(TinyConfig, model or {}))
    config = tiny_training(**options)
    if out is None:
        return train(made, data or TinyData(), config, show=show)
    with RunDirectory(out, resume=resume) as run:
        return train(made, data or TinyData(), config, run, resume=resume, show=show)
