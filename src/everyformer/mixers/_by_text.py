"""Mixers for which every text is a row of its own, and whose definition is given for one text."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from everyformer.core.mask import Mask, runs_of
from everyformer.core.mixer import Context, Mixer
from everyformer.core.outputs import MixerOutput
from everyformer.engines.rows import repack, unpack


class ByText(Mixer):
    """Base of mixers that undo packing and whose `reference` undoes padding too."""

    def text_reference(self, text: Tensor) -> Tensor:
        """The same module by its literal equation on one whole text (1, L, width)."""
        raise NotImplementedError

    def reference(
        self, x: Tensor, *, context: Context | None = None, mask: Mask | None = None
    ) -> Tensor:
        """By `text_reference`, text by text on the real tokens alone; padding gets zeros."""
        self.check_input(x, context, mask, None)
        y = torch.zeros_like(x)
        for row, at in texts_of(x, mask):
            y[row, at] = self.text_reference(x[row, at][None])[0]
        return y

    def unpacked(self, x: Tensor, mask: Mask) -> MixerOutput:
        """`forward` with every packed document of ``x`` (B, L, width) in a row of its own."""
        assert mask.documents is not None
        rows = unpack(x, mask.documents, mask.keep)
        marked = None if mask.global_tokens is None else rows.lay(mask.global_tokens)
        out = self(rows.x, mask=Mask(keep=rows.keep, global_tokens=marked))
        return MixerOutput(repack(out.y, rows), None, out.losses)


def texts_of(x: Tensor, mask: Mask | None) -> Iterator[tuple[int, Tensor]]:
    """The row of each text in ``x`` (B, L, ...), and where in it its real tokens stand."""
    real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
    runs, packed = torch.zeros_like(real, dtype=torch.long), False
    if mask is not None:
        real = real if mask.keep is None else mask.keep
        packed = mask.documents is not None
        runs = runs if mask.documents is None else runs_of(mask.documents, mask.keep)
    for row in range(len(x)):
        for run in range(int(runs[row, -1]) + 1 if packed else 1):
            at = (real[row] & (runs[row] == run)).nonzero().squeeze(1)
            if len(at):
                yield row, at
