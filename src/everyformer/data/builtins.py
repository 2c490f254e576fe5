"""`BUILTINS`: the data that needs no files, by name."""

from dataclasses import dataclass

from everyformer.data.config import DRAWN, EPISODES, PICTURES


@dataclass(frozen=True)
class Builtin:
    """Record of one built-in."""

    about: str
    tasks: tuple[str, ...]
    """those that it serves, the natural one first"""
    reads: tuple[str, ...] = ()
    """options that not all built-ins have a use for"""
    options: tuple[str, ...] | None = None
    """those by which it is made; None: it is not generated without end"""

    def __str__(self) -> str:
        return f"{self.about} ({', '.join(self.tasks)})"


MOVED = {"recall": "a probe: `--data mqar --data.options pairs=16 power=1 fillers=false`"}
"""built-ins of the version before, and what each is now"""
BUILTINS: dict[str, Builtin] = {
    "stdlib": Builtin(
        "the .py files of this Python's standard library, up to 10 MB of text",
        ("lm", "mlm"),
        ("tokenizer", "packing", "mask_rate"),
    ),
    "digits": Builtin(
        "1,797 grey 8x8 pictures of handwritten digits, from scikit-learn",
        ("classify-image", "pixels", "super-resolution", "regress-image"),
        (*PICTURES, *DRAWN),
    ),
    "copy": Builtin(
        "random tokens, a separator, then the same tokens, which alone are scored; or 10 to 20 "
        "tokens and the same once more",
        ("lm", "seq2seq"),
        options=("symbols",),
    ),
    "reverse": Builtin(
        "10 to 20 random tokens and the same backwards", ("seq2seq",), options=("symbols",)
    ),
    "sort": Builtin(
        "10 to 20 random tokens and the same in ascending order", ("seq2seq",), options=("symbols",)
    ),
    "listops": Builtin(
        "nested MIN, MAX, MED and SM of digits; the class is the value",
        ("classify-text", "regress-text"),
        options=("depth",),
    ),
    "waves": Builtin(
        "noisy series; the class is their shape, the number how often it repeats",
        ("classify-series", "regress-series"),
        options=(),
    ),
    "walks": Builtin(
        "1,000 random walks to one node of a graph of 20; a better one is a shorter one",
        ("decision",),
        EPISODES,
    ),
}
