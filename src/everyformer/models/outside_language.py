"""Third-party language models: token ids in, a distribution over the next token out."""

from collections.abc import Sequence

from torch import Tensor, nn

from everyformer.core.errors import ConfigError, UnsupportedError
from everyformer.core.mask import Mask
from everyformer.core.outputs import ModelOutput
from everyformer.core.state import StackState
from everyformer.core.subset import gather_rows
from everyformer.genes.config import ModelConfig
from everyformer.models.base import Model, refuse_state
from everyformer.models.language import LanguageModel, last_of, predict
from everyformer.models.outside import INNER, Outside, refuse


class OutsideLanguageModel(Model):
    """A causal model of tokens: inputs and targets (B, L) int64, logits (B, L, V)."""

    layered = False

    def __init__(self, config: ModelConfig, outside: Outside) -> None:
        super().__init__(config)
        self.outside = outside
        reads, channels = self.outside.subject.inputs.vocabulary, self.outside.channels
        if reads is not None and reads < config.vocabulary:
            raise ConfigError(
                f"'{self.outside.name}' reads {reads:,} tokens, but the data have "
                f"{config.vocabulary:,}: let what makes it take `vocabulary`, which is given to it"
            )
        refuse(config, frozenset(INNER) - {"label_smoothing", "smoothing_over", "loss_chunk"})
        hidden = channels < config.vocabulary
        self.last = nn.Linear(channels, config.vocabulary) if hidden else None

    def scores(self, y: Tensor) -> Tensor:
        """Logits (..., V) of what the module gives; some vocabularies of others have spare rows."""
        return y[..., : self.config.vocabulary] if self.last is None else self.last(y)

    def forward(
        self,
        inputs: Tensor,
        *,
        targets: Tensor | None = None,
        mask: Mask | None = None,
        state: StackState | None = None,
        taps: Sequence[str] = (),
        last: int | None = None,
    ) -> ModelOutput:
        """Predict each next token; ``last``: after so many last real tokens of each row alone."""
        refuse_state(self, state)
        if taps:
            raise UnsupportedError(f"'{self.outside.name}' is read from outside: it has no taps")
        y = self.outside(inputs.long(), mask)
        if last is not None:
            at = last_of(inputs, last, mask)
            y, targets = gather_rows(y, at), None if targets is None else targets.gather(1, at)
        return ModelOutput(*predict(self.scores, y, targets, {}, self.config, self.training), None)


def outside_language_model(config: ModelConfig) -> Model:
    """The language model that a config names: it reads tokens, or stands in the place of layers."""
    outside = Outside(config)
    return OutsideLanguageModel(config, outside) if outside.reads_tokens else LanguageModel(config)
