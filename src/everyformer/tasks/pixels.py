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


class Intensities(Task):
    """Pixels in raster order, channels side by side."""

    reads, predicts = "pictures", "next"
    metrics = ("bits_per_dim", "loss")
    use = "generate {run}"

    def scores(self, model: nn.Module, dataset: Dataset, details: bool = False) -> Scores:
        from everyformer.tasks.scores import PixelScores

        return PixelScores(dataset)


class Pixels(Intensities):
    """The next intensity, at every position."""

    name, about = PIXELS, "a picture -> the next intensity at every position"
    goal = "predicts the pixels of"
    train = "--data myimages.zip --task pixels"

    def build(self, config: ModelConfig) -> Model:
        from everyformer.models.pixels import PixelModel

        return PixelModel(config)


class SuperResolution(Intensities):
    """The intensities of a large picture, given a small one."""

    name, about = ENLARGE, "a small picture -> a large one"
    goal = "enlarges the pictures of"
    encodes = True
    train = "--data myimages.zip --task super-resolution --data.small 8"

    def build(self, config: ModelConfig) -> Model:
        from everyformer.models.pixels import SuperResolution

        return SuperResolution(config)
