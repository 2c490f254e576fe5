"""Images from a pixel model, one token after the other, all images at once.

What is given of an image is read at once; the rest is drawn, with an exact state where the member
has one, else by reading what there is so far again at every step. With the same seed both draw the
same images.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor
from tqdm import tqdm

from everyformer.core.errors import ConfigError, ShapeError, UnsupportedError
from everyformer.core.modules import evaluating
from everyformer.core.state import State
from everyformer.generation.config import Sampling
from everyformer.generation.sampling import draw, initial_state
from everyformer.models.base import Model
from everyformer.models.pixels import DrawingModel, SuperResolution
from sequence_laws.memory import check_memory


@torch.inference_mode()
def draw_images(
    model: Model,
    count: int,
    sampling: Sampling | None = None,
    *,
    labels: Tensor | None = None,
    given: Tensor | None = None,
    known: int | None = None,
    small: Tensor | None = None,
    show: bool | None = None,
) -> Tensor:
    """``count`` images (count, C, H, W) uint8 drawn from the model.

    Args:
        sampling: how values are drawn (default: temperature 1, seed 0).
        labels: (count,) the class of each, of a class-conditional model.
        given: (count, C, H, W) uint8 images of which the first tokens are kept, in the order in
            which the model makes them.
        known: how many are (default: half of them).
        small: (n, C, h, w) uint8 images to enlarge, of a model that does; ``count`` is n or a
            multiple, and images that are drawn from one of them stand together.
        show: a progress bar on stderr; None where that is a terminal.

    Raises:
        UnsupportedError: the model draws no images.
        ConfigError: a number of images or tokens that cannot be, rules for texts, labels or small
            images missing or out of place.
        ShapeError: images or labels of another shape or kind.
    """
    if not isinstance(model, DrawingModel):
        raise UnsupportedError(f"images are drawn from a pixel model, not a {type(model).__name__}")
    if count < 1:
        raise ConfigError(f"the number of images must be at least 1, not {count}")
    check_memory(
        count * math.prod(model.sequence.image) * 8, f"drawing {count:,} images", "draw fewer"
    )
    sampling = sampling or Sampling()
    of_text = ("repetition_penalty", "stop", "end_token", "min_tokens")
    refused = [name for name in of_text if getattr(sampling, name) != getattr(Sampling(), name)]
    if refused:
        raise ConfigError(f"`{refused[0]}` is for texts: an image has all its pixels, leave it out")
    model.check_labels(labels, count)
    device = next(model.parameters()).device
    with evaluating(model):
        tokens, first = _beginning(model, count, given, known, device)
        classes = None if labels is None else labels.to(device)
        steps = tqdm(
            range(first, model.sequence.steps),
            desc="drawing",
            unit="tokens",
            disable=None if show is None else not show,
        )
        _fill(model, tokens, steps, sampling, classes, _context(model, count, small))
    return model.sequence.unflatten(model.sequence.values(tokens))


def _beginning(
    model: DrawingModel, count: int, given: Tensor | None, known: int | None, device: torch.device
) -> tuple[Tensor, int]:
    """Tokens (count, steps, ...) of which the first are given, and how many."""
    sequence = model.sequence
    if given is None:
        if known is not None:
            raise ConfigError(f"known={known} tokens are given, but no images: give both")
        given, known = torch.zeros(count, *sequence.image, dtype=torch.uint8), 0
    known = sequence.steps // 2 if known is None else known
    if len(given) != count:
        raise ShapeError(f"{count} images are to be drawn, but {len(given)} are given")
    if not 0 <= known <= sequence.steps:
        raise ConfigError(
            f"{known} tokens of an image cannot be given: it has {sequence.steps} of them"
        )
    return sequence.tokens(sequence.flatten(given.to(device))).clone(), known


def _context(model: DrawingModel, count: int, small: Tensor | None) -> tuple[State, ...] | None:
    """Encoding of the images that are enlarged, as the model reads it."""
    if not isinstance(model, SuperResolution):
        if small is not None:
            raise ConfigError("small images are given, but the model enlarges none: leave them out")
        return None
    if small is None:
        raise ConfigError("the model enlarges images: give the small images")
    if len(small) < 1 or count % len(small):
        raise ConfigError(
            f"{count} images cannot be drawn from {len(small)} small ones: draw as many of each"
        )
    return model.encode(small.to(next(model.parameters()).device)).context


def _fill(
    model: DrawingModel,
    tokens: Tensor,
    steps: Iterable[int],
    sampling: Sampling,
    labels: Tensor | None,
    context: tuple[State, ...] | None,
) -> None:
    """Draw the tokens of ``steps``, in place."""
    generator = torch.Generator(device=tokens.device).manual_seed(sampling.seed)
    state = initial_state(model, len(tokens))
    read = 0
    for step in steps:
        shifted = model.sequence.shifted(tokens[:, : step + 1])[:, read:]
        out = model.decode(shifted, labels=labels, context=context, state=state)
        if state is not None:
            state, read = out.state, step + 1
        # one token a row, (B,) or (B, C), channel after channel
        token = tokens[:, step]
        drawn = token.reshape(len(token), -1)[:, :0]
        for _ in range(token[0].numel()):
            value = draw(model.distribution(out.logits[:, -1], drawn), sampling, generator)
            drawn = torch.cat((drawn, value[:, None]), 1)
        tokens[:, step] = drawn.view_as(token)
