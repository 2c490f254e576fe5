"""The Compressive Transformer's memory: what leaves Transformer-XL's memory is kept, compressed.

    q = h W_q;   k, v from [cm o m o h]                     all causal, oldest rows first
    old = rows that [m o h] has too many;   m <- the rest, n_m rows;   cm <- last n_cm of
    [cm o f(old)],   f: c rows to one

h is the layer's input (L x d), m its last n_m inputs, cm rows of which each stands for c older ones
(n_m = ``slots``, n_cm = ``compressed``, c = ``rate``): a layer reads n_m + c n_cm tokens back. What
does not fill a block of c yet waits in m. f learns by a loss of its own, one a layer:

    attention         || A(h, old) - A(h, f(old)) ||^2    A: this layer's heads by contents alone
    auto-encoding     || old - g(f(old)) ||^2             g: c rows from one

where h, old and the projections in A get no gradient and the model's own loss none through cm into
f, unless ``gradient`` lets it, one segment back, through rows that are compressed anew when read.

f: ``conv`` (width and stride c), ``mean``, ``max``, ``most-used`` (of the leaving rows those that
got most attention, in order), ``dilated`` (three convolutions of width 3 with dilations 1, 2, 4 and
ReLU between, then one of stride c; the paper gives no sizes). Pools and choices have nothing to
learn, so no loss; evaluation has none either. Distances to cm count rows (``index``) or the tokens
they stand for.

Cost: O(L (L + n_m + n_cm) d) a segment. State: n_m + n_cm rows of d channels a layer.

Source: Rae et al. 2020, arXiv 1911.05507, sections 3 and 3.1 (whose algorithm starts with zeros
that are attended to: here memories start empty; there is no published code).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyformer.core.bounds import Amount, Count, Whole
from everyformer.core.config import Options
from everyformer.core.errors import GeneError
from everyformer.core.mixer import set_options
from everyformer.core.outputs import Losses
from everyformer.core.state import State, state
from everyformer.engines.cache import KeyValueState
from everyformer.engines.rows import gather_rows
from everyformer.engines.visibility import surely
from everyformer.memory import MEMORIES
from everyformer.memory.base import Memory, Recalled, Segment, no_rows, with_segment

Function = Literal["conv", "mean", "max", "dilated", "most-used"]
LEARNED = ("conv", "dilated")


@dataclass(frozen=True)
class CompressiveOptions(Options):
    slots: Whole = 128
    """n_m, inputs of the past that each layer keeps as they are"""
    compressed: Whole = 128
    """n_cm, rows that stand for older ones"""
    rate: Count = 4
    """c, rows that are compressed to one"""
    function: Function = "conv"
    """how rows are compressed"""
    reconstruction: Literal["attention", "auto-encoding", "none"] = "attention"
    """what a function that learns is to keep: attention's outputs, or the rows themselves"""
    reconstruction_weight: Amount = 1.0
    """factor on that loss"""
    reconstruction_norm: Literal["mean", "sum"] = "mean"
    """squared differences averaged over all numbers, or added up as printed"""
    gradient: Literal["none", "one-segment"] = "none"
    """whether the model's own loss reaches the function through what it compressed last"""
    distance: Literal["index", "time"] = "index"
    """how far a compressed row is: in rows, or in tokens to the middle of what it stands for"""


@state
class Rows(State):
    """Inputs of one layer, oldest first; those that ``keep`` leaves out are zeros."""

    seen: Tensor
    x: Tensor
    """(B, n, width)"""
    keep: Tensor
    """(B, n) bool, which stand for a real token"""
    times: Tensor
    """(B, n) int64, position of the token, or of the middle of the tokens, that each stands for"""

    def then(self, more: Rows, most: int) -> Rows:
        """With ``more`` behind; of all the last ``most``."""
        pairs = ((self.x, more.x), (self.keep, more.keep), (self.times, more.times))
        return Rows(self.seen, *(torch.cat(pair, 1)[:, -most:] for pair in pairs))

    def detach(self) -> Rows:
        return Rows(self.seen, self.x.detach(), self.keep, self.times)


