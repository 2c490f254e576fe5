"""A running text -> its next tokens, or those that are hidden."""

from __future__ import annotations

from typing import TYPE_CHECKING

from everyformer.core.tasks import LM, MLM
from everyformer.tasks.base import LossTask

if TYPE_CHECKING:
    from everyformer.genes.config import ModelConfig
    from everyformer.models.base import Model
    from everyformer.tasks.prediction.predictor import Predictor


class LanguageModelling(LossTask):
    """The next token, at every position."""

    name, about, reads = LM, "tokens -> the next token at every position", "text"
    predicts = "next"
    metrics = ("answers", "bits_per_byte", "loss")
    train, use = "--data mytext.txt", "generate {run} --prompt '...'"

    def build(self, config: ModelConfig) -> Model:
        if config.outside is not None:
            from everyformer.models.outside_language import outside_language_model

            return outside_language_model(config)
        from everyformer.models.language import LanguageModel

        return LanguageModel(config)

    def predictor(self, name: str) -> type[Predictor]:
        from everyformer.tasks.language.predictors import NextPredictor

        return NextPredictor


class MaskedLanguageModelling(LossTask):
    """The tokens that are hidden, from both sides."""

    name, about, reads = MLM, "tokens, some of them hidden -> the hidden ones", "text"
    predicts = "hidden"
    goal = "fills in"
    metrics = ("answers", "bits_per_byte", "loss")
    train, use = "--data mytext.txt --task mlm", "predict {run} 'a [MASK] of text'"

    def build(self, config: ModelConfig) -> Model:
        from everyformer.models.masked import MaskedLanguageModel

        return MaskedLanguageModel(config)

    def predictor(self, name: str) -> type[Predictor]:
        from everyformer.tasks.language.predictors import MaskPredictor

        return MaskPredictor
