"""Every law, for every member of the family."""

import pytest

from everyformer.checks.verify import FULL, LAWS, check_law
from everyformer.family import list_members

REAL = pytest.mark.full("the real compiler takes a minute a member")
EVERY = pytest.mark.full("the first case of each form is captured in `compiles`")
DEAR = pytest.mark.dear("seconds a member, of what is its engine's")
DEAR_LAWS = ("compiles", "cost", "devices", "keeps", "reproducible", "traffic")


@pytest.mark.parametrize(
    "law",
    [
        *(pytest.param(law, marks=DEAR if law in DEAR_LAWS else ()) for law in LAWS),
        pytest.param("compiles-everywhere", marks=EVERY),
        pytest.param("compiles-fully", marks=REAL),
    ],
)
@pytest.mark.parametrize("member", list_members(), ids=lambda m: m.name)
def test_law(member, law):
    result = check_law(member, law)
    assert result.status != "failed", result.detail


def test_all_laws_are_tried():
    assert set(FULL) == {"compiles-everywhere", "compiles-fully"}


@pytest.mark.full("the compiler works for seconds")
@pytest.mark.parametrize("name", ["attention", "aft-local"])
def test_the_real_compiler_agrees_on_a_few_members(name):
    [member] = (member for member in list_members() if member.name == name)
    result = check_law(member, "compiles-fully")
    assert result.status == "held", result.detail
