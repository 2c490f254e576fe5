"""Halting probability that every token has spent: Graves' recurrence.

    stops = r and c + p > 1 - epsilon            r: the token runs, c: what it has spent
    goes  = r and not stops
    w     = p where it goes on, 1 - c where it stops       R = 1 - c where it stops
    c    += p where it goes on                             n += 1 where r

The comparison is strict (tensor2tensor; Graves 2016 has >=). A token that is forced to stop stops
whatever p is. Sums are in float32 at least; who runs is a flag, never asked of c.
"""

import torch
from torch import Tensor


class Account:
    """The tokens (B, L) of one pass, step by step."""

    def __init__(self, running: Tensor, epsilon: float, dtype: torch.dtype) -> None:
        self.running = running
        """(B, L) bool, which take the next step; padding never does"""
        self.epsilon = epsilon
        self.spent = torch.zeros(running.shape, dtype=dtype, device=running.device)
        """c"""
        self.remainder = torch.zeros_like(self.spent)
        """R"""
        self.steps = torch.zeros_like(running, dtype=torch.long)
        """N"""

    def spend(self, p: Tensor, last: bool) -> Tensor:
        """Take one step; its weights w (B, L), 0 where a token does not run.

        Args:
            p: (B, L) chance to halt. last: whether all that run are forced to stop.
        """
        stops = self.running if last else self.running & (self.spent + p > 1 - self.epsilon)
        goes = self.running & ~stops
        nothing = torch.zeros_like(self.spent)
        rest = torch.where(stops, 1 - self.spent, nothing)
        paid = torch.where(goes, p, nothing)
        self.remainder, self.spent = self.remainder + rest, self.spent + paid
        self.steps, self.running = self.steps + self.running, goes
        return paid + rest

    def ponder(self, counted: Tensor) -> Tensor:
        """The mean of N + R over the tokens that are ``counted`` (B, L)."""
        cost = torch.where(counted, self.steps + self.remainder, torch.zeros_like(self.spent))
        return cost.sum() / counted.sum().clamp(min=1)
