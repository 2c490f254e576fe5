"""Steps of one token, compiled: one graph for all lengths of the text and of the batch.

torch keeps what its compiler makes on disk, in `TORCHINDUCTOR_CACHE_DIR` (default: a folder of the
user in the system's temporary one), so that later processes read it instead of compiling again.
"""

from typing import Any

import torch
from torch import Tensor

from everyformer.core.errors import UnsupportedError
from everyformer.core.outputs import ModelOutput
from everyformer.core.state import StackState, in_step
from everyformer.models.base import Model

BACKEND = "inductor"
"""compiler of torch that is asked"""


class CompiledStep:
    """One token of ``model`` in evaluation, as one compiled graph.

    Raises:
        UnsupportedError: there is no C++ compiler here, or a step is not one graph.
    """

    def __init__(self, model: Model) -> None:
        if BACKEND == "inductor":
            _check_compiler()
        self.member = model.config.member
        self.step: Any = torch.compile(model, backend=BACKEND, fullgraph=True, dynamic=True)

    def __call__(self, token: Tensor, state: StackState) -> ModelOutput:
        """The output for the next ``token`` (B, 1) of the texts in ``state``."""
        try:
            out: ModelOutput = self.step(token, state=state, last=1)
        except (torch._dynamo.exc.Unsupported, torch._dynamo.exc.UserError) as error:
            raise UnsupportedError(
                f"a step of {self.member} cannot be compiled, since it is not one graph "
                f"({str(error).splitlines()[0]}): generate without compile"
            ) from error
        assert isinstance(out.state, StackState)
        # a graph gives every layer a count of its own, and is not to be made again for that
        return out._replace(state=in_step(out.state))


def _check_compiler() -> None:
    from torch._inductor import cpp_builder, exc

    try:
        cpp_builder.get_cpp_compiler()
    except (exc.InvalidCxxCompiler, RuntimeError, OSError) as error:
        raise UnsupportedError(
            "compiling needs a C++ compiler, and none was found here: install one (g++ or clang), "
            "or generate without compile"
        ) from error
