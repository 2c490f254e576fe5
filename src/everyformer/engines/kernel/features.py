"""Random features whose products estimate kernels, and their draws.

    positive       M^{-1/2} exp(W x - |x|^2 / 2)                       e^{x.y}
    hyperbolic     (2M)^{-1/2} e^{-|x|^2 / 2} [exp(W x), exp(-W x)]    e^{x.y}
    trigonometric  M^{-1/2} e^{|x|^2 / 2} [sin(W x), cos(W x)]         e^{x.y}
    Fourier        M^{-1/2} [sin(W x), cos(W x)]                       e^{-|x - y|^2 / 2}
    rectified      M^{-1/2} max(W x, 0)                                arc-cosine kernel, order 1

phi(x), and E phi(x).phi(y), for M rows w ~ N(0, I) of W. The last kernel is
|x| |y| (sin a + (pi - a) cos a) / (2 pi), a the angle between x and y.

Rows may be drawn independently, or in blocks of D orthogonal ones: the Q of a Gaussian matrix with
the signs of R's diagonal, which makes it uniform among all rotations, its rows scaled by norms of
independent Gaussian vectors (each row is then exactly N(0, I), and the estimates stay unbiased) or
all by sqrt(D) ("regularised": less variance, biased).

Sources: Rahimi, Recht 2007; Cho, Saul 2009; Choromanski et al. 2021, arXiv 2009.14794, section 2.
"""

import math
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from everyformer.core.choices import choose
from everyformer.core.errors import ConfigError, ShapeError, UnsupportedError
from everyformer.engines.kernel.maps import SegmentMap
from everyformer.engines.ranges import full_precision, widened
from sequence_laws.memory import check_memory

Draw = Literal["iid", "orthogonal", "regularised"]
DRAWS: tuple[Draw, ...] = ("iid", "orthogonal", "regularised")


def positive_features(x: Tensor, projection: Tensor) -> Tensor:
    """Positive features of the kernel exp(x . y).

    Args:
        x: (..., D), in its final scale (softmax attention: queries and keys times D^{-1/4}).
        projection: (M, D) rows w ~ N(0, I), or any that broadcasts with x's leading dimensions.

    Returns:
        (..., M), float32 at least; large norms overflow (attention takes `stable_exponentials`).
    """
    with full_precision(x):
        logs, norm = _products(x, projection), _half_square(x)
        return torch.exp(logs - norm - 0.5 * math.log(logs.shape[-1]))


def fourier_features(x: Tensor, projection: Tensor) -> Tensor:
    """Random Fourier features of the kernel exp(-|x - y|^2 / 2): (..., 2 M), the sines first.

    Arguments as in `positive_features`.
    """
    with full_precision(x):
        # the products, sines and cosines, and both side by side
        angles = _products(x, projection, copies=5)
        if torch.compiler.is_compiling():  # which puts them into one loop with what is around
            return torch.cat([angles.sin(), angles.cos()], -1) * angles.shape[-1] ** -0.5
        return _waves(angles)


def rectified_features(x: Tensor, projection: Tensor) -> Tensor:
    """M^{-1/2} max(W x, 0): (..., M). Arguments as in `positive_features`."""
    with full_precision(x):
        products = _products(x, projection)
        return torch.relu(products) * products.shape[-1] ** -0.5


