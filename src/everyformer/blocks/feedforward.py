"""`FeedForward`: the sub-layer after a layer's mixer."""

from typing import Any, ClassVar, final

from torch import Tensor, nn

from everyformer.core.config import NoOptions
from everyformer.core.mask import Mask
from everyformer.core.returned import check_fed
from everyformer.core.state import State
from everyformer.core.trials import Trials


class FeedForward(nn.Module):
    """Base of all feed-forwards.

    Args:
        options: an instance of `Options`.
        width: channels of the stream.
        causal: whether tokens see the past alone.
        dropout: that of the layer, where the options say none.
    """

    name: ClassVar[str]
    Options: ClassVar[type] = NoOptions
    trials: ClassVar[Trials] = Trials()
    """what the laws try it on"""
    by_token: ClassVar[bool] = True
    """whether every token is worked on by itself; else neighbours are read, and `init_state` says
    what a stream carries of them"""

    down: nn.Linear
    """the last linear layer, whose output joins the stream"""

    def __init__(
        self, options: Any = None, *, width: int, causal: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.options = self.Options() if options is None else options
        self.causal, self.dropout = causal, dropout
        self.build(width)

    @final  # type: ignore[misc]  # torch declares an attribute
    def __call__(
        self, x: Tensor, mask: Mask | None = None, state: State | None = None
    ) -> tuple[Tensor, State | None]:
        """`forward`, whose output is checked."""
        out: tuple[Tensor, State | None] = super().__call__(x, mask, state)
        check_fed(self, out, x, state)
        return out

    def build(self, width: int) -> None:
        """Make the weights."""
        raise NotImplementedError

    def forward(
        self, x: Tensor, mask: Mask | None = None, state: State | None = None
    ) -> tuple[Tensor, State | None]:
        """Outputs (B, L, width) of ``x`` (B, L, width), and the state after these tokens."""
        raise NotImplementedError

    def init_state(self, batch_size: int, *, device: Any = None, dtype: Any = None) -> State | None:
        """The state before the first token; None: nothing is carried."""
        return None
