"""Autocast on a device that has none, as torch has it on GPUs: what calls from Python are cast to.

Products are computed in bfloat16, and what loses digits there in float32. `meta` has no autocast,
so that dtypes which do not go together under it would be found on a GPU alone.

The lists are those of torch's notes on automatic mixed precision ("CUDA ops that can autocast").
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from everyformer.core.devices import stand_ins

HALVED = (
    "__matmul__ __rmatmul__ addbmm addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d conv3d "
    "conv_transpose1d conv_transpose2d conv_transpose3d einsum linear matmul mm multi_dot mv prelu "
    "scaled_dot_product_attention"
)
"""functions whose arguments are rounded to bfloat16"""
WIDENED = (
    "__pow__ __rpow__ acos asin binary_cross_entropy_with_logits cosh cosine_similarity "
    "cross_entropy cumprod cumsum dist erfinv exp expm1 group_norm kl_div l1_loss layer_norm log "
    "log10 log1p log2 log_softmax logsumexp mse_loss nll_loss norm pow prod reciprocal renorm "
    "rms_norm rsqrt sinh smooth_l1_loss softmax softmin softplus sum tan"
)
"""functions whose arguments are made float32"""
DTYPES = {
    **dict.fromkeys(HALVED.split(), torch.bfloat16),
    **dict.fromkeys(WIDENED.split(), torch.float32),
}
CAST = (torch.float32, torch.bfloat16, torch.float16)


class _Casts(TorchFunctionMode):
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        to = DTYPES.get(getattr(func, "__name__", ""))

        def cast(t: Tensor) -> Tensor:
            return t.to(to) if t.dtype in CAST else t

        given = args, kwargs or {}
        args, kwargs = given if to is None else tree_map_only(Tensor, cast, given)
        return func(*args, **kwargs)


@dataclass(frozen=True)
class _StandIn:
    """Autocast of a ``kind`` of device, where `everyformer.core.devices` looks for it."""

    kind: str

    def on(self) -> AbstractContextManager[Any]:
        return cast_as_on_gpus(self.kind)

    def off(self) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = torch._C.DisableTorchFunction()
        return context


@contextmanager
def cast_as_on_gpus(kind: str) -> Iterator[None]:
    """A block in which devices of this ``kind`` have autocast to bfloat16, and it is on."""
    before = dict(stand_ins)
    stand_ins[kind] = _StandIn(kind)
    try:
        with _Casts():
            yield
    finally:
        stand_ins.clear()
        stand_ins.update(before)
