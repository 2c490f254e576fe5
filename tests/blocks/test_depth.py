"""A stack applies its blocks as its depth says: weights by block, states and outputs by step."""

from typing import Any

import pytest
import torch
from torch import Tensor

from everyformer.blocks.depth import Depth
from everyformer.blocks.options import BlockOptions
from everyformer.blocks.passing import AllTokens, LayerSchedule, StackRun, Steps
from everyformer.blocks.stack import Stack
from everyformer.genes.positions.learned_per_layer import LearnedPerLayer
from everyformer.genes.residuals import RESIDUALS
from helpers import both_ways, build_mixer, draw, feeds, in_pieces

WIDTH, ORDER = 12, (0, 1, 1, 0, 1)


class Given(Depth):
    """The blocks in a given order."""

    def steps(self, blocks: int) -> Steps:
        return [(n,) for n in ORDER]

    def schedule(self, given: StackRun, x: Tensor) -> LayerSchedule:
        return AllTokens(given)


def build(residual: str, dropout: float = 0.0) -> Stack:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"width": WIDTH, "heads": 3, "causal": True}
    mixers = [build_mixer("attention", **sizes) for _ in range(2)]
    tables = [LearnedPerLayer(width=WIDTH, max_length=16, heads=3) for _ in range(2)]
    options, how = BlockOptions(dropout=dropout), RESIDUALS.get(residual)()
    feed = feeds(dropout=dropout)
    return Stack(mixers, WIDTH, options, how, Given(), feed, position=tables).double()


@pytest.mark.parametrize("residual", ["pre", "post"])
def test_blocks_are_applied_in_the_order_that_depth_gives(residual: str) -> None:
    stack, x = build(residual).eval(), draw(2, 7, WIDTH)
    out = stack(x, taps=("block-output:1", "block-output:3", "block-output:5"))
    h, steps = x, []
    for n in ORDER:
        table: Any = stack.before[n]
        h = stack.blocks[n](h + table.table[:7]).y
        steps.append(h)
    torch.testing.assert_close(out.y, stack.norm(h), rtol=0, atol=1e-12)
    torch.testing.assert_close([*out.taps.values()], steps[::2], rtol=0, atol=1e-12)


@pytest.mark.parametrize("residual", RESIDUALS.names())
def test_every_step_has_a_state_of_its_own(residual: str) -> None:
    stack, x = build(residual).eval(), draw(2, 9, WIDTH)
    state = stack.init_state(2, dtype=torch.float64)
    assert len(state.layers) == len(ORDER)
    parts, _ = in_pieces(stack, x, [4, 1, 4], state)
    torch.testing.assert_close(parts, stack(x).y, rtol=0, atol=1e-12)


def test_a_block_that_is_applied_often_gets_the_sum_of_its_gradients() -> None:
    stack = build("reversible", dropout=0.3).train()
    x = draw(2, 7, WIDTH).requires_grad_()

    def gradients() -> tuple[Tensor | None, ...]:
        out = stack(x, taps=("block-output:2",))
        total = out.y.square().sum() + out.taps["block-output:2"].sum()
        return torch.autograd.grad(total, [x, *stack.parameters()], allow_unused=True)

    torch.testing.assert_close(*both_ways(gradients), rtol=0, atol=1e-10)
