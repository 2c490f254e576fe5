"""Options of early exits where a model is used."""

from dataclasses import dataclass

from everyformer.core.bounds import Share
from everyformer.core.config import Options


@dataclass(frozen=True)
class ExitConfig(Options):
    """Early exits of this use of a model: where its tokens leave."""

    threshold: Share | None = None
    """what confidence must reach for a token to leave; 1: none leaves (default: what the run's
    certificate allows, or what the model was trained with)"""
    thresholds: tuple[Share, ...] = ()
    """the same for each layer but the last (depth-adaptive)"""
    full: bool = False
    """let all tokens go through all layers"""
