"""Pairs of conditions under which a text must come to what it comes to alone.

A row of a batch may begin, end or be broken by padding, hold several documents, arrive in pieces,
begin with a state of which some rows are reset, go through several layers, or be long enough for a
memory or a window to overflow. Each is right by itself sooner than two together: so every pair is
tried, on a case, sizes and places that are drawn from a seed.
"""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from everyformer.checks.cases import Case, cases, draw, randomize_
from everyformer.checks.check import Check
from everyformer.core.devices import widest
from everyformer.core.errors import ConfigError, GeneError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.core.member import Member
from everyformer.core.state import StackState
from everyformer.core.trials import HEADS, LONGEST, WIDTH
from everyformer.genes import GENES
from everyformer.models.base import Model
from everyformer.models.build import configure_layers

WHOLE = ("left", "right", "between", "packed", "scaled", "layers", "long")
"""conditions of texts that are read at once"""
CARRIED = ("left", "right", "between", "packed", "reset", "layers", "long")
"""conditions of texts that come in pieces of any size, each continuing the state"""
FEW = 7
"""pairs that are tried where not all are"""
SCALED = {"kind": "dynamic", "factor": 3.0, "original_length": 4}
JUNK = 1e3
"""what stands in padding"""
CLOSE = {torch.float64: 1e-9, torch.float32: 5e-4}
"""ten times what a layer is allowed: through a few layers and norms"""


class Layers(nn.Module):
    """A member's layers with its positions, whatever these act on, over (B, L, width)."""

    def __init__(self, case: Case, count: int, options: dict[str, Any]) -> None:
        super().__init__()
        sizes = {"width": WIDTH, "heads": HEADS, "layers": count, "length": LONGEST}
        chosen = {**case.options, **options}
        self.model = Model(configure_layers(case.member.name, case.causal, **chosen, **sizes))
        randomize_(self.model)

    def forward(
        self, x: Tensor, mask: Mask | None = None, state: StackState | None = None
    ) -> tuple[Tensor, StackState | None]:
        x = self.model.add_positions(x, mask, state)
        out = self.model.stack(x, mask=mask, state=state)
        return out.y, out.state


@dataclass(frozen=True)
class BatchRow:
    """One row of a batch: its texts, one behind the other, and padding."""

    texts: tuple[Tensor, ...]
    """(1, n, width) each"""
    ids: tuple[int, ...]
    """of the texts, neighbours not alike; one may come again"""
    slots: tuple[int, ...]
    """where in the row the tokens of the texts stand"""

    def to(self, like: Tensor) -> BatchRow:
        """The row with its texts on the device and in the dtype of ``like``."""
        return BatchRow(tuple(text.to(like) for text in self.texts), self.ids, self.slots)

    def of_slots(self, size: int) -> list[int | None]:
        """The text that each slot of the row belongs to; None: padding."""
        owners = [n for n, text in enumerate(self.texts) for _ in range(text.shape[1])]
        owner_of = dict(zip(self.slots, owners, strict=True))
        return [owner_of.get(slot) for slot in range(size)]


def conditions(
    member: Member, check: Check, device: str, dtype: torch.dtype, *, few: bool = False
) -> None:
    """Every pair of conditions, on layers with any choice of the genes around them: of texts that
    are read at once, and of texts in pieces with a state. ``few``: some pairs, other ones for each
    member.

    A memory that may not be cut anywhere is still the same with padding.
    """
    remembers = member.genes["memory"].name is not None
    if member.can("padding"):
        together(member, check, device, carried=False, few=few)
    if member.can("padding") if remembers else member.can("streaming"):
        together(member, check, device, carried=True, few=few)


def together(
    member: Member, check: Check, device: str, *, carried: bool, few: bool = False
) -> None:
    """Every pair of conditions and every case, in float64 where there is such.

    ``carried``: in pieces, with a state.
    """
    dtype = widest(torch.device(device))
    chance = random.Random(zlib.crc32(member.name.encode()))
    known = [case for case in cases(member) if not carried or _carries(case)]
    check.true(bool(known), f"{member.name}: no case can be tried")
    pairs = list(itertools.combinations(CARRIED if carried else WHOLE, 2))
    chance.shuffle(known)
    chance.shuffle(pairs)
    for n in range(FEW if few else max(len(pairs), len(known))):
        pair = pairs[n % len(pairs)]
        for case in (*known[n % len(known) :], *known):
            layers = _layers(case, pair, chance)
            if layers is not None:
                trial = Trial(layers.to(device, dtype).eval(), case, pair, carried)
                trial.run(chance, check)
                break


