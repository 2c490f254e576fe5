"""Correspondence of two libraries' tensors: one table a system, read in both directions.

A `Rule` says that some of our tensors, stacked, are some of theirs, stacked: three matrices for
queries, keys and values are one fused matrix here, GPT-2 stores matrices the other way round,
RoBERTa's positions begin at row 2.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from everyformer.core.errors import CheckpointError, UnsupportedError


@dataclass(frozen=True)
class Rule:
    """Our tensors and theirs, equal when stacked along the first dimension."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    sizes: tuple[int, ...] = ()
    """rows of each of theirs, where there are several"""
    transposed: bool = False
    """theirs are (inputs, outputs), ours (outputs, inputs)"""
    skip: int = 0
    """first rows of theirs that nothing here corresponds to"""
    lead: bool = False
    """theirs have a first dimension of 1"""
    absent: tuple[int, ...] = ()
    """shape of theirs where nothing here corresponds to it, which is then zeros"""
    folded: int = 0
    """rows of a second of theirs, whose first row adds to the first; there it is zeros"""

    def holds(self, ours: Iterable[str]) -> bool:
        """True if a model of these tensors has all of ours."""
        return set(self.ours) <= set(ours)

    def take(self, theirs: Mapping[str, Tensor], shapes: Mapping[str, torch.Size]) -> list[Tensor]:
        """Our tensors, from theirs.

        Raises:
            CheckpointError: sizes that do not agree; names both sides.
        """
        if self.absent:
            return []
        parts = [theirs[name] for name in self.theirs]
        if self.folded:
            bias, table = parts
            parts = [bias + table[0] if bias.shape == table.shape[1:] else table]
        expected = [shapes[name] for name in self.ours]
        rows = [shape[0] for shape in expected]
        try:
            parts = [part[0] if self.lead else part for part in parts]
            parts = [part.t() if self.transposed else part for part in parts]
            joined = torch.cat(parts)[self.skip :]
            fits = sum(rows) == joined.shape[0]
            fits = fits and all(shape[1:] == joined.shape[1:] for shape in expected)
        except (RuntimeError, IndexError):  # not even a matrix, or not as wide as each other
            fits = False
        if not fits:
            there = ", ".join(f"{name} {tuple(theirs[name].shape)}" for name in self.theirs)
            ours = ", ".join(f"{name} {tuple(shapes[name])}" for name in self.ours)
            raise CheckpointError(
                f"the checkpoint's {there} does not fit {ours}: its config.json says other sizes"
            )
        return [part.clone() for part in joined.split(rows)]

    def give(self, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Their tensors, from ours."""
        if self.absent:
            like = next(iter(ours.values()))
            return {name: like.new_zeros(*self.absent) for name in self.theirs}
        joined = torch.cat([ours[name] for name in self.ours])
        if self.folded:
            table = joined.new_zeros(self.folded, *joined.shape)
            return dict(zip(self.theirs, (joined.clone(), table), strict=True))
        if self.skip:
            joined = torch.cat((joined.new_zeros(self.skip, *joined.shape[1:]), joined))
        parts = joined.split(self.sizes) if self.sizes else [joined]
        parts = [part.t() if self.transposed else part for part in parts]
        parts = [part[None] if self.lead else part for part in parts]
        return {
            name: part.contiguous().clone() for name, part in zip(self.theirs, parts, strict=True)
        }


LINEAR: dict[str, tuple[str, ...]] = {"weight": ("weight",), "bias": ("bias",)}
PROJECTIONS: dict[str, tuple[str, ...]] = {
    "weight": ("weights.0",),
    "bias": ("biases.query", "biases.key", "biases.value"),
}
"""their tensors -> ours, of a plain layer and of `HeadProjections` of one source"""


def linked(
    pairs: Mapping[str, Sequence[str]],
    ours: str = "",
    theirs: str = "",
    sizes: tuple[int, ...] = (),
    transposed: bool = False,
) -> list[Rule]:
    """Rules of layers whose weight and bias have the same form on both sides.

    Args:
        pairs: our layer -> theirs; a tuple are queries, keys and values, apart or in one.
        ours, theirs: what all names begin with.
        sizes: rows of each of several of theirs.
        transposed: as in `Rule`.
    """
    rules = []
    for own, other in pairs.items():
        names = [f"{theirs}{name}" for name in ([other] if isinstance(other, str) else other)]
        for kind, parts in (LINEAR if isinstance(other, str) else PROJECTIONS).items():
            here = tuple(f"{ours}{own}.{part}" for part in parts)
            there = tuple(f"{name}.{kind}" for name in names)
            rules.append(Rule(here, there, sizes if len(names) > 1 else (), transposed))
    return rules


def in_layers(
    count: int,
    theirs: str,
    pairs: Mapping[str, Sequence[str]],
    ours: str = "stack.blocks",
    **form: Any,
) -> list[Rule]:
    """The `linked` of each of ``count`` layers; ``form`` are sizes and transposed."""
    return [
        rule
        for n in range(count)
        for rule in linked(pairs, f"{ours}.{n}.", f"{theirs}.{n}.", **form)
    ]


@dataclass
class Report:
    """Every tensor of an import or export, accounted for."""

    taken: list[str] = field(default_factory=list)
    """carried over, by the name they have on the receiving side"""
    made: list[str] = field(default_factory=list)
    """on the receiving side only: fresh, or zeros where that is what they mean"""
    left: list[str] = field(default_factory=list)
    """on the giving side only: not carried over"""
    notes: list[str] = field(default_factory=list)
    """what else was done, a sentence each: dtypes, files not read, the comparison"""
    difference: float | None = None
    """largest difference from the outputs of the model it was; None where they are not compared"""

    def summary(self) -> str:
        """The counts and notes in lines, then the names, layers of a kind together."""
        lines = [f"{len(self.taken)} taken, {len(self.made)} made, {len(self.left)} left"]
        lines += self.notes
        groups = (("made (fresh)", self.made), ("left", self.left), ("taken", self.taken))
        for what, names in groups:
            kinds = Counter(re.sub(r"\.\d+\.", ".*.", name) for name in names)
            lines += [f"{what}: {kind}" + (f" x {n}" if n > 1 else "") for kind, n in kinds.items()]
        return "\n".join(lines)


def take_all(
    rules: Iterable[Rule],
    theirs: Mapping[str, Tensor],
    shapes: Mapping[str, torch.Size],
    ignored: str = "",
) -> tuple[dict[str, Tensor], Report]:
    """Our tensors as far as the rules give them, and the account.

    A rule of tensors that our model does not have (biases, another mixer) is passed over.

    Args:
        ignored: pattern of their buffers that hold nothing learned.

    Raises:
        CheckpointError: a tensor that our model has by a rule is missing in the checkpoint.
        UnsupportedError: it is quantised.
    """
    ours: dict[str, Tensor] = {}
    used: set[str] = set()
    missing: list[str] = []
    for rule in rules:
        if not rule.holds(shapes):
            continue
        absent = [name for name in rule.theirs if name not in theirs]
        if absent:
            missing += absent
            continue
        for name in rule.theirs:
            if not theirs[name].is_floating_point() or theirs[name].itemsize < 2:
                raise UnsupportedError(
                    f"the checkpoint's {name} is {theirs[name].dtype}, a quantised weight whose "
                    "scale is not known: give the model as it was before"
                )
        ours |= dict(zip(rule.ours, rule.take(theirs, shapes), strict=True))
        used |= set(rule.theirs)
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise CheckpointError(
            f"the checkpoint lacks {', '.join(missing[:5])}{more}: it is cut short, or of another "
            "kind than its config.json says"
        )
    left = [name for name in theirs if name not in used]
    left = [name for name in left if not (ignored and re.search(ignored, name))]
    fresh = [name for name in shapes if name not in ours]
    return ours, Report(list(ours), fresh, left)
