"""A picture as the sequence of tokens that a pixel model sees, and embeddings of their positions.

Values of a picture stand in raster order, channels of a pixel together: v[(r W + c) C + channel]. A
token is one value, or all C values of a pixel; tokens are cells r x columns + c of a grid of
(H, W C), or (H, W), and are drawn in raster order or block by block.
"""

import torch
from torch import Tensor, nn

from everyformer.core.errors import ShapeError
from everyformer.engines.sparse.patterns_grid import Rectangles
from everyformer.genes.model_options import PixelOptions
from everyformer.genes.positions.sinusoidal import sinusoid

START = 256
"""stands before the first token, as if it were an intensity"""


class PixelSequence(nn.Module):
    """Pictures (B, C, H, W) uint8 as values (B, H W C) int64 and as tokens in drawing order.

    Tokens are (B, steps), or with whole pixels (B, steps, C).
    """

    order: Tensor
    inverse: Tensor
    begins: Tensor
    """(steps,) bool, tokens before which nothing is read though they are not the first"""

    def __init__(self, image: tuple[int, int, int], options: PixelOptions) -> None:
        super().__init__()
        self.image = image
        self.channels, self.rows, width = image
        self.whole = options.output == "mixture"
        self.columns = width if self.whole else width * self.channels
        self.raster = options.order == "raster"
        tile = (1, self.columns) if self.raster else options.tile
        made = Rectangles(grid=(self.rows, self.columns), tile=tile)
        rows, columns = made.cells(torch.arange(self.rows * self.columns))
        order = rows * self.columns + columns
        self.register_buffer("order", order, persistent=False)
        self.register_buffer("inverse", order.argsort(), persistent=False)
        begins = torch.zeros(len(order), dtype=torch.bool)
        if options.shift == "block":
            rows, columns = rows // tile[0], columns // tile[1]
            begins[1:] = (rows[1:] != rows[:-1]) | (columns[1:] != columns[:-1])
        self.register_buffer("begins", begins, persistent=False)

    @property
    def steps(self) -> int:
        """Tokens of a picture."""
        return self.rows * self.columns

    def flatten(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> values (B, H W C).

        Raises:
            ShapeError: pictures of another shape, or of numbers that are no uint8.
        """
        if tuple(images.shape[1:]) != self.image:
            raise ShapeError(
                f"images must be (batch, {', '.join(map(str, self.image))}), "
                f"not {tuple(images.shape)}"
            )
        if images.dtype != torch.uint8:
            raise ShapeError(
                f"images must be uint8, intensities from 0 to 255, not {images.dtype}: those in "
                "[0, 1] become so by (255 * images).round().to(torch.uint8)"
            )
        return images.permute(0, 2, 3, 1).flatten(1).long()

    def unflatten(self, values: Tensor) -> Tensor:
        """The inverse of `flatten`, uint8."""
        channels, height, width = self.image
        return values.view(-1, height, width, channels).permute(0, 3, 1, 2).to(torch.uint8)

    def tokens(self, values: Tensor) -> Tensor:
        """Values (B, H W C) -> tokens in drawing order."""
        cells = values.unflatten(1, (-1, self.channels)) if self.whole else values
        return cells if self.raster else cells.index_select(1, self.order)

    def values(self, tokens: Tensor) -> Tensor:
        """The inverse of `tokens`."""
        return self.in_raster(tokens).flatten(1)

    def in_raster(self, rows: Tensor) -> Tensor:
        """Rows (B, steps, ...) in drawing order -> in raster order."""
        return rows if self.raster else rows.index_select(1, self.inverse)

    def shifted(self, tokens: Tensor) -> Tensor:
        """Tokens that are read to predict each of ``tokens``, the first ones: `START`, then all but
        the last; with ``shift="block"`` `START` at the beginning of every block."""
        read = torch.cat((torch.full_like(tokens[:, :1], START), tokens[:, :-1]), 1)
        begins = self.begins[: tokens.shape[1]]
        return read.masked_fill(begins[:, None] if self.whole else begins, START)

    def channel(self, steps: Tensor) -> Tensor:
        """Channel of its pixel that the token drawn at each of ``steps`` is."""
        return self.order[steps] % self.columns % (1 if self.whole else self.channels)


class PixelEmbedding(nn.Module):
    """Embeddings (B, L, width) of the tokens that are read, by value and by position predicted.

    Values are rows of a table, `START` its last; of whole pixels they are a linear map of the
    channels in [-1, 1], which is a convolution of 1 x C with stride C over the row of values.
    """

    def __init__(self, sequence: PixelSequence, width: int, options: PixelOptions) -> None:
        super().__init__()
        self.sequence, self.width = sequence, width
        channels = sequence.channels
        self.own_tables = options.tables == "channel" and not sequence.whole
        self.start: nn.Parameter | None = None
        if sequence.whole:
            self.values: nn.Module = nn.Linear(channels, width, bias=False)
            self.start = nn.Parameter(torch.zeros(width))
        else:
            self.values = nn.Embedding(256 * (channels if self.own_tables else 1) + 1, width)
        self.learned = options.places == "learned"
        if self.learned:
            _, height, columns = sequence.image
            self.row = nn.Embedding(height, width)
            self.column = nn.Embedding(columns, width)
            self.channel = None if sequence.whole else nn.Embedding(channels, width)

    def tables(self) -> list[nn.Module]:
        """The parts whose matrices start as embeddings do."""
        return [part for part in self.children() if part is not self.sequence]

    def position_tables(self) -> list[nn.Embedding]:
        """The tables of rows, columns and channels."""
        if not self.learned:
            return []
        return [self.row, self.column, *([] if self.channel is None else [self.channel])]

    def forward(
        self, tokens: Tensor, steps: Tensor, scale: float, own: Tensor | None = None
    ) -> Tensor:
        """``tokens`` read, as `PixelSequence.shifted` gives them, to predict those of ``steps``.

        Args:
            steps: (B or 1, L) int64, the position in drawing order of what is predicted.
            scale: of everything that is learned.
            own: (B or 1, L) int64, the positions of what is read (default: one before ``steps``).
        """
        read = self._read(tokens, (steps - 1).clamp(min=0) if own is None else own)
        position = self._position(steps, read.dtype)
        return (read + position) * scale if self.learned else read * scale + position

    def _read(self, tokens: Tensor, steps: Tensor) -> Tensor:
        if self.start is not None:
            vectors: Tensor = self.values(tokens.to(self.start.dtype) / 127.5 - 1)
            return torch.where(tokens[..., :1] == START, self.start.to(vectors.dtype), vectors)
        rows = tokens.long()
        if self.own_tables:
            shifted = rows + 256 * self.sequence.channel(steps)
            rows = torch.where(rows == START, 256 * self.sequence.channels, shifted)
        return self.values(rows)

    def _position(self, steps: Tensor, dtype: torch.dtype) -> Tensor:
        cells = self.sequence.order[steps]
        row, column = cells // self.sequence.columns, cells % self.sequence.columns
        if not self.learned:
            half = self.width // 2
            down = sinusoid(row, half, dtype=dtype)
            return torch.cat((down, sinusoid(column, self.width - half, dtype=dtype)), -1)
        if self.channel is None:
            position: Tensor = self.row(row) + self.column(column)
        else:
            channels = self.sequence.channels
            position = self.row(row) + self.column(column // channels)
            position = position + self.channel(column % channels)
        return position
