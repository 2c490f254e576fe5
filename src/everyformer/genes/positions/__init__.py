"""Positions: how order enters, one file each; `POSITIONS` finds them, `POSITION` is the gene."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from everyformer.core.config import Choice, from_dict
from everyformer.core.errors import GeneError
from everyformer.core.registry import Registry
from everyformer.genes.config import EMBEDDING_STD, ModelConfig
from everyformer.genes.gene import Gene

if TYPE_CHECKING:
    from everyformer.core.position import Position

POSITIONS: Registry[type[Position]] = Registry(
    "position", __name__, "everyformer.core.position:Position", helpers=("rope_scaling",)
)


class PositionGene(Gene):
    """The gene of order: in the embeddings, every layer's input, queries and keys, or scores."""

    name = "position"
    question = "how order enters; none leaves it to the mixer"
    always_named = True
    in_mixers = True

    def build_for_mixer(
        self, plan: ModelConfig, mixer: Any, options: Any, of_first: Position | None, layer: int
    ) -> Position | None:
        """The position on queries and keys or on scores; some are one for all layers."""
        acts_on = self.acts_on(plan)
        if acts_on not in ("queries-keys", "scores"):
            return None
        name = plan.genes[self.name].name
        if not mixer.accepts_positions:
            raise GeneError(
                f"position '{name}' acts on {acts_on.replace('-', ' and ')}, but mixer "
                f"'{mixer.name}' {mixer.positionless}: use position "
                f"'sinusoidal', 'learned' or none with '{mixer.name}', or a softmax attention with "
                f"'{name}'"
            )
        if of_first is not None and of_first.shared:
            return of_first
        position = self._of(plan, options)
        if of_first is not None:
            position.join(of_first)
        return position

    def build_standalone(
        self, choice: Choice, mixer: Any, options: Any, sizes: dict[str, Any]
    ) -> Position:
        if not mixer.accepts_positions:
            raise GeneError(
                f"mixer '{mixer.name}' takes no position inside; '{choice.name}' was given"
            )
        inside = head_sizes(options, sizes["width"], sizes["heads"])
        return make_position(str(choice.name), choice.options, **sizes, **inside)

    def build_for_stack(self, plan: ModelConfig) -> list[Position] | None:
        """Positions that are added to the inputs of layers, one a layer."""
        if self.acts_on(plan) != "layers":
            return None
        return [self._of(plan) for _ in range(plan.layers)]

    def embedded(self, plan: ModelConfig) -> Position | None:
        """The position that is added to the embeddings."""
        return self._of(plan) if self.acts_on(plan) == "embeddings" else None

    def acts_on(self, plan: ModelConfig) -> str | None:
        """The place where the chosen position acts; None: there is none."""
        name = plan.genes[self.name].name
        return None if name is None else POSITIONS.get(name).acts_on

    def _of(self, plan: ModelConfig, options: Any = None) -> Position:
        """``options`` are those of the mixer that it lives in, if it does."""
        choice = plan.genes[self.name]
        return make_position(
            str(choice.name),
            choice.options,
            plan.embedding_spread,
            width=plan.width,
            heads=plan.heads,
            **head_sizes(options, plan.width, plan.heads),
            max_length=plan.tokens,
            causal=bool(plan.causal),
        )


def make_position(
    name: str, options: dict[str, Any], std: float = EMBEDDING_STD, **sizes: Any
) -> Position:
    """The position called ``name``.

    Args:
        std: standard deviation of the token embeddings at the start.
        sizes: those of `Position`'s constructor.
    """
    cls: Any = POSITIONS.get(name)
    if not cls.adds_to_values:
        sizes.pop("value_dim", None)
    own = from_dict(cls.Options, options, f"{name}.")
    position: Position = cls(options=cls.scaled_to(own, std), **sizes)
    return position


def head_sizes(options: Any, width: int, heads: int) -> dict[str, int]:
    """Channels of one head's queries and keys and of its values, by the options of a mixer."""
    equal = width // max(heads, 1)
    widths = getattr(options, "widths", None)
    if widths is None:
        return {"head_dim": getattr(options, "key_dim", None) or equal, "value_dim": equal}
    size = widths.key_dim or equal
    return {"head_dim": size, "value_dim": widths.value_dim or size}


POSITION = PositionGene(POSITIONS, "sinusoidal")
