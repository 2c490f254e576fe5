"""A source text -> a target text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from everyformer.core.tasks import SEQ2SEQ
from everyformer.tasks.base import LossTask

if TYPE_CHECKING:
    from everyformer.genes.config import ModelConfig
    from everyformer.models.base import Model


class Translate(LossTask):
    """An encoder reads the source, a decoder writes the target."""

    name, about, reads = SEQ2SEQ, "a source text -> a target text", "parallel text"
    predicts, encodes = "next", True
    goal = "translates"
    metrics = ("bits_per_byte", "loss")
    train = "--data corpus-en-de.zip --tokenizer bpe:8000 --data.tokens 4096"
    use = "eval {run} --bleu"

    def build(self, config: ModelConfig) -> Model:
        from everyformer.models.seq2seq import EncoderDecoder

        return EncoderDecoder(config)
