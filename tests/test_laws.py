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


def test_a_broken_member_breaks_the_laws(monkeypatch):
    """The laws can fail: a leak of the future, a remembered padding, a wrong scale are seen."""
    from everyformer.mixers.attention import Attention

    honest = Attention.attend

    def leaking(self, q, k, v, visible):
        y = honest(self, q, k, v, visible)
        return (
            y
            + 1e-3 * v.mean(dim=(1, 2))[:, None, : y.shape[-1]].repeat(1, 1, 9)[..., : y.shape[-1]]
        )

    monkeypatch.setattr(Attention, "attend", leaking)
    member = list_members()[0]
    for law in ("equation", "causality", "chunks", "padding"):
        assert check_law(member, law).status == "failed", law
