"""Every law, for every member of the family: cheap ones of all, dear ones of representatives.

The default tier tries the first case of each form; with ``--full`` all cases are tried.
"""

import pytest

from everyformer.checks.verify import FULL, LAWS, check_law
from everyformer.family import info, list_members

DEAR = pytest.mark.dear("seconds a member, of what is its engine's")
DEAR_LAWS = ("compiles", "cost", "determinism", "devices", "saving", "traffic")


@pytest.mark.parametrize(
    "law", [pytest.param(law, marks=DEAR if law in DEAR_LAWS else ()) for law in LAWS]
)
@pytest.mark.parametrize("member", list_members(), ids=lambda m: m.name)
def test_law(member, law):
    result = check_law(member, law, few=True)
    assert result.status != "failed", result.detail


@pytest.mark.full("the first cases are tried every time", parts=20)
@pytest.mark.parametrize("law", [law for law in LAWS if law not in ("cost", "traffic", "limits")])
@pytest.mark.parametrize("member", list_members(), ids=lambda m: m.name)
def test_law_of_every_case(member, law):
    result = check_law(member, law)
    assert result.status != "failed", result.detail


@pytest.mark.full("minutes a member", parts=20)
@pytest.mark.parametrize("law", FULL)
@pytest.mark.parametrize("member", list_members(), ids=lambda m: m.name)
def test_law_of_the_compiler(member, law):
    result = check_law(member, law)
    assert result.status != "failed", result.detail


@pytest.mark.full("the compiler works for seconds")
@pytest.mark.parametrize("name", ["attention", "aft-local"])
def test_the_real_compiler_agrees_on_a_few_members(name):
    result = check_law(info(name), "compiles-fully")
    assert result.status == "held", result.detail
