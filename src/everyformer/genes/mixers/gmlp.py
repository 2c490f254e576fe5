"""gMLP and aMLP: two channel projections with a spatial gate between them, no attention needed.

    Z = gelu(X U),   Z = [Z_1 | Z_2],   f(Z_2) = W LN(Z_2) + b 1^T,   Y = (Z_1 * f(Z_2)) V
    aMLP:            f(Z_2) = W LN(Z_2) + b 1^T + tiny_attention(X)

X (L, d) is the normalised block input, U (d, f), V (f/2, d), f = ``mlp_ratio`` d. W (L, L) mixes
tokens and is shared by all channels (of a head: ``sgu_heads``); b (L) is one bias a token. W starts
near 0 and b at 1, so every block starts as a feed-forward network. Causal: the lower triangle of W.
Toeplitz: W_ij = c_(i-j), one filter of 2 L - 1 taps.

Cost: O(L^2 f) time, L^2 parameters a block. State: the normalised rows Z_2 seen, slot = position.
The table fixes the longest sequence; shorter ones use its upper left corner. Padding is zeroed
after LN (the paper lets pads mix).

Source: Liu, Dai, So, Le 2021, arXiv 2105.08050, section 3. There is no activation after V. Not in
the paper: heads of W, exact padding.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyformer.blocks.parts import start
from everyformer.core.bounds import Affects, Count, Positive, rounded_share
from everyformer.core.config import Options
from everyformer.core.errors import GeneError, ShapeError
from everyformer.core.leaving import leaves_torch
from everyformer.core.mask import Mask
from everyformer.core.outputs import MixerOutput
from everyformer.core.shared import advanced
from everyformer.core.state import State, state
from everyformer.core.trace import record
from everyformer.core.trials import LONGEST, Make, Pair, Trials, output
from everyformer.engines.averages.lower import lower_product
from everyformer.engines.averages.toeplitz import toeplitz_matrix, toeplitz_mix
from everyformer.engines.growing import Growing
from everyformer.engines.softmax.visibility import all_read
from everyformer.genes.mixers import MIXERS
from everyformer.genes.mixers.attention import Attention
from everyformer.genes.mixers.base import Rows, StreamingMixer

Gate = Literal["split", "multiplicative", "additive", "linear"]


@dataclass(frozen=True)
class GMLPOptions(Options):
    """Options of `GMLP`."""

    mlp_ratio: Positive = 4.0
    """hidden channels f over width (the paper's models use 6)"""
    gate: Gate = "split"
    """s = Z_1 * f(Z_2); or without a split: Z * f(Z), Z + f(Z), f(Z)"""
    spatial: Literal["dense", "toeplitz"] = "dense"
    """W as a full matrix, or constant along diagonals"""
    sgu_heads: Count = 1
    """groups of channels with a W and b of their own"""
    spatial_init: Annotated[Literal["normal", "uniform", "zeros", "wide"], Affects("nothing")] = (
        "normal"
    )
    """W at the start: N(0, 1e-12), U(+-1e-3/n), zeros, or U(+-0.05) (far from 0)"""
    gone: ClassVar[dict[str, Any]] = {"taps": None, "mask_padding": True}


@dataclass(frozen=True)
class AMLPOptions(GMLPOptions):
    """Options of `AMLP`."""

    attention_dim: Count = 64
    """channels of the tiny single-head attention"""


def spatial_gate_reference(
    z: Tensor, weight: Tensor, bias: Tensor, *, causal: bool = False
) -> Tensor:
    """The definition, token by token; arguments as in `spatial_gate`."""
    first, second = z.chunk(2, dim=-1)
    heads = weight.shape[0]
    rows = []
    for t in range(z.shape[1]):
        parts = []
        for h, v in enumerate(second.chunk(heads, dim=-1)):
            last = t + 1 if causal else z.shape[1]
            mixed = sum((weight[h, t, j] * v[:, j] for j in range(last)), torch.zeros_like(v[:, 0]))
            parts.append(mixed + bias[h, t])
        rows.append(first[:, t] * torch.cat(parts, -1))
    return torch.stack(rows, 1)


def spatial_gate(z: Tensor, weight: Tensor, bias: Tensor, *, causal: bool = False) -> Tensor:
    """Z_1 * (W Z_2 + b): the gating unit on an already normalised second half.

    Args:
        z: (B, L, 2 c). weight: (heads, N, N) with N >= L, row = output token. bias: (heads, N).
        causal: the lower triangle of ``weight`` only.

    Returns: (B, L, c).

    Raises:
        ShapeError: other shapes, or more tokens than the table has rows.
    """
    heads, size = bias.shape if bias.dim() == 2 else (0, 0)
    fits = z.dim() == 3 and weight.shape == (heads, size, size) and z.shape[1] <= size
    if not fits or z.shape[2] % (2 * heads):
        raise ShapeError(
            "z must be (batch, length, 2 c), weight (heads, N, N) and bias (heads, N) with N no "
            f"less than the length and c a multiple of heads, not {tuple(z.shape)}, "
            f"{tuple(weight.shape)} and {tuple(bias.shape)}"
        )
    first, second = z.chunk(2, dim=-1)
    return first * spatial_mix(second, weight, bias, causal=causal)


def spatial_mix(v: Tensor, weight: Tensor, bias: Tensor, *, causal: bool = False) -> Tensor:
    """W v + b for ``v`` (B, L, c) with channels in head groups: (B, L, c)."""
    length = v.shape[1]
    if leaves_torch():
        # looked up, since a slice would tie the program to lengths other than the table's
        first = torch.arange(length, device=v.device)
        weight = weight[:, first][:, :, first]
    else:
        weight = weight[:, :length, :length]
    heads = v.unflatten(-1, (weight.shape[0], -1)).transpose(1, 2)
    mixed = lower_product(weight, heads) if causal else weight @ heads
    return (mixed + bias[:, :length, None]).transpose(1, 2).flatten(2)


@state
class SpatialState(Growing):
    """Normalised gate rows of the tokens seen; a row's token p is in slot p."""

    grows = ("rows",)
    slot_dim = 1
    num_tokens: Tensor
    rows: Tensor
    """(B, T, c)"""
    attention: State | None
    """keys and values of the tiny attention (aMLP)"""


class SpatialMLP(StreamingMixer):
    """Base of gMLP and aMLP, which differ in the tiny attention alone."""

    states = (SpatialState,)
    supported_masks = frozenset({"padding_mask", "documents", "grid"})
    with_feedforward = False
    options: GMLPOptions

    def build(self, max_length: int | None) -> None:
        o, width, causal = self.options, self.width, self.causal
        self.split = o.gate == "split"
        hidden = rounded_share(width, o.mlp_ratio, "mlp_ratio")
        channels = hidden // 2 if self.split else hidden
        if channels * (2 if self.split else 1) != hidden or channels % o.sgu_heads:
            raise GeneError(
                f"{self.name}: `width={width}` x `mlp_ratio={o.mlp_ratio}` gives {hidden} "
                "channels, which do not split into "
                f"{'two halves of ' if self.split else ''}`sgu_heads={o.sgu_heads}` equal groups"
            )
        if max_length is None:
            raise GeneError(
                f"{self.name} holds a matrix over positions, so it needs max_length: give "
                "`max_length=...`"
            )
        self.max_length = max_length
        self.up = nn.Linear(width, hidden)
        self.norm = nn.LayerNorm(channels)
        self.out = nn.Linear(channels, width)
        shape: tuple[int, ...] = (o.sgu_heads, max_length, max_length)
        if o.spatial == "toeplitz":
            shape = (o.sgu_heads, max_length if causal else 2 * max_length - 1)
        self.spatial = nn.Parameter(_start(shape, o.spatial_init, max_length))
        self.bias = nn.Parameter(torch.ones(o.sgu_heads, max_length))
        self.attention: Attention | None = None
        if isinstance(o, AMLPOptions):
            widths = {"key_dim": o.attention_dim, "output": channels}
            self.attention = Attention(
                width=width, causal=causal, options={"widths": widths, "bias": ("output",)}
            )
        for linear in (self.up, self.out):
            start(linear)

    def forward_rows(self, rows: Rows, state: State | None) -> MixerOutput:
        (x, padding_mask), after, tiny = rows[:2], None, None
        first, second = self._open(x)
        if padding_mask is not None:
            second = second * padding_mask[..., None].to(second.dtype)
        if state is None:
            self.check_length(x.shape[1])
            record(self, "spatial", lambda: self.matrix(x.shape[1]))
            gate = self._parallel(second)
        else:
            assert isinstance(state, SpatialState)
            gate, after = self._continue(second, padding_mask, state)
            tiny = state.attention
        if self.attention is not None:
            attended = self.attention(
                x,
                mask=None if padding_mask is None else Mask(padding_mask=padding_mask),
                state=tiny,
            )
            gate = gate + attended.y
            if after is not None:
                after = replace(after, attention=attended.state).in_room(after.room)
        return MixerOutput(self.out(self._combine(first, gate)), after, {})

    def matrix(self, length: int) -> Tensor:
        """W (heads, length, length) as it is applied."""
        if self.options.spatial == "toeplitz":
            return toeplitz_matrix(self.spatial, length, causal=self.causal)
        weight = self.spatial[:, :length, :length]
        return weight.tril() if self.causal else weight

    def text_reference(self, text: Rows) -> Tensor:
        first, second = self._open(text.x)
        count = text.x.shape[1]
        ones = torch.cat((torch.ones_like(second), second), -1)
        matrix, bias = self.matrix(count), self.bias[:, :count]
        gate = spatial_gate_reference(ones, matrix, bias, causal=self.causal)
        if self.attention is not None:
            gate = gate + self.attention.reference(text.x)
        return self.out(self._combine(first, gate))

    def empty_state(self, batch: int, **like: Any) -> SpatialState:
        rows = torch.zeros(batch, 0, self.out.in_features, **like)
        num_tokens = torch.zeros(batch, dtype=torch.long, device=rows.device)
        tiny = None if self.attention is None else self.attention.init_state(batch, **like)
        return SpatialState(num_tokens, rows, tiny)

    def _open(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Z_1 (or Z), which is gated, and the normalised rows that make the gate."""
        z = F.gelu(self.up(x))
        first, second = z.chunk(2, dim=-1) if self.split else (z, z)
        return first, self.norm(second)

    def _combine(self, first: Tensor, gate: Tensor) -> Tensor:
        if self.options.gate == "linear":
            return gate
        return first + gate if self.options.gate == "additive" else first * gate

    def _parallel(self, v: Tensor) -> Tensor:
        """W v + b over whole rows."""
        if self.options.spatial == "dense":
            return spatial_mix(v, self.spatial, self.bias, causal=self.causal)
        mixed = toeplitz_mix(v, self.spatial, causal=self.causal)
        bias = self.bias[:, : v.shape[1]].t()
        return mixed + bias.repeat_interleave(v.shape[-1] // bias.shape[1], dim=1)

    def _continue(
        self, v: Tensor, padding_mask: Tensor | None, state: SpatialState
    ) -> tuple[Tensor, SpatialState]:
        """W v + b for new tokens after those of the state; rows may have seen different counts."""
        length = v.shape[1]
        num_tokens = advanced(state.num_tokens, length, padding_mask)
        assert self.max_length is not None
        before = state.rows.shape[1]
        if padding_mask is None and all_read(state.num_tokens, before):
            # all rows have read as much: new tokens go to the end and look up the same lines
            self.check_length(before + length)
            (rows,), room = state.grown(v)
            after = SpatialState(num_tokens, rows, None).in_room(room)
            bias = self.bias[None, :, before : before + length]
            return _lines_of(rows.to(v.dtype), self._next_lines(before, length), bias), after
        self.check_seen(num_tokens)
        slots = min(before + length, self.max_length)
        where = (state.num_tokens[:, None] + torch.arange(length, device=v.device)).clamp(
            max=slots - 1
        )
        grown = F.pad(state.rows, (0, 0, 0, slots - before))
        rows = grown.scatter_add(1, where[..., None].expand_as(v), v.to(grown.dtype))
        weight, bias = self._lines(where, slots), self.bias[:, where].transpose(0, 1)
        return _lines_of(rows.to(v.dtype), weight, bias), SpatialState(num_tokens, rows, None)

    def _next_lines(self, before: int, length: int) -> Tensor:
        """The lines (1, heads, L, slots) of causal W for tokens after ``before`` of all rows."""
        slots = before + length
        if length > 1:
            return self._lines(torch.arange(before, slots, device=self.spatial.device)[None], slots)
        if self.options.spatial == "toeplitz":
            return self.spatial[None, :, None, :slots].flip(-1)
        return self.spatial[None, :, before:slots, :slots]

    def _lines(self, where: Tensor, slots: int) -> Tensor:
        """The lines (B or 1, heads, L, slots) of causal W for tokens at ``where`` (B or 1, L)."""
        lag = where[..., None] - torch.arange(slots, device=where.device)
        if self.options.spatial == "toeplitz":
            lines = self.spatial[:, lag.clamp(min=0)]
        else:
            lines = self.spatial[:, :, :slots][:, where]
        return lines.transpose(0, 1).masked_fill((lag < 0)[:, None], 0)


def _lines_of(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """(B, L, c) of ``rows`` (B, S, c) by ``weight`` (B or 1, heads, L, S), ``bias`` (.., L)."""
    heads = rows.unflatten(-1, (weight.shape[1], -1)).transpose(1, 2)
    return (weight @ heads + bias[..., None]).transpose(1, 2).flatten(2)


def _start(shape: tuple[int, ...], rule: str, length: int) -> Tensor:
    """W near zero; see `GMLPOptions.spatial_init`."""
    weight = torch.zeros(shape)
    if rule == "normal":
        return weight.normal_(std=1e-6)
    if rule == "uniform":
        return weight.uniform_(-1e-3 / length, 1e-3 / length)
    return weight.uniform_(-0.05, 0.05) if rule == "wide" else weight


def _limits(make: Make) -> list[Pair]:
    """W = 0 and b = 1 is a feed-forward network; a Toeplitz matrix is its dense copy."""
    at_start = make("gmlp")
    with torch.no_grad():
        at_start.spatial.zero_()
        at_start.bias.fill_(1.0)
    up, out = at_start.get_submodule("up"), at_start.get_submodule("out")

    def feedforward(x: Tensor) -> Tensor:
        return out(nn.functional.gelu(up(x)).chunk(2, dim=-1)[0])

    circulant, dense = make("gmlp", spatial="toeplitz"), make("gmlp")
    copied = {k: v for k, v in circulant.state_dict().items() if k != "spatial"}
    dense.load_state_dict(copied, strict=False)
    with torch.no_grad():
        dense.spatial.copy_(circulant.matrix(LONGEST))
    return [
        ("W = 0, b = 1 is a feed-forward", output(at_start), feedforward),
        ("Toeplitz is its dense copy", output(circulant), output(dense)),
    ]


@MIXERS.register("gmlp")
class GMLP(SpatialMLP):
    """gMLP: the spatial gating unit alone."""

    name = "gmlp"
    trials = Trials(
        variants=(
            {},
            {"gate": "multiplicative", "sgu_heads": 2},
            {"gate": "additive"},
            {"gate": "linear"},
            {"spatial": "toeplitz"},
        ),
        limits=_limits,
    )
    Options = GMLPOptions


def _amlp_limits(make: Make) -> list[Pair]:
    """A tiny attention whose output is zero is gMLP."""
    tiny, plain = make("amlp"), make("gmlp")
    plain.load_state_dict(tiny.state_dict(), strict=False)
    nn.init.zeros_(tiny.attention.out.weight)
    nn.init.zeros_(tiny.attention.out.bias)
    return [("zero attention output is gMLP", output(tiny), output(plain))]


@MIXERS.register("amlp")
class AMLP(SpatialMLP):
    """aMLP: a tiny single-head attention is added to the gate."""

    name = "amlp"
    trials = Trials(
        variants=({"attention_dim": 4}, {"attention_dim": 4, "spatial": "toeplitz"}),
        limits=_amlp_limits,
    )
    Options = AMLPOptions
