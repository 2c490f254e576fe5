"""The feed-forward whose layers are separable convolutions along the text.

    FFN(x) = P_2 C_5 drop(relu(P_1 C_3 x))
    (C_k x)_t = sum_n c_n * x_(t + n - r)        * by channel, n = 0 .. k - 1,  c (k, channels)

P_1 (d to d_ff) and P_2 (d_ff to d) are linear layers of single tokens; C_k, without a bias, mixes k
neighbours channel by channel. Both ways r = (k - 1) / 2, padded by zeros on both sides; causal
r = k - 1, padded on the left. What is no token of the text counts as zero before each convolution:
padding, wherever it is, and other documents than a token's.

Cost: that of the feed-forward of the same size and 2 (3 d + 5 d_ff) operations a token more. State:
the last 2 inputs of C_3 and the last 4 of C_5.

Source: Dehghani et al. 2018, arXiv 1807.03819, section 2.1; sizes as in tensor2tensor
(sepconv_relu_sepconv). Each c_n starts uniform with variance 1 / k.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyformer.blocks.feedforward import FeedForward
from everyformer.blocks.parts import drop, start
from everyformer.core.bounds import rounded_share
from everyformer.core.mask import Mask, runs_after, runs_of
from everyformer.core.state import State, state
from everyformer.engines.rows import compact, next_window, spread
from everyformer.genes.feedforward import FEEDFORWARDS, FeedForwardOptions

FIRST, SECOND = 3, 5
"""tokens that the two convolutions read"""
HONOURS = frozenset({"padding_mask", "documents", "global_tokens", "sentences", "grid"})
"""parts of a mask that hide nothing from it but padding and other documents"""


@state
class SeparableState(State):
    """The last inputs of both convolutions, zeros where there is none yet."""

    num_tokens: Tensor
    inputs: Tensor
    """(B, 2, d) of the first, newest last"""
    hidden: Tensor
    """(B, 4, d_ff) of the second"""


@FEEDFORWARDS.register("sepconv")
class SeparableFeedForward(FeedForward):
    """Two separable convolutions with a ReLU between, over (B, L, width)."""

    name = "sepconv"
    Options = FeedForwardOptions
    options: FeedForwardOptions
    by_token = False

    def build(self, width: int) -> None:
        o = self.options
        hidden = rounded_share(width, o.expansion, "expansion")
        self.first = nn.Parameter(torch.empty(FIRST, width))
        self.second = nn.Parameter(torch.empty(SECOND, hidden))
        self.up = nn.Linear(width, hidden, bias=o.feedforward_bias)
        self.down = nn.Linear(hidden, width, bias=o.feedforward_bias)
        self.dropout = self.dropout if o.feedforward_dropout is None else o.feedforward_dropout
        for taps in (self.first, self.second):
            nn.init.uniform_(taps, -((3 / len(taps)) ** 0.5), (3 / len(taps)) ** 0.5)
        for layer in (self.up, self.down):
            start(layer)

    def init_state(self, batch_size: int, *, device: Any = None, dtype: Any = None) -> State:
        """No token read yet."""
        like: dict[str, Any] = {
            "device": device or self.first.device,
            "dtype": dtype or self.first.dtype,
        }
        return SeparableState(
            num_tokens=torch.zeros(batch_size, dtype=torch.long, device=like["device"]),
            inputs=torch.zeros(batch_size, FIRST - 1, self.first.shape[1], **like),
            hidden=torch.zeros(batch_size, SECOND - 1, self.second.shape[1], **like),
        )

    def forward(
        self, x: Tensor, mask: Mask | None = None, state: State | None = None
    ) -> tuple[Tensor, State | None]:
        """Outputs (B, L, width), zeros at padding, and the state after these tokens.

        Args:
            mask: ``padding_mask``, ``documents`` are read. state: what came before, of causal ones.

        Raises:
            UnsupportedError: a part of the mask that hides pairs of tokens.
        """
        padding_mask = runs = rows = None
        if mask is not None:
            mask.require(f"feed-forward '{self.name}'", HONOURS)
            padding_mask = mask.padding_mask
            if mask.documents is not None:
                number = runs_of if state is None else runs_after
                runs = number(mask.documents, padding_mask)
        if padding_mask is not None:
            rows = compact(x, padding_mask)
            x, padding_mask = rows.x, rows.padding_mask
            runs = None if runs is None else runs.gather(1, rows.order)
        before: tuple[Tensor | None, Tensor | None] = (None, None)
        if state is not None:
            assert isinstance(state, SeparableState)
            before = state.inputs, state.hidden
        y, inputs = self._convolve(x, self.first, padding_mask, runs, before[0])
        h = drop(F.relu(self.up(y)), self.dropout, self.training)
        y, hidden = self._convolve(h, self.second, padding_mask, runs, before[1])
        y = self.down(y)
        y = y if rows is None else spread(y, rows)
        if state is None:
            return y, None
        assert inputs is not None
        assert hidden is not None
        count = x.shape[1] if padding_mask is None else padding_mask.sum(1)
        return y, SeparableState(state.num_tokens + count, inputs, hidden)

    def _convolve(
        self,
        x: Tensor,
        taps: Tensor,
        padding_mask: Tensor | None,
        runs: Tensor | None,
        before: Tensor | None,
    ) -> tuple[Tensor, Tensor | None]:
        """C x, and, after earlier tokens, the last inputs for what follows.

        Args:
            x: (B, L, channels), real tokens in front. runs: (B, L) numbers of their documents; the
            one that ``before`` (B, k - 1, channels) ends in is 0.
        """
        size, length = len(taps), x.shape[1]
        sides = (size - 1, 0) if self.causal else (size // 2, size // 2)
        if padding_mask is not None:
            x = x.masked_fill(~padding_mask[..., None], 0)
        if before is None:
            window = F.pad(x, (0, 0, *sides))
        else:
            window = torch.cat((before.to(x.dtype), x), 1)
        around = None if runs is None else F.pad(runs, sides)
        y = torch.zeros_like(x)
        for n, tap in enumerate(taps):
            part = window[:, n : n + length]
            if around is not None and runs is not None:
                part = part * (around[:, n : n + length] == runs)[..., None]
            y = torch.addcmul(y, part, tap.to(x.dtype))
        if before is None:
            return y, None
        last = next_window(window, size - 1, padding_mask)
        if around is not None:
            last = last * (next_window(around, size - 1, padding_mask) == around[:, -1:])[..., None]
        return y, last.to(before.dtype)
