"""Super-resolution: an encoder reads a small image, a pixel model draws the large one from it.

    h = encoder(values of the small image)                               both ways
    p(image | small) = prod_t p(x_t | x_<t, h)                           cross-attention to h

Every small value is a token with vectors of its row, column and channel; the encoder compares all
with all. The decoder is `PixelModel` with a reader of h in each layer, so orders, outputs and
classes are its own. What it reads of h is made once and serves every step.

Source: Parmar et al. 2018, arXiv 1802.05751, section 5.3 (8x8 to 32x32).
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from everyformer.core.errors import ConfigError, ShapeError
from everyformer.core.mask import Mask
from everyformer.core.outputs import ModelOutput, add_losses
from everyformer.core.state import StackState
from everyformer.genes.config import ModelConfig
from everyformer.genes.positions import POSITION
from everyformer.models.layers import build_stack, source_config
from everyformer.models.pixel_sequence import PixelEmbedding, PixelSequence
from everyformer.models.pixels import DrawingModel
from everyformer.models.seq2seq import Encoded


class SuperResolution(DrawingModel):
    """Enlarging model: inputs (B, C, h, w) uint8, targets (B, H*W*C), -100 = not scored.

    Logits (B, H*W*C, 256), as `PixelModel` gives them: raster order, or a mixture's parameters.
    """

    reads = True

    def build_reading(self, config: ModelConfig) -> list[nn.Module]:
        assert config.source_image is not None
        inner = source_config(config)
        self.encoder = build_stack(inner)
        self.source_position = POSITION.embedded(inner)
        self.source_sequence = PixelSequence(config.source_image, inner.pixels)
        self.source_embedding = PixelEmbedding(self.source_sequence, config.width, inner.pixels)
        return self.source_embedding.tables()

    def forward(
        self,
        inputs: Tensor,
        *,
        targets: Tensor | None = None,
        mask: Mask | None = None,
        state: StackState | None = None,
        labels: Tensor | None = None,
        taps: Sequence[str] = (),
    ) -> ModelOutput:
        """Predict every value of the large images; ``taps`` are the decoder's.

        Raises:
            ShapeError: no targets, or images or targets of another size than the model's.
            ConfigError: a state, which `decode` takes.
        """
        if mask is not None:
            mask.require("a model that enlarges images", frozenset())
        if state is not None:
            raise ConfigError("a state goes on with `decode`, and what `encode` gave: call them")
        if targets is None:
            raise ShapeError("super-resolution needs targets to score; `decode` draws without")
        self.check_targets(targets, len(inputs))
        encoded = self.encode(inputs)
        values = targets.long().clamp(min=0)
        tokens = self.sequence.shifted(self.sequence.tokens(values))
        out = self.read(tokens, labels=labels, context=encoded.context, taps=taps)
        add_losses(out.losses, encoded.losses)
        return self.scored(out, values, targets)

    def encode(self, inputs: Tensor, mask: Mask | None = None) -> Encoded:
        """Read small images (B, C, h, w) once, for all steps of `decode`."""
        sequence = self.source_sequence
        values = sequence.flatten(inputs)
        steps = torch.arange(sequence.steps, device=values.device)[None]
        x = self.source_embedding(values, steps, self.config.embedding_scale, own=steps)
        x = self.add_positions(x, mask, None, self.source_position)
        out = self.encoder(x, mask=mask)
        return Encoded(self.stack.read_context(out.y, mask), out.losses)
