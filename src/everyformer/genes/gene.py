"""`Gene`: one place of the machine where members differ, with the alternatives that fill it.

A member is a choice for every gene. All that a gene needs is in its record: which alternatives
there are, which one a model has by default, which others it contradicts, and what of it
goes into a layer's mixer or around the whole stack. Whoever handles genes (configs, flags, files,
pages, laws, comparisons) walks the one list `everyformer.genes.GENES`.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, final

from everyformer.core.config import Choice, NoOptions, Options, from_dict, to_dict
from everyformer.core.errors import ConfigError
from everyformer.core.registry import Registry
from everyformer.genes.config import ModelConfig

NONE = ("none", "None")
"""how a person writes that nothing is chosen"""


class Gene:
    """One record; a gene that has something to check or to build overrides the hooks.

    Args:
        alternatives: the registry of what may be chosen.
        default: what a model has by default; None: nothing.
        needed: whether something must be chosen.
    """

    name: ClassVar[str]
    question: ClassVar[str]
    """what it answers, in the words of `--help`"""

    always_named: ClassVar[bool] = False
    """whether a member's page names it even where it is the usual one"""
    training_detail: ClassVar[bool] = False
    """whether it is around the layers and no member's subject: comparisons name it among what
    differs besides, laws of several layers draw it; its alternatives then have ``trials``"""
    tried: ClassVar[tuple[str, ...]] = ()
    """alternatives that those laws draw (default: all)"""
    in_mixers: ClassVar[bool] = False
    """whether a mixer that is built by itself may have it"""

    holds_weights: ClassVar[bool] = True
    """whether weights learned with one alternative mean nothing to another"""

    def __init__(
        self, alternatives: Registry[Any], default: str | None = None, needed: bool = False
    ) -> None:
        self.alternatives, self.default, self.needed = alternatives, default, needed

    def options(self, name: str | None) -> type[Options]:
        """The options of an alternative; of none `NoOptions`.

        Raises:
            UnknownNameError, ConfigError: no such alternative, or none where one is needed.
        """
        if name is None and self.needed:
            raise ConfigError(f"a model needs a {self.name}: name one, not none")
        if name is None:
            return NoOptions
        kind: type[Options] = self.alternatives.get(name).Options
        return kind

    def typed(self, choice: Choice) -> Choice:
        """The choice with its options as their own class, defaults filled in.

        Raises:
            UnknownNameError, ConfigError: no such alternative, or no such options.
        """
        if isinstance(choice.options, Options):
            return choice
        kind = self.options(choice.name)
        return Choice(choice.name, from_dict(kind, choice.options, f"{choice.name}."))

    def filled(self, choice: Choice) -> Choice:
        """The choice with all its options as plain values, those of layers of others too."""
        values = to_dict(from_dict(self.options(choice.name), choice.options))
        for name, own in values.get("own", {}).items():
            values["own"][name] = to_dict(from_dict(self.options(name), own))
        return Choice(choice.name, values)

    def learned_without(self, choice: Choice) -> dict[str, Any]:
        """Options with which an alternative leaves weights that were learned without it as they
        are."""
        return {}

    def learned_as(self, choice: Choice) -> Choice:
        """The alternative under which weights mean the same as under this one."""
        return choice

    @final
    def make(self, choice: Choice, **sizes: Any) -> Any:
        """The alternative that ``choice`` names, with its options; None: there is none."""
        if choice.name is None:
            return None
        return self.alternatives.get(choice.name)(options=self.typed(choice).options, **sizes)

    def check(self, plan: ModelConfig, mixers: Sequence[Any]) -> None:
        """Refuse what contradicts the other genes, with both named.

        Args:
            mixers: the classes of the layers' mixers.

        Raises:
            GeneError: what clashes with what, and why.
        """

    def build_for_mixer(
        self, plan: ModelConfig, mixer: Any, options: Any, of_first: Any, layer: int
    ) -> Any:
        """Argument of a layer's mixer by this gene's name; None: it takes none.

        Args:
            mixer: the mixer's class. options: the mixer's.
            of_first: the argument of the first layer's mixer; None in the first layer.
            layer: number of the layer, counted from 0.
        """
        return None

    def build_standalone(
        self, choice: Choice, mixer: Any, options: Any, sizes: dict[str, Any]
    ) -> Any:
        """Argument of a mixer that is built by itself, of genes that live `in_mixers`.

        Args:
            sizes: width, heads, causal and max_length of the mixer.
        """
        raise NotImplementedError

    def build_for_stack(self, plan: ModelConfig) -> Any:
        """Argument of the stack of layers by this gene's name; None: it takes none."""
        return None


def layer_choice(plan: ModelConfig, layer: int) -> Choice:
    """Name and options of the mixer of one layer, counted from 0."""
    chosen: dict[str, Any] = {name: values[layer] for name, values in plan.schedule.items()}
    every = plan.genes["mixer"]
    return Choice(chosen.pop("mixer", every.name), {**every.options, **chosen})


def plain_choice(value: Any) -> Choice:
    """The choice by a name, 'none', or a `Choice`, as a person writes it."""
    if isinstance(value, Choice):
        return value
    return Choice(None if value in NONE else value)
