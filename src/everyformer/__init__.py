"""everyformer: every member of the Transformer family under one interface.

    import everyformer as ef
    model = ef.create_model("aft-local", task="lm", width=128, layers=4, heads=4)
    mixer = ef.create_mixer("attention", width=128, heads=4, causal=True)

Names are imported when first used, so that `import everyformer` and `everyformer --help` are quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everyformer import functional, reference
    from everyformer.core.errors import EveryformerError
    from everyformer.core.mask import Mask
    from everyformer.core.member import Member
    from everyformer.core.mixer import Mixer
    from everyformer.core.outputs import MixerOutput, ModelOutput
    from everyformer.core.state import State
    from everyformer.core.trace import trace
    from everyformer.family import info, list_members
    from everyformer.generation.sampling import generate, stream
    from everyformer.interop.multihead import MultiheadAttention
    from everyformer.models.build import by_head, by_layer, create_mixer, create_model
    from everyformer.report.compare import compare
    from everyformer.training.checkpoint import load_model as load
    from everyformer.training.checkpoint import save_model as save
    from everyformer.training.warmstart import warm_start
    from everyformer.verification.verify import verify

__version__ = "0.1.0"

_HOMES = {
    "EveryformerError": "core.errors",
    "Mask": "core.mask",
    "Mixer": "core.mixer",
    "MixerOutput": "core.outputs",
    "ModelOutput": "core.outputs",
    "State": "core.state",
    "trace": "core.trace",
    "compare": "report.compare",
    "Member": "core.member",
    "info": "family",
    "list_members": "family",
    "generate": "generation.sampling",
    "stream": "generation.sampling",
    "MultiheadAttention": "interop.multihead",
    "by_head": "models.build",
    "by_layer": "models.build",
    "create_mixer": "models.build",
    "create_model": "models.build",
    "load": "training.checkpoint:load_model",
    "save": "training.checkpoint:save_model",
    "verify": "verification.verify",
    "warm_start": "training.warmstart",
    "functional": "functional:",
    "reference": "reference:",
}

__all__ = [
    "EveryformerError",
    "Mask",
    "Member",
    "Mixer",
    "MixerOutput",
    "ModelOutput",
    "MultiheadAttention",
    "State",
    "by_head",
    "by_layer",
    "compare",
    "create_mixer",
    "create_model",
    "functional",
    "generate",
    "info",
    "list_members",
    "load",
    "reference",
    "save",
    "stream",
    "trace",
    "verify",
    "warm_start",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'everyformer' has no attribute '{name}'")
    module, _, attribute = _HOMES[name].partition(":")
    home = importlib.import_module(f"everyformer.{module}")
    value = home if _HOMES[name].endswith(":") else getattr(home, attribute or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
