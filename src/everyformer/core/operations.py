"""Operations of torch as they run, one by one, for what counts or refuses them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Operations(TorchDispatchMode):
    """Shows each operation within it to `see`, after it ran."""

    def see(self, func: Any, given: Sequence[Tensor], made: Sequence[Tensor]) -> None:
        """Take note of an operation, the tensors that it was given and those of its result."""
        raise NotImplementedError

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given, made = (
            [t for t in tree_leaves(of) if isinstance(t, Tensor)] for of in ((args, kwargs), result)
        )
        self.see(func, given, made)
        return result
