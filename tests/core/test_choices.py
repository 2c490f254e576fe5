"""What was chosen can be kept and repeated, in order, and only there."""

import pytest
import torch

from everyformer.core.choices import choose, keep_choices, recomputed, repeat_choices


def test_choices_are_kept_in_order_and_repeated_without_being_made():
    with keep_choices() as kept:
        first = [choose(lambda n=n: torch.tensor(n)) for n in range(3)]
    assert [int(t) for t in kept] == [0, 1, 2] == [int(t) for t in first]
    with repeat_choices(kept):
        again = [choose(pytest.fail) for _ in range(3)]
    assert all(a is b for a, b in zip(first, again, strict=True))
    assert int(choose(lambda: torch.tensor(7))) == 7


def test_a_repetition_inside_another_ends_where_it_ends():
    with repeat_choices([torch.tensor(1), torch.tensor(2)]):
        with repeat_choices([torch.tensor(5)]), keep_choices() as kept:
            assert int(choose(pytest.fail)) == 5
        assert int(choose(pytest.fail)) == 1
    assert [int(t) for t in kept] == [5]
    with pytest.raises(ZeroDivisionError), keep_choices():
        choose(lambda: 1 / 0)
    assert int(choose(lambda: torch.tensor(3))) == 3
    # what is made again is repeated as often as it is
    first, later = recomputed()
    with first:
        kept = [choose(lambda n=n: torch.tensor(n)) for n in range(2)]
    for _ in range(2):
        with later:
            again = [choose(pytest.fail) for _ in range(2)]
        assert all(a is b for a, b in zip(kept, again, strict=True))
