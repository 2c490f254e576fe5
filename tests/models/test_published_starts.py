"""How every parameter starts: a row a mixer, position, memory and member, in plain numbers.

Width 128, 4 heads of 32 channels, texts of 256 tokens. Where papers and their code leave a start
open, it is that of a linear layer: U(-1/sqrt(n), 1/sqrt(n)), or Glorot's U(-a, a) with
a = sqrt(6 / (n + m)), for n inputs and m outputs.

Not as in the authors' code, but as every member: projections of the Transformer and ViT and RFA's
output (Glorot of each there), matrices of Transformer-XL (N(0, 0.02^2)) and ETC (the same, cut),
ViT's feed-forward biases (N(0, 1e-12)), the Image Transformer (``init="image-transformer"``).
"""

import math
import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import everyformer as ef
from everyformer.core.mixer import Mixer
from everyformer.family import FAMILY
from everyformer.genes.memory import MEMORIES
from everyformer.genes.mixers import MIXERS
from everyformer.genes.positions import POSITIONS, make_position
from helpers import every_one


class Law(NamedTuple):
    """What numbers are drawn from."""

    kind: str
    size: float
    """the constant; a standard deviation, of a truncated normal before it is cut at two of them;
    the largest number of U(-size, size)"""


def C(value: float) -> Law:
    return Law("constant", value)


def N(std: float) -> Law:
    return Law("normal", std)


def T(std: float) -> Law:
    return Law("truncated", std)


def U(bound: float) -> Law:
    return Law("uniform", bound)


Row = dict[str, Law]
LINEAR = U(0.0883883)  # 1 / sqrt(128)
GLOROT = U(0.1530931)  # sqrt(6 / (128 + 128))
FUSED: Row = {
    "project.weights.0": U(0.1082532),  # sqrt(6 / (128 + 3 128)): 1 / sqrt(2) of each one's Glorot
    "out.weight": LINEAR,
}
AFT: Row = {f"{part}.{kind}": LINEAR for part in ("query", "key", "value", "out")
            for kind in ("weight", "bias")}  # fmt: skip
FACTORS: Row = {"position.u": N(0.01), "position.v": N(0.01)}
GMLP: Row = {
    "spatial": N(1e-6),
    "bias": C(1.0),
    "up.weight": U(0.0968246),  # sqrt(6 / (128 + 512))
    "out.weight": U(0.1250000),  # sqrt(6 / (256 + 128))
    "up.bias": C(0.0), "out.bias": C(0.0), "norm.weight": C(1.0), "norm.bias": C(0.0),
}  # fmt: skip

