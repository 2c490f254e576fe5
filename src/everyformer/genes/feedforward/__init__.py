"""Feed-forwards: the network after a mixer, one file each; `FEEDFORWARD` is the gene."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from everyformer.core.bounds import Dropout, Positive
from everyformer.core.config import Options
from everyformer.core.errors import GeneError
from everyformer.core.registry import Registry
from everyformer.genes.config import ModelConfig
from everyformer.genes.depth import DEPTH
from everyformer.genes.gene import Gene

if TYPE_CHECKING:
    from everyformer.blocks.feedforward import FeedForward

DENSE = ("gelu", "gelu-tanh", "gelu-sigmoid", "relu", "silu", "swiglu", "geglu")
FEEDFORWARDS: Registry[type[FeedForward]] = Registry(
    "feedforward",
    __name__,
    "everyformer.blocks.feedforward:FeedForward",
    files=dict.fromkeys(DENSE, "_dense"),
)


@dataclass(frozen=True)
class FeedForwardOptions(Options):
    """Options of all feed-forwards of this library."""

    expansion: Positive = 4.0
    """hidden channels, times width"""
    feedforward_bias: bool = True
    """whether the linear layers have biases"""
    feedforward_dropout: Dropout | None = None
    """dropout of the hidden channels (default: that of the layer)"""


class FeedForwardGene(Gene):
    """Map of each token's channels, by itself or among its neighbours."""

    name = "feedforward"
    question = (
        "the network after a layer's mixer (a mixer that contains one gets none): two linear "
        "layers with gelu, gelu-tanh, gelu-sigmoid, relu or silu between, with a gate swiglu and "
        "geglu; sepconv, separable convolutions over 3 and 5 tokens, with ReLU"
    )
    training_detail = True
    tried = ("gelu", "sepconv")

    def build_for_stack(self, plan: ModelConfig) -> Callable[..., FeedForward]:
        """Make one for the layer of a mixer."""
        choice, dropout = plan.genes[self.name], plan.block.dropout

        def make(mixer: Any) -> FeedForward:
            sizes = {"width": mixer.width, "causal": mixer.causal, "dropout": dropout}
            made: FeedForward = self.make(choice, **sizes)
            return made

        return make

    def check(self, plan: ModelConfig, mixers: Sequence[Any]) -> None:
        """Refuse tokens that leave early where others read what their layers make."""
        name = str(plan.genes[self.name].name)
        if DEPTH.exits(plan) and not FEEDFORWARDS.get(name).by_token:
            raise GeneError(
                f"depth '{plan.genes[DEPTH.name].name}' needs the keys of tokens that have left "
                f"without their outputs, but feedforward '{name}' reads what the layers make of "
                "neighbours, so that all must be computed: use another feedforward, 'relu' say"
            )


FEEDFORWARD = FeedForwardGene(FEEDFORWARDS, "gelu", needed=True)
