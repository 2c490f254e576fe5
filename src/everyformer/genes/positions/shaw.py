"""Relative positions of Shaw et al.: a learned vector for every distance, added to keys and values.

    e_ij = q_i (k_j + a^K_r) / sqrt(D),  A = softmax_S(e),  z_i = sum_j A_ij (v_j + a^V_r)
    r = clip(i - j, -right, left)

a^K and a^V hold left + right + 1 vectors (left + 1 where nothing later is seen) from the farthest
past to the farthest future; all distances beyond ``clip`` share the ends. ``clip`` 0 is attention
without positions: one vector for every key.

Nothing of size L x S x D is made: q_i a^K_r is one product with all vectors, laid on the pairs; A
is added up over the pairs of each r before it meets a^V.

Source: Shaw, Uszkoreit, Vaswani 2018, arXiv 1803.02155, eq. 3 to 5. There r is clip(j - i): the
tables here are in the same order, from far left to far right. The paper has a table for each
head and layer in its small models; ``per_head`` chooses, vectors that heads share are the default,
as in tensor2tensor. Start: N(0, 1/D) as there (the paper is silent). Cost: O(L r D) besides
attention's own and two more passes over the pairs.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from everyformer.core.bounds import Affects, Amount, Whole
from everyformer.core.config import Options
from everyformer.core.errors import GeneError
from everyformer.core.position import Sizes, normal_table
from everyformer.core.trials import LENGTH, Make, Pair, Trials, output
from everyformer.engines.softmax.distances import Distances
from everyformer.engines.softmax.pairs import Pairs
from everyformer.engines.softmax.positions import Cap, Parts, ScorePosition
from everyformer.genes.positions import POSITIONS
from everyformer.genes.positions.base import at_zero


@dataclass(frozen=True)
class ShawOptions(Options):
    """Options of `Shaw`."""

    clip: Whole | tuple[Whole, Whole] = 16
    """largest distance with vectors of its own; one number, or one to the left and one to the
    right (a causal mixer has no right side)"""
    keys: bool = True
    """whether vectors are added to the keys"""
    values: bool = True
    """whether vectors are added to the values"""
    per_head: bool = False
    """a table for each head, or one for all heads of a layer"""
    std: Annotated[Amount | None, Affects("nothing")] = None
    """standard deviation of the tables at the start (default: 1/sqrt(D))"""
    gone: ClassVar[dict[str, Any]] = {"queries": False}


def _limits(make: Make) -> list[Pair]:
    """Vectors of zero are none; one vector for all keys changes no weight; far ends may repeat."""
    one = make("attention", position="shaw", position_options={"clip": 0, "values": False})
    plain = make("attention")
    plain.load_state_dict(one.state_dict(), strict=False)
    near = make("attention", position="shaw", position_options={"clip": LENGTH})
    far = make("attention", position="shaw", position_options={"clip": 2 * LENGTH})
    others = {name: t for name, t in near.state_dict().items() if "position" not in name}
    far.load_state_dict(others, strict=False)
    inside, outside = near.get_submodule("position"), far.get_submodule("position")
    with torch.no_grad():
        for name in ("key_table", "value_table"):
            table = inside.get_parameter(name)
            outside.get_parameter(name)[:, LENGTH : LENGTH + table.shape[1]] = table
    return [
        at_zero(make, "shaw", 0.0),
        ("clip 0 on keys is attention", output(one), output(plain)),
        ("clip >= L is no clip", output(near), output(far)),
    ]


@POSITIONS.register("shaw")
class Shaw(ScorePosition):
    """Shaw's relative positions: vectors by distance added to keys and values.

    For softmax attention; any length, any stream.

    Raises:
        GeneError: options under which nothing is added.
    """

    name = "shaw"
    trials = Trials(
        inside=(
            {"clip": (2, 4), "per_head": True},
            {"clip": 3, "keys": False, "window": 5, "kv_heads": 1},
        ),
        limits=_limits,
    )
    adds_to_values = True
    Options = ShawOptions
    options: ShawOptions

    def build(self, sizes: Sizes) -> None:
        o, self.heads, self.causal = self.options, sizes.heads, sizes.causal
        self.key_dim, self.value_dim = sizes.key_dim, sizes.value_dim
        sides = o.clip if isinstance(o.clip, tuple) else (o.clip, o.clip)
        if not (o.keys or o.values):
            raise GeneError("position 'shaw' with `keys=False` and `values=False` adds nothing")
        self.left, self.right = sides[0], 0 if self.causal else sides[1]
        count = self.heads if o.per_head else 1, self.left + self.right + 1
        self.key_table = self._start(*count, self.key_dim) if o.keys else None
        self.value_table = self._start(*count, self.value_dim) if o.values else None

    def prepare(self, pairs: Pairs, scale: float, dtype: torch.dtype) -> Parts:
        tables = (self.key_table, self.value_table)
        return tuple(table.to(dtype) for table in tables if table is not None)

    def cut(self, parts: Parts, pairs: Pairs) -> Parts:
        begin, count = self._window(pairs)
        return tuple(table.narrow(1, begin, count) for table in parts)

    def last(self, q: Tensor, pairs: Pairs, scale: float) -> tuple[Tensor, Tensor] | None:
        if self.key_table is None:
            return None
        begin, count = self._window(pairs)
        wide = torch.promote_types(q.dtype, torch.float32)
        table = self.key_table.to(wide).narrow(1, begin, count)
        by_query = (q.to(wide) * scale) @ table.mT
        return q, pairs.widen(by_query, self.left - begin)

    def distances(self, q: Tensor, pairs: Pairs, scale: float) -> Distances | None:
        vectors, values = (
            None if table is None else pairs.widen(table, self.left, 1)[:, : pairs.seen]
            for table in (self.key_table, self.value_table)
        )
        return Distances(q * scale, vectors=vectors, values=values)

    def score(self, products: Tensor, q: Tensor, k: Tensor, parts: Parts, pairs: Pairs) -> Tensor:
        if not self.options.keys:
            return products
        by_query = q @ parts[0].transpose(-1, -2)
        begin, _ = self._window(pairs)
        return products.add_(pairs.lay(pairs.widen(by_query, self.left - begin)))

    def values(self, weights: Tensor, parts: Parts, pairs: Pairs) -> Tensor | None:
        if not self.options.values:
            return None
        begin, count = self._window(pairs)
        by_distance = pairs.narrowed(pairs.collect(weights), self.left - begin, count)
        return by_distance @ parts[-1].to(weights.dtype)

    def reference(
        self, q: Tensor, k: Tensor, distance: Tensor, head: int, scale: float, cap: Cap
    ) -> Tensor:
        scores = cap(scale * (k @ q[:, :, None]).squeeze(-1))
        if self.key_table is None:
            return scores
        added = self._of_head(self.key_table, head, distance).to(q.dtype)
        return scores + scale * (added * q[:, None]).sum(-1)

    def literal_values(self, weights: Tensor, distance: Tensor, head: int) -> Tensor | None:
        if self.value_table is None:
            return None
        added = self._of_head(self.value_table, head, distance).to(weights.dtype)
        return (weights[..., None] * added).sum(-2)

    def _start(self, heads: int, count: int, size: int) -> nn.Parameter:
        std = size**-0.5 if self.options.std is None else self.options.std
        return normal_table(heads, count, size, std=std)

    def _of_head(self, table: Tensor, head: int, distance: Tensor) -> Tensor:
        return table[head if self.options.per_head else 0][self._rows(distance)]

    def _window(self, pairs: Pairs) -> tuple[int, int]:
        """Rows of the tables for a block's distances: the first, and their number."""
        count = self.left + self.right + 1
        begin = self.left - pairs.farthest
        if torch.compiler.is_compiling() or begin >= count:
            return 0, count
        end = min(count, max(begin + pairs.columns, 1))
        return max(begin, 0), end - max(begin, 0)

    def _rows(self, distance: Tensor) -> Tensor:
        """Rows of the tables for distances i - j of any shape."""
        return self.left - distance.clamp(-self.right, self.left)
