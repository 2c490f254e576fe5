"""Choices that follow from the others where nothing is said: causality, scaled embeddings."""

import dataclasses

from everyformer.core.errors import GeneError, UnsupportedError
from everyformer.core.member import Member
from everyformer.core.tasks import TASKS
from everyformer.family import info, list_members
from everyformer.genes.config import ModelConfig


def completed(config: ModelConfig) -> ModelConfig:
    """``config`` with what it leaves open decided.

    Raises:
        GeneError: causality that the task or the member contradicts.
        UnsupportedError: the member has not this task.
    """
    require_task(info(config.member), config.task)
    scaled = config.scale_embedding
    if scaled is None:
        scaled = scales_embedding(config)
    return dataclasses.replace(config, causal=is_causal(config), scale_embedding=scaled)


def require_task(member: Member, task: str) -> None:
    """Refuse a task that ``member`` has not, and name the members that have it."""
    if task in member.tasks:
        return
    able = [m.name for m in list_members(task=task)]
    if TASKS[task].interacts and isinstance(member.streaming, str):
        raise UnsupportedError(
            f"member '{member.name}' cannot be a policy, which reads step by step: "
            f"{member.streaming}. Members that can: {', '.join(able)}"
        )
    raise UnsupportedError(
        f"member '{member.name}' has no task '{task}' (it has {', '.join(member.tasks)}); "
        f"members that do: {', '.join(able)}"
    )


def scales_embedding(config: ModelConfig) -> bool:
    """Scaling of embeddings where nothing is said: fixed waves of unit size must not
    dominate (2017 paper), and text is learnt late from embeddings of 0.02 before layers of usual
    size."""
    waves = config.genes["position"].name == "sinusoidal"
    return waves or (TASKS[config.task].embeds_text and config.init == "member")


def is_causal(config: ModelConfig) -> bool:
    """Causality of a model: for what is generated, or where the member cannot else."""
    member = info(config.member)
    generative = TASKS[config.task].forward_only
    if config.causal is False and generative:
        raise GeneError(
            f"task '{config.task}' predicts what comes next, so causal=False would leak"
        )
    if (
        TASKS[config.task].translates
        and config.genes["encoder"].name is None
        and not member.can("bidirectional")
    ):
        raise GeneError(
            f"member '{member.name}' cannot be an encoder: {member.bidirectional}; give another "
            "one with encoder=..."
        )
    if TASKS[config.task].predicts == "hidden" and config.causal:
        raise GeneError("task 'mlm' reads both sides of a hidden token; causal=True has no meaning")
    causal = generative or bool(config.causal) or not member.can("bidirectional")
    if causal and not member.can("causal"):
        raise GeneError(f"member '{member.name}' cannot be causal: {member.causal}")
    if config.causal is False and not member.can("bidirectional"):
        raise GeneError(f"member '{member.name}' is always causal: {member.bidirectional}")
    return causal