MIXER_ROWS: dict[str, Row] = {
    "attention": FUSED,
    "aft-full": {**AFT, **FACTORS},
    "aft-local": {**AFT, **FACTORS},
    "aft-simple": AFT,
    "aft-conv": {**AFT, "kernel": N(1.0), "gamma": C(0.0), "beta": C(0.0)},
    "gmlp": GMLP,
    "amlp": {
        **GMLP,
        "attention.project.weights.0": U(0.1369306),  # sqrt(6 / (128 + 3 64))
        "attention.out.weight": U(0.1250000),  # 1 / sqrt(64)
        "attention.out.bias": C(0.0),
    },
    "linear": FUSED,
    "performer": FUSED,
    "rfa": {**FUSED, "project.biases.*": C(0.0), "out.bias": C(0.0), "scale": C(1.0)},
    "routing": {"query.weight": GLOROT, "key.weight": GLOROT, "value.weight": GLOROT,
                "out.weight": GLOROT},
    "reformer": {"query_key.weight": GLOROT, "value.weight": GLOROT, "out.weight": GLOROT},
    "sinkhorn": {**FUSED, "sorter.weights.0": U(0.2132007)},  # sqrt(6 / (128 + 4)): 4 blocks of 64
    "linformer": {**FUSED, "length_map": U(0.0765466)},  # sqrt(6 / (256 + 256)) / sqrt(2)
    "image-transformer": FUSED,
    "sparse-transformer": FUSED,
    "longformer": {**FUSED, "project_global.weights.0": U(0.1082532)},
    "bigbird": FUSED,
    "blockwise": FUSED,
    "etc": {
        "long.query.weight": GLOROT, "long.key.any.weight": GLOROT,
        "long.value.any.weight": GLOROT, "out.weight": LINEAR, "summary_out.weight": LINEAR,
        "*_labels.vectors": T(0.5), "*_labels.numbers": C(0.0),
    },
    "adaptive-span": {**FUSED, "table": N(1.0), "spans": C(0.0)},
    "by-head": {
        "parts.0.project.weights.0": U(0.1369306),  # sqrt(6 / (128 + 3 64)): two of four heads
        "parts.0.out.weight": U(0.1250000),  # 1 / sqrt(64)
        "parts.1.query_key.weight": U(0.1767767),  # sqrt(6 / (128 + 64))
        "parts.1.value.weight": U(0.1767767),
        "parts.1.out.weight": U(0.1767767),
    },
}  # fmt: skip
CAUSAL_ROWS: dict[str, Row] = {
    "routing": {"key.weight": U(0.1767767)},  # sqrt(6 / (128 + 64)): of the local half of the heads
    "sinkhorn": {"null": N(1.0)},
}
"""what is other, or more, in causal mixers"""
FORMS: list[tuple[str, bool, dict[str, Any], Row]] = [
    # mixer, causal, options, what is other
    ("rfa", True, {"gate": True}, {"gate.weight": LINEAR, "gate.bias": C(2.944439)}),  # ln(.95/.05)
    ("linformer", True, {"causal_chunk": 64}, {"length_map": U(0.1936492)}),  # 16 slots of 64
    ("aft-full", True, {"rank": None}, {"position.table": N(0.01)}),
    ("attention", True, {"sink": True, "qk_norm": True},
     {"sink": C(0.0), "project.*_norm.weight": C(1.0)}),
    ("gmlp", True, {"spatial_init": "uniform"}, {"spatial": U(3.90625e-6)}),  # 1e-3 / 256
    ("gmlp", True, {"spatial_init": "wide"}, {"spatial": U(0.05)}),
    ("gmlp", True, {"spatial_init": "zeros"}, {"spatial": C(0.0)}),
    ("gmlp", True, {"spatial": "toeplitz"}, {}),
    ("adaptive-span", True, {"dynamic": True},
     {"spans_of.weight": LINEAR, "spans_of.bias": C(-4.0)}),
    ("sinkhorn", False, {"sort_net": "mlp"},
     {"sorter.weights.0": U(0.1936492),  # sqrt(6 / (128 + 32))
      "sorter.weights.1": U(0.4082483),  # sqrt(6 / (32 + 4))
      "sorter.biases.*": C(0.0)}),
]  # fmt: skip
BUFFER_ROWS: list[tuple[str, dict[str, Any], str, Law]] = [
    # mixer, options, buffer: rows of features and centroids
    ("performer", {}, "random.projection", N(1.0)),
    ("rfa", {}, "random.projection", N(1.0)),
    ("routing", {}, "centroids.means", N(1.0)),
]

POSITION_ROWS: dict[str, Row] = {
    "sinusoidal": {},
    "learned": {"table": N(0.02)},
    "learned-per-layer": {"table": N(0.02)},
    "rope": {},
    "alibi": {},
    "t5-relative": {"table": N(0.0883883)},  # 1 / sqrt(128)
    "shaw": {"*_table": N(0.1767767)},  # 1 / sqrt(32)
    "xl-relative": {"u": N(0.02), "v": N(0.02), "encode.weight": GLOROT},
    "da-transformer": {"beta": C(1.0)},  # alpha: in VALUED
    "axial": {"tables.*": N(0.02)},
}
VALUED: list[tuple[str, dict[str, Any], str, list[float]]] = [
    # position, options, parameter, its numbers
    ("da-transformer", {}, "alpha", [-0.1, -0.0333333, 0.0333333, 0.1]),
]  # fmt: skip
"""those that are not drawn"""

MEMORY_ROWS: dict[str, Row] = {
    "segment": {},
    "compressive": {"*.reduce.*": U(0.0441942)},  # 1 / sqrt(4 128): 4 rows to one
    "memorizing": {"*.gate": C(0.0), "*.scale": C(1.0)},
}

