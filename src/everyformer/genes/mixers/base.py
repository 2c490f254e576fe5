"""Mixers on rows: padding and packing are undone once, here, for all mixers that read whole texts.

A text is a row that has its real tokens in front. Left padding, holes and packed documents become
such rows before a mixer is called, and its results go back to where the tokens were; the definition
is computed text by text, on the real tokens alone.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple, final

import torch
from torch import Tensor, nn

from everyformer.core.config import NoOptions
from everyformer.core.devices import readable
from everyformer.core.errors import GeneError, UnsupportedError
from everyformer.core.mask import Mask, positions_of, runs_after, runs_of
from everyformer.core.mixer import Context, Mixer, heads_divide, set_options, sources
from everyformer.core.outputs import MixerOutput
from everyformer.core.position import Position
from everyformer.core.returned import check_like, check_output
from everyformer.core.shared import shared
from everyformer.core.state import State
from everyformer.engines.projections import HeadProjections
from everyformer.engines.rows import are_first, checked_keep, compact, repack, spread, unpack
from everyformer.genes.memory.base import Memory

Restore = Callable[[Tensor], Tensor]
"""Puts results (rows, L, ...) back where the tokens came from; padding gets zeros."""


class Rows(NamedTuple):
    """Texts, each a row with its real tokens in front, and what is known of them."""

    x: Tensor
    """(B, L, width), zeros where no token is real"""
    padding_mask: Tensor | None = None
    """(B, L) bool, a prefix of True in every row, but for pictures; None: all are real"""
    global_tokens: Tensor | None = None
    """(B, L) bool"""
    sentences: Tensor | None = None
    """(B, L) int"""
    grid: tuple[int, int] | None = None
    """(lines, columns) of pictures, whose tokens all keep their cells, also the padding"""
    prefix: int | None = None
    """where it is known that the global tokens are the first so many: how many; real tokens
    then come first among these, and among the others"""

    @property
    def lengths(self) -> Tensor:
        """Numbers of real tokens of the rows: (B or 1,) int64."""
        if self.padding_mask is None:
            return torch.full((1,), self.x.shape[1], device=self.x.device)
        return self.padding_mask.sum(1)

    def positions(self, num_tokens: Tensor | None = None) -> Tensor:
        """Positions (B or 1, L) after ``num_tokens`` (B,) of a state; see `positions_of`."""
        mask = None if self.padding_mask is None else Mask(padding_mask=self.padding_mask)
        return positions_of(self.x.shape[0], self.x.shape[1], mask, num_tokens, self.x.device)

    def pieces(self, size: int) -> Iterator[Rows]:
        """``size`` tokens after the other, of rows that are no pictures."""
        for first in range(0, self.x.shape[1], size):
            part = slice(first, first + size)
            parts = (self.padding_mask, self.global_tokens, self.sentences)
            padding_mask, flags, sentences = (None if t is None else t[:, part] for t in parts)
            yield Rows(self.x[:, part], padding_mask, flags, sentences)


def rows_of(
    x: Tensor, mask: Mask | None, planar: bool = False, prefix: int | None = None
) -> tuple[Rows, Restore]:
    """The texts of ``x`` (B, L, ...) as rows, and the way back.

    ``planar``: the padding of a picture (`Mask.grid`) stays in its cells. ``prefix``: the first so
    many tokens stay in front of the others.
    """
    if mask is None:
        return Rows(x), lambda y: y
    padding_mask = mask.padding_mask
    if mask.documents is not None:
        if planar and mask.grid is not None:
            raise UnsupportedError("a row of packed documents is no picture: leave grid out")
        packed = unpack(x, mask.documents, padding_mask)
        flags, sentences = _moved(mask, packed.lay)
        inner = Mask(padding_mask=packed.padding_mask, global_tokens=flags, sentences=sentences)
        rows, restore = rows_of(packed.x, inner)
        return rows, lambda y: repack(restore(y), packed)
    grid = mask.grid if planar else None
    texts = Rows(x, padding_mask, mask.global_tokens, mask.sentences, grid, prefix)
    if padding_mask is None:
        return texts, lambda y: y
    parts = (padding_mask[:, :prefix], padding_mask[:, prefix:]) if prefix else (padding_mask,)
    if grid is not None or all(map(are_first, parts)):
        return texts._replace(x=_cleared(x, padding_mask)), lambda y: _cleared(y, padding_mask)
    moved = compact(x, padding_mask, prefix or 0)
    flags, sentences = _moved(mask, lambda t: t.gather(1, moved.order))
    rows = Rows(
        _cleared(moved.x, moved.padding_mask), moved.padding_mask, flags, sentences, None, prefix
    )
    return rows, lambda y: spread(y, moved)


def _moved(mask: Mask, move: Callable[[Tensor], Tensor]) -> tuple[Tensor | None, Tensor | None]:
    """Flags of global tokens, and sentences, moved as the tokens are."""
    both = (mask.global_tokens, mask.sentences)
    flags, sentences = (None if t is None else move(t) for t in both)
    return flags, sentences


def _cleared(x: Tensor, padding_mask: Tensor) -> Tensor:
    """Zeros where no token is real, so that not even a NaN there is read."""
    return x.masked_fill(~padding_mask.view(*padding_mask.shape, *[1] * (x.dim() - 2)), 0)


class RowMixer(Mixer):
    """Base of mixers that read rows; a member implements the hooks on `Rows`."""

    planar: bool = False
    """whether `Mask.grid` makes pictures of the rows"""
    global_rows: bool = False
    """whether global tokens are read apart, so that those in front (`Mask.prefix`) stay there"""
    no_context: str | None = None
    """why this one reads no context although its kind does"""

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        if "mix" in vars(cls):  # its name for one version more
            message = f"{cls.__qualname__}.mix is called forward_rows now: rename it"
            warnings.warn(message, FutureWarning, stacklevel=2)
            cls.forward_rows = cls.mix  # type: ignore[attr-defined, method-assign]

    @abstractmethod
    def forward_rows(self, rows: Rows, state: State | None) -> MixerOutput:
        """`forward` on rows: (B, L, width), of which only real tokens' outputs are read."""
        raise NotImplementedError

    def text_reference(self, text: Rows) -> Tensor:
        """Outputs of one whole text (1, L, width) by the literal equation.

        Members that are exported by it take padded rows too, as `forward_rows` does.
        """
        raise NotImplementedError

    def encode_context(self, keys: Rows, values: Tensor) -> State:
        """`read_context` on rows: what keys and ``values`` (B, S, channels) are made from."""
        raise NotImplementedError

    def cross_attend(self, x: Tensor, context: State) -> Tensor:
        """Outputs (B, L, width) of queries of ``x`` over what `read` gave."""
        raise NotImplementedError

    def cross_reference(self, x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """`cross_attend` by the equation: ``x`` (1, L, width) over real tokens (1, S, ...)."""
        raise NotImplementedError

    @final  # type: ignore[misc]  # torch declares an attribute
    def forward(
        self,
        x: Tensor,
        *,
        context: Context | None = None,
        mask: Mask | None = None,
        state: State | None = None,
    ) -> MixerOutput:
        self.check_input(x, context, mask, state)
        if state is not None and state.of_context:
            return MixerOutput(self.cross_attend(x, state), state, {})
        if context is not None:
            return MixerOutput(self.cross_attend(x, self.read_context(context, mask)), state, {})
        if state is not None and mask is not None and mask.documents is not None:
            return self._after(x, mask, state)
        prefix = mask.prefix if mask is not None and self.global_rows else None
        rows, restore = rows_of(x, mask, self.planar, prefix)
        out = self.forward_rows(rows, state)
        check_output(self, "forward_rows", out, rows.x, state)
        return MixerOutput(restore(out.y), out.state, out.losses)

    @final
    def reference(
        self, x: Tensor, *, context: Context | None = None, mask: Mask | None = None
    ) -> Tensor:
        """Outputs by the literal equation, text by text on the real tokens; zeros at padding."""
        self.check_input(x, context, mask, None)
        mask = mask or Mask()
        if context is not None:
            self._check_context()
            both = sources(context)
            padding_mask = checked_keep(both[0], mask)
            texts = []
            for row, one in enumerate(x):
                read = (t[row] if padding_mask is None else t[row, padding_mask[row]] for t in both)
                texts.append(self.cross_reference(one[None], *(t[None] for t in read)))
            return torch.cat(texts)
        if self.planar and mask.grid is not None:
            rows, restore = rows_of(x, mask, planar=True)
            keeps = [None] * len(x) if rows.padding_mask is None else rows.padding_mask[:, None]
            pictures = (
                Rows(t[None], k, grid=mask.grid) for t, k in zip(rows.x, keeps, strict=True)
            )
            return restore(torch.cat([self.text_reference(picture) for picture in pictures]))
        y = torch.zeros_like(x)
        for row, at in _texts_of(x, mask):
            parts = (mask.global_tokens, mask.sentences)
            flags, sentences = (None if t is None else t[row, at][None] for t in parts)
            text = Rows(x[row, at][None], None, flags, sentences)
            literal = self.text_reference(text)
            check_like(self, "text_reference", literal, text.x)
            y[row, at] = literal[0]
        return y

    @final
    def read_context(self, context: Context, mask: Mask | None = None) -> State:
        """State of a context that is read once; `forward` takes it as ``state`` at every step."""
        if not self.supports_cross:
            return super().read_context(context, mask)
        self._check_context()
        keys_from, values_from = sources(context)
        padding_mask = checked_keep(keys_from, mask)
        hidden = None if padding_mask is None else Mask(padding_mask=padding_mask)
        keys = rows_of(keys_from, hidden)[0]
        same = values_from is keys_from
        return self.encode_context(keys, keys.x if same else rows_of(values_from, hidden)[0].x)

    def _after(self, x: Tensor, mask: Mask, state: State) -> MixerOutput:
        """Packed documents after a state: each in a row of its own, the last one's state stays."""
        assert mask.documents is not None
        packed = unpack(x, mask.documents, mask.padding_mask)
        initial = packed.initial(state, runs_after(mask.documents, mask.padding_mask))
        out = self(packed.x, mask=Mask(padding_mask=packed.padding_mask), state=initial)
        assert out.state is not None
        after = out.state.reorder(packed.row[:, -1])
        return MixerOutput(repack(out.y, packed), after, out.losses)

    def _check_context(self) -> None:
        if self.no_context is not None:
            raise UnsupportedError(self.no_context)


def _texts_of(x: Tensor, mask: Mask) -> Iterator[tuple[int, Tensor]]:
    """The row of each text in ``x`` (B, L, ...), and the indices of its real tokens in it."""
    real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
    real = real if mask.padding_mask is None else mask.padding_mask
    runs = torch.zeros_like(real, dtype=torch.long)
    runs = runs if mask.documents is None else runs_of(mask.documents, mask.padding_mask)
    for row in range(len(x)):
        for run in range(int(runs[row, -1]) + 1):
            at = (real[row] & (runs[row] == run)).nonzero().squeeze(1)
            if len(at):
                yield row, at


class BuiltMixer(Mixer):
    """Base of mixers with one constructor and one way to begin a state; a member adds both hooks.

    Args:
        width: channels of x.
        heads: H; of what the member has for each head.
        causal: whether a token sees only itself and earlier ones.
        max_length: longest sequence; needed where there is a table over positions.
        channels: of the heads together, where other mixers hold the rest (default: width).
        position: acts on queries, keys or scores, in members that take one.
        memory: rows of the past, in members that read one.
        options: the member's, or a dictionary.
    """

    Options: ClassVar[type[Any]] = NoOptions
    options: Any
    position: Any
    out: nn.Linear

    def __init__(
        self,
        *,
        width: int,
        heads: int = 1,
        causal: bool = False,
        max_length: int | None = None,
        channels: int | None = None,
        position: Position | None = None,
        memory: Memory | None = None,
        options: Any = None,
    ) -> None:
        super().__init__()
        self.options = set_options(self.Options, self.name, options)
        if channels is not None and not self.shares_heads:
            raise GeneError(f"mixer '{self.name}' cannot be some of the heads of a layer")
        if position is not None and not self.accepts_positions:
            raise GeneError(
                f"mixer '{self.name}' takes no position inside; '{position.name}' was given"
            )
        if memory is not None and not self.accepts_memory:
            raise GeneError(f"mixer '{self.name}' reads no memory; '{memory.name}' was given")
        if self.causal_only is not None and not causal:
            raise GeneError(
                f"mixer '{self.name}' is causal only ({self.causal_only}): build it with "
                "`causal=True`"
            )
        self.width, self.heads, self.causal = width, heads, causal
        self.channels, self.position, self.memory = channels or width, position, memory
        self.alone = channels is None
        self.build(max_length)

    @abstractmethod
    def build(self, max_length: int | None) -> None:
        """Parameters of the member, by the sizes and options that are attributes by now."""
        raise NotImplementedError

    def rotate(self, x: Tensor, positions: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Queries or keys at their positions; see `Position.rotate`."""
        if self.position is None or self.position.acts_on != "queries-keys":
            return x
        turned: Tensor = self.position.rotate(x, positions, lengths)
        return turned


class StreamingMixer(RowMixer, BuiltMixer):
    """Base of row mixers that continue a text."""

    supported_masks = frozenset({"padding_mask", "documents"})

    def check_seen(self, num_tokens: Tensor) -> None:
        """Refuse ``num_tokens`` (B,) beyond this mixer's table; where nobody can ask, not."""
        if readable(num_tokens):
            self.check_length(shared(largest, num_tokens))


def largest(num_tokens: Tensor) -> int:
    """The largest of these numbers (B,); reading a few is no operation."""
    return int(max(num_tokens.tolist()))


class HeadMixer(StreamingMixer):
    """Base of row mixers with heads (B, H, L, D) of one size."""

    def build(self, max_length: int | None) -> None:
        self.head_dim = heads_divide(self.channels, self.heads, self.name)

    def add_projections(self, bias: tuple[str, ...], key_dim: int | None = None) -> None:
        """Projections of x to queries, keys and values, and of all heads to the output.

        ``key_dim``: channels of a head's queries and keys (default: those of its values).
        """
        sizes = (key_dim or self.head_dim, self.head_dim)
        self.project = HeadProjections((self.width,) * 3, (self.heads, self.heads), sizes, bias)
        self.out = nn.Linear(self.channels, self.width, bias="output" in bias)
        if self.out.bias is not None:
            nn.init.zeros_(self.out.bias)

    def merge(self, y: Tensor) -> Tensor:
        """The output (B, L, width) of what the heads give, (B, H, L, D)."""
        return self.out(y.transpose(1, 2).flatten(2))

    @property
    def dropout(self) -> float:
        """Rate at which weights are dropped, 0 outside training."""
        return float(self.options.attention_dropout) if self.training else 0.0
