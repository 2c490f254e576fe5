"""everyformer: every member of the Transformer family under one interface.

    import everyformer as ef
    model = ef.create_model("aft-local", task="lm", width=128, layers=4, heads=4)
    mixer = ef.create_mixer("attention", width=128, heads=4, causal=True)

Names are imported when first used, so that `import everyformer` and `everyformer --help` are quick.
"""

from typing import TYPE_CHECKING

from everyformer.system.lazy import late_names

if TYPE_CHECKING:
    from everyformer import functional as functional
    from everyformer import reference as reference
    from everyformer.core.errors import EveryformerError as EveryformerError
    from everyformer.core.mask import Mask as Mask
    from everyformer.core.member import Member as Member
    from everyformer.core.mixer import Mixer as Mixer
    from everyformer.core.outputs import MixerOutput as MixerOutput
    from everyformer.core.outputs import ModelOutput as ModelOutput
    from everyformer.core.state import State as State
    from everyformer.core.trace import trace as trace
    from everyformer.family import info as info
    from everyformer.family import list_members as list_members
    from everyformer.family import register as register
    from everyformer.generation.sampling import generate as generate
    from everyformer.generation.sampling import stream as stream
    from everyformer.interop.multihead import MultiheadAttention as MultiheadAttention
    from everyformer.models.body import create_body as create_body
    from everyformer.models.build import create_mixer as create_mixer
    from everyformer.models.build import create_model as create_model
    from everyformer.models.draft import by_head as by_head
    from everyformer.models.draft import by_layer as by_layer
    from everyformer.prediction.forecasts import forecast as forecast
    from everyformer.prediction.predict import predict as predict
    from everyformer.report.compare import compare as compare
    from everyformer.training import checkpoint
    from everyformer.training.warmstart import warm_start as warm_start
    from everyformer.verification.verify import verify as verify

    load, save = checkpoint.load_model, checkpoint.save_model

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
    "register": "family",
    "generate": "generation.sampling",
    "stream": "generation.sampling",
    "MultiheadAttention": "interop.multihead",
    "create_body": "models.body",
    "by_head": "models.draft",
    "by_layer": "models.draft",
    "create_mixer": "models.build",
    "create_model": "models.build",
    "load": "training.checkpoint:load_model",
    "forecast": "prediction.forecasts",
    "predict": "prediction.predict",
    "save": "training.checkpoint:save_model",
    "verify": "verification.verify",
    "warm_start": "training.warmstart",
    "functional": "functional:",
    "reference": "reference:",
}
__all__ = list(_HOMES)
__getattr__ = late_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
