"""Every law, for every member of the family."""

import pytest

from everyformer.family import list_members
from everyformer.verification.verify import LAWS, check_law


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("member", list_members(), ids=lambda m: m.name)
def test_law(member, law):
    result = check_law(member, law)
    assert result.status != "failed", result.detail


def test_the_real_compiler_agrees_on_a_few_members():
    for member in list_members():
        if member.name in ("attention", "aft-local"):
            result = check_law(member, "compiles-fully")
            assert result.status == "held", result.detail
