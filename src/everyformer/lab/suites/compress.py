"""The task of MAD's compression: a row of tokens -> the same row, from one vector of it.

    y = stack(E[x] + positions),   z_t = W_2 gelu(W_1 (y_last + s_t) + b_1) + b_2

with sinusoids s_t, which say the place that is asked for. So all that is known of the row goes
through the channels of its last token. Source: Poli et al. 2024, arXiv 2403.17844.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from everyformer.core.tasks import LM, TEXT
from everyformer.tasks.base import LossTask

if TYPE_CHECKING:
    from everyformer.core.member import Member
    from everyformer.genes.config import ModelConfig
    from everyformer.models.base import Model

COMPRESS = "compress"


class Compress(LossTask):
    """A row of tokens, from the vector of its last one."""

    name, about = COMPRESS, "tokens -> the same tokens, from one vector of them"
    reads, predicts, goal = "probe", "hidden", "compresses"
    metrics = ("answers", "loss")
    train, use = "--data mad:compression", "eval {run}"
    shown_by = "gives back what it was given: everyformer eval measures it"

    def suits(self, member: Member) -> bool:
        # one that reads both ways alone may need global tokens, which there are none of
        return LM in member.tasks and TEXT in member.tasks

    def build(self, config: ModelConfig) -> Model:
        from everyformer.lab.suites.compressor import Compressor

        return Compressor(config)
