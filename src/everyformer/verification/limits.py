"""Law 5: where a paper has a limit, the member equals a simpler member there."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from everyformer.core.member import Member
from everyformer.core.mixer import Mixer
from everyformer.models.build import create_mixer
from everyformer.verification.cases import HEADS, LONGEST, WIDTH, draw, stir
from everyformer.verification.laws import TOLERANCE
from everyformer.verification.limits_genes import GENE_LIMITS, LENGTH, Make, Mix, Pair
from everyformer.verification.limits_sparse import SPARSE_LIMITS
from everyformer.verification.result import Check


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
    make = LIMITS.get(member.name) or LIMITS[str(member.genes["mixer"].name)]
    return make(lambda name, **options: _mixer(name, causal, device, dtype, **options))


def _mixer(name: str, causal: bool, device: str, dtype: torch.dtype, **options: Any) -> Mixer:
    sizes = {"width": WIDTH, "heads": HEADS, "causal": causal, "max_length": LONGEST}
    made = create_mixer(name, **{**sizes, **options}).to(device, dtype)
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


def _ones(mixer: Any) -> None:
    """Every value becomes one in all channels."""
    with torch.no_grad():
        mixer.project.weights[0][-WIDTH:].zero_()
        mixer.project.biases["value"].fill_(1.0)


def _constant(make: Make, member: str, **options: Any) -> Pair:
    """Weights sum to one, so a constant value is the output whatever queries and keys are."""
    mixer = make(member, bias=("value",), **options)
    _ones(mixer)

    def constant(x: Tensor) -> Tensor:
        return mixer.out(torch.ones_like(x))

    return "a constant value is the output", lambda x: mixer(x).y, constant


def _first(make: Make, member: str, **options: Any) -> Pair:
    """A token that sees itself alone gives its own value."""
    mixer = make(member, **options)

    def own(x: Tensor) -> Tensor:
        return mixer.out(mixer.project(x)[2].transpose(1, 2).flatten(2))[:, :1]

    return "token 0 alone gives its own value", lambda x: mixer(x[:, :1]).y, own


def _linear(make: Make) -> list[Pair]:
    """Keys of zero take plain means of the values; constants and single tokens stay themselves."""
    mixer = make("linear", bias=("key",))
    with torch.no_grad():
        mixer.project.weights[0][WIDTH : 2 * WIDTH].zero_()

    def means(x: Tensor) -> Tensor:
        v = mixer.project(x)[2].transpose(1, 2).flatten(2)
        steps = torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]
        return mixer.out(v.cumsum(1) / steps if mixer.causal else v.mean(1, keepdim=True) + 0 * v)

    return [
        ("equal keys take the mean of V", lambda x: mixer(x).y, means),
        _constant(make, "linear"),
        _first(make, "linear"),
    ]


def _near(what: str, bound: float, got: Mix, expected: Mix) -> Pair:
    """A limit that is near: what exceeds ``bound`` times the largest expected value is 0."""

    def excess(x: Tensor) -> Tensor:
        wanted = expected(x)
        return ((got(x) - wanted).abs() / wanted.abs().amax() - bound).clamp(min=0)

    return what, excess, torch.zeros_like


def _performer(make: Make) -> list[Pair]:
    """With many features it is softmax attention, with an error of about 1/sqrt(M)."""
    many, exact = make("performer", features=2**16), make("attention")
    exact.load_state_dict(many.state_dict(), strict=False)
    return [
        _near("65,536 features are softmax within 5%", 0.05, _y(many), _y(exact)),
        _constant(make, "performer"),
        _first(make, "performer"),
    ]


def _rfa(make: Make) -> list[Pair]:
    """With many features it is softmax attention of unit queries and keys; equal gates cancel."""
    many = make("rfa", features=2**15, temperature=0.7)

    def normalised(x: Tensor) -> Tensor:
        q, k, v = many.project(x)
        q, k = nn.functional.normalize(q, dim=-1), nn.functional.normalize(k, dim=-1)
        y = nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=many.causal, scale=0.7**-2
        )
        return many.out(y.transpose(1, 2).flatten(2))

    found = [
        _near("32,768 draws are softmax of unit vectors within 5%", 0.05, _y(many), normalised),
        _constant(make, "rfa"),
        _first(make, "rfa"),
    ]
    if many.causal:
        gated, plain = make("rfa", gate=True), make("rfa")
        plain.load_state_dict(gated.state_dict(), strict=False)
        with torch.no_grad():
            gated.gate.weight.zero_()
            gated.gate.bias.fill_(30.0)
        found.append(("gates of 1, all alike, cancel", _y(gated), _y(plain)))
    return found


def _y(mixer: Mixer) -> Mix:
    return lambda x: mixer(x).y


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


def _routing(make: Make) -> list[Pair]:
    """One cluster and windows over everything are dense attention, of normalised queries and keys
    where heads are routed."""
    pairs: list[Pair] = []
    for routing in ("strict", "prefix", "paper"):
        sizes = {"clusters": 1, "window": LENGTH, "local_heads": 1, "routing": routing}
        mixer = make("routing", **sizes)

        def dense(x: Tensor, mixer: Any = mixer) -> Tensor:
            q, v = (y.view(*x.shape[:2], HEADS, -1) for y in (mixer.query(x), mixer.value(x)))
            k = mixer.key(x).view(*x.shape[:2], -1, q.shape[-1])
            k = torch.cat((k, q[:, :, k.shape[2] :]), 2)
            norm = partial(nn.functional.layer_norm, normalized_shape=q.shape[-1:])
            q, k = (torch.cat((t[:, :, :1], norm(t[:, :, 1:])), 2) for t in (q, k))
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=mixer.causal)
            mixed: Tensor = mixer.out(y.transpose(1, 2).flatten(2))
            return mixed

        pairs.append((f"one cluster, {routing}, is attention", _y(mixer), dense))
    return pairs


def _linformer(make: Make) -> list[Pair]:
    """A slot for each token is attention: E = F = I, or windows of one token."""
    plain = make("attention")
    pairs: list[Pair] = []
    for kind in ("linear", "mean", "max", "conv"):
        slotted = make("linformer", k=LENGTH, projection=kind, max_length=LENGTH)
        slotted.load_state_dict(plain.state_dict(), strict=False)
        if slotted.length_map is not None:
            own = slotted.length_map
            one = torch.eye(LENGTH) if kind == "linear" else torch.ones(1)
            own.data.copy_(one.to(own).expand_as(own))
        what = f"{kind} with a slot for each token is attention"
        pairs.append((what, partial(_mixed, slotted), partial(_mixed, plain)))
    return pairs


def _linformer_chunked(make: Make) -> list[Pair]:
    """One segment is causal attention; so are segments whose slots are their tokens."""
    plain = make("attention")
    pairs: list[Pair] = []
    for size in (LONGEST, 4):
        segments = make("linformer", causal_chunk=size, k=size, projection="mean")
        segments.load_state_dict(plain.state_dict(), strict=False)
        what = f"segments of {size} with a slot a token are attention"
        pairs.append((what, partial(_mixed, segments), partial(_mixed, plain)))
    return pairs


def _sinkhorn(make: Make) -> list[Pair]:
    """One block is attention (where causal beside null keys); so are all blocks, sorted hard."""
    plain = make("attention")
    if plain.causal:
        plain = make("attention", sink=True)
        plain.sink.data.fill_(math.log(LONGEST))
    pairs: list[Pair] = []
    names: dict[str, dict[str, Any]] = {"one block": {"block_size": LONGEST}}
    if not plain.causal:
        names["SortCut of all blocks, sorted hard"] = {"block_size": 3, "sortcut": 4, "hard": True}
    for what, options in names.items():
        whole = make("sinkhorn", **options)
        whole.load_state_dict(plain.state_dict(), strict=False)
        if whole.null is not None:
            whole.null.data.zero_()
        if "sortcut" in options:
            whole.sorter = _Rolled()
        pairs.append((f"{what} is attention", partial(_mixed, whole), partial(_mixed, plain)))
    return pairs


class _Rolled(nn.Module):
    """Logits of a permutation of blocks: each sorts in the one after it."""

    def forward(self, pooled: Tensor, count: int) -> Tensor:
        place = torch.arange(count, device=pooled.device)
        chosen = (place[:, None] + 1) % count == place
        return 9 * chosen.to(pooled.dtype).expand(len(pooled), HEADS, -1, -1)


def _mixed(mixer: Mixer, x: Tensor) -> Tensor:
    return mixer(x).y


LIMITS: dict[str, Callable[[Make], list[Pair]]] = {
    "attention": _attention,
    "reformer": _reformer,
    "aft-full": _aft_full,
    "aft-local": _aft_local,
    "aft-simple": _aft_simple,
    "aft-conv": _aft_conv,
    "linear": _linear,
    "performer": _performer,
    "rfa": _rfa,
    "routing": _routing,
    "sinkhorn": _sinkhorn,
    "linformer": _linformer,
    "linformer-chunked": _linformer_chunked,
    "gmlp": _gmlp,
    "amlp": _amlp,
    **GENE_LIMITS,
    **SPARSE_LIMITS,
}
