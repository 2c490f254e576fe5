"""Modules of one's own that are told by a word how they attend, as transformers' are."""

import contextlib
import copy
from collections.abc import Iterator
from typing import Any, Self

import torch
from torch import nn

from sequence_laws.foreign import FAILURES
from sequence_laws.subject import Subject

ATTENDS = ("eager", "sdpa")
ATTENDED = ("attn_implementation", "_attn_implementation", "attention_implementation")
"""attributes that say by which of them a module or its configuration attends"""


def ways(subject: Subject) -> Iterator[tuple[str, Subject]]:
    """The model with each of `ATTENDS`, where it knows both and reads which; else as it is."""
    found = list[tuple[str, Subject]]()
    for way in ATTENDS if [*_attending(subject.model)] else ():
        word, other = _Read(way), subject.otherwise(model=copy.deepcopy(subject.model))
        parts = [*_attending(other.model)]
        for part, _, name in parts:
            setattr(part, name, word)
        word.read = False
        with contextlib.suppress(*FAILURES), torch.no_grad():  # it knows one alone
            other.run(other.copy(torch.float32), subject.inputs.draw(2, subject.usual()))
            told = (f"{code}.{name} = {way!r}" for _, code, name in parts)
            other.build = (*subject.build, *told)
            found += [(f"attention {way}", other)] * word.read
    yield from found if len(found) == len(ATTENDS) else [("", subject)]


class _Read(str):
    """A word that knows whether it was compared or looked up."""

    read = False

    def __eq__(self, other: object) -> bool:
        self.read = True
        return str(self) == other

    def __hash__(self) -> int:
        self.read = True
        return hash(str(self))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __deepcopy__(self, memo: object) -> Self:
        return self


def _attending(model: nn.Module) -> Iterator[tuple[Any, str, str]]:
    """Modules and configurations that say how they attend, with the Python of each, and the
    attribute."""
    seen = set[int]()
    for path, module in model.named_modules():
        code = f"model.get_submodule({path!r})" if path else "model"
        for part, own in (module, code), (getattr(module, "config", None), f"{code}.config"):
            known = getattr(part, "__dict__", {})
            named = [word for word in ATTENDED if known.get(word) in ATTENDS]
            if named and id(part) not in seen:
                seen.add(id(part))
                yield from ((part, own, word) for word in named)
