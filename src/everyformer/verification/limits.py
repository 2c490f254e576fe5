"""Law 5: where a paper has a limit, the member equals a simpler member there."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from everyformer.core.mixer import Mixer
from everyformer.family import Member
from everyformer.models.base import Model
from everyformer.models.build import create_mixer, create_model
from everyformer.positions.rope import rotate
from everyformer.verification.cases import HEADS, LONGEST, WIDTH, draw, stir
from everyformer.verification.laws import TOLERANCE
from everyformer.verification.result import Check

LENGTH = 11
Mix = Callable[[Tensor], Tensor]
Pair = tuple[str, Mix, Mix]
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


def _plain(make: Make, position: str, zero: Callable[[nn.Module], None], **own: Any) -> Pair:
    """Both sides of a limit in which a position inside attention leaves it as it is."""
    made, plain = make("attention", position=position, position_options=own), make("attention")
    plain.load_state_dict(made.state_dict(), strict=False)
    with torch.no_grad():
        zero(made.get_submodule("position"))
    return f"{position} at its zero is attention", lambda x: made(x).y, lambda x: plain(x).y


def _fill(number: float) -> Callable[[nn.Module], None]:
    def fill(position: nn.Module) -> None:
        for parameter in position.parameters():
            parameter.fill_(number)

    return fill


def _alibi(make: Make) -> list[Pair]:
    """Slopes of zero are attention without positions."""
    return [_plain(make, "alibi", _fill(0.0), slopes=(0.0,) * HEADS)]


def _t5_relative(make: Make) -> list[Pair]:
    """A table of one number is attention without positions."""
    return [_plain(make, "t5-relative", _fill(0.7))]


def _shaw(make: Make) -> list[Pair]:
    """Vectors of zero are none; one vector for all keys changes no weight; far ends may repeat."""
    one = make("attention", position="shaw", position_options={"clip": 0, "values": False})
    plain = make("attention")
    plain.load_state_dict(one.state_dict(), strict=False)
    near = make("attention", position="shaw", position_options={"clip": LENGTH})
    far = make("attention", position="shaw", position_options={"clip": 2 * LENGTH})
    kept = {name: t for name, t in near.state_dict().items() if "position" not in name}
    far.load_state_dict(kept, strict=False)
    inside, outside = near.get_submodule("position"), far.get_submodule("position")
    with torch.no_grad():
        for name in ("key_table", "value_table"):
            table = inside.get_parameter(name)
            outside.get_parameter(name)[:, LENGTH : LENGTH + table.shape[1]] = table
    return [
        _plain(make, "shaw", _fill(0.0)),
        ("clip 0 on keys is attention", lambda x: one(x).y, lambda x: plain(x).y),
        ("clip >= L is no clip", lambda x: near(x).y, lambda x: far(x).y),
    ]


def _xl_relative(make: Make) -> list[Pair]:
    """W_R = u = v = 0 is attention by content alone; so are learned distances of zero."""
    return [
        _plain(make, "xl-relative", _fill(0.0)),
        _plain(make, "xl-relative", _fill(0.0), distances="learned"),
    ]


def _da_transformer(make: Make) -> list[Pair]:
    """alpha = 0 is the attention of positive scores."""
    made: Any = make("attention", position="da-transformer")
    with torch.no_grad():
        made.position.alpha.zero_()

    def positive(x: Tensor) -> Tensor:
        q, k, v = made.project(x)
        scores = (q @ k.transpose(-1, -2)).relu() * made.scale
        if made.causal:
            later = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(later, -math.inf)
        y: Tensor = made.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return y

    return [("alpha = 0 is softmax(ReLU(q k))", lambda x: made(x).y, positive)]


def _learned_per_layer(make: Make) -> list[Pair]:
    """Zeros in all tables but the first are positions added to the embeddings."""
    like = make("attention").get_parameter("out.weight")
    sizes: dict[str, Any] = {"width": WIDTH, "heads": HEADS, "layers": 3, "max_length": LONGEST}
    each = create_model("learned-per-layer", **sizes).to(like).eval()
    once = create_model("learned", **sizes).to(like).eval()
    each.load_state_dict(once.state_dict(), strict=False)
    with torch.no_grad():
        for n in range(3):
            table = once.get_parameter("position.table")
            each.get_parameter(f"stack.before.{n}.table").copy_(table * (n == 0))

    def run(model: Model, x: Tensor) -> Tensor:
        tokens = torch.zeros(x.shape[:2], dtype=torch.long, device=x.device)
        logits: Tensor = model(tokens, embeddings=x).logits
        return logits

    return [("tables of zero but the first: learned", partial(run, each), partial(run, once))]


def _segment(make: Make) -> list[Pair]:
    """A memory of everything is one pass; none at all is each segment by itself."""
    plain = make("attention", position="alibi")
    made = []
    for slots in (LENGTH, 0):
        options = {"slots": slots, "store": "inputs", "same_length": "never"}
        made.append(make("attention", position="alibi", memory="segment", memory_options=options))
        made[-1].load_state_dict(plain.state_dict())
    whole, none = made

    def alone(x: Tensor) -> Tensor:
        return torch.cat([plain(x[:, :4]).y, plain(x[:, 4:]).y], 1)

    return [
        ("a memory of everything is one pass", lambda x: _in_two(whole, x), lambda x: plain(x).y),
        ("no memory leaves segments alone", lambda x: _in_two(none, x), alone),
    ]


def _compressive(make: Make) -> list[Pair]:
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
        pairs.append((what, partial(_in_two, ours), partial(_in_two, xl)))
    return pairs


def _in_two(mixer: Mixer, x: Tensor) -> Tensor:
    """A sequence in two segments, the second with what the first left."""
    first = mixer(x[:, :4], state=mixer.init_state(len(x), device=x.device, dtype=x.dtype))
    return torch.cat([first.y, mixer(x[:, 4:], state=first.state).y], 1)


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
    "rope": _rope,
    "alibi": _alibi,
    "t5-relative": _t5_relative,
    "shaw": _shaw,
    "xl-relative": _xl_relative,
    "da-transformer": _da_transformer,
    "learned-per-layer": _learned_per_layer,
    "transformer-xl": _segment,
    "compressive": _compressive,
    "aft-full": _aft_full,
    "aft-local": _aft_local,
    "aft-simple": _aft_simple,
    "aft-conv": _aft_conv,
    "linear": _linear,
    "performer": _performer,
    "rfa": _rfa,
    "sinkhorn": _sinkhorn,
    "linformer": _linformer,
    "linformer-chunked": _linformer_chunked,
    "gmlp": _gmlp,
    "amlp": _amlp,
}
