"""Seeds of several numbers: no two uses share them, and they are the same everywhere."""

from everyformer.core.seeds import mixed


def test_parts_are_told_apart_and_their_order_counts() -> None:
    uses = [(1, 23), (12, 3), (123,), (3, 12), (1, 2, 3), ("a", 1), (0,), (0, 0)]
    seeds = [mixed(*use) for use in uses]
    assert len({*seeds}) == len(uses)
    assert all(0 <= seed < 1 << 63 for seed in seeds)


def test_a_seed_is_the_same_in_every_process() -> None:
    assert mixed(0, 1) == 4414527679803055650
