"""Decaying averages: every head averages the past with weights that fall by a constant factor.

    h_t = a h_(t-1) + (1 - a) W_v x_t,   y_t = W_o h_t          a of a head: ``start`` at the start

Cost: O(L^2 d) time, O(L^2 h) memory. State: h, d numbers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from everyformer.core.bounds import Between
from everyformer.core.config import Options
from everyformer.core.errors import GeneError
from everyformer.core.mixer import Mixer, heads_divide, set_options
from everyformer.core.outputs import MixerOutput
from everyformer.core.panels import Panel, Panels, Pictures
from everyformer.core.state import State, state
from everyformer.core.trace import record
from everyformer.core.trials import Make, Pair, Trials, output
from everyformer.genes.mixers.base import RowMixer, Rows


@dataclass(frozen=True)
class DecayOptions(Options):
    start: Between = 0.5
    """a at the start, the same in all heads"""


def weights(decay: Tensor, length: int) -> Tensor:
    """(1 - a) a^(t-s) for s <= t, else 0: (H, L, L) of a (H,)."""
    step = torch.arange(length, device=decay.device)
    ago = step[:, None] - step
    falling = decay[:, None, None] ** ago.clamp(min=0)
    return (1 - decay)[:, None, None] * falling * (ago >= 0)


def limits(make: Make) -> list[Pair]:
    """Where a is 0 every token keeps its own value."""
    mixer = make("decay")
    with torch.no_grad():
        mixer.logit.fill_(-60.0)
    return [("a = 0 is the token itself", output(mixer), lambda x: mixer.out(mixer.value(x)))]


@state
class DecayState(State):
    """The averages so far."""

    num_tokens: Tensor
    mean: Tensor
    """h (B, H, D)"""


class Decay(RowMixer):
    """Decaying averages over (B, L, width), causal by nature."""

    name = "decay"
    trials = Trials(variants=({}, {"start": 0.9}), limits=limits)
    states = (DecayState,)
    supported_masks = frozenset({"padding_mask", "documents"})
    Options = DecayOptions

    def __init__(
        self, *, width: int, heads: int = 1, causal: bool = False, max_length: int | None = None,
        options: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        o: DecayOptions = set_options(DecayOptions, self.name, options)
        if not causal:
            raise GeneError("decay averages the past alone: build it with causal=True")
        self.width, self.heads, self.causal, self.options = width, heads, causal, o
        self.size = heads_divide(width, heads, self.name)
        self.value = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        start = math.log(o.start / (1 - o.start))
        self.logit = nn.Parameter(torch.full((heads,), start))

    def forward_rows(self, rows: Rows, state: State | None) -> MixerOutput:
        v = self.value(rows.x).unflatten(-1, (self.heads, self.size)).transpose(1, 2)
        decay, length = self.logit.sigmoid(), rows.x.shape[1]
        w = weights(decay, length)
        record(self, "weights", lambda: w[None])
        h = w @ v
        after = None
        if state is not None:
            assert isinstance(state, DecayState)
            steps = torch.arange(1, length + 1, device=v.device)
            h = h + decay[:, None, None] ** steps[:, None] * state.mean[:, :, None]
            every = torch.cat((state.mean[:, :, None], h), 2)
            count = rows.lengths.expand(len(v))
            last = count.view(-1, 1, 1, 1).expand(-1, self.heads, 1, self.size)
            after = DecayState(state.num_tokens + count, every.gather(2, last)[:, :, 0])
        return MixerOutput(self.out(h.transpose(1, 2).flatten(2)), after, {})

    def text_reference(self, text: Rows) -> Tensor:
        """The recurrence, token by token."""
        decay, h, outputs = self.logit.sigmoid(), torch.zeros_like(text.x[:, 0]), []
        decay = decay.repeat_interleave(self.size)
        for x in text.x.unbind(1):
            h = decay * h + (1 - decay) * self.value(x)
            outputs.append(self.out(h))
        return torch.stack(outputs, 1)

    def empty_state(self, batch: int, **like: Any) -> DecayState:
        num_tokens = torch.zeros(batch, dtype=torch.long, device=like["device"])
        return DecayState(num_tokens, torch.zeros(batch, self.heads, self.size, **like))

    def pictures(self, length: int | None, layers: Sequence[Mixer]) -> Pictures:
        def kernels() -> Panels:
            w = weights(self.logit.detach().sigmoid(), length or 16)
            rows = [[Panel(f"head {n + 1}", one.numpy()) for n, one in enumerate(w)]]
            return Panels(rows, "How far each head looks back.", "weight")

        return {"kernels": kernels}
