"""One layer: a mixer and a feed-forward, each joined to the stream by a residual connection.

f = drop(mixer(.)),  then f = drop(ffn(.));     a decoder's reads an encoder's output between
"""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from torch import Tensor, nn

from everyformer.blocks.feedforward import FeedForward
from everyformer.blocks.options import BlockOptions
from everyformer.blocks.parts import drop, make_norm
from everyformer.blocks.residual import Around, Part, Residual, Stream
from everyformer.core.dispatch import take
from everyformer.core.errors import ShapeError
from everyformer.core.mask import Mask
from everyformer.core.mixer import Mixer
from everyformer.core.outputs import LayerOutput, Losses, MixerOutput
from everyformer.core.state import LayerState, State
from everyformer.core.subset import TokenSubset
from everyformer.engines.drawing import uniform_rows


class Block(nn.Module):
    """A layer around any `Mixer`; the feed-forward is left out where the mixer has one.

    Args:
        residual: how sub-layers are joined.
        feedforward: makes that of a mixer's layer.
        cross: the mixer that reads the context; None in all but decoders.
    """

    def __init__(
        self,
        mixer: Mixer,
        options: BlockOptions,
        residual: Residual,
        feedforward: Callable[[Mixer], FeedForward],
        drop_path: float = 0.0,
        cross: Mixer | None = None,
    ) -> None:
        super().__init__()
        self.residual = residual
        self.mixer = mixer
        self.mixer_norm = make_norm(mixer.width, options)
        self.cross = cross
        self.cross_norm = None if cross is None else make_norm(mixer.width, options)
        self.feedforward = feedforward(mixer) if mixer.with_feedforward else None
        self.feedforward_norm = make_norm(mixer.width, options) if self.feedforward else None
        self.mixer_gate = self.residual.make_gate(mixer.width)
        self.cross_gate = self.residual.make_gate(mixer.width) if self.cross else None
        self.feedforward_gate = self.residual.make_gate(mixer.width) if self.feedforward else None
        self.dropout = options.dropout
        self.drop_path = drop_path

    @property
    def parts(self) -> list[Part]:
        """The sub-layers that this layer has, in order."""
        there: tuple[tuple[Part, nn.Module | None], ...] = (
            ("mixer", self.mixer),
            ("cross", self.cross),
            ("feedforward", self.feedforward),
        )
        return [part for part, module in there if module is not None]

    def forward(
        self,
        stream: Stream,
        *,
        context: State | None = None,
        mask: Mask | None = None,
        state: State | None = None,
        taps: Collection[str] = (),
        chosen: TokenSubset | None = None,
    ) -> LayerOutput:
        """The stream, (batch, length, width) or what `residual` makes of it, through the layer.

        Losses are the mixer's; ``taps`` names tensors inside to return. ``context`` is what
        ``cross.read_context`` gave. It may have fewer rows than the stream: then each is read by
        as many neighbouring rows of it (the beams of one sentence). With ``chosen`` tokens
        what reads other tokens reads all, and what comes out are these alone, (rows, n, width).
        """
        losses: Losses = {}
        tapped: dict[str, Tensor] = {}
        early, late = (chosen, None) if self.by_token else (None, chosen)
        if early is not None and early.rows is not None and context is not None:
            context = context.reorder(early.rows // (len(stream) // len(context.num_tokens)))
        for part in self.parts:
            first = early if part == "mixer" else None
            f = partial(self.branch, part, context=context, mask=mask, state=state, chosen=first)
            stream, out = self.residual.step(stream, self.around(part), f, first)
            tapped |= {name: inside for name, inside in out.taps.items() if name in taps}
            state, losses = out.state, losses | out.losses
        if late is not None:
            assert self.feedforward is not None
            named = f"feed-forward {self.feedforward.name}"
            take(named, "all tokens", "it reads neighbours of every token")
            stream = self.residual.pick(stream, late)
        return LayerOutput(stream, state, losses, tapped)

    def branch(
        self,
        part: Part,
        x: Tensor,
        *,
        context: State | None = None,
        mask: Mask | None = None,
        state: State | None = None,
        chosen: TokenSubset | None = None,
    ) -> LayerOutput:
        """Output of one sub-layer for what it reads, (batch, length, width), dropped out.

        The state is the layer's after this sub-layer. The mixer answers for the tokens ``chosen``
        alone, as in `forward`.
        """
        if part == "mixer":
            y, after, losses = self._mix(x, mask, self._of_mixer(state), chosen)
            if isinstance(state, LayerState) and after is not None:
                after = LayerState(after.num_tokens, after, state.feedforward)
            return LayerOutput(self._thin(y), after, losses, {"attention-output": y})
        if part == "cross":
            return LayerOutput(self._thin(self._read(x, context)), state, {}, {})
        assert self.feedforward is not None
        carried = state.feedforward if isinstance(state, LayerState) else None
        y, after = self.feedforward(x, mask, carried)
        if isinstance(state, LayerState) and after is not None:
            state = LayerState(state.num_tokens, state.mixer, after)
        return LayerOutput(self._thin(y), state, {}, {"ffn-input": x})

    @property
    def by_token(self) -> bool:
        """True if all after the mixer works on single tokens."""
        return self.feedforward is None or self.feedforward.by_token

    @property
    def can_append(self) -> bool:
        """True if tokens can be taken in later, for less than the cost of outputs."""
        return self.by_token and (self.mixer.can_append() or self.mixer.supports_subset)

    def init_state(self, batch_size: int, **like: Any) -> State:
        """The state before the first token; ``like``: device and dtype, where they are not the
        weights'. Raises `UnsupportedError` if the mixer has none."""
        mixer = self.mixer.init_state(batch_size, **like)
        feed = self.feedforward
        carried = None if feed is None else feed.init_state(batch_size, **like)
        return mixer if carried is None else LayerState(mixer.num_tokens, mixer, carried)

    def _of_mixer(self, state: State | None) -> State | None:
        """The mixer's part of the layer's state."""
        if state is None or self.by_token:
            return state
        if not isinstance(state, LayerState):
            assert self.feedforward is not None
            raise ShapeError(
                f"a layer with feed-forward '{self.feedforward.name}' continues from a LayerState, "
                f"which holds what its convolutions have read, not from a {type(state).__name__}: "
                "begin with init_state() of this model"
            )
        return state.mixer

    def around(self, part: Part) -> Around:
        """The norm and the gate of a sub-layer."""
        return Around(getattr(self, f"{part}_norm"), getattr(self, f"{part}_gate"))

    def weights_of(self, part: Part) -> dict[str, nn.Parameter]:
        """The parameters that one sub-layer, its norm and its gate use, by name."""
        names = (f"{part}_norm", part, f"{part}_gate")
        modules = ((name, getattr(self, name)) for name in names)
        return {
            k: w
            for name, part in modules
            if part is not None
            for k, w in part.named_parameters(name)
        }

    def append(
        self,
        stream: Stream,
        *,
        context: State | None = None,
        mask: Mask | None = None,
        state: State,
    ) -> State:
        """Take the layer's input into its state without computing the layer's output, as far as
        nothing in the state is made of that."""
        if not self.by_token:
            after = self(stream, context=context, mask=mask, state=state).state
            assert after is not None
            return after
        read = self.residual.read(stream, self.around("mixer"))
        return self.mixer.append(read, mask=mask, state=state)

    def _mix(
        self, x: Tensor, mask: Mask | None, state: State | None, chosen: TokenSubset | None
    ) -> MixerOutput:
        """Output of the mixer for all tokens, or for those ``chosen``."""
        if chosen is not None and self.mixer.supports_subset:
            return self.mixer.answer(x, chosen, mask, state)
        out: MixerOutput = self.mixer(x, mask=mask, state=state)
        if chosen is None:
            return out
        take(f"mixer {self.mixer.name}", "all tokens", "it cannot answer for some of them alone")
        return out._replace(y=chosen.pick(out.y))

    def _read(self, x: Tensor, context: State | None) -> Tensor:
        """Context of the cross-mixer for ``x``."""
        assert self.cross is not None
        if context is None:
            raise ShapeError("a decoder's layer needs the encoder's output as its context")
        encoded = len(context.num_tokens)
        if x.shape[0] % encoded:
            raise ShapeError(
                f"{x.shape[0]} rows cannot read {encoded} encoded ones: give a row for each, or as "
                "many for each (the beams of one)"
            )
        rows = x.reshape(encoded, -1, x.shape[-1])
        y: Tensor = self.cross(rows, state=context).y
        return y.view_as(x)

    def _thin(self, y: Tensor) -> Tensor:
        """Dropout, and stochastic depth by sample with the survivors scaled up."""
        y = drop(y, self.dropout, self.training)
        if self.drop_path == 0.0 or not self.training:
            return y
        alive = uniform_rows((y.shape[0], 1, 1), y.device) >= self.drop_path
        return y * (alive / (1 - self.drop_path)).to(y.dtype)
