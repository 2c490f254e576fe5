"""Every member of the Transformer family under one interface: `import everyformer as ef`.

    ef.compare(["attention", "gmlp"], data="mytext.txt")   several on your data, on equal footing
    ef.create_model("gpt", "lm", width=128)                a member as a whole model, of a task
    ef.create_mixer("linear", width=64, causal=True)       its mixer alone: y, state, losses
    ef.create_body("gtrxl", width=64, layers=3, heads=4)   its layers, for an agent of your own
    ef.MultiheadAttention(256, 8, member="aft-local")      with the signature of torch's
    ef.generate(model, prompt, tokens=100)                 new tokens behind a prompt
    ef.stream(model, prompt)                               the same, each as it is drawn
    ef.predict("runs/bert", ["a text"])                    answers of a trained run
    ef.load("runs/gpt"), ef.save(model, "my-model")        weights and options of a model
    ef.warm_start(model, "runs/gpt")                       what fits of another's weights
    ef.verify(["linear"])                                  the laws that every member keeps
    ef.check(your_model)                                   laws for any module of torch
    ef.list_members(task="lm"), ef.info("gmlp")            what there is, and what it claims
    ef.register(MyMixer)                                   a mixer of yours as a member

A mixer reads a text at once, or in pieces with the same result:

    >>> import torch, everyformer as ef
    >>> mixer = ef.create_mixer("linear", width=16, heads=2, causal=True)
    >>> x = torch.randn(2, 10, 16)
    >>> state = mixer.init_state(2)
    >>> for piece in x.split([7, 3], dim=1):
    ...     y, state, losses = mixer(piece, state=state)
    >>> torch.allclose(y, mixer(x).y[:, 7:], atol=1e-5)
    True

A language model continues a prompt of tokens:

    >>> model = ef.create_model("gpt", "lm", width=16, layers=1, heads=2, vocabulary=256)
    >>> ef.generate(model.eval(), torch.tensor([[104, 105]]), tokens=5).shape
    torch.Size([1, 5])

`everyformer --help` has the verbs of the command line. Names are imported when first used, so that
`import everyformer` is quick.
"""

from typing import TYPE_CHECKING

from everyformer.system.lazy import late_names

if TYPE_CHECKING:
    from everyformer import functional as functional
    from everyformer import reference as reference
    from everyformer.checks.verify import verify as verify
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
    from everyformer.lab.report.compare import compare as compare
    from everyformer.models.body import create_body as create_body
    from everyformer.models.build import create_mixer as create_mixer
    from everyformer.models.build import create_model as create_model
    from everyformer.models.draft import by_head as by_head
    from everyformer.models.draft import by_layer as by_layer
    from everyformer.tasks.prediction.predict import predict as predict
    from everyformer.training import saved
    from everyformer.training.warmstart import warm_start as warm_start
    from sequence_laws.judging import check as check

    load, save = saved.load_model, saved.save_model

__version__ = "0.1.0"

_HOMES = {
    "EveryformerError": "core.errors",
    "Mask": "core.mask",
    "Mixer": "core.mixer",
    "MixerOutput": "core.outputs",
    "ModelOutput": "core.outputs",
    "State": "core.state",
    "trace": "core.trace",
    "check": "checks.verify",
    "compare": "lab.report.compare",
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
    "load": "training.saved:load_model",
    "predict": "tasks.prediction.predict",
    "save": "training.saved:save_model",
    "verify": "checks.verify",
    "warm_start": "training.warmstart",
    "functional": "functional:",
    "reference": "reference:",
}
__all__ = list(_HOMES)
__getattr__ = late_names(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
