"""Which functions of torch that attend a model runs."""

from typing import Any

from torch.overrides import TorchFunctionMode


class Kernels(TorchFunctionMode):
    """Names of functions of torch that attend, of those that run within it."""

    attend = ("scaled_dot_product_attention", "flex_attention")

    def __init__(self) -> None:
        super().__init__()
        self.names = set[str]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        self.names |= {name} & {*self.attend}
        return func(*args, **(kwargs or {}))