def stable_exponentials(
    x: Tensor, projection: Tensor, hyperbolic: bool = False, eps: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Positive (or hyperbolic) features over their largest, and the log of what was divided by.

    The largest is M^{-1/2}, or (2M)^{-1/2}; e^level times the features are the features proper. It
    is a token's own maximum: nothing depends on other tokens. ``eps`` times it is added.

    Returns:
        Features (..., M or 2 M) and levels (...), float32 at least.
    """
    with full_precision(x):
        logs = _products(x, projection)
        logs = torch.cat([logs, -logs], -1) if hyperbolic else logs
        # a graph serves any length
        if not eps and not torch.compiler.is_compiling() and x.shape[-2] <= 2:
            return _of_a_token(x, logs)
        # what features are divided by and levels multiply with needs no gradient, but eps has one
        top = (logs if eps else logs.detach()).amax(-1, keepdim=True)
        features = torch.exp(logs - (top + 0.5 * math.log(logs.shape[-1])))
        features = features + eps * logs.shape[-1] ** -0.5 if eps else features
        return features, (top - _half_square(x)).squeeze(-1)


def _of_a_token(x: Tensor, logs: Tensor) -> tuple[Tensor, Tensor]:
    """`stable_exponentials` over their sum, which takes fewer operations."""
    x, count = widened(x), logs.shape[-1]
    rows = x.reshape(-1, 1, x.shape[-1])
    level = logs.logsumexp(-1).view(-1, 1, 1)
    level = torch.baddbmm(level, rows, rows.mT, alpha=-0.5).view(logs.shape[:-1])
    return logs.softmax(-1), level - 0.5 * math.log(count)


def trigonometric_level(x: Tensor) -> Tensor:
    """|x|^2 / 2 (...): the level of Fourier features that makes them estimate exp(x . y)."""
    return _half_square(x).squeeze(-1)


def made(by: SegmentMap, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Features (B, H, L, M) of all of ``x`` (B, H, L, D) by a map, and their levels (B, H, L)."""
    if by.rows is None:
        x = widened(x)
        return x.clamp(max=0).exp() + x.relu(), None
    return stable_exponentials(x, by.rows, by.kind == "hyperbolic")


def draw_projection(
    heads: int, rows: int, size: int, draw: Draw, generator: torch.Generator | None = None
) -> Tensor:
    """W (heads, rows, size), float32, on the CPU."""
    if draw == "iid":
        return torch.randn(heads, rows, size, generator=generator)
    blocks = -(-rows // size)
    gaussian = torch.randn(heads, blocks, size, size, generator=generator, dtype=torch.float64)
    q, r = torch.linalg.qr(gaussian)
    signs = r.diagonal(dim1=-2, dim2=-1).sign()
    directions = (q * signs[..., None, :]).flatten(1, 2)[:, :rows]
    if draw == "regularised":
        return (directions * math.sqrt(size)).float()
    norms = torch.randn(heads, rows, size, generator=generator, dtype=torch.float64)
    return (directions * norms.norm(dim=-1, keepdim=True)).float()


KNOWN = 4096
"""calls before a backward pass that it may repeat"""


class Projection(nn.Module):
    """W (heads, rows, D) of random features: a buffer, kept with the weights.

    In training it may change; in evaluation it never does, so that what is generated is of one
    draw. New draws follow from a seed that is drawn at the start and the number of calls, both kept
    in buffers: a resumed run has the same ones. What is computed again in a backward pass has the
    draw that it had: told by `everyformer.core.choices` or, in checkpoints of others, found by a
    number of torch's generator, which they set back to where it was.

    Args:
        heads: draws side by side; 1 is shared by all heads.
        rows, size, draw: as in `draw_projection`.
        redraw: draw again at every so many training calls; None never.
        pool: so many draws are held, and drawing again is picking some of them; evaluation takes
            the first. 0 holds no more than are used.
    """

    projection: Tensor
    seed: Tensor
    calls: Tensor
    chosen: Tensor

    def __init__(
        self, heads: int, rows: int, size: int, draw: Draw, redraw: int | None, pool: int = 0
    ) -> None:
        super().__init__()
        if draw not in DRAWS:
            raise ConfigError(f"draw must be one of {', '.join(DRAWS)}, not {draw!r}")
        if rows < 1 or (redraw is not None and redraw < 1):
            raise ConfigError(
                f"`features={rows}` and `redraw={redraw}` must be positive (`redraw=None` never "
                f"redraws)"
            )
        if pool and (pool < heads or redraw is None):
            raise ConfigError(
                f"`pool={pool}` with `redraw={redraw}`: a pool holds at least one draw for each of "
                f"{heads} heads, and is of use where redraw says when to pick from it"
            )
        self.heads, self.draw, self.redraw, self.pool = heads, draw, redraw, pool
        self.register_buffer("projection", draw_projection(pool or heads, rows, size, draw))
        self.register_buffer("seed", torch.randint(2**62, ()))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("chosen", torch.arange(heads))
        self.numbered: dict[int, Tensor] = {}

    def forward(self, carried: bool) -> Tensor:
        """W (heads, rows, D) of a new call.

        Args:
            carried: whether sums of an earlier call go on, which belong to that call's draw.

        Raises:
            UnsupportedError: they do, and this call would draw again.
        """
        if not self.training or self.redraw is None:
            return self.current()
        if carried:
            raise UnsupportedError(
                "these random features are drawn again in training, but a state holds sums of the "
                "features of an earlier call: call eval() before generating, or, to carry states "
                "in training, build the mixer with `redraw=None`"
            )
        if torch.compiler.is_compiling():
            return self._next()
        number = int(torch.randint(2**62, ()))
        return choose(lambda: self._numbered(number))

    def current(self) -> Tensor:
        """W (heads, rows, D) of the last call."""
        return choose(self._rows)

    def _numbered(self, number: int) -> Tensor:
        """W of a new call, or of the one that a backward pass repeats."""
        if torch._C._current_graph_task_id() >= 0:
            return self._again(number)
        rows = self._next()
        self.numbered[number] = self.calls
        if len(self.numbered) > KNOWN:
            del self.numbered[next(iter(self.numbered))]
        return rows

    def _again(self, number: int) -> Tensor:
        """W of an earlier call."""
        assert self.redraw is not None
        call = self.numbered.get(number)
        drawn, now = (0 if t is None else int(t) // self.redraw for t in (call, self.calls))
        if call is not None and drawn == now:
            return self._rows()
        if call is None or (drawn == 0 and not self.pool):
            raise UnsupportedError(
                "a backward pass computes random features again whose draw is not known any more: "
                "checkpoint with preserve_rng_state=True, or build the mixer with `redraw=None`"
            )
        when = self._when(torch.tensor(drawn * self.redraw))
        if not self.pool:
            return _redrawn(self.projection, *when)
        first = torch.arange(self.heads, device=self.chosen.device)
        return self.projection[_redrawn(first, *when) if drawn else first]

    def _when(self, call: Tensor) -> tuple[Any, ...]:
        return self.seed, call, self.redraw, self.pool, self.draw

    def _next(self) -> Tensor:
        self.calls = self.calls + 1
        when = self._when(self.calls)
        if self.pool:
            self.chosen = _redrawn(self.chosen, *when)
        else:
            self.projection = _redrawn(self.projection, *when)
        return self._rows()

    def _rows(self) -> Tensor:
        if self.training and self.pool:
            return self.projection[self.chosen]
        return self.projection[: self.heads]


@torch.library.custom_op("everyformer::waves", mutates_args=())
def _waves(angles: Tensor) -> Tensor:
    """[sin, cos] / sqrt(M) of M angles, in one tensor that is all the gradient needs."""
    count = angles.shape[-1]
    waves = angles.new_empty(*angles.shape[:-1], 2 * count)
    torch.sin(angles, out=waves[..., :count])
    torch.cos(angles, out=waves[..., count:])
    return waves.mul_(count**-0.5)


@_waves.register_fake
def _(angles: Tensor) -> Tensor:
    return angles.new_empty(*angles.shape[:-1], 2 * angles.shape[-1])


def _save_waves(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(output)


def _differentiate_waves(ctx: Any, grad: Tensor) -> Tensor:
    (sines, cosines), (first, second) = ctx.saved_tensors[0].chunk(2, -1), grad.chunk(2, -1)
    return (cosines * first).addcmul_(sines, second, value=-1)


_waves.register_autograd(_differentiate_waves, setup_context=_save_waves)


@torch.library.custom_op("everyformer::redrawn", mutates_args=())
def _redrawn(
    projection: Tensor, seed: Tensor, calls: Tensor, redraw: int, pool: int, draw: str
) -> Tensor:
    """The projection of training call number ``calls``, or the draws of a ``pool`` that it takes.

    An operator, so that graphs can hold it.
    """
    count = int(calls)
    if count % redraw:
        return projection.clone()
    generator = torch.Generator().manual_seed((int(seed) + count) % 2**63)
    if pool:
        return torch.randperm(pool, generator=generator)[: len(projection)].to(projection)
    heads, rows, size = projection.shape
    return draw_projection(heads, rows, size, cast(Draw, draw), generator).to(projection)


@_redrawn.register_fake
def _(projection: Tensor, seed: Tensor, calls: Tensor, redraw: int, pool: int, draw: str) -> Tensor:
    return torch.empty_like(projection)


def _products(x: Tensor, projection: Tensor, copies: int = 2) -> Tensor:
    """W x (..., M), refused if so many ``copies`` of them, which are made, do not fit."""
    if projection.shape[-1] != x.shape[-1]:
        raise ShapeError(
            f"x has {x.shape[-1]} channels, but the projection's rows {projection.shape[-1]}"
        )
    x = widened(x)
    if not torch.compiler.is_compiling() and x.device.type == "cpu":
        tokens, rows = x.numel() // x.shape[-1], projection.shape[-2]
        check_memory(
            copies * tokens * rows * x.element_size(),
            f"the projection of {tokens:,} tokens and heads to {rows:,} random features",
            "choose fewer features, or shorter texts",
        )
    return x @ projection.to(x.dtype).mT


def _half_square(x: Tensor) -> Tensor:
    return 0.5 * widened(x).square().sum(-1, keepdim=True)