BLOCK: Row = {
    "*norm.weight": C(1.0), "*norm.bias": C(0.0), "*feedforward.*.bias": C(0.0),
    "*feedforward.up.weight": U(0.0968246), "*feedforward.gate.weight": U(0.0968246),
    "*feedforward.down.weight": U(0.0968246),
    "head.weight": LINEAR, "ahead.weight": LINEAR, "head.bias": C(0.0),
    "patches.weight": U(0.2041241),  # sqrt(6 / (16 + 128)): patches of 4 x 4
    "patches.bias": C(0.0), "pool.head.bias": C(0.0), "pool.token": C(0.0),
}  # fmt: skip
"""of every member, but for what its own row says"""
SMALL, UNIT = 0.02, 0.0883883
"""token embeddings as they are; and 1 / sqrt(128), where they are multiplied by sqrt(128)"""
NORMAL: Row = {name: N(0.02) for name in (
    "*.weights.0", "*out.weight", "*up.weight", "*down.weight", "transform.weight", "types.weight",
    "pool.head.weight",
)}  # fmt: skip
BIASES: Row = {"*.project.biases.*": C(0.0), "*.out.bias": C(0.0), "transform.bias": C(0.0)}
SCALED: Row = {"*.out.weight": N(0.01), "*.down.weight": N(0.01)}  # 0.02 / sqrt(2 2): two layers

PLAIN = {
    UNIT: (
        "attention", "transformer", "sinusoidal", "transformer-xl", "compressive",
        "knn-lm", "aft-full", "aft-local", "aft-simple", "aft-conv", "linear",
        "performer", "rfa", "routing", "sinkhorn", "image-transformer", "longformer",
        "bigbird", "blockwise", "linformer",
    ),
    SMALL: (
        "learned", "rope", "alibi", "t5-relative", "shaw", "xl-relative",
        "da-transformer", "learned-per-layer", "memorizing", "calm", "adaptive-span",
        "gmlp", "amlp", "axial",
    ),
}  # fmt: skip
"""members in which nothing but token embeddings is special"""
MEMBER_ROWS: dict[str, tuple[float, Row]] = {
    **{name: (std, {}) for std, names in PLAIN.items() for name in names},
    # member: standard deviation of token embeddings, what is other than in BLOCK and in its parts
    "gpt": (SMALL, {**SCALED, **NORMAL, **BIASES}),
    "bert": (SMALL, {**NORMAL, **BIASES}),
    "decision-transformer": (SMALL, {**SCALED, **NORMAL, **BIASES}),
    "vit": (SMALL, BIASES),
    "gtrxl": (UNIT, {"*_gate.of_*.weight": GLOROT, "*_gate.bias": C(2.0),
                     "*.position.u": C(0.0), "*.position.v": C(0.0)}),
    # the gate begins at one half
    "spalm": (UNIT, {"gating.weight": C(0.0)}),
    "universal": (UNIT, {"*depth.weight": U(0.2156655), "*depth.bias": C(1.0)}),  # sqrt(6 / 129)
    "depth-adaptive": (UNIT, {"*depth.weight": U(0.2156655), "*depth.bias": C(0.0)}),
    "sparse-transformer": (SMALL, {"*position.tables.*": N(0.0141421)}),  # two, added up
    "etc": (SMALL, {"summaries.vector.weight": N(0.02)}),
    "linformer-chunked": (UNIT, {"*.length_map": U(0.1936492)}),
    # its tokens are multiplied by sqrt(128); its head reads both halves of the stream
    "reformer": (UNIT, {"*position.tables.*": N(1.0), "head.*": U(0.0625),
                        "pool.head.weight": N(0.0625)}),
}  # fmt: skip

TEXT_ROWS: dict[str, Row] = {
    # where tokens are multiplied by sqrt(128) whatever the position
    "axial": {"*position.tables.*": N(1.0)},
    "sparse-transformer": {"*position.tables.*": N(0.7071068)},  # two, added up
    "etc": {"summaries.vector.weight": N(UNIT)},
}

MANY, MADE = 10_000, 240
"""numbers that tell a standard deviation to 3 in 100, and modules that are made for them at most"""


def law_of(name: str, *rows: Row) -> Law:
    """That of the first row in which a pattern fits."""
    found = (law for row in rows for pattern, law in row.items() if fnmatchcase(name, pattern))
    law = next(found, None)
    assert law is not None, f"{name} has no row"
    return law


