"""What a module of one's own must be given next to its inputs, for outputs at every position.

A decoder that attends to a context is given one of random features; of an encoder-decoder the
inputs of the encoder are fixed, and those of the decoder are its own; one that gives the last
output alone unless there are targets is given targets. All of it is the same for each row, so that
no law of inputs is moved by it.
"""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from sequence_laws.inputs import Inputs
from sequence_laws.signatures import parameters

OWN = re.compile("^(decoder_(input|token|id|x)|tgt(_ids|_tokens|_seq|_input)?$|trg$|prev_output)")
"""names of the inputs of a decoder, where others come before them"""
SOURCE = re.compile("^(src|source|input|encoder|enc)(_|$)|^x$")
"""names of those of its encoder"""
CONTEXT = re.compile(
    "^(context|memory|cond|conditioning|encoded|encoder_(hidden_states?|outputs?|out|states?)"
    "|enc_outputs?|enc_out|enc)$"
)
"""names of features that a decoder attends to"""
LENGTH = 7
"""of what is fixed"""


class Beside(NamedTuple):
    """What is given next to inputs."""

    own: str = ""
    """parameter of the inputs; "": the first"""
    fixed: Mapping[str, Tensor | None] = {}
    """others: features (S, d) or ids (S,) of every row; None: ids 0, as many as inputs"""
    drawn: Mapping[str, str] = {}
    """the Python of those that are tensors"""

    def given(self, model: nn.Module, x: Tensor) -> dict[str, Tensor]:
        """It, for rows of inputs."""
        return {word: _repeated(model, x, part) for word, part in self.fixed.items()}

    def inner(self, x: str) -> str:
        """The Python of inputs with it, between the brackets of a call."""
        return f"{self.own + '=' if self.own else ''}{x}{f', **given({x})' if self.fixed else ''}"

    def build(self) -> list[str]:
        """The Python that defines ``given``."""
        parts = []
        for word, part in self.fixed.items():
            if part is None:
                parts.append(f"{word!r}: torch.zeros_like(x)")
            elif part.is_floating_point():
                wide = f"{word}.to(next(model.parameters()))"
                parts.append(f"{word!r}: {wide}.repeat(len(x), 1, 1)")
            else:
                parts.append(f"{word!r}: {word}.repeat(len(x), 1)")
        lines = [f"{word} = {code}" for word, code in self.drawn.items()]
        return [*lines, f"given = lambda x: {{{', '.join(parts)}}}"] if parts else []


def _repeated(model: nn.Module, x: Tensor, part: Tensor | None) -> Tensor:
    if part is None:
        return torch.zeros_like(x)
    if not part.is_floating_point():
        return part.repeat(len(x), 1)
    return part.to(next(model.parameters(), part)).repeat(len(x), 1, 1)


def needs(model: nn.Module, inputs: Inputs, widths: list[int]) -> Iterator[Beside]:
    """What a module may have to be given, by the names of its parameters: of most it is nothing."""
    has = parameters(model)
    own = next((word for word in has if OWN.search(word)), "")
    rest = [
        word
        for word, p in has.items()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    others = [word for word in rest if word != own][0 if own else 1 :]
    known = SOURCE if own else CONTEXT
    if not others or not all(known.search(w) or (own and "mask" in w) for w in others):
        yield Beside()
        return
    sources = [word for word in others if "mask" not in word]
    masks = [word for word in others if word not in sources]
    ones = (torch.ones(LENGTH).long(), f"torch.ones({LENGTH}).long()")
    for source in [
        *[_ids(inputs)] * (inputs.vocabulary is not None and bool(own)),
        *map(_features, widths),
    ]:
        parts = {**dict.fromkeys(sources, source), **dict.fromkeys(masks, ones)}
        fixed = {word: tensor for word, (tensor, _) in parts.items()}
        yield Beside(own, fixed, {word: code for word, (_, code) in parts.items()})


def _ids(inputs: Inputs) -> tuple[Tensor, str]:
    low, high = inputs.first, inputs.vocabulary or 1
    drawn = torch.randint(low, high, (LENGTH,), generator=torch.Generator().manual_seed(2))
    return drawn, f"torch.randint({low}, {high}, ({LENGTH},), {_SEEDED})"


def _features(width: int) -> tuple[Tensor, str]:
    drawn = torch.randn(LENGTH, width, generator=torch.Generator().manual_seed(2))
    return drawn, f"torch.randn({LENGTH}, {width}, {_SEEDED})"


_SEEDED = "generator=torch.Generator().manual_seed(2)"
