"""Perplexity of a long text under a model that reads a window at a time.

    nonoverlapping   windows side by side: the first target of a window has a context of one token
    sliding          windows S apart: each scores its last S targets, the first all of its L, so
                     every other target has a context of at least L - S + 1 tokens
    recurrent        segments of L side by side, each going on with what the model's state carries

Every target of the held-out text is scored exactly once in every mode, and S = L is the first mode.
A window costs the same in all, so sliding costs L / S times as much and never scores worse for want
of context that a window could hold.
"""

import dataclasses
import time
from typing import Any, Literal

from torch import nn

from everyformer.core.errors import ConfigError, UnsupportedError
from everyformer.data.dataset import Dataset
from everyformer.data.text import TextDataset
from everyformer.training.evaluate import evaluate
from everyformer.training.reading import Curves

Mode = Literal["nonoverlapping", "sliding", "recurrent"]


def evaluate_long(
    model: nn.Module,
    dataset: Dataset,
    *,
    mode: Mode = "nonoverlapping",
    stride: int | None = None,
    streams: int = 1,
    **options: Any,
) -> dict[str, Any] | None:
    """Score the held-out text of ``dataset`` in windows of its ``length`` tokens.

    Args:
        mode: how the windows lie.
        stride: S, tokens between windows that slide (default: half a window).
        streams: stretches of the text that are read side by side (recurrent); each starts with an
            empty state, so 1 is the exact reading of one text.
        options: of `evaluate`.

    Returns:
        What `evaluate` gives, with ``window`` and ``stride`` in tokens, ``by_place`` and
        ``by_context`` (see `Curves`), and ``tokens_per_second`` scored, on this machine now.

    Raises:
        ConfigError: a stride that does not fit the mode or the window.
        UnsupportedError: the data is no text to predict, or the model carries no state.
    """
    if not isinstance(dataset, TextDataset):
        raise UnsupportedError(
            f"windows lie over a text that is predicted (task lm); {dataset.name} is data of the "
            f"task {dataset.task}: leave the mode out"
        )
    if mode != "sliding":
        if stride is not None:
            raise ConfigError("windows side by side have no 'stride': leave it out, or slide")
        stride = dataset.length
    if stride is None:
        stride = max(1, dataset.length // 2)
    if not 1 <= stride <= dataset.length:
        raise ConfigError(
            f"'stride' must be 1 to {dataset.length} tokens, the length of a window, not {stride}: "
            "beyond it targets would be left out"
        )
    if streams < 1 or (streams > 1 and mode != "recurrent"):
        raise ConfigError(
            f"'streams' counts stretches that are read in order (mode recurrent), 1 or more; it is "
            f"{streams}, and the mode {mode}"
        )
    if mode == "recurrent":
        # beyond as many as there are windows, stretches have nothing to read
        windows = -(-(len(dataset.validation) - 1) // dataset.length)
        options |= {"streams": min(streams, windows)}
        options.pop("batch", None)
    curves, start = Curves(dataset.length), time.perf_counter()
    strided = dataclasses.replace(dataset, stride=stride)
    result = evaluate(model, strided, remember=False, curves=curves, **options)
    if result is None:
        return None
    return result | {
        "window": dataset.length,
        "stride": stride,
        "tokens_per_second": result["scored"] / (time.perf_counter() - start),
        "by_place": curves.by_position(),
        "by_context": curves.by_context(),
    }
