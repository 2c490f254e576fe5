"""Memories: past keys and values that attention reads too, one file each; `MEMORY` is the gene."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from everyformer.core.config import Choice
from everyformer.core.errors import GeneError
from everyformer.core.registry import Registry
from everyformer.core.tasks import tasks_that
from everyformer.genes.config import ModelConfig
from everyformer.genes.gene import Gene
from everyformer.genes.positions import POSITION

if TYPE_CHECKING:
    from everyformer.genes.memory.base import Memory

MEMORIES: Registry[type[Memory]] = Registry(
    "memory", __name__, "everyformer.genes.memory.base:Memory"
)


class MemoryGene(Gene):
    """The memory gene: keys and values that layers carry from one segment of a text to the next."""

    name = "memory"
    question = (
        "what is carried from one segment of a text to the next; none: texts are read by themselves"
    )
    in_mixers = True
    holds_weights = False

    def check(self, plan: ModelConfig, mixers: Sequence[Any]) -> None:
        """Refuse mixers that read none, a task without segments, and rows that look alike."""
        name = plan.genes[self.name].name
        if name is None:
            return
        cls: Any = MEMORIES.get(name)
        for mixer in mixers:
            if not mixer.accepts_memory:
                raise GeneError(
                    f"memory '{name}' is read {cls.merges}, which mixer '{mixer.name}' has not: "
                    "use it with 'attention'"
                )
        if not plan.does.continues:
            raise GeneError(
                f"memory '{name}' carries a text from segment to segment (tasks "
                f"{', '.join(tasks_that('continues'))}); task '{plan.task}' reads each input by "
                "itself"
            )
        acts_on = POSITION.acts_on(plan)
        if acts_on in ("embeddings", "layers"):
            what = "the embeddings" if acts_on == "embeddings" else "every layer's input"
            raise GeneError(
                f"position '{plan.genes[POSITION.name].name}' is added to {what} and so would be "
                f"remembered too: memory '{name}' needs distances, as positions 'xl-relative', "
                "'t5-relative', 'alibi' or 'rope' give them"
            )

    def learned_without(self, choice: Choice) -> dict[str, Any]:
        return {} if choice.name is None else dict(MEMORIES.get(choice.name).learned_without)

    def build_for_mixer(
        self, plan: ModelConfig, mixer: Any, options: Any, of_first: Memory | None, layer: int
    ) -> Memory | None:
        choice = self.typed(plan.genes[self.name])
        if choice.name is None:
            return None
        # some layers may have another one, or the same with other options
        choice = MEMORIES.get(choice.name).in_layer(choice, layer, plan.layers)
        memory: Memory = self.make(choice, width=plan.width)
        return memory

    def build_standalone(
        self, choice: Choice, mixer: Any, options: Any, sizes: dict[str, Any]
    ) -> Memory:
        if not mixer.accepts_memory:
            raise GeneError(f"mixer '{mixer.name}' reads no memory; '{choice.name}' was given")
        memory: Memory = self.make(choice, width=sizes["width"])
        return memory


MEMORY = MemoryGene(MEMORIES)
