"""States of episodes as a model that acts reads them: numbers, values, or pictures."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyformer.core.errors import ConfigError, ShapeError
from everyformer.genes.model_options import EpisodeShape

CHANNELS = (32, 64, 64)
LARGE = ((8, 4), (4, 2), (3, 1))
"""kernels and strides of the paper's convolutions"""
SMALL = ((3, 2), (3, 2), (3, 1))
"""of those for pictures with a side below `SMALLEST` pixels"""
SMALLEST = 36


class StateReader(nn.Module):
    """States (B, K, ...) as ``size`` features each: normalised numbers, a picture's channels, or
    one flag for each value."""

    state_mean: Tensor
    state_std: Tensor

    def __init__(self, shape: EpisodeShape) -> None:
        super().__init__()
        self.shape = shape
        self.convolutions: nn.Sequential | None = None
        self.size = shape.state_values or shape.state[0]
        if len(shape.state) == 3:
            self.convolutions, self.size = _convolutions(shape.state)
        elif len(shape.state) > 1:
            raise ConfigError(
                f"states have the shape {shape.state}: numbers (n,) or pictures (channels, height, "
                "width) can be read"
            )
        dtype = torch.get_default_dtype()
        for name in ("state_mean", "state_std"):
            known = getattr(shape, name) or (float(name == "state_std"),)
            self.register_buffer(name, torch.tensor(known, dtype=dtype), persistent=False)

    def forward(self, states: Tensor, padding_mask: Tensor | None) -> Tensor:
        if tuple(states.shape[2:]) != self.shape.state:
            raise ShapeError(
                f"states must be (batch, steps{''.join(f', {n}' for n in self.shape.state)}), not "
                f"{tuple(states.shape)}"
            )
        dtype = self.state_mean.dtype
        if self.convolutions is not None:
            pixels = states.flatten(0, 1).to(dtype) / 255
            features = self.convolutions(pixels).unflatten(0, states.shape[:2])
        elif self.shape.state_values is not None:
            features = F.one_hot(states.long(), self.size).to(dtype)
        else:
            features = (states.to(dtype) - self.state_mean) / self.state_std
        # what stands in the padding may be anything
        return features if padding_mask is None else features.where(padding_mask[..., None], 0.0)


def random_states(shape: EpisodeShape) -> Tensor:
    """Some states (1, K, ...), to look into a model where no data are at hand."""
    size = (1, shape.context, *shape.state)
    if shape.state_values is not None:
        return torch.randint(shape.state_values, size)
    return torch.randn(size) if len(shape.state) == 1 else torch.randint(256, size).byte()


def _convolutions(state: tuple[int, ...]) -> tuple[nn.Sequential, int]:
    """The layers that read pictures, and how many features they give."""
    channels, *sides = state
    small = min(sides) < SMALLEST
    layers: list[nn.Module] = []
    for count, (kernel, stride) in zip(CHANNELS, SMALL if small else LARGE, strict=True):
        padding = kernel // 2 if small else 0
        layers += [nn.Conv2d(channels, count, kernel, stride, padding), nn.ReLU()]
        channels = count
        sides = [(side + 2 * padding - kernel) // stride + 1 for side in sides]
    return nn.Sequential(*layers, nn.Flatten(1)), channels * math.prod(sides)
