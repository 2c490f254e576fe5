"""Law 5: where a paper has a limit, the member equals a simpler member there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from everyformer.core.mixer import Mixer
from everyformer.family import Member
from everyformer.models.build import create_mixer
from everyformer.positions.axial import Axial
from everyformer.positions.rope import rotate
from everyformer.verification.cases import HEADS, LONGEST, WIDTH, draw, stir
from everyformer.verification.laws import TOLERANCE
from everyformer.verification.result import Check

LENGTH = 11
Pair = tuple[str, Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]
Make = Callable[..., Any]


def limits(member: Member, check: Check, device: str, dtype: torch.dtype) -> None:
    """Every limit in `LIMITS` of the member's mixer, or of the member itself."""
    x = draw(2, LENGTH, WIDTH, dtype=dtype, device=device)
    for causal in (True, False):
        if not member.can("causal" if causal else "bidirectional"):
            continue
        for what, got, expected in limits_of(member, causal, device, dtype):
            check.close(got(x), expected(x), TOLERANCE[dtype], f"{what} (causal={causal})")


def limits_of(member: Member, causal: bool, device: str, dtype: torch.dtype) -> list[Pair]:
    """(what, one side, other side) of every limit that is known for the member."""
    make = LIMITS.get(member.name) or LIMITS[member.genes.mixer]
    return make(lambda name, **options: _mixer(name, causal, device, dtype, **options))


def _mixer(name: str, causal: bool, device: str, dtype: torch.dtype, **options: Any) -> Mixer:
    made = create_mixer(
        name, width=WIDTH, heads=HEADS, causal=causal, max_length=LONGEST, **options
    ).to(device, dtype)
    stir(made)
    return made


def _attention(make: Make) -> list[Pair]:
    """A window over everything is no window; equal groups of heads are plain heads."""
    plain, windowed = make("attention"), make("attention", window=LENGTH)
    windowed.load_state_dict(plain.state_dict())
    grouped, full = make("attention", kv_heads=1), make("attention")
    size = WIDTH // HEADS
    q, k, v = grouped.project.weights[0].detach().split((WIDTH, size, size))
    full.load_state_dict(
        {
            "project.weights.0": torch.cat((q, k.repeat(HEADS, 1), v.repeat(HEADS, 1))),
            "out.weight": grouped.out.weight,
        },
        strict=False,
    )
    return [
        ("window >= L is no window", lambda x: windowed(x).y, lambda x: plain(x).y),
        ("copied key-value heads are shared ones", lambda x: full(x).y, lambda x: grouped(x).y),
    ]


def _aft_local(make: Make) -> list[Pair]:
    """A window over everything is AFT-full; an empty one is AFT-simple."""
    wide, full = make("aft-local", window=LONGEST, rank=4), make("aft-full", rank=4)
    full.load_state_dict(wide.state_dict())
    none, simple = make("aft-local", window=0, rank=4), make("aft-simple")
    simple.load_state_dict(none.state_dict(), strict=False)
    return [
        ("window >= L is AFT-full", lambda x: wide(x).y, lambda x: full(x).y),
        ("window 0 is AFT-simple", lambda x: none(x).y, lambda x: simple(x).y),
    ]


def _aft_full(make: Make) -> list[Pair]:
    """A bias of zero is AFT-simple."""
    flat, simple = make("aft-full", rank=None), make("aft-simple")
    simple.load_state_dict(flat.state_dict(), strict=False)
    for name, table in flat.named_parameters():
        if name not in dict(simple.named_parameters()):
            nn.init.zeros_(table)
    return [("w = 0 is AFT-simple", lambda x: flat(x).y, lambda x: simple(x).y)]


def _aft_simple(make: Make) -> list[Pair]:
    """Keys of zero take plain means of the values."""
    simple = make("aft-simple", gate="identity")
    with torch.no_grad():
        for name, weight in simple.named_parameters():
            if name.startswith("key"):
                weight.zero_()
    query, value, out = (simple.get_submodule(n) for n in ("query", "value", "out"))

    def mean(x: Tensor) -> Tensor:
        v = value(x)
        steps = torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]
        average = v.cumsum(1) / steps if simple.causal else v.mean(1, keepdim=True)
        return out(query(x) * average)

    return [("K = 0 is the mean of V", lambda x: simple(x).y, mean)]


