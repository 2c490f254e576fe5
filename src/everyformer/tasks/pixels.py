"""A picture, or a small one -> the intensities of its pixels, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from everyformer.core.tasks import ENLARGE, PIXELS, Task

if TYPE_CHECKING:
    from torch import nn

    from everyformer.data.dataset import Dataset
    from everyformer.genes.config import ModelConfig
    from everyformer.models.base import Model
    from everyformer.tasks.scores import Scores


class Pixels(Task):
    """The next intensity, at every position."""

    name, about, reads = PIXELS, "a picture -> the next intensity at every position", "pictures"
    predicts = "next"
    goal = "predicts the pixels of"
    metrics = ("bits_per_dim", "loss")
    train, use = "--data myimages.zip --task pixels", "generate {run}"

    def build(self, config: ModelConfig) -> Model:
        from everyformer.models.pixels import PixelModel

        return PixelModel(config)

    def scores(self, model: nn.Module, dataset: Dataset, details: bool = False) -> Scores:
        from everyformer.tasks.scores import PixelScores

        return PixelScores(dataset)


class SuperResolution(Pixels):
    """The intensities of a large picture, beside a small one."""

    name, about = ENLARGE, "a small picture -> a large one"
    goal = "enlarges the pictures of"
    encodes = True
    train = "--data myimages.zip --task super-resolution --data.small 8"

    def build(self, config: ModelConfig) -> Model:
        from everyformer.models.pixels import SuperResolution

        return SuperResolution(config)
