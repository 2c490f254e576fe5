"""Contradictions between what is chosen about a model and its task, refused before it is built.

Every refusal names both sides and says why. What genes say of one another stands with the genes.
"""

from collections.abc import Sequence

from everyformer.core.errors import ConfigError, GeneError
from everyformer.core.mixer import Mixer
from everyformer.core.tasks import tasks_that
from everyformer.genes.config import ModelConfig
from everyformer.genes.depth import DEPTH
from everyformer.genes.mixers import MIXERS
from everyformer.genes.positions import POSITION

GLOBALS = frozenset({"padding_mask", "global_tokens"})
"""parts of a mask that mark global tokens for a mixer"""


def check_model(config: ModelConfig) -> None:
    """Refuse what the task of a model contradicts."""
    task = config.does
    if config.loss_chunk is not None and (task.answers or task.acts):
        why = "predicts once for a whole row" if task.answers else "reads none"
        raise GeneError(
            f"`loss_chunk={config.loss_chunk}` cuts a text into pieces, but task '{config.task}' "
            f"{why}: leave it out"
        )
    if len(config.target_mean) != len(config.target_std) or not config.target_mean:
        raise ConfigError(
            f"target_mean has {len(config.target_mean)} numbers and target_std "
            f"{len(config.target_std)}: each number that is predicted has both"
        )
    tied = config.tie and not (task.answers or task.pictures or task.acts)
    if config.init == "sparse-transformer" and tied:
        raise GeneError(
            "`init='sparse-transformer'` starts the output layer at 0, but `tie=True` makes it the "
            "table of tokens: use `tie=False`"
        )
    _check_summaries(config)
    if config.causal and config.pooling in ("class", "first"):
        raise GeneError(
            f"`pooling='{config.pooling}'` reads the first token, but `causal=True` lets it see "
            "only itself: use `pooling='mean'` or 'last' with a causal mixer"
        )


def _check_summaries(config: ModelConfig) -> None:
    """Refuse summaries that do not fit the task, the position or the pooling."""
    chosen, position = config.summaries, config.genes["position"].name
    if chosen.cpc and (chosen.per is None or config.does.predicts != "hidden"):
        raise GeneError(
            f"`summaries.cpc={chosen.cpc}` teaches global tokens to foretell hidden sentences: it "
            f"needs task 'mlm', not '{config.task}', and `summaries.per` 'sentence' or 'tokens'"
        )
    if chosen.per is None:
        if config.pooling == "globals":
            raise GeneError(
                "`pooling='globals'` reads the global tokens that summaries give: choose "
                "`summaries.per` ('tokens' or 'sentence'), or `pooling='mean'`"
            )
        return
    what = f"`summaries.per='{chosen.per}'`"
    if not config.does.summarised or config.causal:
        causal = " with `causal=True`" if config.causal else ""
        raise GeneError(
            f"{what} gives a text global tokens, which read all of it; task '{config.task}'"
            f"{causal} does not: it is for {' and '.join(tasks_that('summarised'))}, both ways"
        )
    if position is not None and POSITION.acts_on(config) != "embeddings":
        raise GeneError(
            f"{what} gives a text global tokens, which stand at no place that position "
            f"'{position}' could tell: use a position that is added to embeddings, or none"
        )
    if DEPTH.adds_positions(config):
        raise GeneError(
            f"{what} gives a text global tokens, which stand at no place that depth "
            f"'{config.genes['depth'].name}' could add at each step: use its order 'none'"
        )
    if config.pooling == "class":
        raise GeneError(
            f"{what} and `pooling='class'` both put tokens in front: use `pooling='globals'`"
        )
    if chosen.per == "sentence" and not chosen.ends:
        raise GeneError(
            f"{what} needs summaries.ends, the tokens that end a sentence (of bytes 0 10 33 46 63)"
        )
    named = {
        "ends": chosen.ends,
        "mask_token": () if chosen.mask_token is None else (chosen.mask_token,),
    }
    for name, tokens in named.items():
        outside = [token for token in tokens if not 0 <= token < config.vocabulary]
        if outside:
            raise ConfigError(
                f"summaries.{name} names token {outside[0]}, but there are {config.vocabulary}"
            )


def check_globals(mixers: Sequence[Mixer]) -> None:
    """Refuse mixers that know no global tokens, or want to know different things of them."""
    for mixer in mixers:
        if not mixer.supported_masks >= GLOBALS:
            able = [name for name in MIXERS.names() if MIXERS.get(name).supported_masks >= GLOBALS]
            raise GeneError(
                f"mixer '{mixer.name}' knows no global tokens, which summaries give: use "
                f"{', '.join(able)}, or `summaries.per` none"
            )
    asking = {"sentences" in mixer.supported_masks: mixer.name for mixer in mixers}
    if len(asking) > 1:
        raise GeneError(
            f"mixer '{asking[True]}' asks what global tokens stand for, which mixer "
            f"'{asking[False]}' does not take: with summaries use either in all layers"
        )
