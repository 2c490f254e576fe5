"""`Mixer`: how information moves across positions. The contract that all members keep."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, final

import torch
from torch import Tensor, nn

from everyformer.core.config import from_dict
from everyformer.core.errors import ConfigError, GeneError, ShapeError, UnsupportedError
from everyformer.core.mask import Mask, packed_with_state, require_mask
from everyformer.core.outputs import MixerOutput
from everyformer.core.panels import Pictures, Recorded
from everyformer.core.returned import check_output, check_state
from everyformer.core.state import State, check_batch
from everyformer.core.subset import TokenSubset
from everyformer.core.trials import Trials

DROPOUT = "attention_dropout"
"""the option of mixers that have weights to drop from"""
Context = Tensor | tuple[Tensor, Tensor]
"""Where keys and values are read from in cross form: one tensor for both, or one each."""


class Picture(NamedTuple):
    """Layout of a picture's tokens."""

    grid: tuple[int, int]
    """rows and columns; a column is a channel of a pixel where these are tokens"""
    tile: tuple[int, int] | None
    """rows and columns of the blocks that are drawn one after the other; None: raster order"""
    causal: bool
    """whether the mixer sees earlier tokens alone"""


class Mixer(nn.Module):
    """Base of all mixers; a concrete mixer is final (a variation is an option, not a subclass).

    Args of every concrete constructor: ``width`` (channels of x), ``heads``, ``causal``,
    ``max_length`` (longest sequence, needed where the member holds a table over positions),
    ``options`` (the member's own frozen dataclass), keyword-only.
    """

    name: ClassVar[str]
    trials: ClassVar[Trials] = Trials()
    """what the laws try it on"""
    recorded: ClassVar[Recorded] = {}
    """how what it records as it runs is drawn, where that is no kind that all know"""
    supported_masks: ClassVar[frozenset[str]] = frozenset({"padding_mask"})
    """parts of `Mask` that this mixer applies; any other part is an error"""
    accepts_positions: ClassVar[bool] = False
    """whether positions that act on queries, keys or scores can live inside this mixer"""
    accepts_memory: ClassVar[bool] = False
    """whether it can read rows of the past with its tokens (`everyformer.genes.memory`)"""
    supports_cross: ClassVar[bool] = False
    """whether it takes a ``context``"""
    positionless: ClassVar[str] = "has none (it does not compare queries with keys)"
    """of a mixer that takes no such positions: why, for a sentence that begins with its name"""
    with_feedforward: bool = True
    """False where the mixer contains channel projections (gMLP), so a block adds none"""
    causal_only: ClassVar[str | None] = None
    """of a mixer that cannot read later tokens whatever ``causal`` is: why, in words"""
    shares_heads: ClassVar[bool] = False
    """whether it can be some of a layer's heads, with other mixers: its constructor then takes
    ``channels``, what those heads have together (`everyformer.genes.mixers.by_head`)"""

    drawn_for: ClassVar[str | None] = None
    """the task that a picture of who reads whom is made for; None: it has no pattern"""

    states: tuple[type[State], ...] = ()
    """the kinds of state that `forward` goes on from; (): it has none, or does not say"""

    output_layers: tuple[str, ...] = ("out",)
    """names of the linear layers that make the output"""
    causal: bool
    width: int
    max_length: int | None = None
    output_width: int | None = None
    """channels of the output, where they are not surely those of x"""
    counts_tokens: bool = False
    """whether a loss of it, what it learns or what it reports is a mean over the tokens that it
    reads, so that padding which no real token sees must be marked too"""
    prefix: int = 0
    """learned tokens that it wants in front of every text, for all layers of a stack"""
    packs_with_state: bool = False
    """whether it takes packed documents with a state"""
    non_causal_reason: str | None = None
    """what outputs of a causal mixer take from later tokens in evaluation, in words; None: nothing.
    Losses of a model that leaks are not those of one that writes"""

    @final  # type: ignore[misc]  # torch declares an attribute
    def __call__(self, x: Tensor, **inputs: Any) -> MixerOutput:
        """`forward`, whose output is checked."""
        out: MixerOutput = super().__call__(x, **inputs)
        check_output(self, "forward", out, x, inputs.get("state"))
        return out

    @abstractmethod
    def forward(
        self,
        x: Tensor,
        *,
        context: Context | None = None,
        mask: Mask | None = None,
        state: State | None = None,
    ) -> MixerOutput:
        """Mix ``x`` (batch, length, width) across positions; see `MixerOutput`.

        With ``state`` the tokens continue what the state has seen and a new state comes back; it is
        not changed in place. ``context`` is read instead of ``x`` for keys and values.
        """
        raise NotImplementedError

    @property
    def continues(self) -> bool:
        """True if there is an exact state."""
        return self.causal and self.begins

    @final
    @property
    def begins(self) -> bool:
        """True if it defines how a state begins (`empty_state`)."""
        return type(self).empty_state is not Mixer.empty_state

    @final
    def init_state(
        self,
        batch_size: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> State:
        """The state before the first token. Raises `UnsupportedError` if there is no exact one."""
        if not self.continues:
            raise UnsupportedError(
                f"{self.name} has no exact streaming form"
                + ("" if self.causal else " when it is bidirectional")
                + "; recompute the whole sequence instead (generate() does so by itself)"
            )
        given = next(self.parameters(), None)
        weight = torch.empty(0) if given is None else given
        like = {"device": device or weight.device, "dtype": dtype or weight.dtype}
        state = self.empty_state(batch_size, **like)
        check_state(self, "empty_state", state, batch_size)
        return state

    def empty_state(self, batch: int, **like: Any) -> State:
        """`init_state` where there is one; ``like``: device and dtype."""
        raise NotImplementedError

    @final
    def append(self, x: Tensor, *, mask: Mask | None = None, state: State) -> State:
        """Take ``x`` into the state without giving an output (early exit needs it).

        The output is computed and dropped, unless the mixer `can_append`.
        """
        if self.can_append():
            return self.take_in(x, mask, state)
        extended = self(x, mask=mask, state=state).state
        assert extended is not None
        return extended

    @final
    @classmethod
    def can_append(cls) -> bool:
        """True if it defines how a state is extended with less work than outputs (`take_in`)."""
        return cls.take_in is not Mixer.take_in

    def take_in(self, x: Tensor, mask: Mask | None, state: State) -> State:
        """`append` where that is less work than computing outputs."""
        raise NotImplementedError

    @property
    def supports_subset(self) -> bool:
        """True if it gives outputs for some of its tokens at less than the cost of all."""
        return False

    def answer(
        self, x: Tensor, chosen: TokenSubset, mask: Mask | None, state: State | None
    ) -> MixerOutput:
        """`forward` of a mixer that `supports_subset`, with outputs (rows, n, width) of the tokens
        ``chosen`` alone."""
        raise NotImplementedError

    def reference(
        self, x: Tensor, *, context: Context | None = None, mask: Mask | None = None
    ) -> Tensor:
        """The same module by its literal equation: slow, any dtype, the definition."""
        raise NotImplementedError

    @classmethod
    def check_layer(cls, options: Any, width: int, gene: str) -> None:
        """Refuse options of ``gene`` with which it cannot be in a layer of ``width`` channels.

        Raises:
            GeneError: names the option and what it must be.
        """

    @classmethod
    def for_pictures(cls, options: Any, picture: Picture) -> Any:
        """``options`` as they are in a model of such pictures: what they leave open is filled in.

        Raises:
            GeneError: they are for other pictures.
        """
        return options

    def scale_window(self, by: int) -> None:
        """Show a ``by``-th of what its windows show, until the next call; 1 is all of it."""

    def join(self, first: Mixer) -> None:
        """Take over what all layers of a stack hold together from the first layer's mixer of the
        same kind."""

    def end_step(self) -> None:
        """Told after every step of a training: what must lie within bounds is set back into them,
        and what moves once a step, not by gradients, moves.

        A mixer that has such parts also does so by itself, since not every loop tells.
        """

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Keys that the windows of its heads show, one number or one a head; None: all."""
        return (None,)

    def pictures(self, length: int | None, layers: Sequence[Mixer]) -> Pictures:
        """Pictures of itself, other than what it records as it runs (`everyformer.core.trace`).

        Args:
            length: tokens to draw (default: as many as show what is special).
            layers: the mixers of all layers, which one picture may show together.

        Returns:
            Pictures by name; ``masks`` in place of that which mask parts and `windows` make.
        """
        return {}

    @property
    def in_width(self) -> int:
        """Channels of x."""
        return self.width

    @final
    def outputs(self) -> list[nn.Module]:
        """The linear layers that make the output, which an initialisation may scale by depth."""
        return [self.get_submodule(name) for name in self.output_layers]

    def read_context(self, context: Context, mask: Mask | None = None) -> State:
        """Take in a context once; `forward` reads the result as ``state`` at every step.

        Args:
            context: (batch, source, channels), or one tensor for keys and one for values.
            mask: ``padding_mask`` (batch, source) of the context.
        """
        raise UnsupportedError(f"{self.name} has no cross form, so it cannot read a context")

    def check_input(
        self, x: Tensor, context: Context | None, mask: Mask | None, state: State | None
    ) -> None:
        """Refuse what this mixer cannot do, with both sides named."""
        require_mask(mask)
        if x.dim() != 3:
            raise ShapeError(f"x must be (batch, length, width), not {tuple(x.shape)}")
        if min(x.shape) < 1:
            raise ShapeError(
                f"x is {tuple(x.shape)}: it must hold at least one row, one token and one channel"
            )
        if x.shape[2] != self.in_width:
            raise ShapeError(
                f"{self.name} was built for x of `width={self.in_width}`, not {tuple(x.shape)}"
            )
        if not x.is_floating_point():
            raise ShapeError(f"x holds {str(x.dtype).removeprefix('torch.')}: embed tokens first")
        if state is not None:
            self._check_state(x, state)
        if context is not None and not self.supports_cross:
            raise UnsupportedError(
                f"{self.name} mixes one sequence with itself; it has no cross form, so `context` "
                "cannot be given. Members with one are marked by `everyformer list --cross`."
            )
        if context is not None and sources(context)[0].shape[0] != x.shape[0]:
            raise ShapeError(
                f"x has {x.shape[0]} rows, but the context {sources(context)[0].shape[0]}: each "
                "row reads a context of its own"
            )
        reads = context is not None or (state is not None and state.of_context)
        if state is not None and not self.causal and not reads:
            raise UnsupportedError(
                f"this {self.name} is bidirectional: a state (streaming) needs `causal=True`"
            )
        if mask is None:
            return
        mask.require(self.name, self.supported_masks)
        if mask.documents is not None and reads:
            raise UnsupportedError("cross-attention has no packed documents: give them as rows")
        if mask.documents is not None and state is not None and not self.packs_with_state:
            raise packed_with_state()
        keys: int | None = x.shape[1]
        if reads:
            keys = None if context is None else sources(context)[0].shape[1]
        mask.check(x.shape[0], x.shape[1], keys, getattr(self, "heads", None))

    def _check_state(self, x: Tensor, state: State) -> None:
        """Refuse the state of another mixer, or of another number of rows."""
        if self.states and not isinstance(state, self.states):
            known = " or ".join(kind.__name__ for kind in self.states)
            raise ShapeError(
                f"{self.name} continues from its own state ({known}), not from a "
                f"{type(state).__name__}: begin with init_state() of this mixer"
            )
        check_batch(state, x.shape[0])

    @final
    def check_length(self, longest: int) -> None:
        """Refuse positions beyond this mixer's table."""
        if self.max_length is not None and longest > self.max_length:
            raise ShapeError(
                f"{self.name} was built with `max_length={self.max_length}` (its table over "
                f"positions), but position {longest - 1} was requested: build it with "
                f"`max_length={longest}` or more, or use a member without a table"
            )


def sources(context: Context) -> tuple[Tensor, Tensor]:
    """Sources of keys and of values, (batch, source, channels) each.

    Raises:
        ShapeError: other shapes, or two of other rows or lengths.
    """
    keys, values = context if isinstance(context, tuple) else (context, context)
    if keys.dim() != 3 or values.dim() != 3 or keys.shape[:2] != values.shape[:2]:
        raise ShapeError(
            "a context must be (batch, source, channels), one of keys and one of values of equal "
            f"batch and source: not {tuple(keys.shape)} and {tuple(values.shape)}"
        )
    return keys, values


def heads_divide(width: int, heads: int, member: str) -> int:
    """Channels a head, or an error that names both numbers."""
    if heads < 1 or width < 1 or width % heads:
        lower = [h for h in range(1, width + 1) if width % h == 0] if width > 0 else []
        raise GeneError(
            f"{member}: `width={width}` is not divisible by `heads={heads}`; "
            f"heads that fit: {', '.join(map(str, lower[:12]))}"
        )
    return width // heads


def set_options(cls: type[Any], member: str, options: Any) -> Any:
    """``options`` as an instance of ``cls``, from one, from a dictionary, or from nothing.

    Raises:
        ConfigError: unknown options, wrong types, numbers out of bounds.
    """
    if options is None:
        return cls()
    if not isinstance(options, cls):
        if DROPOUT in options and not hasattr(cls, DROPOUT):
            raise no_weights(member)
        options = from_dict(cls, dict(options), f"{member}.")
    return options


def no_weights(member: str) -> ConfigError:
    """Error about dropout on weights where there are none."""
    return ConfigError(
        f"unknown option `{member}.{DROPOUT}`: {member} forms no matrix of weights, so there is "
        "nothing to drop from. `dropout` of the model falls on what each layer adds"
    )
