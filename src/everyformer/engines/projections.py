"""Queries, keys and values: the projections into heads, fused where the sources agree."""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyformer.core.errors import ShapeError
from everyformer.core.mixer import Context

Part = Literal["query", "key", "value"]
PARTS: tuple[Part, ...] = ("query", "key", "value")
Rotary = Callable[[Tensor], Tensor]
"""what becomes of queries or keys (B, heads, L, D)"""


def identity(x: Tensor) -> Tensor:
    """``x``"""
    return x


def applied(layer: nn.Module, x: Tensor) -> Tensor:
    """``layer``, a linear one, on ``x`` in the dtype of ``x``, whatever its weights are kept in.

    What others put in its place (quantised, with an adapter) is called as it is.
    """
    if not isinstance(layer, nn.Linear) or layer.weight.dtype == x.dtype:
        y: Tensor = layer(x)
        return y
    bias = None if layer.bias is None else layer.bias.to(x.dtype)
    return F.linear(x, layer.weight.to(x.dtype), bias)


class HeadProjections(nn.Module):
    """X_q W_q^T, X_k W_k^T, X_v W_v^T split into heads, head-major (channel c = h D + r).

    Args:
        sources: channels of X_q, X_k, X_v; equal ones are projected by one fused matrix.
        heads: query heads, key-value heads.
        dims: channels of a query or key head, of a value head.
        biases: which parts have a bias.
        norm: RMS-normalise queries and keys of each head, with a learned gain.
    """

    def __init__(
        self,
        sources: tuple[int, int, int],
        heads: tuple[int, int],
        dims: tuple[int, int],
        biases: tuple[str, ...] = (),
        norm: bool = False,
    ) -> None:
        super().__init__()
        self.dims = (dims[0], dims[0], dims[1])
        self.sizes = (heads[0] * dims[0], heads[1] * dims[0], heads[1] * dims[1])
        self.fused = len(set(sources)) == 1
        shapes = [(sum(self.sizes), sources[0])]
        if not self.fused:
            shapes = list(zip(self.sizes, sources, strict=True))
        self.weights = nn.ParameterList(torch.empty(shape) for shape in shapes)
        self.biased = tuple(part for part in PARTS if part in biases)
        pairs = zip(PARTS, self.sizes, strict=True)
        self.biases = nn.ParameterDict({p: torch.zeros(n) for p, n in pairs if p in biases})
        self.query_norm = nn.RMSNorm(dims[0]) if norm else None
        self.key_norm = nn.RMSNorm(dims[0]) if norm else None
        for weight in self.weights:
            nn.init.xavier_uniform_(weight)

    def forward(
        self, x: Tensor, context: Context | None = None, apply_rotary: Rotary = identity
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, L, D) of ``x``, keys and values (B, H_kv, S, ...) of the context or x.

        Args:
            turn: applied to queries and keys after their norms, at once where there are none;
                without a context.
        """
        if context is not None or not self.fused:
            source = x if context is None else context
            keys_from, values_from = source if isinstance(source, tuple) else (source, source)
            return self.one(x, "query"), self.one(keys_from, "key"), self.one(values_from, "value")
        both, v = self.side_by_side(x)
        counts = [n // self.dims[0] for n in self.sizes[:2]]
        if self.query_norm is None and self.key_norm is None:
            q, k = apply_rotary(both).split(counts, dim=1)
            return q, k, v
        q, k = both.split(counts, dim=1)
        return (
            apply_rotary(self._normed(q, self.query_norm)),
            apply_rotary(self._normed(k, self.key_norm)),
            v,
        )

    def side_by_side(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and after them keys (B, H + H_kv, L, D) of ``x``, without norms, and values; of
        fused projections."""
        weight = self.weights[0]
        self._check(x, weight, "queries, keys and values")
        y = F.linear(x, weight, self._bias(weight))
        counts = [n // self.dims[0] for n in self.sizes[:2]]
        if self.dims[0] == self.dims[2]:
            heads = y.view(*y.shape[:-1], -1, self.dims[0]).transpose(1, 2)
            both, v = heads.split([sum(counts), self.sizes[2] // self.dims[2]], dim=1)
        else:
            parts = zip(
                y.split([sum(self.sizes[:2]), self.sizes[2]], -1), self.dims[1:], strict=True
            )
            both, v = (part.unflatten(-1, (-1, n)).transpose(1, 2) for part, n in parts)
        return both, v

    def keys_and_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (B, H_kv, S, ...) of ``x``, keys with their norm."""
        if not self.fused:
            return self.one(x, "key"), self.one(x, "value")
        weight = self.weights[0][self.sizes[0] :]
        self._check(x, weight, "keys and values")
        y = F.linear(x, weight, self._bias(weight, PARTS[1:]))
        parts = zip(y.split(self.sizes[1:], dim=-1), self.dims[1:], strict=True)
        k, v = (part.unflatten(-1, (-1, n)).transpose(1, 2) for part, n in parts)
        return self._normed(k, self.key_norm), v

    def one(self, x: Tensor, part: Part, *, biased: bool = True) -> Tensor:
        """Output of one of the three projections, with its norm and, if ``biased``, its bias."""
        y = self._linear(x, part, biased).unflatten(-1, (-1, self.dims[PARTS.index(part)]))
        norm = {"query": self.query_norm, "key": self.key_norm, "value": None}[part]
        return self._normed(y.transpose(1, 2), norm)

    def _linear(self, x: Tensor, part: Part, biased: bool) -> Tensor:
        index = PARTS.index(part)
        weight = self.weights[0].split(self.sizes)[index] if self.fused else self.weights[index]
        self._check(x, weight, part)
        return F.linear(x, weight, self.biases[part] if biased and part in self.biased else None)

    def _bias(self, weight: Tensor, parts: Sequence[Part] = PARTS) -> Tensor | None:
        """The biases of ``parts`` side by side, as a fused ``weight`` wants them."""
        if not set(parts) & set(self.biased):
            return None
        sizes = dict(zip(PARTS, self.sizes, strict=True))
        return torch.cat(
            [self.biases[p] if p in self.biased else weight.new_zeros(sizes[p]) for p in parts]
        )

    @staticmethod
    def _normed(heads: Tensor, norm: nn.Module | None) -> Tensor:
        return heads if norm is None else norm(heads)

    def _check(self, x: Tensor, weight: Tensor, part: str) -> None:
        if x.shape[-1] != weight.shape[1]:
            raise ShapeError(
                f"attention makes its {part} from {weight.shape[1]} channels, "
                f"but was given {tuple(x.shape)}"
            )
