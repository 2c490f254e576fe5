"""The Compressive Transformer's memory: rows that leave Transformer-XL's memory are compressed.

    q = h W_q;   k, v from [cm o m o h]                     all causal, oldest rows first
    old = rows that [m o h] has too many;   m <- the rest, n_m rows;   cm <- last n_cm of
    [cm o f(old)],   f: c rows to one

h is the layer's input (L x d), m its last n_m inputs, cm rows of which each stands for c older ones
(n_m = ``slots``, n_cm = ``compressed``, c = ``rate``): a layer reads n_m + c n_cm tokens back. What
does not fill a block of c yet waits in m. f learns by a loss of its own, one a layer:

    attention         || A(h, old) - A(h, f(old)) ||^2    A: this layer's heads by contents alone
    auto-encoding     || old - g(f(old)) ||^2             g: c rows from one

where h, old and the projections in A get no gradient and the model's own loss none through cm into
f, unless ``gradient`` lets it, one segment back, through rows that are compressed again when read.

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

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyformer.core.bounds import Count, Whole
from everyformer.core.config import Options
from everyformer.core.errors import GeneError
from everyformer.core.mixer import set_options
from everyformer.core.outputs import Losses
from everyformer.core.state import State, state
from everyformer.core.subset import gather_rows, order_of_real
from everyformer.core.trials import Make, Pair, Trials, in_two
from everyformer.engines.softmax.cache import KeyValueState
from everyformer.engines.softmax.visibility import surely
from everyformer.genes.memory import MEMORIES
from everyformer.genes.memory.base import Memory, Recalled, Segment, no_rows, with_segment

Function = Literal["conv", "mean", "max", "dilated", "most-used"]
LEARNED = ("conv", "dilated")


@dataclass(frozen=True)
class CompressiveOptions(Options):
    """Options of `CompressiveMemory`."""

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
    gradient: Literal["none", "one-segment"] = "none"
    """whether the model's own loss reaches the function through what it compressed last"""
    distance: Literal["index", "time"] = "index"
    """how far a compressed row is: in rows, or in tokens to the middle of what it stands for"""
    gone: ClassVar[dict[str, Any]] = {"reconstruction_norm": "mean"}


@state
class PastRows(State):
    """Inputs of one layer, oldest first; those that ``padding_mask`` leaves out are zeros."""

    num_tokens: Tensor
    x: Tensor
    """(B, n, width)"""
    padding_mask: Tensor
    """(B, n) bool, which stand for a real token"""
    times: Tensor
    """(B, n) int64, position of the token, or of the middle of the tokens, that each stands for"""

    def then(self, more: PastRows, most: int) -> PastRows:
        """These rows and ``more`` after them: the last ``most`` real ones of each line."""
        pairs = ((self.x, more.x), (self.padding_mask, more.padding_mask), (self.times, more.times))
        both = PastRows(self.num_tokens, *(torch.cat(pair, 1) for pair in pairs))
        first = max(both.x.shape[1] - most, 0)
        if surely(both.padding_mask):
            last = (part[:, first:] for part in (both.x, both.padding_mask, both.times))
            return PastRows(both.num_tokens, *last)
        return both.at(order_of_real(both.padding_mask, last=True)[:, first:])

    def first(self, count: int) -> PastRows:
        """The first ``count`` rows."""
        parts = (part[:, :count] for part in (self.x, self.padding_mask, self.times))
        return PastRows(self.num_tokens, *parts)

    def at(self, index: Tensor, real: Tensor | None = None) -> PastRows:
        """The rows at ``index`` (B, n), of which ``real`` (B, n) are real."""
        padding_mask = self.padding_mask.gather(1, index)
        padding_mask = padding_mask if real is None else padding_mask & real
        x = gather_rows(self.x, index).masked_fill(~padding_mask[..., None], 0)
        return PastRows(self.num_tokens, x, padding_mask, self.times.gather(1, index))


