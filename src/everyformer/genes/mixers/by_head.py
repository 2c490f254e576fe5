"""Different mixers in the heads of one layer: half of them local, half global, or any such split.

    Y = sum_g mixer_g(X),   mixer_g with the n_g heads that bear its name, n_g d / H channels wide

Every mixer reads all of X and has an output projection of its own, which is the same as one W_o
over the concatenated heads: concat_g(O_g) W_o = sum_g O_g W_o,g. With one name for all heads it is
that mixer itself.

Cost and state: those of the parts together. A mask part is honoured if all parts honour it. A
position that acts on queries, keys or scores lives inside the parts that have such; at least one
must, and head h keeps what the position has for head h of the layer. Sources: heads of different
kinds in one layer are used by Child et al. 2019 (arXiv 1904.10509, section 4.3) and Roy et al. 2020
(arXiv 2003.05997, section 4); the free choice is ours.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from everyformer.core.config import Options
from everyformer.core.errors import ConfigError, GeneError
from everyformer.core.mask import Mask
from everyformer.core.mixer import Context, Mixer, Picture, heads_divide, set_options
from everyformer.core.outputs import Losses, MixerOutput, add_losses
from everyformer.core.position import Position
from everyformer.core.state import State, state
from everyformer.genes.mixers import MIXERS


@dataclass(frozen=True)
class ByHeadOptions(Options):
    """Options of `ByHead`."""

    mixers: tuple[str, ...] = ()
    """the mixer of each head, by name; heads of the same name are one mixer"""
    own: dict[str, dict[str, Any]] = field(default_factory=dict)
    """options of each mixer, by its name"""


@state
class ByHeadState(State):
    """The states of the parts, in the order of their first heads."""

    num_tokens: Tensor
    parts: tuple[State, ...]


@MIXERS.register("by-head")
class ByHead(Mixer):
    """Mixers by head: different ones side by side in one layer, each with some of its heads.

    ``options.mixers`` has a name for each of ``heads``; a position acts inside the parts that
    accept it.

    Raises:
        GeneError: names and heads differ in number, or a mixer cannot share a layer.
        ConfigError: options of a mixer that has no head here.
    """

    name = "by-head"
    accepts_positions = True
    states = (ByHeadState,)
    Options = ByHeadOptions

    def __init__(
        self,
        *,
        width: int,
        heads: int = 1,
        causal: bool = False,
        max_length: int | None = None,
        position: Position | None = None,
        options: Any = None,
    ) -> None:
        super().__init__()
        o: ByHeadOptions = set_options(ByHeadOptions, self.name, options)
        self.width, self.causal, self.options = width, causal, o
        if len(o.mixers) != heads:
            raise GeneError(
                f"`heads={heads}`, but `mixers={o.mixers!r}` names {len(o.mixers)}: give one a head"
            )
        size = heads_divide(width, heads, self.name)
        names = list(dict.fromkeys(o.mixers))
        if strangers := [name for name in o.own if name not in names]:
            raise ConfigError(
                f"by-head has options for '{strangers[0]}', which no head uses; heads use "
                f"{', '.join(names)}"
            )
        classes: list[Any] = [MIXERS.get(name) for name in names]
        for name, cls in zip(names, classes, strict=True):
            if not cls.shares_heads:
                raise GeneError(
                    f"mixer '{name}' cannot be some of the heads of a layer (it has no heads of "
                    "its own size); give it a layer with mixer=by_layer(...)"
                )
        if position is not None and not any(cls.accepts_positions for cls in classes):
            raise GeneError(
                f"position '{position.name}' acts on {position.acts_on.replace('-', ' and ')}, "
                f"which none of {', '.join(names)} has"
            )
        chosen = {name: [h for h, mixer in enumerate(o.mixers) if mixer == name] for name in names}
        parts = []
        for name, cls in zip(names, classes, strict=True):
            count = len(chosen[name])
            inside = {}
            if position is not None and cls.accepts_positions:
                inside["position"] = position.of_heads(chosen[name])
            sizes = {"width": width, "heads": count, "channels": count * size}
            checked = set_options(cls.Options, name, o.own.get(name))
            cls.check_layer(checked, width, f"own.{name}")
            parts.append(
                cls(causal=causal, max_length=max_length, options=checked, **sizes, **inside)
            )
        self.parts = nn.ModuleList(parts)
        self.supported_masks = frozenset.intersection(*(p.supported_masks for p in self._parts()))  # type: ignore[misc]
        self.supports_cross = all(p.supports_cross for p in self._parts())  # type: ignore[misc]
        self.output_layers = tuple(
            f"parts.{n}.{name}" for n, p in enumerate(self._parts()) for name in p.output_layers
        )
        self.non_causal_reason = next(
            filter(None, (p.non_causal_reason for p in self._parts())), None
        )
        self.counts_tokens = any(p.counts_tokens for p in self._parts())
        longest = [p.max_length for p in self._parts() if p.max_length is not None]
        self.max_length = min(longest, default=None)

    @classmethod
    def for_pictures(cls, options: ByHeadOptions, picture: Picture) -> ByHeadOptions:
        own = {}
        for name in dict.fromkeys(options.mixers):
            mixer: Any = MIXERS.get(name)
            checked = set_options(mixer.Options, name, options.own.get(name))
            own[name] = dataclasses.asdict(mixer.for_pictures(checked, picture))
        return dataclasses.replace(options, own=options.own | own)

    def forward(
        self,
        x: Tensor,
        *,
        context: Context | None = None,
        mask: Mask | None = None,
        state: State | None = None,
    ) -> MixerOutput:
        self.check_input(x, context, mask, state)
        before = cast(ByHeadState, state).parts if state is not None else None
        y = torch.zeros_like(x)
        losses: Losses = {}
        after: list[Any] = []
        for n, part in enumerate(self._parts()):
            own = None if before is None else before[n]
            out = part(x, context=context, mask=mask, state=own)
            y = y + out.y
            add_losses(losses, out.losses)
            after.append(out.state)
        new = None if before is None else ByHeadState(after[0].num_tokens, tuple(after))
        return MixerOutput(y, new, losses)

    def reference(
        self, x: Tensor, *, context: Context | None = None, mask: Mask | None = None
    ) -> Tensor:
        """The sum of the parts' references."""
        parts = [part.reference(x, context=context, mask=mask) for part in self._parts()]
        return torch.stack(parts).sum(0)

    @property
    def continues(self) -> bool:
        return all(part.continues for part in self._parts())

    def empty_state(self, batch: int, **like: Any) -> ByHeadState:
        parts = tuple(part.init_state(batch, **like) for part in self._parts())
        return ByHeadState(parts[0].num_tokens, parts)

    def take_in(self, x: Tensor, mask: Mask | None, state: State) -> State:
        before = cast(ByHeadState, state).parts
        pairs = zip(self._parts(), before, strict=True)
        after = tuple(part.append(x, mask=mask, state=own) for part, own in pairs)
        return ByHeadState(after[0].num_tokens, after)

    def _parts(self) -> list[Mixer]:
        return [cast(Mixer, part) for part in self.parts]
