"""Presets: the settings of every probe, and the members of the recorded board.

``mini`` is learned by attention on one core in seconds. ``paper`` is what a paper printed, as exact
as it is known; its results never stand in one table with those of ``mini``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from everyformer.core.config import Choice
from everyformer.core.errors import ConfigError, nearest

Preset = Literal["mini", "paper"]
Skill = Literal["recall", "copy", "memory", "state"]
SMALL: dict[str, Any] = {"width": 32, "layers": 2, "heads": 2}


@dataclass(frozen=True)
class Setting:
    """A probe as a preset has it."""

    data: str
    """the probe"""
    skill: Skill
    """what `everyformer list --can` calls it"""
    options: tuple[str, ...]
    """of the probe"""
    training: Mapping[str, Any]
    """of `TrainingConfig`; what is not here, all settings share"""
    model: Mapping[str, Any] = field(default_factory=SMALL.copy)
    """the same for all members"""
    genes: Mapping[str, Choice] = field(default_factory=dict)
    """the same for all members"""
    own: tuple[str, ...] = ()
    """members' own options, as member.option=value"""
    rates: tuple[float, ...] = (3e-3, 1e-2)
    """learning rates that are tried for every member with the first seed"""
    published: Mapping[str, float] = field(default_factory=dict)
    """what the source printed of members, in the mean of all settings of the same probe"""


SHORT = (
    *("adaptive-span.ramp=8", "aft-local.window=8"),
    *("bigbird.block_size=2", "bigbird.random_blocks=1"),
    *("linformer-chunked.causal_chunk=8", "longformer.window=16"),
    *("reformer.chunk=8", "routing.window=8", "sinkhorn.block_size=8"),
    "sparse-transformer.stride=8",
)
"""windows, blocks and buckets of 8 tokens, half of the shortest rows, so that a member that sees a
part of a long text sees a part of these"""


def _mini(data: str, skill: Skill, options: str, steps: int) -> Setting:
    training = {
        "steps": steps, "batch": 64, "betas": (0.9, 0.98), "evaluate_every": 50, "stop_at": 0.99,
    }  # fmt: skip
    return Setting(data, skill, tuple(options.split()), training, own=SHORT)


MINI: dict[str, Setting] = {
    "mqar": _mini("mqar", "recall", "length=24 symbols=64 pairs=4", 1000),
    "induction": _mini("induction", "recall", "length=24 trained=answers", 500),
    "mad:copying": _mini("mad:copying", "copy", "length=24 content=6", 600),
    "mad:memorization": _mini("mad:memorization", "memory", "length=16", 300),
    "selective-copy": _mini("selective-copy", "copy", "length=24", 500),
    "state:parity": _mini("state:parity", "state", "length=16 longest=32", 600),
    "state:s3": _mini("state:s3", "state", "length=16 longest=16", 600),
    "mad:recall": _mini("mad:recall", "recall", "length=16 symbols=8", 1000),
    "mad:noisy": _mini("mad:noisy", "recall", "length=16 symbols=12 noise=4", 1000),
    "needle": _mini("needle", "recall", "length=24 decoys=1 values=1 trained=answers", 1000),
}


