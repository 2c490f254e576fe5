"""Centroids that follow what is routed to them: online k-means, head by head.

    a(x) = argmax_c x . mu_c
    n_c <- l n_c + (1 - l) sum_i 1[a(x_i) = c],    m_c <- l m_c + (1 - l) sum_{i: a(x_i) = c} x_i
    mu_c = m_c / n'_c,    n'_c = n (n_c + eps) / (n + K eps),    n = sum_c n_c

Averages begin at n_c = 1 and m_c = mu_c. They move once a training step, whatever the number of
passes in it: sums wait (and are saved) until the step is over, so that all passes of a step, and
those that repeat one for its backward pass, meet the same centroids. It is over when the training
loop says so (`Model.end_step`), or, where no one does, when the weights beside them are found
changed (`everyformer.system.fingerprint`: by any optimiser). A pass is counted when its gradient
arrives, hence once, and not at all where there is none; processes that train together add up their
sums when a step is over. Everything is kept in float32 at least, also where the weights are not.

Sources: van den Oord et al. 2017, arXiv 1711.00937, appendix A.1 (averages, smoothing); Roy et al.
2020, arXiv 2003.05997, section 4.1, which writes the step without the counts that its code keeps.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, Literal, Self

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from everyformer.engines.ranges import HALF, full_precision, widened
from everyformer.system.fingerprint import fingerprint, unchanged

Update = Literal["ema", "none"]


class Centroids(nn.Module):
    """mu (H, K, D), drawn as normalised Gaussian vectors.

    Args:
        heads, clusters, size: H, K, D.
        update: "ema" as above; "none" leaves mu as drawn, which makes of routing a hash by random
            projections.
        decay: l. eps: of the smoothing.
    """

    means: Tensor
    sums: Tensor
    counts: Tensor
    new_sums: Tensor
    new_counts: Tensor

    def __init__(
        self, heads: int, clusters: int, size: int, update: Update = "ema", decay: float = 0.999,
        eps: float = 1e-5,
    ) -> None:  # fmt: skip
        super().__init__()
        self.update, self.decay, self.eps = update, decay, eps
        drawn = F.layer_norm(torch.randn(heads, clusters, size), (size,))
        self.register_buffer("means", drawn)
        if update == "ema":
            self.register_buffer("sums", drawn.clone())
            self.register_buffer("counts", torch.ones(heads, clusters))
            self.register_buffer("new_sums", torch.zeros_like(drawn))
            self.register_buffer("new_counts", torch.zeros(heads, clusters))
        self._known: Tensor | None = None
        # weights may be changed behind autograd's back, so they are compared number by number
        self._as_scaled, self._scaled = torch.empty(0), torch.empty(0)

    def scores(self, x: Tensor) -> Tensor:
        """x . mu_c (B, H, L, K) of normed vectors (B, H, L, D), no gradient, float32 at least.

        Counted in steps of a grid that is coarse beside the error of products, so that equal
        vectors have equal scores at every index, and a choice among them does not depend on the
        batch.
        """
        with torch.no_grad(), full_precision(x):
            wide = widened(x.detach())
            return (wide @ self._in_steps(wide).mT).round()

    def _in_steps(self, like: Tensor) -> Tensor:
        """mu (H, K, D) in steps of the grid, a power of two for each head; remembered on a CPU."""
        means = self.means
        asking = means.device.type == "cpu" and not torch.compiler.is_compiling()
        if asking and self._scaled.dtype == like.dtype and unchanged(self._as_scaled, means):
            return self._scaled
        wide = means.to(like)
        most = math.sqrt(wide.shape[-1]) * wide.norm(dim=-1).amax(-1)[:, None, None]
        bits = 32 if wide.dtype == torch.float64 else 16
        scaled = wide / most.clamp(min=1e-30).log2().ceil().sub(bits).exp2()
        if asking:
            self._as_scaled, self._scaled = means.clone(), scaled
        return scaled

    def commitment(self, x: Tensor, labels: Tensor, real: Tensor | None) -> Tensor:
        """Mean over channels of (x - mu_a)^2, mu held fixed: what draws vectors to centroids."""
        heads = torch.arange(self.means.shape[0], device=labels.device)[:, None]
        apart = (widened(x) - self.means[heads, labels].to(widened(x))).square().mean(-1)
        if real is None:
            return apart.mean()
        seen = real[:, None].to(apart)
        return (apart * seen).sum() / (seen.sum() * x.shape[1]).clamp(min=1)

    @torch.compiler.disable
    def count(self, y: Tensor, x: Tensor, labels: Tensor, real: Tensor | None) -> None:
        """Add the vectors ``x`` by their ``labels`` (B, H, L) once the gradient of ``y`` arrives.

        ``real`` (B, L): which of them are no padding.
        """
        if self.update != "ema" or not y.requires_grad:
            return
        with torch.no_grad(), full_precision(x):
            wide = widened(x.detach())
            one = F.one_hot(labels, self.means.shape[1]).to(wide)
            if real is not None:
                one = one * real[:, None, :, None]
            sums, counts = torch.einsum("bhlk,bhld->hkd", one, wide), one.sum((0, 2))

        def take(gradient: Tensor) -> None:
            for stored, more in ((self.new_sums, sums), (self.new_counts, counts)):
                stored += more.to(stored)

        y.register_hook(take)

    @torch.compiler.disable
    def watch(self, weights: Iterable[Tensor]) -> None:
        """Settle if ``weights``, which learn beside the centroids, have changed since last time."""
        if self.update != "ema" or self.means.is_meta:
            return
        now = fingerprint(weights)
        if not unchanged(self._known, now):
            self._known = now
            # processes do not all read held-out text, so nothing to settle must ask nobody
            if self.new_counts.any():
                self.finalise()

    @torch.compiler.disable
    @torch.no_grad()
    def finalise(self) -> None:
        """Move the centroids by what all processes counted: a step is over."""
        # models are also built where nothing is computed
        if self.update != "ema" or self.means.is_meta:
            return
        if dist.is_available() and dist.is_initialized():
            for counted in (self.new_sums, self.new_counts):
                dist.all_reduce(counted)
        if not self.new_counts.any():
            return
        self.sums.lerp_(self.new_sums, 1 - self.decay)
        self.counts.lerp_(self.new_counts, 1 - self.decay)
        self.means.copy_(self.sums / self._smoothed()[..., None])
        self.new_sums.zero_()
        self.new_counts.zero_()

    def _smoothed(self) -> Tensor:
        total = self.counts.sum(-1, keepdim=True)
        share = (self.counts + self.eps) / (total + self.counts.shape[-1] * self.eps)
        return share * total

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        stored: dict[str, Any] = dict(self.named_buffers())
        super()._apply(fn, recurse)
        for name, before in stored.items():
            moved = getattr(self, name)
            if moved.dtype in HALF:
                # sums of small steps would stand still in half precision
                setattr(self, name, before.to(moved.device))
        return self
