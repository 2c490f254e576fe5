"""Bits of each line or document of a held-out text: what is strange in it comes first."""

import csv
import io
import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from everyformer.core.errors import UnsupportedError
from everyformer.core.wording import shortened
from everyformer.data.dataset import Dataset
from everyformer.data.text import TextDataset
from everyformer.data.tokenizers.package import CONTEXT
from everyformer.data.tokenizers.plain import ByteTokenizer
from everyformer.system.files import write_text

SHOWN = 200
"""letters of a line or document that are shown"""
Each = Literal["line", "document"]


def write_scores(dataset: Dataset, losses: list[torch.Tensor], each: Each, path: Path) -> None:
    """Write `scores` as CSV; ``losses`` are of all held-out tokens but the first, in order."""
    assert dataset.running_text is not None
    rows = scores(dataset.running_text, torch.cat(losses).double().numpy(), each)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, rows[0])
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue(), parents=True)


def scores(dataset: TextDataset, losses: np.ndarray, each: Each) -> list[dict[str, Any]]:
    """Place, bits and text of every line or document, most bits per byte first.

    A token across the end of a line is of the line in which it begins; what ends a document is of
    its last line. Nothing predicts the first token: it has no bits, and is counted nowhere.
    ``losses`` are the (M - 1,) nats of the others.

    Raises:
        UnsupportedError: no token ends a line.
    """
    tokenizer, tokens = dataset.tokenizer, np.asarray(dataset.validation)
    assert tokenizer is not None
    breaks = np.array([tokenizer.decode([n]).count("\n") for n in range(tokenizer.vocabulary)])
    if each == "line" and not breaks.any():
        raise UnsupportedError(
            f"no token of the tokenizer {tokenizer.name} ends a line, so that there are no lines "
            "to score: give `each` document"
        )
    ended = np.isin(tokens, [] if tokenizer.separator is None else [tokenizer.separator])
    broken = breaks[tokens] * ~ended
    broken[:-1] -= (broken[:-1] > 0) & ended[1:]
    document, line = ended.cumsum() - ended, broken.cumsum() - broken
    line -= line[np.searchsorted(document, document)]
    places = np.stack([document, line * (each == "line")])
    starts = np.flatnonzero(np.diff(places, prepend=-1).any(0)).tolist()
    bits = np.add.reduceat(np.concatenate(([0.0], losses / math.log(2))), starts)
    rows = []
    for start, stop, total in zip(starts, [*starts[1:], len(tokens)], bits.tolist(), strict=True):
        if (first := max(start, 1)) == stop:
            continue
        texts = [
            tokenizer.decode_after(tokens[max(0, n - CONTEXT) : n], tokens[n:stop][~ended[n:stop]])
            for n in (start, first)
        ]
        size = stop - first
        if not isinstance(tokenizer, ByteTokenizer):
            size = len(texts[1].encode()) + ended[first:stop].sum()
        row = {"document": int(document[start]) + 1}
        row |= {"line": int(line[start]) + 1} if each == "line" else {}
        row |= {"bits_per_byte": total / max(1, size), "bits": total, "tokens": stop - first}
        shown = "".join(c if c.isprintable() else " " for c in texts[0].rstrip("\n"))
        rows.append(row | {"text": shortened(shown, SHOWN)})
    return sorted(rows, key=lambda row: -row["bits_per_byte"])