def _aft_conv(make: Make) -> list[Pair]:
    """gamma = beta = 0, as at the start, is AFT-simple with one key a head."""
    conv, simple = make("aft-conv", kernel=5), make("aft-simple")
    with torch.no_grad():
        for name, weight in conv.named_parameters():
            if name.endswith(("gamma", "beta")):
                weight.zero_()
        shared = {
            key: value.repeat_interleave(WIDTH // HEADS, dim=0) if key.startswith("key") else value
            for key, value in conv.state_dict().items()
        }
        simple.load_state_dict({k: v for k, v in shared.items() if k in simple.state_dict()})
    return [("gamma = beta = 0 is AFT-simple", lambda x: conv(x).y, lambda x: simple(x).y)]


def _gmlp(make: Make) -> list[Pair]:
    """W = 0 and b = 1 is a feed-forward network; a Toeplitz matrix is its dense copy."""
    start = make("gmlp")
    with torch.no_grad():
        start.spatial.zero_()
        start.bias.fill_(1.0)
    up, out = start.get_submodule("up"), start.get_submodule("out")

    def feedforward(x: Tensor) -> Tensor:
        return out(nn.functional.gelu(up(x)).chunk(2, dim=-1)[0])

    circulant, dense = make("gmlp", spatial="toeplitz"), make("gmlp")
    copied = {k: v for k, v in circulant.state_dict().items() if k != "spatial"}
    dense.load_state_dict(copied, strict=False)
    with torch.no_grad():
        dense.spatial.copy_(circulant.matrix(LONGEST))
    return [
        ("W = 0, b = 1 is a feed-forward", lambda x: start(x).y, feedforward),
        ("Toeplitz is its dense copy", lambda x: circulant(x).y, lambda x: dense(x).y),
    ]


def _amlp(make: Make) -> list[Pair]:
    """A tiny attention whose output is zero is gMLP."""
    tiny, plain = make("amlp"), make("gmlp")
    plain.load_state_dict(tiny.state_dict(), strict=False)
    nn.init.zeros_(tiny.attention.out.weight)
    nn.init.zeros_(tiny.attention.out.bias)
    return [("zero attention output is gMLP", lambda x: tiny(x).y, lambda x: plain(x).y)]


def _rope(make: Make) -> list[Pair]:
    """Rotations at position 0 change nothing; equal rotations of all positions neither."""

    def scores(x: Tensor, shift: int) -> Tensor:
        positions = torch.arange(x.shape[1], device=x.device)[None] + shift
        q, k = rotate(x[:, None], positions), rotate(x.flip(-1)[:, None], positions)
        return q @ k.transpose(-1, -2)

    origin = torch.zeros(1, LENGTH, dtype=torch.long)
    return [
        ("position 0 is the identity", lambda x: rotate(x[:, None], origin)[:, 0], lambda x: x),
        ("a common shift changes no score", lambda x: scores(x, 7), lambda x: scores(x, 0)),
    ]


def _reformer(make: Make) -> list[Pair]:
    """Where one window holds all tokens it is dense attention among others with shared keys."""
    wide, cut = make("reformer", chunk=LENGTH), make("reformer", chunk=6, look_ahead=1)
    cut.load_state_dict(wide.state_dict())

    def dense(x: Tensor) -> Tensor:
        heads = (2, LENGTH, HEADS, WIDTH // HEADS)
        qk, v = (w(x).view(heads).transpose(1, 2) for w in (wide.query_key, wide.value))
        k = qk / (qk.square().sum(-1, keepdim=True) + qk.shape[-1] * 1e-6).sqrt()
        places = torch.arange(LENGTH, device=x.device)
        others = places[:, None] > places if wide.causal else places[:, None] != places
        weights = (qk @ k.mT).masked_fill(~others, -torch.inf).softmax(-1)
        y = weights.nan_to_num(0.0) @ v
        if wide.causal:
            y = torch.cat((v[:, :, :1], y[:, :, 1:]), 2)
        return wide.out(y.transpose(1, 2).flatten(2))

    return [
        ("chunk >= L is dense", lambda x: wide(x).y, dense),
        ("a window of all chunks is dense, in any number of rounds", lambda x: cut(x).y, dense),
    ]


def _axial(make: Make) -> list[Pair]:
    """One axis is a learned table."""
    one = Axial(width=WIDTH, max_length=LONGEST, options={"shape": (LONGEST,)})
    places = torch.arange(LENGTH)[None]

    def table(x: Tensor) -> Tensor:
        return one.tables[0][:LENGTH].to(x)[None]

    return [("one axis is a table", lambda x: one.embed(places).to(x), table)]


LIMITS: dict[str, Callable[[Make], list[Pair]]] = {
    "attention": _attention,
    "rope": _rope,
    "axial": _axial,
    "reformer": _reformer,
    "aft-full": _aft_full,
    "aft-local": _aft_local,
    "aft-simple": _aft_simple,
    "aft-conv": _aft_conv,
    "gmlp": _gmlp,
    "amlp": _amlp,
}
