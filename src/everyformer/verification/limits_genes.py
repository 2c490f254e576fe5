"""Law 5 of the genes beside the mixer: positions and memories at their limits."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from everyformer.core.mixer import Mixer
from everyformer.models.base import Model
from everyformer.models.build import create_model
from everyformer.positions.axial import Axial
from everyformer.positions.rope import rotate
from everyformer.verification.cases import HEADS, LONGEST, WIDTH

LENGTH = 11
Mix = Callable[[Tensor], Tensor]
Pair = tuple[str, Mix, Mix]
"""what the limit is, and its two sides"""
Make = Callable[..., Any]
"""a mixer of the sizes, device and dtype of the check, from its name and options"""


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


def _axial(make: Make) -> list[Pair]:
    """One axis is a learned table."""
    one = Axial(width=WIDTH, max_length=LONGEST, options={"shape": (LONGEST,)})
    places = torch.arange(LENGTH)[None]

    def table(x: Tensor) -> Tensor:
        return one.tables[0][:LENGTH].to(x)[None]

    return [("one axis is a table", lambda x: one.embed(places).to(x), table)]


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


GENE_LIMITS: dict[str, Callable[[Make], list[Pair]]] = {
    "rope": _rope,
    "axial": _axial,
    "alibi": _alibi,
    "t5-relative": _t5_relative,
    "shaw": _shaw,
    "xl-relative": _xl_relative,
    "da-transformer": _da_transformer,
    "learned-per-layer": _learned_per_layer,
    "transformer-xl": _segment,
    "compressive": _compressive,
}