@state
class CompressiveState(State):
    """The past of one layer, as it was and compressed."""

    cut = True
    num_tokens: Tensor
    rows: KeyValueState
    """inputs (B, 1, m, width) in the place of keys"""
    usage: Tensor
    """(B, m) attention that each of those got, a head and query (most-used)"""
    packed: PastRows
    """compressed rows"""
    leaving: PastRows
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

    def forward(self, old: PastRows, usage: Tensor) -> PastRows:
        """The o / c compressed rows of o; ``usage`` (B, o) is the attention that each got."""
        if self.function == "most-used":
            return self._most_used(old, usage)
        x, padding_mask, times = (
            part.unflatten(1, (-1, self.rate)) for part in (old.x, old.padding_mask, old.times)
        )
        some = padding_mask.any(2)
        # rows that leave fill whole blocks, so that each block is real or none of it is
        if self.function == "mean":
            new = x.sum(2) / padding_mask.sum(2).clamp(min=1)[..., None]
        elif self.function == "max":
            floor = torch.finfo(x.dtype).min
            new = (
                x.masked_fill(~padding_mask[..., None], floor)
                .amax(2)
                .masked_fill(~some[..., None], 0.0)
            )
        else:
            new = self._convolved(old).masked_fill(~some[..., None], 0.0)
        return PastRows(old.num_tokens, new, some, times.sum(2) // self.rate)

    def _convolved(self, old: PastRows) -> Tensor:
        assert self.reduce is not None
        y, gone = old.x.transpose(1, 2), ~old.padding_mask[:, None]
        for convolution in self.dilated:
            # before the first row all layers see zeros
            y = F.relu(convolution(y)).masked_fill(gone, 0.0)
        reduced: Tensor = self.reduce(y)
        return reduced.transpose(1, 2)

    def _most_used(self, old: PastRows, usage: Tensor) -> PastRows:
        """The rows of most attention, in order; of equal ones the earlier."""
        usage = usage.masked_fill(~old.padding_mask, -math.inf)
        rank = usage.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        chosen = rank < old.padding_mask.sum(1, keepdim=True) // self.rate
        index = order_of_real(chosen, last=True)[:, old.x.shape[1] - old.x.shape[1] // self.rate :]
        return old.at(index, chosen.gather(1, index))


def _limits(make: Make) -> list[Pair]:
    """Without compressed rows, or at rate 1, it is a memory of segments."""
    pairs: list[Pair] = []
    for slots, compressed, rate in ((3, 0, 4), (2, 3, 1)):
        all_rows = {"slots": slots + compressed, "store": "inputs", "same_length": "never"}
        both = {"slots": slots, "compressed": compressed, "rate": rate, "function": "mean"}
        xl, ours = (
            make("attention", position="alibi", memory=name, memory_options=options)
            for name, options in (("segment", all_rows), ("compressive", both))
        )
        ours.load_state_dict(xl.state_dict())
        what = f"{compressed} compressed rows at rate {rate} are Transformer-XL's"
        pairs.append((what, in_two(ours), in_two(xl)))
    return pairs


@MEMORIES.register("compressive")
class CompressiveMemory(Memory):
    """The Compressive Transformer's memory: n_m past inputs and n_cm rows for c older ones each.

    Raises:
        GeneError: a loss for a function that cannot learn by it.
    """

    name = "compressive"
    trials = Trials(
        variants=(
            {"slots": 4, "compressed": 3, "rate": 2},
            {"slots": 2, "compressed": 3, "rate": 2, "function": "most-used", "distance": "time"},
            {
                "slots": 3,
                "compressed": 6,
                "rate": 3,
                "function": "dilated",
                "gradient": "one-segment",
            },
        ),
        limits=_limits,
    )
    Options = CompressiveOptions
    holds = CompressiveState

    def __init__(self, *, width: int, options: Any = None) -> None:
        super().__init__()
        o: CompressiveOptions = set_options(CompressiveOptions, self.name, options)
        self.options, self.slots = o, o.slots
        if o.gradient == "one-segment" and o.function not in LEARNED:
            raise GeneError(
                f"`function='{o.function}'` has nothing to learn, so no gradient can reach it: "
                f"leave "
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
        nothing = torch.zeros(batch_size, 0, device=rows.num_tokens.device)
        empty = PastRows(rows.num_tokens, rows.keys[:, 0], nothing.bool(), nothing.long())
        return CompressiveState(rows.num_tokens, rows, nothing, empty, empty)

    def recall(self, state: CompressiveState, length: int) -> Recalled:
        rows, packed = state.rows, self._packed(state)
        count = packed.x.shape[1]
        keys = torch.cat((packed.x[:, None], rows.keys), 2) if count else rows.keys
        all_real = rows.padding_mask is None and (not count or surely(packed.padding_mask))
        if self.options.distance == "index" and all_real:
            return Recalled(KeyValueState(rows.num_tokens, keys, keys[..., :0]))
        padding_mask, positions = rows.slots()
        far = None
        if self.options.distance == "time":
            times, far = (
                packed.times,
                self._farthest(rows.num_tokens, packed, length, keys.shape[2]),
            )
        else:
            # the real rows are last, the newest of them right before the segment
            first = (rows.num_tokens - padding_mask.sum(1))[:, None]
            times = first - count + torch.arange(count, device=first.device)
        whole, where = (
            torch.cat((packed.padding_mask, padding_mask), 1),
            torch.cat((times, positions), 1),
        )
        return Recalled(KeyValueState(rows.num_tokens, keys, keys[..., :0], whole, where), far)

    def _farthest(self, num_tokens: Tensor, packed: PastRows, length: int, count: int) -> int:
        """The largest distance from the last of ``length`` new tokens to ``count`` rows."""
        bound = length + count + packed.x.shape[1] * self.options.rate
        if self.options.function != "most-used" or packed.x.shape[1] == 0:
            return bound
        # the remaining rows of a segment may all be its first ones
        far = (
            (num_tokens[:, None] + length - packed.times).masked_fill(~packed.padding_mask, 0).max()
        )
        if torch.compiler.is_compiling():
            torch._assert_async(far <= bound, "a row is too far for a compiled graph: run it eager")
            return bound
        return max(bound, int(far))

    def remember(self, state: CompressiveState, segment: Segment) -> tuple[State, Losses]:
        o = self.options
        with torch.no_grad():
            packed = self._packed(state)
        count = packed.x.shape[1]
        usage = self._usage(state, segment, count)
        if segment.memory_mask is not None:
            packed = replace(
                packed, padding_mask=packed.padding_mask & segment.memory_mask[:, :count]
            )
            segment = segment._replace(memory_mask=segment.memory_mask[:, count:])
        old, usage_of_old, rest, usage = self._leaving(
            with_segment(state.rows, segment), usage, packed.first(0)
        )
        losses: Losses = {}
        leaving = old.first(0)
        if old.x.shape[1] and o.compressed:
            new = self.compress(old, usage_of_old)
            losses = self._losses(old, new, segment)
            if o.gradient == "one-segment":
                leaving = old
            else:
                packed = packed.then(new.detach(), o.compressed)
        after = CompressiveState(rest.num_tokens, rest, usage, packed.detach(), leaving)
        return after, losses

    def _leaving(
        self, rows: KeyValueState, usage: Tensor, nothing: PastRows
    ) -> tuple[PastRows, Tensor, KeyValueState, Tensor]:
        """The rows that are too many, and those that stay, each with its usage.

        Padding takes no slot: of each row of the batch its own oldest real ones leave, which stand
        last among ``most`` where others have more to give.
        """
        o, size = self.options, rows.keys.shape[2]
        most = max(size - self.slots, 0)
        most = most - most % o.rate if o.compressed else most
        if rows.padding_mask is None and not most:
            return nothing, usage[:, :0], rows, usage
        padding_mask, times = rows.slots()
        whole = PastRows(rows.num_tokens, rows.keys[:, 0], padding_mask, times)
        if rows.padding_mask is None:
            return whole.first(most), usage[:, :most], rows.part(most), usage[:, most:]
        order = order_of_real(padding_mask, last=True)
        whole, usage = whole.at(order), usage.gather(1, order)
        count = whole.padding_mask.sum(1, keepdim=True)
        over = (count - self.slots).clamp(min=0)
        over = over - over % o.rate if o.compressed else over
        if torch.compiler.is_compiling():
            stay = min(size, self.slots + o.rate - 1)
        else:
            most, stay = int(over.max()), int((count - over).max())
        back = torch.arange(-most, 0, device=padding_mask.device)
        index = (size - count + over + back).clamp(min=0)
        real = back >= -over
        first = size - stay
        stays = torch.arange(first, size, device=padding_mask.device) >= size - count + over
        x = whole.x[:, first:].masked_fill(~stays[..., None], 0)[:, None]
        rest = KeyValueState(rows.num_tokens, x, x[..., :0], stays, whole.times[:, first:])
        return whole.at(index, real), usage.gather(1, index), rest, usage[:, first:]

    def _packed(self, state: CompressiveState) -> PastRows:
        """Compressed rows, with those that are compressed when they are read."""
        if state.leaving.x.shape[1] == 0:
            return state.packed
        new = self.compress(state.leaving, state.usage)
        return state.packed.then(new, self.options.compressed)

    def _usage(self, state: CompressiveState, segment: Segment, count: int) -> Tensor:
        """(B, m + L) attention got so far; zeros where no function asks."""
        batch, length = segment.x.shape[:2]
        if self.options.function != "most-used" or self.options.compressed == 0:
            return state.usage.new_zeros(batch, state.usage.shape[1] + length)
        assert segment.usage is not None
        with torch.no_grad():
            got = segment.usage()[:, count:].to(state.usage.dtype)
            live = segment.live()
            got = got / (length if live is None else live.sum(1, keepdim=True).clamp(min=1))
        return got + F.pad(state.usage, (0, length))

    def _losses(self, old: PastRows, new: PastRows, segment: Segment) -> Losses:
        if self.reconstruction == "none" or not self.training:
            return {}
        if self.reconstruction == "attention":
            assert segment.attend is not None
            with torch.no_grad():
                goal = segment.attend(old.x, old.padding_mask)
            difference = goal - segment.attend(new.x, new.padding_mask)
            counts = old.padding_mask.any(1)[:, None]
            live = segment.live()
            counts = (counts if live is None else counts & live)[:, None, :, None]
        else:
            assert self.compress.restore is not None
            restored = self.compress.restore(new.x.transpose(1, 2)).transpose(1, 2)
            difference, counts = old.x - restored, old.padding_mask[..., None]
        square = difference.square().masked_fill(~counts, 0.0)
        # row by row, so that slices of a batch weigh in by their rows
        read = counts.expand_as(square).flatten(1).sum(1)
        return {"compression": (square.flatten(1).sum(1) / read.clamp(min=1)).mean()}