def require(drawn: Tensor, law: Law) -> None:
    """Four standard errors, or 3 in 100, of the mean, of the deviation and of the shape."""
    x, count = drawn.detach().flatten().double(), drawn.numel()
    if law.kind == "constant":
        torch.testing.assert_close(x, torch.full_like(x, law.size), rtol=1e-6, atol=0)
        return
    shrunk = {"normal": 1.0, "uniform": 1 / math.sqrt(3), "truncated": 0.8796257}[law.kind]
    std = law.size * shrunk
    assert abs(float(x.mean())) < 4 * std / math.sqrt(count)
    assert float(x.square().mean().sqrt()) == pytest.approx(std, rel=max(0.03, 2.9 / count**0.5))
    largest = float(x.abs().max())
    ends = {"normal": math.inf, "uniform": law.size, "truncated": 2 * law.size}[law.kind]
    assert largest <= ends * (1 + 1e-6)
    if count >= MANY:
        assert largest > (3 * std if law.kind == "normal" else 0.97 * ends)


def drawn_of(make: Callable[[], nn.Module]) -> dict[str, Tensor]:
    """Every parameter of modules that are made until there are `MANY` numbers of each."""
    torch.manual_seed(0)
    held = {name: [p.detach().flatten()] for name, p in make().named_parameters()}
    again = [name for name, (one,) in held.items() if one.unique().numel() > 1]
    for _ in range(1, MADE):
        again = [name for name in again if len(held[name]) * len(held[name][0]) < MANY]
        if not again:
            break
        made = dict(make().named_parameters())
        for name in again:
            held[name].append(made[name].detach().flatten())
    return {name: torch.cat(drawn) for name, drawn in held.items()}


def mixer(name: str, causal: bool, **options: Any) -> Mixer:
    if name == "by-head":
        options["mixers"] = ("attention", "attention", "reformer", "reformer")
    return ef.create_mixer(name, width=128, heads=4, causal=causal, max_length=256, **options)


def position(name: str, **options: Any) -> nn.Module:
    sizes = {"width": 128, "heads": 4, "head_dim": 32, "value_dim": 32}
    return make_position(name, options, max_length=256, causal=False, **sizes)


def test_every_registered_part_and_member_has_a_row() -> None:
    assert set(MIXER_ROWS) == set(MIXERS.names())
    assert set(POSITION_ROWS) == set(POSITIONS.names())
    assert set(MEMORY_ROWS) == set(MEMORIES.names())
    assert set(MEMBER_ROWS) == {member.name for member in FAMILY}


BOTH_WAYS = [
    (name, causal)
    for name in MIXER_ROWS
    for causal in (False, True)
    if not (causal and name in ("etc", "linformer"))
]


@pytest.mark.dear("seconds a mixer that is rarely touched")
@pytest.mark.parametrize(("name", "causal"), BOTH_WAYS)
def test_a_mixer_starts_as_published(name: str, causal: bool) -> None:
    row = {**MIXER_ROWS[name], **(CAUSAL_ROWS.get(name, {}) if causal else {})}
    for parameter, drawn in drawn_of(lambda: mixer(name, causal)).items():
        require(drawn, law_of(parameter, row))


@pytest.mark.full("options that are rarely chosen")
@pytest.mark.parametrize(("name", "causal", "options", "other"), FORMS)
def test_a_form_of_a_mixer_starts_as_published(name, causal, options, other):
    more = CAUSAL_ROWS.get(name, {}) if causal else {}
    parameters = drawn_of(lambda: mixer(name, causal, **options))
    for pattern in other:
        assert any(fnmatchcase(parameter, pattern) for parameter in parameters), pattern
    for parameter, drawn in parameters.items():
        require(drawn, law_of(parameter, other, more, MIXER_ROWS[name]))


@pytest.mark.parametrize(("name", "options", "buffer", "law"), BUFFER_ROWS)
def test_what_is_drawn_and_not_learned_starts_as_published(name, options, buffer, law):
    torch.manual_seed(0)
    made = [mixer(name, True, **options).get_buffer(buffer) for _ in range(20)]
    require(torch.cat([one.flatten() for one in made]), law)


@pytest.mark.parametrize("name", POSITION_ROWS)
def test_a_position_starts_as_published(name: str) -> None:
    for parameter, drawn in drawn_of(lambda: position(name)).items():
        if parameter != "alpha":
            require(drawn, law_of(parameter, POSITION_ROWS[name]))


@pytest.mark.parametrize(("name", "options", "parameter", "numbers"), VALUED)
def test_a_position_starts_with_these_numbers(name, options, parameter, numbers):
    found = position(name, **options).get_parameter(parameter).detach().flatten()
    torch.testing.assert_close(found, torch.tensor(numbers), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MEMORY_ROWS)