def _carries(case: Case) -> bool:
    if not case.causal or case.mixer(torch.float64).non_causal_reason is not None:
        return False
    try:
        Layers(case, 1, {}).model.init_state(1)
    except UnsupportedError:
        return False
    return True


def _layers(case: Case, pair: tuple[str, ...], chance: random.Random) -> Layers | None:
    """The layers that a pair is tried on; None where it has no meaning."""
    count, options = 1, {}
    if "layers" in pair:
        count, options = chance.choice((2, 3)), _around(case, chance)
    if "scaled" not in pair:
        layers = Layers(case, count, options)
        return None if "packed" in pair and layers.model.stack.lead is not None else layers
    positioned = case.remembers or "position" in case.options
    if positioned or case.options.get("random") == "zeros":
        return None
    if not case.mixer(torch.float64).accepts_positions:
        return None
    try:
        scaled = {"position": "rope", "position_options": {"scaling": SCALED}}
        return Layers(case, count, options | scaled)
    except ConfigError:
        # an option of the position that rope stands in for
        return None


def _around(case: Case, chance: random.Random) -> dict[str, Any]:
    """Any choice for the genes around a stack that the case does not refuse, with options that
    these are tried on."""
    while True:
        options: dict[str, Any] = {}
        for gene in (gene for gene in GENES.values() if gene.training_detail):
            options[gene.name] = name = chance.choice(gene.tried or gene.alternatives.own_names())
            tried = gene.alternatives.get(name).trials.variants
            options[f"{gene.name}_options"] = dict(chance.choice(tried or ({},)))
        try:
            Layers(case, 1, options)
        except GeneError:
            continue
        return options


@dataclass(frozen=True)
class Trial:
    """One pair of conditions on one case."""

    layers: Layers
    case: Case
    pair: tuple[str, ...]
    carried: bool

    @property
    def remembers(self) -> bool:
        """True if outputs depend on where pieces end."""
        return self.carried and self.case.remembers

    def run(self, chance: random.Random, check: Check) -> None:
        """Draw rows and pieces, and hold every text against the text alone."""
        weight = next(self.layers.parameters())
        long, seed = "long" in self.pair, chance.randrange(10**6)
        size = chance.randint(17, 23) if long else chance.randint(6, 9)
        where = f"{self.case} under {' and '.join(self.pair)} carried={self.carried} seed={seed}"
        rows = [_row(size, self.pair, chance, seed + n).to(weight) for n in range(2)]
        cuts = [0, size]
        if self.carried:
            cuts = sorted({0, size, *chance.sample(range(1, size), chance.randint(2, 4))})
        if self.carried and "packed" in self.pair and not self.remembers:
            try:
                self.layers(*_batch(rows, size, self.pair), self.layers.model.init_state(2))
            except UnsupportedError:
                return
            check.true(False, f"{where}: documents and a state were taken")
        before = draw(2, 3, WIDTH, seed=seed + 7).to(weight) if "reset" in self.pair else None
        got = self.fed(rows, cuts, before)
        for row, row_texts in enumerate(rows):
            earlier = None if before is None or row == 0 else before[row : row + 1]
            for n, expected in enumerate(self.alone(row_texts, cuts, earlier)):
                slots = [at for at, owner in enumerate(row_texts.of_slots(size)) if owner == n]
                check.close(
                    got[row, slots], expected[0], CLOSE[got.dtype], f"{where}: row {row}, text {n}"
                )

    def fed(self, rows: list[BatchRow], cuts: list[int], before: Tensor | None) -> Tensor:
        """Outputs of the batch; row 0 is reset behind ``before``."""
        x, mask = _batch(rows, cuts[-1], self.pair)
        if not self.carried:
            return self.layers(x, mask)[0]
        state: Any = self.layers.model.init_state(len(rows))
        if before is not None:
            _, state = self.layers(before, None, state)
            state = state.reset(torch.tensor([True, False], device=x.device))
        parts, slots = [], [row.of_slots(cuts[-1]) for row in rows]
        for a, b in itertools.pairwise(cuts):
            piece = None if mask is None else _piece(mask, slots, a, b)
            y, state = self.layers(x[:, a:b], piece, state)
            parts.append(y)
        return torch.cat(parts, 1)

    def alone(self, row: BatchRow, cuts: list[int], before: Tensor | None) -> Iterator[Tensor]:
        """Outputs of every text of a row by itself, the first behind ``before``, in one pass.

        What a memory holds depends on where segments end, so there the pieces are the batch's.
        """
        slots = row.of_slots(cuts[-1])
        for n, text in enumerate(row.texts):
            first = [before] if before is not None and n == 0 else []
            if not self.remembers:
                yield self.layers(torch.cat([*first, text], 1))[0][:, -text.shape[1] :]
                continue
            counts = [slots[a:b].count(n) for a, b in itertools.pairwise(cuts)]
            state, parts = self.layers.model.init_state(1), []
            for piece in (*first, *text.split([count for count in counts if count], 1)):
                y, state = self.layers(piece, None, state)
                parts.append(y)
            yield torch.cat(parts, 1)[:, -text.shape[1] :]


