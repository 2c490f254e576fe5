"""The fixture ``everyformer_laws``: a model keeps every law, or the test fails with the evidence.

def test_my_model(everyformer_laws):
    everyformer_laws(MyModel(), causal=True)

@pytest.mark.exempt_laws(padding="it reads full rows alone")
def test_my_other_model(everyformer_laws):
    everyformer_laws(MyOtherModel())
"""

from collections.abc import Callable
from typing import Any

import pytest

from everyformer.core.errors import ConfigError


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known."""
    config.addinivalue_line(
        "markers", "exempt_laws(LAW=reason, ...): laws that ``everyformer_laws`` does not try"
    )


@pytest.fixture
def everyformer_laws(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """A function of a module, and of what `everyformer.laws.check` takes: it fails where a law is
    broken, and gives the verdicts."""
    reasons: dict[str, str] = {}
    for mark in request.node.iter_markers("exempt_laws"):
        reasons |= mark.kwargs
    for law, reason in reasons.items():
        if not isinstance(reason, str) or not reason.strip():
            raise ConfigError(f"exempt_laws({law}=...) has no reason: say why that is not tried")

    def keeps(model: Any, **known: Any) -> Any:
        from everyformer.laws.judging import LAWS, check, known_laws

        left_out = known_laws([*reasons]) if reasons else ()
        tried = [law for law in known.pop("laws", ()) or LAWS if law not in left_out]
        verdicts = check(model, laws=tried, **known)
        broken = [one for one in verdicts if one.status == "failed"]
        if broken:
            found = [f"{one.law}: {one.detail}\n\n{one.reproduction}".rstrip() for one in broken]
            pytest.fail(f"{broken[0].member} breaks " + "\n\n".join(found), pytrace=False)
        return verdicts

    return keeps
