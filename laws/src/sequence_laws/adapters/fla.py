"""flash-linear-attention: its layers, whose kernels need a GPU, and the plain PyTorch of its
operators (`fla.ops`), which runs everywhere, between projections."""

import importlib
import inspect
from typing import Any

from torch import Tensor, nn

from sequence_laws.adapters.found import plain
from sequence_laws.inputs import Inputs
from sequence_laws.libraries import Library, written
from sequence_laws.subject import Subject

WIDTH, HEADS = 32, 2
HEADS_OF_KEYS = {"num_kv_heads": HEADS, "num_key_value_heads": HEADS}
SIZES = {"hidden_size": 64, "d_model": 64, "num_heads": HEADS, "head_dim": 32, **HEADS_OF_KEYS}
SIZES |= {"expand_ratio": 32, "expand": 1}
"""of a layer, those that it takes"""
HEADS_FIRST = ("delta_rule", "retention", "based", "rebased")
"""operators of (B, H, L, d); others are of (B, L, H, d)"""
OPERATORS = (
    "attn.naive_parallel_attn",
    "based.naive_parallel_based",
    "delta_rule.delta_rule_chunkwise",
    "delta_rule.delta_rule_parallel",
    "delta_rule.delta_rule_recurrence",
    "deltaformer.naive_deltaformer_attn",
    "forgetting_attn.naive_forgetting_attn",
    "gated_delta_rule.naive_chunk_gated_delta_rule",
    "gated_delta_rule.naive_recurrent_gated_delta_rule",
    "gla.naive_recurrent_gla",
    "kda.naive_chunk_kda",
    "kda.naive_recurrent_kda",
    "linear_attn.naive_chunk_linear_attn",
    "linear_attn.naive_recurrent_linear_attn",
    "rebased.naive_parallel_rebased",
    "retention.naive_retention",
    "simple_gla.naive_chunk_simple_gla",
    "simple_gla.naive_parallel_simple_gla",
    "simple_gla.naive_recurrent_simple_gla",
    "stickbreaking_attn.naive_stickbreaking_attn",
)


class Operator(nn.Module):
    """An operator between projections; ``cache`` is its state, where it takes one."""

    def __init__(self, name: str) -> None:
        super().__init__()
        home, _, word = name.partition(".")
        self.operator = getattr(importlib.import_module(f"fla.ops.{home}.naive"), word)
        parameters = inspect.signature(self.operator).parameters
        self.takes = {word: p.default is p.empty for word, p in parameters.items()}
        """words, and whether they must be given"""
        self.blocks = {word: 8 for word in ("BM", "BN") if word in parameters}
        self.heads_first, self.channels = home in HEADS_FIRST, home == "kda"
        self.all = nn.ModuleDict({w: nn.Linear(WIDTH, WIDTH) for w in "qkv"})
        for gate in ("g", "gk", "beta"):
            if self.takes.get(gate):
                of_channels = gate == "gk" or (gate == "g" and self.channels)
                self.all[gate] = nn.Linear(WIDTH, WIDTH if of_channels else HEADS)

    def forward(self, x: Tensor) -> Any:
        """Outputs (B, L, d)."""
        return self._run(x)[0]

    def _run(self, x: Tensor, **state: Any) -> tuple[Tensor, Any]:
        given: dict[str, Tensor] = {}
        for word, layer in self.all.items():
            y = layer(x).unflatten(2, (HEADS, -1))
            if word in ("g", "gk"):
                y = nn.functional.logsigmoid(y)
            elif word == "beta":
                y = y.sigmoid()
            elif word == "k":
                y = nn.functional.normalize(y, dim=-1)
            y = y.squeeze(-1) if layer.out_features == HEADS else y
            given[word] = y.transpose(1, 2) if self.heads_first else y
        made = self.operator(**given, **self.blocks, **state)
        y, after = made if isinstance(made, tuple) else (made, None)
        return (y.transpose(1, 2) if self.heads_first else y).flatten(2), after


class Streaming(Operator):
    """An operator with a state."""

    def forward(self, x: Tensor, cache: Any = None, return_cache: bool = False) -> Any:
        """Outputs, and the state behind them where that is requested."""
        y, after = self._run(x, initial_state=cache, output_final_state=return_cache)
        return (y, after) if return_cache else y


def operator(name: str) -> Operator:
    """The module of one of `OPERATORS`."""
    made = Operator(name)
    return Streaming(name) if "initial_state" in made.takes else made


def subject(name: str) -> Subject:
    """A layer, or the module of an operator."""
    if name in OPERATORS:
        lines = ["from sequence_laws.adapters.fla import operator", f"model = operator({name!r})"]
        return written(name, lines, plain, given=Inputs(width=WIDTH), causal=True)
    layers = importlib.import_module("fla.layers")
    takes = inspect.signature(getattr(layers, name).__init__).parameters
    sizes = ", ".join(f"{word}={size}" for word, size in SIZES.items() if word in takes)
    lines = ["import fla.layers", f"model = fla.layers.{name}({sizes})"]
    return written(name, lines, plain, given=Inputs(width=64))


def groups() -> dict[str, list[str]]:
    """Layers, where the package with them is there, and operators."""
    import fla.ops  # noqa: F401

    try:
        layers = [*importlib.import_module("fla.layers").__all__]
    except ModuleNotFoundError:  # fla-core has operators alone
        layers = []
    return {"all": [*OPERATORS, *layers]}


LIBRARY = Library("fla", groups, subject, ("flash-linear-attention", "fla-core"), ("fla.ops",))
