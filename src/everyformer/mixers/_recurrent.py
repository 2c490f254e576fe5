"""How attention reads a memory: one segment after what a state holds of the ones before.

The state is the memory's own (inputs of the layer, whose keys and values are made anew), or the
keys and values that stand for them where nothing is learned (`Memory.ring`). Both go through the
same attention, with the queries at the end of the keys.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from everyformer.core.errors import ShapeError
from everyformer.core.mask import Mask, positions_of, runs_of
from everyformer.core.outputs import MixerOutput
from everyformer.core.state import State
from everyformer.core.trace import record, tracing
from everyformer.engines.softmax.attention import Visibility, softmax_attention
from everyformer.engines.softmax.cache import KeyValueState
from everyformer.engines.softmax.places import Places
from everyformer.engines.softmax.visibility import counts_up, over_past, surely
from everyformer.memory.base import Recalled, Segment

if TYPE_CHECKING:
    from everyformer.mixers.attention import Attention


def recur(attention: Attention, x: Tensor, mask: Mask | None, state: State) -> MixerOutput:
    """`x` (B, L, width) after what ``state`` holds; see `Attention.forward`.

    Packed documents may be given with a state here: tokens of id 0 go on with the document that the
    state is in, and later segments see the last document alone.
    """
    memory = attention.memory
    assert memory is not None
    _check(attention, x, state)
    recalled = None if isinstance(state, KeyValueState) else memory.recall(state, x.shape[1])
    past = state if recalled is None else _projected(attention, recalled)
    assert isinstance(past, KeyValueState)
    keep = None if mask is None else mask.keep
    shown, mask = _documents(over_past(mask, x.shape[1], past.keys.shape[2]), past)
    positions = positions_of(x.shape[0], x.shape[1], mask, past.seen, x.device)
    q, k, v = attention.project(x)
    new = past.append(attention.turn(k, positions), v, positions, keep)
    q = attention.turn(q, positions)
    far = None if recalled is None else recalled.farthest
    regular = far is None and counts_up(new.keep)
    held, slots, here = new.keep, new.positions, positions
    if held is None or slots is None:
        slots = torch.arange(new.keys.shape[2], device=x.device)[None]
        here = slots[:, new.keys.shape[2] - x.shape[1] :]
    visible = attention.sight.of(mask, here, slots, held, regular)
    places = Places.of(here, slots, regular=regular, causal=True, farthest=far)

    def received() -> Tensor:
        got = attention.weighing.weights(q, new.keys, visible, places)
        return (got if keep is None else got.masked_fill(~keep[:, None, :, None], 0)).sum((1, 2))

    if tracing():
        record(attention, "received", received)
    y = attention.attend(q, new.keys, new.values, visible, places)
    if recalled is None:
        reach = attention.sight.reach
        after = new if shown is None else new.only(shown)
        return MixerOutput(y, after.last(memory.slots if reach is None else reach), {})

    def look(rows: Tensor, real: Tensor) -> Tensor:
        return _contents(attention, x.detach(), rows, real)

    segment = Segment(x, positions, keep, shown, look, received)
    kept, losses = memory.remember(state, segment)
    return MixerOutput(y, kept, losses)


def _projected(attention: Attention, recalled: Recalled) -> KeyValueState:
    """Keys and values of remembered inputs, by the projections as they are now."""
    rows = recalled.rows
    inputs = rows.keys[:, 0]
    k, v = attention.project.one(inputs, "key"), attention.project.one(inputs, "value")
    if attention.turns:
        k = attention.turn(k, rows.slots()[1])
    return KeyValueState(rows.seen, k, v, rows.keep, rows.positions)


def _documents(mask: Mask | None, past: KeyValueState) -> tuple[Tensor | None, Mask | None]:
    """(B, m + L) who belongs to the last document, and the mask with its documents as pairs.

    The document that the state is in is number 0, and so is a first run of id 0.
    """
    if mask is None or mask.documents is None:
        return None, mask
    ids = runs_of(mask.documents, mask.keep)
    real = torch.ones_like(ids, dtype=torch.bool) if mask.keep is None else mask.keep
    first = mask.documents.gather(1, real.long().argmax(1, keepdim=True))
    ids = ids + ((first != 0) & real.any(1, keepdim=True)).long()
    whole = torch.cat((ids.new_zeros(ids.shape[0], past.keys.shape[2]), ids), 1)
    same = (ids[:, :, None] == whole[:, None, :])[:, None]
    allowed = same if mask.allowed is None else same & mask.allowed
    return whole == ids[:, -1:], replace(mask, documents=None, allowed=allowed)


def _contents(attention: Attention, x: Tensor, rows: Tensor, real: Tensor) -> Tensor:
    """Heads' outputs of ``x`` over ``rows`` by contents alone; no gradient to the projections."""
    frozen = {name: p.detach() for name, p in attention.project.named_parameters()}

    call = torch.func.functional_call
    q, _, _ = call(attention.project, frozen, (x,))
    _, k, v = call(attention.project, frozen, (rows,))
    seen = None if surely(real) else real[:, None, None, :]
    return softmax_attention(q, k, v, Visibility(mask=seen), scale=attention.scale)


def _check(attention: Attention, x: Tensor, state: State) -> None:
    memory = attention.memory
    assert memory is not None
    if not isinstance(state, KeyValueState | memory.holds):
        raise ShapeError(
            f"a layer with memory '{memory.name}' continues a state that its own init_state began, "
            f"not {type(state).__name__} (the state of another model?)"
        )
    projected = isinstance(state, KeyValueState)
    rows = state if isinstance(state, KeyValueState) else memory.rows_of(state)
    held, expected = rows.keys.shape[-1], attention.key_dim if projected else attention.width
    if held != expected:
        raise ShapeError(
            f"the state holds rows of {held} channels, but this layer's have {expected}: it is the "
            "state of another model"
        )
    if state.seen.shape[0] != x.shape[0]:
        raise ShapeError(
            f"the state holds {state.seen.shape[0]} rows, but x has {x.shape[0]}: begin a state of "
            "that batch size, or pick rows with state.reorder(index)"
        )
