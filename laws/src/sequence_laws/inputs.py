"""Inputs that a model is tried with, equal for equal seeds, and the outputs in what it gives."""

import ast
import dataclasses
import random
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from sequence_laws.errors import ConfigError

LENGTH = 32
"""inputs of a text of which every one is changed"""
PARTS = 7
"""places in a longer text where that is tried"""


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Inputs of a model: token ids (B, L), or features (B, L, d).

    ``vocabulary`` is None for features, ``width`` None for tokens.
    """

    vocabulary: int | None = None
    width: int | None = None
    first: int = 0
    """smallest token that is drawn: below it are those with a meaning of their own"""

    def __str__(self) -> str:
        if self.vocabulary is None:
            return f"features of width {self.width}"
        return f"token ids below {self.vocabulary}"

    def draw(self, rows: int, length: int, seed: int = 0) -> Tensor:
        """Inputs of (rows, length), the same for the same seed."""
        generator = torch.Generator().manual_seed(seed)
        if self.vocabulary is None:
            shape = (rows, length, self.width or 1)
            return torch.randn(shape, generator=generator, dtype=torch.float64).float()
        return torch.randint(self.first, self.vocabulary, (rows, length), generator=generator)

    def other(self, x: Tensor) -> Tensor:
        """Inputs that differ from ``x`` everywhere, and much: 5 - 3 x of features."""
        if self.vocabulary is None:
            return 5 - 3 * x
        span = self.vocabulary - self.first
        return (x - self.first + max(1, span // 3)) % span + self.first

    def code(self, rows: int, length: int) -> str:
        """The Python of `draw` with seed 0."""
        shape, seeded = f"({rows}, {length}", "generator=torch.Generator().manual_seed(0)"
        if self.vocabulary is None:
            return f"x = torch.randn({shape}, {self.width}), {seeded}, dtype=torch.float64)"
        return f"x = torch.randint({self.first}, {self.vocabulary}, {shape}), {seeded})"

    def other_code(self) -> str:
        """The Python of `other`, of ``x``."""
        if self.vocabulary is None:
            return "5 - 3 * x"
        span = self.vocabulary - self.first
        return f"(x - {self.first} + {max(1, span // 3)}) % {span} + {self.first}"


def seed_all(number: int) -> None:
    """`torch.manual_seed`, which takes a millisecond to write down, for each kind of device that is
    not there, who called it."""
    if torch.accelerator.is_available():
        torch.manual_seed(number)
    else:
        torch.default_generator.manual_seed(number)


def seed(number: int) -> None:
    """Start the random numbers of torch, numpy and Python over."""
    seed_all(number)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(number)  # what models draw from, if not from torch
    random.seed(number)


def cuts(length: int) -> list[int]:
    """Places behind which tokens are changed: all in a short text, and some of a long one that
    divide no blocks of one size."""
    if length <= LENGTH:
        return [*range(length)]
    return sorted({length * k // PARTS + 1 for k in range(PARTS)} | {length - 1})


def place(result: Any) -> str:
    """The Python behind a call that reaches the outputs in its result: "" where that is a tensor,
    else the logits, the last hidden state, or the first tensor of two dimensions or more.

    Raises:
        ConfigError: there are none.
    """
    if isinstance(result, Tensor):
        return ""
    for name in ("logits", "last_hidden_state"):
        if isinstance(getattr(result, name, None), Tensor):
            return f".{name}"
        if isinstance(result, Mapping) and isinstance(result.get(name), Tensor):
            return f"[{name!r}]"
    parts: Iterable[tuple[Any, Any]] = result.items() if isinstance(result, Mapping) else ()
    if isinstance(result, (tuple, list)):
        parts = enumerate(result)
    for key, part in parts:
        if isinstance(part, Tensor) and part.dim() > 1:
            return f"[{key!r}]"
    raise ConfigError(
        f"a {type(result).__name__} is no output that is known: expected a tensor, a tuple that "
        "begins with one, or a mapping with 'logits' or 'last_hidden_state'"
    )


def first(result: Any) -> Tensor:
    """The outputs in what a model gives, at their `place`."""
    y: Tensor = reach(result, place(result))
    return y


def reach(result: Any, where: str) -> Any:
    """What stands in a result at a `place`."""
    if where.startswith("."):
        return getattr(result, where[1:])
    return result[ast.literal_eval(where[1:-1])] if where else result


def parts_of(result: Any) -> dict[str, Any]:
    """All that a model gives, by its `place`."""
    if isinstance(result, Tensor):
        return {"": result}
    if isinstance(result, Mapping):
        return {f"[{key!r}]": part for key, part in result.items()}
    if isinstance(result, tuple | list) and not hasattr(result, "_fields"):
        return {f"[{n}]": part for n, part in enumerate(result)}
    fields = getattr(result, "_fields", None) or getattr(result, "__dict__", {})
    return {f".{name}": getattr(result, name) for name in fields}


def beside(result: Any) -> dict[str, Any]:
    """What a model gives beside its outputs and a loss, by its `place`: tensors, containers and
    objects."""
    outputs = place(result)
    return {
        where: part
        for where, part in parts_of(result).items()
        if where != outputs
        and not isinstance(part, bool | int | float | str | None)
        and not (isinstance(part, Tensor) and part.dim() == 0)
    }