def test_a_memory_starts_as_published(name: str) -> None:
    made: Any = MEMORIES.get(name)
    for parameter, drawn in drawn_of(lambda: made(width=128)).items():
        require(drawn, law_of(f".{parameter}", MEMORY_ROWS[name]))


DECISION_ROWS: Row = {
    # linear layers of 1, 32 and 128 inputs as torch has them; tables N(0, 1)
    "returns.*": U(1.0), "state.*": U(0.1767767), "head.*": LINEAR,
    "action.weight": N(1.0), "time.weight": N(1.0), "norm.weight": C(1.0), "norm.bias": C(0.0),
}  # fmt: skip
PAIRS = every_one([(task, member.name) for member in FAMILY for task in member.tasks])


@pytest.mark.dear("seconds a mixer that is rarely touched")
@pytest.mark.parametrize(("task", "member"), sorted(PAIRS))
def test_a_member_starts_as_published(member: str, task: str) -> None:
    """Its own row first, then those of its parts, then that of every member."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"width": 128, "heads": 4, "layers": 2}
    if task in ("pixels", "super-resolution"):
        sizes["image"] = (1, 16, 16)
    elif task in ("classify-image", "regress-image"):
        sizes["image"] = (1, 64, 64)
    elif task in ("classify-series", "regress-series"):
        sizes |= {"max_length": 256, "series": 32}
    elif task == "decision":
        # 255 tokens
        sizes["episodes"] = {"state": (32,), "actions": 8, "context": 84}
    else:
        sizes |= {"max_length": 256, "vocabulary": 256}
    if task == "super-resolution":
        sizes["source_image"] = (1, 8, 8)
    model = ef.create_model(member, task, **sizes)
    tokens, own = MEMBER_ROWS[member]
    if task in ("lm", "mlm", "classify-text", "regress-text") and member not in ("gpt", "bert"):
        tokens, own = UNIT, {**own, **TEXT_ROWS.get(member, {})}
    common = {**BLOCK, "*embedding.weight": N(tokens), "*embedding.*.weight": N(tokens)}
    common["pool.head.weight"] = N(UNIT)
    zero = task.startswith("regress") or task in ("classify-image", "classify-series")
    if zero and member != "bert":
        own = {**own, "pool.head.weight": C(0.0)}
    if task == "decision":
        own = {**DECISION_ROWS, **own}
    if task.endswith("-series"):
        # of 32 inputs and 128 outputs: the root of 6 over both
        steps = N(0.02) if member == "gpt" else U(0.1936492)
        own = {**own, "steps.weight": steps, "steps.bias": C(0.0)}
    pooled: dict[str, list[Tensor]] = {}
    for name, parameter in model.named_parameters():
        alike = re.sub(r"(blocks|before)\.\d+\.", r"\1.*.", name)
        if not name.endswith("alpha"):
            pooled.setdefault(alike, []).append(parameter.detach().flatten())
    for name, drawn in pooled.items():
        require(torch.cat(drawn), law_of(name, own, part_row(model.config, name), common))


def part_row(config: Any, name: str) -> Row:
    """The row of the part that a parameter is in, with its place in front of the names."""
    place = re.match(r"((stack|encoder)\.blocks\.\*\.(mixer|cross)\.)(position\.|memory\.)?", name)
    if place is None:
        inside = re.match(r"(source_)?position\.|(stack|encoder)\.before\.\*\.", name)
        row = POSITION_ROWS[config.genes["position"].name] if inside is not None else {}
        return {f"{inside[0]}{rest}": law for rest, law in row.items()} if inside else {}
    enlarges = config.task == "super-resolution" and place[2] == "encoder"
    kind = "attention" if place[3] == "cross" or enlarges else config.genes["mixer"].name
    row = MIXER_ROWS[kind]
    if config.causal and place[2] == "stack":
        row = {**row, **CAUSAL_ROWS.get(kind, {})}
    if (
        place[4] == "position."
        and config.genes["position"].name in POSITION_ROWS
        and "aft" not in kind
    ):
        row = POSITION_ROWS[config.genes["position"].name]
        return {f"{place[0]}{rest}": law for rest, law in row.items()}
    if place[4] == "memory.":
        return MEMORY_ROWS[config.genes["memory"].name]
    return {f"{place[1]}{rest}": law for rest, law in row.items()}
