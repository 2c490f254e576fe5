"""Transformer-XL's memory: a segment also reads the inputs that the layer had in the ones before.

    h~ = [SG(m) o h],   q = h W_q,   k = h~ W_k,   v = h~ W_v;   m <- last M rows of [m o h]

h (L x d) is the layer's input in this segment, m its inputs in the segments before (SG: no gradient
goes there, while W_k and W_v learn from it). A layer sees M rows back, N layers N M. Query i of
a segment after m rows sees keys j <= i + m; with ``same_length`` the last M keys including its own
alone, which makes outputs independent of where segments begin.

Where nothing is learned the last M keys and values replace the inputs: the same outputs at
O(1) projections a token. Cost: O(L (L + M) d) a segment. State: M rows a layer (d channels, or
2 d as keys and values), empty at the start, never zeros that are attended to.

In a pre-norm layer the input is the normed one, so the norm itself does not learn from the past.
Left out: re-feeding unscored inputs (``ext_len`` of the authors' code).

Source: Dai et al. 2019, arXiv 1901.02860, section 3.2; masks and updates as in the authors' code.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from everyformer.core.bounds import Whole
from everyformer.core.config import Options
from everyformer.core.mixer import set_options
from everyformer.core.outputs import Losses
from everyformer.core.state import State, state
from everyformer.core.trials import LENGTH, LONGEST, Make, Pair, Trials, in_two, output
from everyformer.engines.softmax.cache import KeyValueState
from everyformer.genes.memory import MEMORIES
from everyformer.genes.memory.base import Memory, Recalled, Segment, no_rows, with_segment


@dataclass(frozen=True)
class SegmentOptions(Options):
    """Options of `SegmentMemory`."""

    slots: Whole = 128
    """M, tokens before a segment that each layer reads too"""
    same_length: Literal["evaluation", "always", "never"] = "evaluation"
    """when every query sees exactly the last M keys, its own among them (the paper: in evaluation),
    and not all before it"""
    store: Literal["auto", "inputs", "keys"] = "auto"
    """what is carried: inputs of the layer, keys and values (in training they then get no
    gradient), or by turns: inputs in training, keys and values in evaluation"""


@state
class SegmentState(State):
    """The last inputs of one layer."""

    cut = True
    num_tokens: Tensor
    rows: KeyValueState
    """inputs (B, 1, m, width) in the place of keys, m <= M"""


def _limits(make: Make) -> list[Pair]:
    """A memory of everything is one pass; none at all is each segment by itself."""
    plain = make("attention", position="alibi")
    mixers = []
    for slots in (LENGTH, 0):
        options = {"slots": slots, "store": "inputs", "same_length": "never"}
        mixers.append(make("attention", position="alibi", memory="segment", memory_options=options))
        mixers[-1].load_state_dict(plain.state_dict())
    whole, none = mixers

    def alone(x: Tensor) -> Tensor:
        return torch.cat([plain(x[:, :4]).y, plain(x[:, 4:]).y], 1)

    return [
        ("a memory of everything is one pass", in_two(whole), output(plain)),
        ("no memory leaves segments alone", in_two(none), alone),
    ]


@MEMORIES.register("segment")
class SegmentMemory(Memory):
    """Transformer-XL's memory: the last M inputs of a layer, read beside the next segment's."""

    name = "segment"
    trials = Trials(
        variants=(
            {"slots": 4},
            {"slots": 4, "store": "inputs"},
            {"slots": LONGEST, "store": "inputs", "same_length": "never", "position": "rope"},
            {"slots": 3, "position": "alibi"},
            {"slots": 5, "position": "t5-relative", "kv_heads": 1},
        ),
        limits=_limits,
    )
    Options = SegmentOptions
    tokens_alone = True
    holds = SegmentState

    def __init__(self, *, width: int, options: Any = None) -> None:
        super().__init__()
        self.options: SegmentOptions = set_options(SegmentOptions, self.name, options)
        self.slots = self.options.slots

    def windows(self, own: tuple[int | None, ...]) -> tuple[int | None, ...]:
        when = self.options.same_length
        if when == "always":
            # of no memory too, a query's own key alone
            return (max(1, self.slots),)
        even = self.slots > 0 and when == "evaluation" and not self.training
        return (self.slots,) if even else own

    def ring(self) -> int | None:
        store = self.options.store
        return self.slots if store == "keys" or (store == "auto" and not self.training) else None

    def init_state(self, batch_size: int, width: int, **like: Any) -> SegmentState:
        rows = no_rows(batch_size, width, **like)
        return SegmentState(rows.num_tokens, rows)

    def recall(self, state: SegmentState, length: int) -> Recalled:
        return Recalled(state.rows)

    def remember(self, state: SegmentState, segment: Segment) -> tuple[SegmentState, Losses]:
        rows = with_segment(state.rows, segment).last(self.slots)
        return SegmentState(rows.num_tokens, rows), {}
