"""What data a run reads, and how: options only, neither torch nor numpy is imported here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from everyformer.core.errors import ConfigError, nearest

BUILTINS: dict[str, str] = {
    "stdlib": "the .py files of this Python's standard library, up to 10 MB of text (lm)",
    "digits": "1,797 grey 8x8 pictures of handwritten digits, from scikit-learn "
    "(classify-image, pixels)",
    "copy": "random tokens, a separator, then the same tokens, which alone are scored (lm)",
    "recall": "key-value pairs, then the keys again in another order; the answers are scored (lm)",
    "listops": "nested MIN, MAX, MED and SM of digits; the class is the value (classify-text)",
}
"""Name -> one line: what it is and the tasks it serves."""

TASKS = ("lm", "classify-text", "classify-image", "pixels")
"""What a dataset can be asked for."""

SMALLEST_BPE = 257
"""All 256 bytes and one merge."""


@dataclass(frozen=True)
class DataConfig:
    """Which data, cut how, with what held out."""

    source: str = "stdlib"
    """A file, folder, zip or glob, or a built-in: stdlib, digits, copy, recall, listops. A built-in
    name wins over a file of that name; write ./copy for the file."""
    tokenizer: str = "bytes"
    """How text becomes tokens: bytes, chars, or bpe:SIZE, trained on the training part."""
    length: int = 256
    """Tokens in a training sequence; when texts are classified, the longest text kept."""
    validation: float = 0.1
    """Fraction held out when the source brings no split of its own: the end of a corpus, a seeded
    draw within each class of labelled data. 1 holds out everything, to evaluate only."""
    size: int | None = None
    """Pictures are resized to size x size. Unset: kept when all are equal, else all take the
    commonest size. 0: never resized, so unequal sizes are an error."""
    colour: Literal["auto", "grey", "rgb"] = "auto"
    """Channels of pictures; auto is grey when every picture is."""
    seed: int = 0
    """Seed of the held-out draw and of generated tasks; the order of batches has the run's seed."""
    cache: str | None = None
    """Folder for encoded corpora. Unset: $EVERYFORMER_CACHE, else the user's cache folder."""
    symbols: int = 64
    """Generated tasks: how many content tokens there are; recall makes half of them keys."""
    pairs: int = 16
    """recall: key-value pairs in a sequence; it needs a length of at least 4 x pairs."""
    depth: int = 10
    """listops: deepest nesting of operators."""

    def __post_init__(self) -> None:
        if not self.source.strip():
            raise ConfigError("'data.source' is empty; give a file, folder, zip, glob or built-in")
        tokenizer_parts(self.tokenizer)
        if not 0 < self.validation <= 1:
            raise ConfigError(
                f"'data.validation' must be above 0 and at most 1, not {self.validation}: without "
                "held-out data nothing can be compared"
            )
        lowest = {"length": 2, "seed": 0, "symbols": 2, "pairs": 1, "depth": 1}
        for name, least in lowest.items():
            if getattr(self, name) < least:
                raise ConfigError(
                    f"'data.{name}' must be at least {least}, not {getattr(self, name)}"
                )
        if self.size is not None and self.size < 0:
            raise ConfigError(f"'data.size' must be 0 or more pixels, not {self.size}")
        if self.colour not in ("auto", "grey", "rgb"):
            raise ConfigError(
                f"'data.colour' must be auto, grey or rgb, not {self.colour!r}; "
                f"{nearest(self.colour, ('auto', 'grey', 'rgb'))}"
            )


def tokenizer_parts(spec: str) -> tuple[str, int]:
    """``"bpe:8000"`` -> ``("bpe", 8000)``; the size is 0 for bytes and chars.

    Raises:
        ConfigError: an unknown kind, a missing or unreadable size, a vocabulary too small.
    """
    kind, colon, size = spec.partition(":")
    if kind not in ("bytes", "chars", "bpe"):
        raise ConfigError(
            f"unknown tokenizer '{spec}'; {nearest(kind, ('bytes', 'chars', 'bpe:8000'))}"
        )
    if kind != "bpe":
        if colon:
            raise ConfigError(f"tokenizer '{kind}' takes no size; write '{kind}', not '{spec}'")
        return kind, 0
    if not size.isdecimal():
        raise ConfigError(f"tokenizer '{spec}' needs a vocabulary size, for example bpe:8000")
    if int(size) < SMALLEST_BPE:
        raise ConfigError(
            f"tokenizer '{spec}': a byte-level vocabulary has at least {SMALLEST_BPE} tokens "
            "(256 bytes and a merge); take a larger one, or --data.tokenizer bytes"
        )
    return kind, int(size)
