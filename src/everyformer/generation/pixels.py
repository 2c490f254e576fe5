"""Images from a pixel model, one intensity after the other, all images at once."""

from __future__ import annotations

import torch
from torch import Tensor

from everyformer.core.errors import ConfigError, UnsupportedError
from everyformer.generation.config import Sampling
from everyformer.generation.sampling import draw, initial_state
from everyformer.models.base import Model
from everyformer.models.pixels import START, PixelModel


@torch.inference_mode()
def draw_images(model: Model, count: int, sampling: Sampling | None = None) -> Tensor:
    """``count`` images (count, C, H, W) uint8 drawn from the model."""
    if not isinstance(model, PixelModel):
        raise UnsupportedError(f"images are drawn from a pixel model, not a {type(model).__name__}")
    if count < 1:
        raise ConfigError(f"the number of images must be at least 1, not {count}")
    sampling = sampling or Sampling()
    of_text = ("repetition_penalty", "stop", "end_token", "min_tokens")
    given = [name for name in of_text if getattr(sampling, name) != getattr(Sampling(), name)]
    if given:
        raise ConfigError(f"'{given[0]}' is for texts: an image has all its pixels, leave it out")
    device = next(model.parameters()).device
    generator = torch.Generator(device=device).manual_seed(sampling.seed)
    total, training = model.config.tokens, model.training
    model.eval()
    try:
        state = initial_state(model, count)
        pixels = torch.zeros(count, total, dtype=torch.long, device=device)
        token = torch.full((count, 1), START, device=device)
        for step in range(total):
            if state is None:
                logits = model(model.unflatten(pixels)).logits[:, step]
            else:
                out = model(token, state=state)
                state, logits = out.state, out.logits[:, -1]
            pixels[:, step] = draw(logits, sampling, generator)
            token = pixels[:, step : step + 1]
    finally:
        model.train(training)
    return model.unflatten(pixels)