def _epochs(count: int, rows: int, batch: int, **more: Any) -> dict[str, Any]:
    """Steps of so many epochs, each of whole batches and one of the rest, and then evaluated."""
    epoch = -(-rows // batch)
    return {"steps": count * epoch, "batch": batch, "evaluate_every": epoch, **more}


# the program decays by epochs, to 1e-6
_MAD_TRAINING = {
    "betas": (0.9, 0.999), "warmup": 0.0, "min_lr_ratio": 0.002, "clip": None, "stop_at": 0.999,
}  # fmt: skip

_MAD_MODEL = {
    "width": 128, "layers": 2, "heads": 2, "block": {"norm": "rmsnorm"}, "tie": False,
    "head_bias": True,
}  # fmt: skip


def _mad(data: str, skill: Skill, options: str, rows: int, **published: float) -> Setting:
    """A baseline of MAD: 200 epochs in batches of 128, two layers of width 128."""
    return Setting(
        data,
        skill,
        options=(*options.split(), f"rows={rows}"),
        training=_epochs(200, rows, 128, **_MAD_TRAINING),
        model=_MAD_MODEL,
        genes={"feedforward": Choice("swiglu", {"expansion": 2.75, "feedforward_bias": False})},
        rates=(1e-4, 5e-4, 1e-3),
        published=published,
    )


def _states(data: str, options: str) -> Setting:
    """The smallest setting of a probe of states: one layer of width 16, 20,000 steps. Here every
    place is asked, there the last one, from which it is harder to learn."""
    training = {
        "steps": 20_000, "batch": 256, "betas": (0.9, 0.999), "warmup": 0.1, "min_lr_ratio": 1e-3,
        "weight_decay": 0.0, "clip": None,
    }  # fmt: skip
    model = {"width": 16, "layers": 1, "heads": 4, "tie": False}
    return Setting(data, "state", tuple(options.split()), training, model, rates=(1e-3,))


PAPER: dict[str, Setting] = {
    **{
        "mad:memorization" + f"-{symbols}" * (symbols > 256): _mad(
            "mad:memorization", "memory", f"length=32 symbols={symbols}", 256, rope=0.788
        )
        for symbols in (256, 512, 1024, 2048, 4096, 8192)
    },
    "mad:recall": _mad("mad:recall", "recall", "length=128 symbols=16", 800),
    "mad:noisy": _mad("mad:noisy", "recall", "length=128 symbols=32", 800),
    # dropout is on embeddings and attention; what is not said is torch's default
    "mqar": Setting(
        "mqar", "recall", ("length=64", "symbols=256", "pairs=4", "rows=10000"),
        _epochs(
            100, 10_000, 32, betas=(0.9, 0.999), warmup=0.0, min_lr_ratio=0.0, clip=None,
            stop_at=0.99,
        ),
        {
            "width": 128, "layers": 2, "heads": 1, "block": {"dropout": 0.0},
            "embedding_dropout": 0.1,
        },
        genes={"feedforward": Choice("gelu")},
        own=("gpt.attention_dropout=0.1",), rates=(1e-3,), published={"gpt": 0.99},
    ),
    "state:parity": _states("state:parity", "length=40 longest=256 from_length=40"),
    "state:s5": _states("state:s5", "length=32 longest=32"),
}  # fmt: skip
"""after lin-attn-bench (its Transformer's memorization is a mean over six sizes of vocabulary),
Zoology's example, and Grazzi et al. 2024"""
PRESETS: dict[Preset, dict[str, Setting]] = {"mini": MINI, "paper": PAPER}

BOARD: dict[str, str] = {
    "attention": "softmax attention, sinusoidal positions",
    "rope": "positions that turn queries and keys",
    "alibi": "biases that fall with the distance",
    "t5-relative": "biases learned by distance",
    "da-transformer": "scores scaled by the distance",
    "gtrxl": "gates in place of residuals, relative positions",
    "universal": "one layer until every token halts",
    "adaptive-span": "windows that are learned",
    "aft-full": "averages by learned weights of pairs of places",
    "aft-local": "the same within a window",
    "aft-simple": "the same without places",
    "aft-conv": "the same by a kernel",
    "linear": "a state of products, features of elu",
    "performer": "softmax estimated by positive random features",
    "rfa": "softmax estimated by random waves",
    "routing": "clusters of queries and keys",
    "sinkhorn": "blocks that are sorted",
    "sparse-transformer": "strided patterns",
    "longformer": "a sliding window",
    "bigbird": "window, global and random blocks",
    "reformer": "tokens of like hash",
    "linformer-chunked": "a projection of the length, in segments",
    "gmlp": "a learned matrix over places, no attention",
    "amlp": "the same with a tiny attention",
}
"""a member for each mechanism, and the mechanism"""
GUESTS = {
    name: f"everyformer.lab.suites.guests:{name}" for name in ("lstm", "mamba2", "gated_delta")
}
"""sequence models that are no Transformers, and where they are made"""


def shown(member: str) -> str:
    """A member as a board calls it."""
    return next((name for name, place in GUESTS.items() if member == place), member)


def chosen(preset: Preset, suite: tuple[str, ...]) -> dict[str, Setting]:
    """The settings that the words of ``suite`` name: probes, or families of them; () is all.

    Raises:
        ConfigError: a word names none.
    """
    known = PRESETS[preset]
    families = {name.partition(":")[0] for name in known if ":" in name}
    for word in suite:
        if word not in known and word not in families:
            raise ConfigError(
                f"the preset {preset} has no probe '{word}'; {nearest(word, [*known, *families])}"
            )
    wanted = {*suite}
    return {
        name: setting
        for name, setting in known.items()
        if not suite or {name, setting.data, name.partition(":")[0]} & wanted
    }
