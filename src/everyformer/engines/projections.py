"""Queries, keys and values: the projections into heads, fused where the sources agree."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from everyformer.core.errors import ShapeError
from everyformer.core.mixer import Context

Part = Literal["query", "key", "value"]
PARTS: tuple[Part, ...] = ("query", "key", "value")


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
        self.biases = nn.ParameterDict(
            {p: torch.zeros(n) for p, n in zip(PARTS, self.sizes, strict=True) if p in biases}
        )
        self.query_norm = nn.RMSNorm(dims[0]) if norm else None
        self.key_norm = nn.RMSNorm(dims[0]) if norm else None
        for weight in self.weights:
            nn.init.xavier_uniform_(weight)

    def forward(self, x: Tensor, context: Context | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, L, D) of ``x``, keys and values (B, H_kv, S, ...) of the context or x."""
        if context is not None or not self.fused:
            source = x if context is None else context
            keys_from, values_from = source if isinstance(source, tuple) else (source, source)
            return self.one(x, "query"), self.one(keys_from, "key"), self.one(values_from, "value")
        bias = None
        if len(self.biases):
            pairs = zip(PARTS, self.sizes, strict=True)
            bias = torch.cat([self.biases.get(part, x.new_zeros(n)) for part, n in pairs])
        self._check(x, self.weights[0], "queries, keys and values")
        q, k, v = F.linear(x, self.weights[0], bias).split(self.sizes, dim=-1)
        return self._split(q, "query"), self._split(k, "key"), self._split(v, "value")

    def one(self, x: Tensor, part: Part) -> Tensor:
        """One of the three alone, with its norm."""
        index = PARTS.index(part)
        weight = self.weights[0].split(self.sizes)[index] if self.fused else self.weights[index]
        self._check(x, weight, part)
        return self._split(F.linear(x, weight, self.biases.get(part, None)), part)

    def _split(self, x: Tensor, part: Part) -> Tensor:
        heads = x.unflatten(-1, (-1, self.dims[PARTS.index(part)])).transpose(1, 2)
        norm = {"query": self.query_norm, "key": self.key_norm, "value": None}[part]
        return heads if norm is None else norm(heads)

    def _check(self, x: Tensor, weight: Tensor, part: str) -> None:
        if x.shape[-1] != weight.shape[1]:
            raise ShapeError(
                f"attention makes its {part} from {weight.shape[1]} channels, "
                f"but was given {tuple(x.shape)}"
            )