def _row(size: int, pair: tuple[str, ...], chance: random.Random, seed: int) -> BatchRow:
    """A row of ``size`` slots as the conditions want it."""
    free = list(range(size))
    for side, end in (("left", 0), ("right", -1)):
        for _ in range(chance.randint(1, 2) if side in pair else 0):
            free.pop(end)
    for _ in range(chance.randint(1, 2) if "between" in pair else 0):
        free.pop(chance.choice((1, chance.randint(1, len(free) - 2))))
    lengths, ids = [len(free)], [chance.randint(0, 3)]
    if "packed" in pair:
        # one token alone, first, in the middle or last, and an id that comes again
        left = len(free) - 1
        first = chance.randint(1, left - 1)
        lengths = chance.choice(([1, first, left - first], [first, 1, left - first]))
        lengths = lengths if chance.random() < 0.7 else lengths[::-1]
        ids = [ids[0], ids[0] + 1, ids[0]]
    texts = [draw(1, n, WIDTH, seed=seed * 8 + i) for i, n in enumerate(lengths)]
    return BatchRow(tuple(texts), tuple(ids), tuple(free))


def _batch(rows: list[BatchRow], size: int, pair: tuple[str, ...]) -> tuple[Tensor, Mask | None]:
    """The rows as tokens (B, size, width) and a mask of the parts that are needed."""
    x = torch.full((len(rows), size, WIDTH), JUNK).to(rows[0].texts[0])
    padding_mask = torch.zeros(len(rows), size, dtype=torch.bool, device=x.device)
    ids = torch.arange(size, device=x.device).mul(5).remainder(7).repeat(len(rows), 1)
    for n, row in enumerate(rows):
        at = list(row.slots)
        x[n, at], padding_mask[n, at] = torch.cat(row.texts, 1)[0], True
        own = [i for i, text in zip(row.ids, row.texts, strict=True) for _ in range(text.shape[1])]
        ids[n, at] = torch.tensor(own, device=x.device)
    mask = Mask(
        padding_mask=padding_mask if {*pair} & {"left", "right", "between"} else None,
        documents=ids if "packed" in pair else None,
    )
    return x, mask if mask.parts() else None


def _piece(mask: Mask, slots: list[list[int | None]], a: int, b: int) -> Mask:
    """The mask of the slots from a to b; id 0 continues the text that came before."""
    padding_mask = None if mask.padding_mask is None else mask.padding_mask[:, a:b]
    if mask.documents is None:
        return Mask(padding_mask=padding_mask)
    ids = mask.documents[:, a:b] + 1
    for n, owners in enumerate(slots):
        earlier = [owner for owner in owners[:a] if owner is not None]
        for at, owner in enumerate(owners[a:b]):
            if owner is not None and (owner == earlier[-1] if earlier else owner == 0):
                ids[n, at] = 0
    return Mask(padding_mask=padding_mask, documents=ids)
