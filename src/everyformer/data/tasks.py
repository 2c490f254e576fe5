"""The built-in data, and which of it serves which task."""

from __future__ import annotations

from everyformer.core.tasks import TaskName

BUILTINS: dict[str, str] = {
    "stdlib": "the .py files of this Python's standard library, up to 10 MB of text (lm, mlm)",
    "digits": "1,797 grey 8x8 pictures of handwritten digits, from scikit-learn "
    "(classify-image, pixels, super-resolution, regress-image)",
    "copy": "random tokens, a separator, then the same tokens, which alone are scored; or 10 to 20 "
    "tokens and the same once more (lm, seq2seq)",
    "reverse": "10 to 20 random tokens and the same backwards (seq2seq)",
    "sort": "10 to 20 random tokens and the same in ascending order (seq2seq)",
    "recall": "key-value pairs, then the keys again in another order; the answers are scored (lm)",
    "listops": "nested MIN, MAX, MED and SM of digits; the class is the value (classify-text, "
    "regress-text)",
    "waves": "noisy series; the class is their shape, the number how often it repeats "
    "(classify-series, regress-series)",
    "walks": "1,000 random walks to one node of a graph of 20; a better one is a shorter one "
    "(decision)",
}
"""Name -> one line: what it is and the tasks it serves."""

SERVED: dict[str, tuple[TaskName, ...]] = {
    "stdlib": ("lm", "mlm"),
    "digits": ("classify-image", "pixels", "super-resolution", "regress-image"),
    "copy": ("lm", "seq2seq"),
    "reverse": ("seq2seq",),
    "sort": ("seq2seq",),
    "recall": ("lm",),
    "listops": ("classify-text", "regress-text"),
    "waves": ("classify-series", "regress-series"),
    "walks": ("decision",),
}
"""What each built-in serves, its natural task first."""