@state
class CompressiveState(State):
    """The past of one layer, as it was and compressed."""

    cut = True
    seen: Tensor
    rows: KeyValueState
    """inputs (B, 1, m, width) in the place of keys"""
    usage: Tensor
    """(B, m) attention that each of those got, a head and query (most-used)"""
    packed: Rows
    """compressed rows"""
    leaving: Rows
    """rows that are compressed when they are read (gradient=one-segment)"""


class Compression(nn.Module):
    """f, which makes one row of c, and g, which makes c rows of one for its auto-encoding loss."""

    def __init__(self, width: int, rate: int, function: Function, decodes: bool) -> None:
        super().__init__()
        self.rate, self.function = rate, function
        self.dilated = nn.ModuleList()
        if function == "dilated":
            self.dilated.extend(
                nn.Conv1d(width, width, 3, dilation=step, padding=step) for step in (1, 2, 4)
            )
        self.reduce = nn.Conv1d(width, width, rate, rate) if function in LEARNED else None
        self.restore = nn.ConvTranspose1d(width, width, rate, rate) if decodes else None
        for parameter in self.parameters():
            parameter.apart = True  # type: ignore[attr-defined]

    def forward(self, old: Rows, usage: Tensor) -> Rows:
        """The o / c compressed rows of o; ``usage`` (B, o) is the attention that each got."""
        if self.function == "most-used":
            return self._most_used(old, usage)
        x, keep, times = (
            part.unflatten(1, (-1, self.rate)) for part in (old.x, old.keep, old.times)
        )
        some = keep.any(2)
        if self.function == "mean":
            made = x.sum(2) / keep.sum(2).clamp(min=1)[..., None]
        elif self.function == "max":
            floor = torch.finfo(x.dtype).min
            made = x.masked_fill(~keep[..., None], floor).amax(2).masked_fill(~some[..., None], 0.0)
        else:
            made = self._convolved(old.x)
        return Rows(old.seen, made, some, times.float().mean(2).long())

    def _convolved(self, x: Tensor) -> Tensor:
        assert self.reduce is not None
        y = x.transpose(1, 2)
        for convolution in self.dilated:
            y = F.relu(convolution(y))
        made: Tensor = self.reduce(y).transpose(1, 2)
        return made

    def _most_used(self, old: Rows, usage: Tensor) -> Rows:
        usage = usage.masked_fill(~old.keep, -1.0)
        chosen = usage.topk(old.x.shape[1] // self.rate, dim=1).indices.sort(1).values
        x = gather_rows(old.x, chosen)
        return Rows(old.seen, x, old.keep.gather(1, chosen), old.times.gather(1, chosen))


@MEMORIES.register("compressive")
class CompressiveMemory(Memory):
    """n_m inputs of the past and n_cm rows that stand for c older ones each.

    Raises:
        GeneError: a loss for a function that cannot learn by it.
    """

    name = "compressive"
    Options = CompressiveOptions
    holds = CompressiveState

    def __init__(self, *, width: int, options: Any = None) -> None:
        super().__init__()
        o: CompressiveOptions = set_options(CompressiveOptions, self.name, options)
        self.options, self.slots = o, o.slots
        if o.gradient == "one-segment" and o.function not in LEARNED:
            raise GeneError(
                f"function='{o.function}' has nothing to learn, so no gradient can reach it: leave "
                f"gradient out, or use one of {', '.join(LEARNED)}"
            )
        learns = o.function in LEARNED and o.compressed > 0
        self.reconstruction = o.reconstruction if learns else "none"
        decodes = self.reconstruction == "auto-encoding"
        self.compress = Compression(width, o.rate, o.function, decodes)

    @property
    def reach(self) -> int:
        return self.slots + self.options.rate * self.options.compressed

    def init_state(self, batch_size: int, width: int, **like: Any) -> CompressiveState:
        rows = no_rows(batch_size, width, **like)
        nothing = torch.zeros(batch_size, 0, device=rows.seen.device)
        empty = Rows(rows.seen, rows.keys[:, 0], nothing.bool(), nothing.long())
        return CompressiveState(rows.seen, rows, nothing, empty, empty)

    def recall(self, state: CompressiveState, length: int) -> Recalled:
        rows, packed = state.rows, self._packed(state)
        count = packed.x.shape[1]
        keys = torch.cat((packed.x[:, None], rows.keys), 2)
        if self.options.distance == "index" and rows.keep is None and surely(packed.keep):
            return Recalled(KeyValueState(rows.seen, keys, keys[..., :0]))
        keep, positions = rows.slots()
        far = None
        if self.options.distance == "time":
            times, far = packed.times, length + keys.shape[2] + count * self.options.rate
        else:
            first = positions[:, :1] if positions.shape[1] else rows.seen[:, None]
            times = first - count + torch.arange(count, device=first.device)
        whole, where = torch.cat((packed.keep, keep), 1), torch.cat((times, positions), 1)
        return Recalled(KeyValueState(rows.seen, keys, keys[..., :0], whole, where), far)

    def remember(self, state: CompressiveState, segment: Segment) -> tuple[State, Losses]:
        o = self.options
        with torch.no_grad():
            packed = self._packed(state)
        count = packed.x.shape[1]
        usage = self._usage(state, segment, count)
        if segment.shown is not None:
            packed = replace(packed, keep=packed.keep & segment.shown[:, :count])
            segment = segment._replace(shown=segment.shown[:, count:])
        rows = with_segment(state.rows, segment)
        over = max(rows.keys.shape[2] - self.slots, 0)
        over -= over % o.rate if o.compressed else 0
        keep, positions = rows.slots()
        x = rows.keys[:, 0, :over] * keep[:, :over, None]
        old = Rows(rows.seen, x, keep[:, :over], positions[:, :over])
        losses: Losses = {}
        leaving = Rows(rows.seen, x[:, :0], keep[:, :0], positions[:, :0])
        if over and o.compressed:
            new = self.compress(old, usage[:, :over])
            losses = self._losses(old, new, segment)
            if o.gradient == "one-segment":
                leaving = old
            else:
                packed = packed.then(new.detach(), o.compressed)
        rest = rows.part(over)
        kept = CompressiveState(rest.seen, rest, usage[:, over:], packed.detach(), leaving)
        return kept, losses

    def _packed(self, state: CompressiveState) -> Rows:
        """Compressed rows, with those that are compressed when they are read."""
        if state.leaving.x.shape[1] == 0:
            return state.packed
        made = self.compress(state.leaving, state.usage)
        return state.packed.then(made, self.options.compressed)

    def _usage(self, state: CompressiveState, segment: Segment, count: int) -> Tensor:
        """(B, m + L) attention got so far; zeros where no function asks."""
        batch, length = segment.x.shape[:2]
        got = state.usage.new_zeros(batch, state.usage.shape[1] + length)
        if self.options.function == "most-used" and self.options.compressed > 0:
            with torch.no_grad():
                got = segment.received()[:, count:].to(got.dtype) / length
        return got + F.pad(state.usage, (0, length))

    def _losses(self, old: Rows, new: Rows, segment: Segment) -> Losses:
        o = self.options
        if self.reconstruction == "none" or not self.training:
            return {}
        if self.reconstruction == "attention":
            with torch.no_grad():
                goal = segment.look(old.x, old.keep)
            difference = goal - segment.look(new.x, new.keep)
        else:
            assert self.compress.restore is not None
            restored = self.compress.restore(new.x.transpose(1, 2)).transpose(1, 2)
            difference = (old.x - restored) * old.keep[..., None]
        square = difference.square()
        total = square.mean() if o.reconstruction_norm == "mean" else square.sum()
        return {"compression": o.reconstruction_weight * total}
