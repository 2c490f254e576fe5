"""Residual connections: how sub-layers join the stream, one file each; `RESIDUAL` is the gene."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from everyformer.core.errors import GeneError
from everyformer.core.registry import Registry
from everyformer.genes.config import ModelConfig
from everyformer.genes.gene import Gene

if TYPE_CHECKING:
    from everyformer.blocks.residual import Residual

RESIDUALS: Registry[type[Residual]] = Registry(
    "residual", __name__, "everyformer.blocks.residual:Residual"
)


class ResidualGene(Gene):
    """Place of the norm, and stream from layer to layer."""

    name = "residual"
    training_detail = True
    question = (
        "how sub-layers are joined to the stream: pre, x + f(norm(x)); post, norm(x + f(x)), as "
        "published in 2017; reversible, x1 + f(norm(x2)), whose activations are not saved; gated, "
        "g(x, relu(f(norm(x)))) with a gate that is learned"
    )

    def check(self, plan: ModelConfig, mixers: Sequence[Any]) -> None:
        """Refuse two halves that nobody reads, and gates where sub-layers are left out."""
        residual = self.typed(plan.genes[self.name])
        if residual.name == "reversible" and residual.get("reversible_output") == "concat":
            self._check_halves(plan)
        if residual.name == "gated" and plan.block.drop_path:
            self._check_gate(str(residual.get("gate")), plan.block.drop_path)

    def _check_halves(self, plan: ModelConfig) -> None:
        """Two halves side by side fit neither tied embeddings nor a decoder that reads them."""
        task = plan.does
        if task.translates:
            raise GeneError(
                "`reversible_output='concat'` gives twice the width, which a decoder does not "
                "read: use `reversible_output='mean'` with task 'seq2seq'"
            )
        tied = plan.tie and task.embeds_text and not task.answers
        if tied and not (task.predicts == "hidden" and plan.head_transform):
            raise GeneError(
                "`reversible_output='concat'` gives twice the width, but `tie=True` makes the "
                "output layer as wide as the embeddings: use `tie=False`, or "
                "`reversible_output='mean'`"
            )

    def _check_gate(self, gate: str, drop_path: float) -> None:
        """A gate makes something of a sub-layer that is left out, unless it adds."""
        from everyformer.genes.residuals._gates import GATES

        if gate in GATES and not GATES[gate].keeps_stream:
            raise GeneError(
                f"`drop_path={drop_path}` leaves sub-layers out, but gate '{gate}' of "
                "residual 'gated' changes the stream without them too: use `drop_path=0`, or gate "
                "'output', 'sigtanh' or 'residual'"
            )

    def build_for_stack(self, plan: ModelConfig) -> Residual:
        residual: Residual = self.make(plan.genes[self.name])
        return residual


RESIDUAL = ResidualGene(RESIDUALS, "pre", needed=True)
