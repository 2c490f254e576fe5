"""The cases of `helpers.covering`: every two values of different factors meet, in few cases."""

from itertools import combinations

import pytest

from helpers import covering


@pytest.mark.parametrize(
    ("sizes", "most"), [((3, 2), 6), ((12, 2, 5, 3), 60), ((3, 3, 4, 3), 14), ((2,) * 7, 9)]
)
def test_every_two_values_meet_in_hardly_more_cases_than_the_largest_product(
    sizes: tuple[int, ...], most: int
) -> None:
    cases = covering(**{f"factor_{n}": range(size) for n, size in enumerate(sizes)}).args[1]
    for i, j in combinations(range(len(sizes)), 2):
        assert len({(case[i], case[j]) for case in cases}) == sizes[i] * sizes[j]
    assert len(cases) <= most
