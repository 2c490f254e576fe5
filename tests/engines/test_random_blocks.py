"""The list that is kept of a random order: for any length it gives what the whole order gives."""

import pytest
import torch

from everyformer.engines.sparse.random_blocks import Rules, random_edges, shortlist, uniform_order

BLOCKS, HEADS, LENGTHS = 160, 2, (160, 131, 60, 17, 5, 2)
CASES = [
    (3, Rules(1, (0, -1), False)),
    (3, Rules(1, (0,), True)),
    (2, Rules(2, (1, -2, -3), False)),
    (1, Rules(0, (), False)),
    (4, Rules(1, (), True)),
]


def walked(order: list[list[list[int]]], count: int, rules: Rules, length: int) -> set[tuple]:
    """Of each row the first blocks of its order that are there, neither near nor global."""
    always = {block if block >= 0 else length + block for block in rules.always}
    edges = set()
    for head, rows in enumerate(order):
        for row in set(range(length)) - always:
            able = [block for block in rows[row] if block < length and block not in always]
            far = {b: row - b if rules.causal else abs(row - b) for b in able}
            able = [block for block in able if far[block] > rules.half]
            edges |= {(head, row, block) for block in able[:count]}
    return edges


@pytest.mark.parametrize(("count", "rules"), CASES)
def test_every_length_takes_the_first_blocks_of_the_order(count: int, rules: Rules) -> None:
    order = uniform_order(HEADS, BLOCKS, seed=3)
    kept = shortlist(order, count, rules)
    assert kept.shape[-1] < BLOCKS // 2
    found = random_edges(kept, count, rules, BLOCKS, torch.tensor(LENGTHS))
    for drawn, length in zip(found, LENGTHS, strict=True):
        expected = walked(order.tolist(), count, rules, length)
        assert {tuple(edge) for edge in drawn.nonzero().tolist()} == expected
