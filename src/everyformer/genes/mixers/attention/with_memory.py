"""Attention with a memory: rows of the past before the segment, and the result of a look-up.

    K = [K_memory, K_x],  V = [V_memory, V_x];     y = softmax(Q K^T) V + what is looked up

A memory's rows are inputs of the layer, whose keys and values are made by the projections as they
are now, or keys and values as they were (`everyformer.genes.memory.base`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from everyformer.core.mask import Mask
from everyformer.core.outputs import MixerOutput
from everyformer.core.state import State
from everyformer.core.trace import record, tracing
from everyformer.engines.softmax.cache import KeyValueState
from everyformer.engines.softmax.visibility import with_past
from everyformer.genes.memory.base import Memory, Segment, by_contents

if TYPE_CHECKING:
    from everyformer.genes.mixers.attention import Attention


def attend_with_memory(
    attention: Attention, memory: Memory, x: Tensor, mask: Mask | None, state: State | None
) -> MixerOutput:
    """`Attention.forward` of a layer with a memory, and the memory's state after the segment."""
    past, farthest = _past(attention, memory, x, state)
    whole, runs = mask, None
    if past is not None:
        whole, runs = with_past(mask, x.shape[1], past.keys.shape[2])
    positions = attention.positions(x, whole, None if past is None else past.num_tokens)
    q, k, v = attention.project_heads(x)
    lookup = None
    if memory.looks_up:
        tokens = memory.tokens((q, k, v), attention.scale, mask, runs, state)
        lookup = memory.look_up(state, tokens)
    turned = attention.rotate(q, positions), attention.rotate(k, positions), v
    pairs, cache = attention.place(turned, whole, positions, past, farthest)
    y = attention.attend(*pairs, lookup)
    if cache is None:
        return MixerOutput(y, None, {})
    q, k, v, visible, distances = pairs
    real = None if whole is None else whole.padding_mask

    def usage() -> Tensor:
        weights = attention.scores.weights(q, k, visible, distances)
        weights = weights if real is None else weights.masked_fill(~real[:, None, :, None], 0)
        return weights.sum((1, 2))

    if tracing():
        record(attention, "received", usage)
    document = None if runs is None else runs == runs[:, -1:]
    if isinstance(state, KeyValueState):
        cache = cache if document is None else cache.only(document)
        return MixerOutput(y, cache.last(attention.reach), {})
    attend = partial(by_contents, attention.project, attention.scale, x.detach())
    segment = Segment(x, positions, real, document, attend, usage, cache, lookup)
    return MixerOutput(y, *memory.remember(state, segment))


def _past(
    attention: Attention, memory: Memory, x: Tensor, state: State | None
) -> tuple[KeyValueState | None, int | None]:
    """Keys and values from before ``x``, and `Recalled.farthest`."""
    if state is None:
        return None, None
    memory.check_state(state, x.shape[0], attention.width, attention.key_dim)
    if isinstance(state, KeyValueState):
        return state, None
    rows, farthest = memory.recall(state, x.shape[1])
    if memory.projected:
        return rows, farthest
    inputs = rows.keys[:, 0]
    k, v = attention.project.keys_and_values(inputs)
    k = attention.rotate(k, rows.slots()[1]) if attention.rotates else k
    return KeyValueState(rows.num_tokens, k, v, rows.padding_mask, rows.positions), farthest
