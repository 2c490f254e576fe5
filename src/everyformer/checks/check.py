"""`Check`: comparisons inside a law on a member."""

import torch
from torch import Tensor

from sequence_laws.verdict import LawBroken

# About 2^14 roundings of the dtype: enough for sums over lengths <= 40 through a few products.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 5e-5, torch.bfloat16: 6e-2, torch.float16: 1e-2}


class Check:
    """Collects comparisons: the largest error, or `LawBroken` at the first that is too large."""

    def __init__(self) -> None:
        self.count = 0
        self.worst = 0.0

    def close(self, got: Tensor, expected: Tensor, tolerance: float, where: str) -> None:
        """max |got - expected| <= tolerance * max(1, max |expected|), and both finite."""
        got, expected = (t.detach().cpu().double() for t in (got, expected))
        if got.shape != expected.shape:
            raise LawBroken(f"{where}: shape {tuple(got.shape)} is not {tuple(expected.shape)}")
        if not torch.isfinite(got).all():
            raise LawBroken(f"{where}: not finite")
        if got.numel() == 0:
            return
        scale = max(1.0, float(expected.abs().max()))
        error = float((got - expected).abs().max()) / scale
        self.count += 1
        self.worst = max(self.worst, error)
        if not error <= tolerance:
            raise LawBroken(f"{where}: off by {error:.2e}, allowed {tolerance:.0e}")

    def true(self, holds: bool, where: str) -> None:
        """A plain condition."""
        self.count += 1
        if not holds:
            raise LawBroken(where)

    def summary(self) -> str:
        """For the table that `verify` prints."""
        return f"{self.count} checks, largest error {self.worst:.1e}"
