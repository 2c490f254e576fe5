"""`Position`: the hooks through which order enters a model.

Positions are explicit integer tensors (B or 1, L), never inferred from a shape inside a hook. That
one rule makes every position right with states, left padding, chunks and packed documents.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, final

import torch
from torch import Tensor, nn

from everyformer.core.config import NoOptions
from everyformer.core.errors import ConfigError, GeneError, ShapeError, UnsupportedError
from everyformer.core.mixer import set_options
from everyformer.core.panels import Pictures, Recorded
from everyformer.core.returned import check_embedded, check_placed
from everyformer.core.trials import Trials

HOOKS = {"embeddings": "embed", "layers": "embed", "queries-keys": "rotate", "scores": "score"}
"""part of a model -> the hook of a position that acts on it"""


class Sizes(NamedTuple):
    """Sizes that a position is built for."""

    width: int
    """channels of the model"""
    heads: int
    key_dim: int
    """channels of a head's queries and keys"""
    value_dim: int
    """channels of a head's values"""
    max_length: int | None
    """longest sequence, where there is a table over positions"""
    causal: bool
    """whether tokens see the past alone"""


class Position(nn.Module):
    """Base of all positions; each overrides the hook of the part of a model it ``acts_on``.

    A concrete position adds its parameters in `build`. One with another constructor takes the
    same arguments.

    Args:
        width: channels of the model.
        heads: of the mixer, each with ``head_dim`` channels for queries and keys (default: an equal
            part of the width) and ``value_dim`` for values (default: as many).
        max_length: longest sequence; needed where there is a table over positions.
        causal: whether tokens see the past alone.
        options: an instance of `Options`, or a dictionary.
    """

    name: ClassVar[str]
    Options: ClassVar[type[Any]] = NoOptions
    options: Any
    trials: ClassVar[Trials] = Trials()
    """what the laws try it on"""
    recorded: ClassVar[Recorded] = {}
    """how what it records as it runs is drawn, where that is no kind that all know"""
    acts_on: ClassVar[Literal["embeddings", "layers", "queries-keys", "scores"]]
    adds_to_values: ClassVar[bool] = False
    """whether it adds to the outputs of heads, so that it takes ``value_dim``"""
    max_length: int | None = None
    heads: int | None = None
    """heads that a bias is made for (positions that act on scores)"""
    key_dim: int | None = None
    """channels of a head's queries and keys that it was built for; None: any"""
    value_dim: int | None = None
    """channels of a head's values that it was built for; None: any"""
    causal: bool | None = None
    """the one direction that it was built for; None: either"""
    shared: bool = False
    """whether all layers of a stack hold this one module"""
    streams: str | None = None
    """why there is no exact state with it; None: there is"""

    def __init__(
        self,
        *,
        width: int | None = None,
        heads: int = 1,
        head_dim: int | None = None,
        value_dim: int | None = None,
        max_length: int | None = None,
        causal: bool = False,
        options: Any = None,
    ) -> None:
        super().__init__()
        if width is None:
            # a subclass has another constructor
            return
        self.options = set_options(self.Options, self.name, options)
        key_dim = head_dim if head_dim is not None else width // heads
        value_dim = value_dim if value_dim is not None else key_dim
        hook = HOOKS.get(getattr(self, "acts_on", ""))
        if hook is None or getattr(type(self), hook, None) is getattr(Position, hook, None):
            raise ConfigError(
                f"position '{self.name}' must say which part of a model it acts on and have the "
                f"hook of it: {', '.join(f'{part} ({hook})' for part, hook in HOOKS.items())}"
            )
        self.build(Sizes(width, heads, key_dim, value_dim, max_length, causal))
        if self.acts_on == "scores" and self.heads is None:
            self.heads = heads

    def __init_subclass__(cls, **options: Any) -> None:
        """What hooks of positions that are not ours give is checked at each call; `added` checks
        all of `embed`."""
        super().__init_subclass__(**options)
        for name in {"rotate", "by_distance", "slopes_of"} & vars(cls).keys():
            if not cls.__module__.startswith("everyformer."):
                setattr(cls, name, _checked(vars(cls)[name]))

    def build(self, sizes: Sizes) -> None:
        """Make the parameters, from ``self.options`` too."""

    @classmethod
    def scaled_to(cls, options: Any, std: float) -> Any:
        """``options`` with the scales that they leave open set by ``std``, the deviation of
        token embeddings at the start."""
        return options

    def embed(self, positions: Tensor) -> Tensor:
        """Vectors added to the embeddings, or to a layer's input, at ``positions`` (B or 1, L):
        (B or 1, L, width)."""
        raise NotImplementedError(f"{self.name} adds nothing to embeddings or layers")

    @final
    def added(self, positions: Tensor, x: Tensor) -> Tensor:
        """`embed` as it is added to ``x`` (B, L, width), in its dtype.

        Raises:
            PluginError: `embed` gave vectors of other sizes.
        """
        vectors = self.embed(positions)
        check_embedded(self, vectors, x)
        return vectors.to(x.dtype)

    def rotate(self, x: Tensor, positions: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Queries or keys (B, H, L, D) rotated to their ``positions`` (B or 1, L).

        ``lengths`` (B or 1, L or 1): how many tokens the text of each has (default: by
        ``positions``, which are then those of whole texts; see `lengths_of`).
        """
        raise NotImplementedError(f"{self.name} does not act on queries and keys")

    def slopes_of(self, dtype: torch.dtype, device: torch.device) -> Tensor | None:
        """(H,) m_h if for keys j <= i the bias is -m_h (i - j), which engines add at no cost."""
        return None

    def curve(self, distance: Tensor) -> tuple[str, Tensor] | None:
        """Values that depend on distances alone, for pictures: their name and (H, ...); or None."""
        return None

    def pictures(self, length: int | None, layers: Sequence[Position]) -> Pictures:
        """Pictures of the position, of ``length`` positions (default: as many as it likes).

        ``layers``: those of all layers, if each layer has one.
        """
        return {}

    def check(self, positions: Tensor) -> None:
        """Refuse positions beyond a table (eager CPU calls see states too; others, the length)."""
        if self.max_length is None:
            return
        known = positions.device.type == "cpu" and not torch.compiler.is_compiling()
        longest = int(positions.max()) + 1 if known else positions.shape[1]
        if longest > self.max_length:
            raise ShapeError(
                f"position '{self.name}' has a table of `max_length={self.max_length}`, but "
                f"position {longest - 1} was requested: build it with `max_length={longest}` or "
                "more, or use `position='sinusoidal'` or 'rope', which have no table"
            )

    def check_mixer(self, mixer: str, heads: int, causal: bool) -> None:
        """Refuse a mixer inside which this position has no meaning."""
        if self.acts_on in ("embeddings", "layers"):
            raise GeneError(f"position '{self.name}' acts on {self.acts_on}, not inside {mixer}")
        if self.heads not in (None, heads):
            raise GeneError(
                f"position '{self.name}' was built for `heads={self.heads}`, but {mixer} has "
                f"`heads={heads}`: build both with the same number"
            )
        if self.causal not in (None, causal):
            raise GeneError(
                f"position '{self.name}' was built with `causal={self.causal}`, but {mixer} has "
                f"`causal={causal}`: what it adds depends on the direction; build both alike"
            )

    def check_sizes(self, mixer: str, key_dim: int, value_dim: int) -> None:
        """Refuse a mixer whose heads are wider or narrower than what this position holds."""
        for part, built, size in (
            ("queries and keys", self.key_dim, key_dim),
            ("values", self.value_dim, value_dim),
        ):
            if built not in (None, size):
                raise GeneError(
                    f"position '{self.name}' holds vectors of {built} channels for the {part} of a "
                    f"head, but those of {mixer} have {size}: give both the same number"
                )

    def check_streaming(self) -> None:
        """Refuse to begin a state if what it would hold is wrong later."""
        if self.streams is not None:
            raise UnsupportedError(
                f"position '{self.name}' has no exact streaming form here: {self.streams}; "
                "recompute the whole sequence instead (generate() does so by itself)"
            )

    def join(self, first: Position) -> None:
        """Take over what all layers of a stack hold together from the ``first`` layer's position.

        Of positions that are not ``shared`` as a whole.
        """

    def of_heads(self, chosen: Sequence[int]) -> Position:
        """Position for a mixer that holds the heads ``chosen`` of a layer's, counted from 0."""
        return self


def _checked(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A hook whose result is refused where it is of wrong sizes."""

    @functools.wraps(hook)
    def call(self: Position, *given: Any, **named: Any) -> Any:
        y = hook(self, *given, **named)
        check_placed(self, hook.__name__, y, given[0], self.heads)
        return y

    return call


def normal_table(*shape: int, std: float) -> nn.Parameter:
    """Learned numbers, N(0, std^2) at the start, which weight decay leaves alone."""
    table = nn.Parameter(torch.empty(shape))
    nn.init.normal_(table, std=std)
    table.no_decay = True  # type: ignore[attr-defined]
    return table
