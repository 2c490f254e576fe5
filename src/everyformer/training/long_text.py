"""Evaluation of a long text: windows that overlap or not, or segments with a carried state.

`Curves` are losses of a text by position in the segment, and by how much text came before.
"""

import dataclasses
import math
import time
from collections.abc import Iterator
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyformer.core.errors import ConfigError, UnsupportedError
from everyformer.data.batch import IGNORED
from everyformer.data.dataset import Dataset
from everyformer.data.text import TextDataset
from everyformer.data.tokenizers.plain import ByteTokenizer
from everyformer.training.checks import check_reading
from everyformer.training.evaluate import Read, empty_state, evaluate
from everyformer.training.step import forward

Mode = Literal["nonoverlapping", "sliding", "recurrent"]


def evaluate_long(
    model: nn.Module,
    dataset: Dataset,
    *,
    mode: Mode = "nonoverlapping",
    stride: int | None = None,
    streams: int = 1,
    each: list[torch.Tensor] | None = None,
    **options: Any,
) -> dict[str, Any] | None:
    """Losses of a long held-out text under a model that reads windows of ``length`` tokens.

        nonoverlapping   windows side by side: the first target of each has a context of one token
        sliding          windows S apart: each scores its last S targets, the first all of its L,
                         so every other target has a context of at least L - S + 1 tokens
        recurrent        segments of L side by side, continuing what the model's state carries

    Every target is scored exactly once in every mode, and S = L is the first mode. A window costs
    the same in all, so sliding costs L / S times as much and never scores worse for want of context
    that a window could hold.

    Args:
        mode: how the windows lie.
        stride: S, tokens between windows that slide (default: half a window).
        streams: stretches of the text that are read side by side (recurrent); each starts with an
            empty state, so 1 is the exact reading of one text.
        each: takes in the loss of every target, in the order of the text where ``streams`` is 1.
        options: of `evaluate`.

    Returns:
        What `evaluate` gives (but no ``bits_per_byte`` of a part of a text that is read in order,
        unless tokens are bytes), with ``window`` and ``stride`` in tokens, ``by_place`` and
        ``by_context`` (see `Curves`), and ``tokens_per_second`` scored, on this machine now.

    Raises:
        ConfigError: a stride that does not fit the mode or the window.
        UnsupportedError: the data is no text to predict, or the model carries no state.
    """
    text = dataset.running_text
    if text is None:
        raise UnsupportedError(
            f"windows lie over a text that is predicted (task lm); {dataset.name} is data of the "
            f"task {dataset.task}: leave `mode` and `each` out"
        )
    if mode != "sliding":
        if stride is not None:
            raise ConfigError("windows side by side have no `stride`: leave it out, or slide")
        stride = text.length
    if stride is None:
        stride = max(1, text.length // 2)
    if not 1 <= stride <= text.length:
        raise ConfigError(
            f"`stride` must be 1 to {text.length} tokens, the length of a window, not {stride}: "
            "beyond it targets would be left out"
        )
    if streams < 1 or (streams > 1 and mode != "recurrent"):
        raise ConfigError(
            f"`streams` counts stretches that are read in order (mode recurrent), 1 or more; it is "
            f"{streams}, and the mode {mode}"
        )
    if mode == "recurrent":
        # beyond as many as there are windows, stretches have nothing to read
        streams = min(streams, -(-(len(text.validation) - 1) // text.length))
        device, limit = next(model.parameters()).device, options.get("limit")
        check_reading(model, text, streams, device)
        options["reads"] = read_in_order(model, text, streams, limit, device)
        if limit is not None and not isinstance(text.tokenizer, ByteTokenizer):
            # tokens of a beginning may be longer or shorter than those of the whole
            text = dataclasses.replace(text, bytes_per_token=None)
    curves, start = Curves(text.length, each), time.perf_counter()
    strided = dataclasses.replace(text, stride=stride)
    result = evaluate(model, strided, remember=False, each=curves.add, **options)
    if result is None:
        return None
    return result | {
        "window": text.length,
        "stride": stride,
        "tokens_per_second": result["scored"] / (time.perf_counter() - start),
        "by_place": curves.by_position(),
        "by_context": curves.by_context(),
    }


def read_in_order(
    model: nn.Module, dataset: TextDataset, streams: int, limit: int | None, device: torch.device
) -> Iterator[Read | None]:
    """The validation part from its start on, in ``streams`` stretches that go on from segment to
    segment; at most ``limit`` segments, or a few more so that all have as many."""
    state = empty_state(model, streams)
    for number, batch in enumerate(dataset.in_order(streams)):
        if limit is not None and number * streams >= limit:
            return
        batch, before = batch.to(device), state.num_tokens.cpu()
        out = forward(model, batch, state)
        state = out.state
        yield Read(out, batch, before)


class Curves:
    """Sums of losses by position; contexts are counted in octaves: 1, 2 to 3, 4 to 7 ... tokens.
    ``each`` takes in the losses of all scored targets, in the order of reading."""

    def __init__(self, length: int, each: list[Tensor] | None = None) -> None:
        self._each = each
        self._offsets = torch.zeros(2, length, dtype=torch.float64)
        self._contexts = torch.zeros(2, 64, dtype=torch.float64)

    def add(self, read: Read) -> None:
        """Take in one scored batch (B, L)."""
        targets = read.batch.targets.cpu()
        logits = read.out.logits.cpu()
        logits = logits if logits.dtype == torch.float64 else logits.float()
        losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        losses = losses.view(targets.shape).double()
        if self._each is not None:
            self._each.append(losses[targets != IGNORED])
        scored = (targets != IGNORED).double()
        self._offsets += torch.stack((losses.sum(0), scored.sum(0)))
        context = read.before[:, None] + 1 + torch.arange(targets.shape[1])
        octave = context.double().log2().floor().long()
        self._contexts.index_add_(1, octave.flatten(), torch.stack((losses, scored)).flatten(1))

    def by_position(self) -> list[dict[str, Any]]:
        """Mean loss at each position of a segment, from 1 on, in at most 32 groups."""
        length = self._offsets.shape[1]
        size = math.ceil(length / 32)
        return [
            {"from": first + 1, "to": min(first + size, length)} | _mean(self._offsets, first, size)
            for first in range(0, length, size)
            if self._offsets[1, first : first + size].sum() > 0
        ]

    def by_context(self) -> list[dict[str, Any]]:
        """Mean loss of targets by how many tokens of their text were read before."""
        return [
            {"from": 2**n, "to": 2 ** (n + 1) - 1, **_mean(self._contexts, n, 1)}
            for n in range(64)
            if self._contexts[1, n] > 0
        ]


def _mean(sums: Tensor, first: int, size: int) -> dict[str, Any]:
    loss, count = sums[:, first : first + size].sum(1).tolist()
    return {"loss": loss / count, "targets": int(count)}
