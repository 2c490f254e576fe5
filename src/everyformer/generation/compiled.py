"""Steps of one token, compiled: one graph for all lengths of the text and of the batch.

torch keeps what its compiler makes on disk, in `TORCHINDUCTOR_CACHE_DIR` (default: a folder of the
user in the system's temporary one), so that later processes read it instead of compiling again.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch.fx.experimental import _config

from everyformer.core.devices import check_compiler
from everyformer.core.errors import UnsupportedError
from everyformer.core.outputs import ModelOutput
from everyformer.core.state import StackState, in_step, innermost
from everyformer.engines.growing import Growing
from everyformer.models.base import Model

TRACING = {"specialize_float": True, "recompile_limit": 64}
"""settings of torch: numbers such as an epsilon stand in the graph, and the models of one process
may have a graph each"""
SHAPES = {"use_duck_shape": False}
"""settings of torch: a length is not the number of heads, though it may be as large"""
IN_PARALLEL = 2**19
"""entries from which a matrix times one row is shared among threads, which wait for one another"""
ROOM = 64
"""tokens, at least, that a state is given room for"""


def inductor(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """``graph`` as torch's compiler makes it."""
    from torch._inductor.compile_fx import compile_fx

    settings = {
        # inputs come from a state of the model's own, and are as the guards found them
        "size_asserts": False,
        "alignment_asserts": False,
        "cpp.min_chunk_size": max(512, IN_PARALLEL // torch.get_num_threads()),
    }
    made: Any = compile_fx(read_by_rows(graph), inputs, config_patches=settings)
    return cast(Callable[..., Any], made)


def read_by_rows(graph: fx.GraphModule) -> fx.GraphModule:
    """``graph`` where a product of weights with one token is a sum over each row of the weights:
    a CPU reads these from end to end, as fast as its memory is, which BLAS does not."""
    for node in graph.graph.nodes:
        if node.target is torch.nn.functional.linear:
            x = node.args[0].meta["example_value"]
            if x.device.type == "cpu" and x.shape[:-1].numel() == 1:
                node.target = _of_one_token
    graph.recompile()
    return graph


def _of_one_token(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    from torch._inductor.inductor_prims import force_stride_order

    # written down first: torch would else make all of x again, its norm too, for every row
    x = force_stride_order(x, x.stride())
    y = (x.unsqueeze(-2) * weight).sum(-1)
    return y if bias is None else y + bias


class CompiledStep:
    """One token of ``model`` in evaluation, as one compiled graph.

    Raises:
        UnsupportedError: there is no C++ compiler here, or a step is not one graph.
    """

    backend = staticmethod(inductor)

    def __init__(self, model: Model) -> None:
        if CompiledStep.backend is inductor:
            check_compiler(next(model.parameters()).device)
        self.model = model
        shapes: Any = _config
        self.tracing = torch._dynamo.config.patch(TRACING)
        self.shapes = shapes.patch(SHAPES)
        self.step: Any = torch.compile(model, backend=self.backend, fullgraph=True, dynamic=True)

    def __call__(self, token: Tensor, state: StackState) -> ModelOutput:
        """The output for the next ``token`` (B, 1) of the texts in ``state``."""
        # a graph is not to be made again because layers count alone, a room is full, or a length is
        # one, which is no length like any other to torch
        state = in_step(state)
        growing = [part for part in innermost(state) if isinstance(part, Growing)]
        if any(part.taken < 2 for part in growing):
            first: ModelOutput = self.model(token, state=state, last=1)
            return first
        if not all(part.has_room(1) for part in growing):
            state = state.reserve(max(ROOM, *(part.taken for part in growing)))
        try:
            with self.tracing, self.shapes:
                out: ModelOutput = self.step(token, state=state, last=1)
        except (torch._dynamo.exc.Unsupported, torch._dynamo.exc.UserError) as error:
            raise UnsupportedError(
                f"a step of {self.model.config.member} cannot be compiled, since it is not one "
                f"graph ({str(error).splitlines()[0]}): generate without compile"
            ) from error
        return out
